"""`blis-jax models`, `gpus`, …: every name that commands take has a line that says what it is."""

from __future__ import annotations

import pytest

from blis_jax.commands.door.dispatch import main
from blis_jax.latency.registry import known_models, lookup
from blis_jax.metrics.metric import METRICS
from blis_jax.policies import registry
from sweeps.lists import LISTS
from sweeps.runs.requests import list_workloads
from sweeps.strategies.arms import list_names


def pairs(name: str) -> dict[str, str]:
    return {one: words for group in LISTS[name].groups().values() for one, words in group}


@pytest.mark.parametrize("name", LISTS)
def test_every_name_has_one_line_that_says_what_it_is(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([name]) == 0
    shown = capsys.readouterr().out
    for one, words in pairs(name).items():
        assert one in shown and words.strip()


def test_the_lists_are_complete() -> None:
    assert set(list_names()) == set(pairs("strategies"))
    assert set(list_workloads()) <= set(pairs("workloads"))
    assert set(METRICS) <= set(pairs("metrics"))
    assert set(known_models()) <= set(pairs("models"))
    assert {name for names in registry.NAMES.values() for name in names} <= set(pairs("policies"))


def test_a_fitted_pair_can_be_looked_up() -> None:
    line = pairs("models")["meta-llama/llama-3.1-8b-instruct"]
    assert line == "fitted: A100-80 × 1, 2, 4; H100 × 1, 2, 4; described"
    assert lookup("meta-llama/llama-3.1-8b-instruct", "A100-80", 4).tp == 4
    assert pairs("models")["qwen/qwen3-14b"] == "fitted: H100 × 1; described"
    assert pairs("models")["meta-llama/llama-3.1-70b-instruct"] == "described"
    assert pairs("gpus")["H200"].startswith("described: ")


def test_a_word_keeps_the_lines_that_have_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["gpus", "h2"]) == 0
    assert capsys.readouterr().out.splitlines()[0].startswith("H200 ")
    assert main(["strategies", "vlm"]) == 2
    assert (
        "no line of strategies has the text 'vlm'; did you mean 'vllm'?" in capsys.readouterr().err
    )
    assert main(["policies", "routing_scorers"]) == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in registry.NAMES["scorer"]) and "least-loaded" not in shown
    assert main(["policies", "--numbers"]) == 0
    assert "| policy | number | meaning |" in capsys.readouterr().out

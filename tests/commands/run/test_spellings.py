"""The names that every other command has for BLIS's options: `run` understands both."""

from __future__ import annotations

import argparse
from typing import Any

import pytest

from blis_jax import run
from blis_jax.commands import values
from blis_jax.commands.run.flags import make_parser
from blis_jax.commands.run.workload import with_workload_spec
from blis_jax.errors import ConfigError


def given(*words: str) -> dict[str, Any]:
    return with_workload_spec(make_parser().given(words))


def test_output_is_the_results_path() -> None:
    assert (
        given("--output", "a.json")
        == given("--results-path", "a.json")
        == {"results_path": "a.json"}
    )
    with pytest.raises(ConfigError, match="--output: --results-path is given too"):
        given("--results-path", "a.json", "--output", "b.json")


@pytest.mark.parametrize("name", ["mixed", "mine.yaml", "folder/mine"])
def test_a_workload_that_blis_lacks_is_a_workload_spec(name: str) -> None:
    assert given("--workload", name) == given("--workload-spec", name) == {"workload_spec": name}


def test_blis_workloads_stay_what_they_are() -> None:
    assert given("--workload", "chatbot") == {"workload": "chatbot"}
    both = {"workload": "distribution", "workload_spec": "mixed"}
    assert given("--workload", "distribution", "--workload-spec", "mixed") == both


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--workload", "mixd"), "--workload: 'mixd' is not known; use one of chatbot, "),
        (("--workload", "mixd"), "did you mean 'mixed'?"),
        (("--workload", "mixed", "--workload-spec", "mixed"), "--workload-spec is given too"),
        (("--workload", "mixed", "--trace", "t.csv"), "--trace and --workload-spec are both given"),
    ],
)
def test_a_workload_that_is_no_workload(
    words: tuple[str, ...], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run.main(["--model", "meta-llama/llama-3.1-8b-instruct", *words]) == 2
    assert sentence in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "value"), [("0x10", 16), ("2_0", 20), ("-0b11", -3), ("0o17", 15)]
)
def test_whole_numbers_in_the_spellings_of_the_reference(text: str, value: int) -> None:
    assert values.whole(text) == value


@pytest.mark.parametrize("text", ["010", "00", "2__0", "0x", "1e3", "0xg", " 1", "9" * 80])
def test_whole_numbers_that_are_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match=r"whole number|base 8"):
        values.whole(text)

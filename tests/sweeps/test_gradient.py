"""The command for smoothed gradients: its table, its file, its refusals."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from sweeps.gradient import _widths, main
from tests.sweeps.tiny import TINY


def test_table_and_file(strategy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = strategy.with_suffix(".json")
    words = f"--perturb max_num_scheduled_tokens=20 --metrics ttft_mean_ms --pairs 3 --num-seeds 4 --output {output}"
    assert main([f"{strategy}:max_num_scheduled_tokens=700", *words.split()]) == 0
    printed = capsys.readouterr().out
    assert "ttft_mean_ms  max_num_scheduled_tokens  ms " in printed
    found = json.loads(output.read_text())
    (row,) = found["gradients"]
    assert found["seeds"] == [42, 43, 44, 45]
    assert row["num_pairs"] == 3 and row["num_seeds"] == 4
    assert row["standard_error"] ** 2 == pytest.approx(
        row["variance_of_seeds"] + row["variance_of_draws"]
    )


def test_a_file_fixes_the_number_of_requests(strategy: Path) -> None:
    """As `--num-requests` does; the workload of the file has 40."""
    cluster = "--model meta-llama/llama-3.1-8b-instruct --num-instances 2"
    requests = "--num-requests 12"
    words = "--perturb max_num_scheduled_tokens=20 --metrics ttft_mean_ms --pairs 2 --seeds 2"
    documents = []
    for fixed, more in ((cluster, requests), (f"{cluster} {requests}", "")):
        content = yaml.safe_load(TINY)
        del content["mechanism"], content["parameters"]
        strategy.write_text(yaml.safe_dump(content | {"fixed_args": fixed.split()}))
        output = strategy.with_suffix(".json")
        arm = f"{strategy}:max_num_scheduled_tokens=700"
        call = f"{words} {more} --output {output} --overwrite"
        assert main([arm, *call.split()]) == 0
        documents.append(json.loads(output.read_text()))
    assert documents[0] == documents[1]


def test_widths_are_read() -> None:
    assert _widths("slo_age_weight=0.2:log,slo_base_critical=1") == [
        ("slo_age_weight", 0.2, True),
        ("slo_base_critical", 1.0, False),
    ]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "no arm is given"),
        (["iter00_baseline"], "nothing to perturb"),
        (["iter00_baseline", "--perturb", "tokens"], "is not NAME=WIDTH"),
        (["iter00_baseline", "--perturb", "a=1:exp"], "is not NAME=WIDTH"),
        (["iter00_baseline", "--perturb", "scheduler=1"], "cannot be perturbed"),
        (["iter00", "--perturb", "slo_base_critical=1"], "is unknown"),
        (
            ["iter00_baseline", "--perturb", "slo_base_critical=1", "--metrics", "ttft"],
            "is unknown",
        ),
        (
            ["iter00_baseline", "--perturb", "slo_base_critical=1", "--num-seeds", "1"],
            "2 is the least: give more",
        ),
    ],
)
def test_bad_calls_end_in_one_sentence(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    said = capsys.readouterr().err
    assert message in said and said.count("\n") == 1


def test_help_has_examples(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    assert "examples:" in capsys.readouterr().out

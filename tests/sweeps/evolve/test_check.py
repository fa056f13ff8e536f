"""`blis-jax evolve check`: the gain on new seeds beside the published one, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from blis_jax.commands.door.dispatch import main
from blis_jax.core.outcome import Outcome
from blis_jax.metrics.run_summary import RunSummary
from blis_jax.statistics.intervals import Inference
from sweeps.evolve.score import RunPair, gain, reached
from sweeps.evolve.task import load_task
from sweeps.runs.experiment import Experiment
from sweeps.runs.measured import metric_values
from sweeps.runs.requests import StudyRequests
from tests.support.evolve.programs import whole
from tests.support.evolve.tasks import program_file, task_file

WEIGHTS = {"e2e_mean_ms": 0.5, "e2e_p95_ms": 0.5}


def check(folder: Path, *words: str) -> int:
    return main(["evolve", "check", *words, "--output", str(folder / "check.json"), "--overwrite"])


def test_one_busy_instance_is_worse_than_two(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    guards = "[{metric: e2e_p95_ms, direction: min, change_percent: 1}]"
    task = task_file(tmp_path, published="11.5", guards=guards)
    program = program_file(tmp_path)
    assert check(tmp_path, str(program), str(task), "--seeds", "6", "--first-seed", "7") == 0
    printed = capsys.readouterr().out
    answer = printed.split("\n\n")[0].split("\n")
    lines = [line.split(":")[0] for line in answer if line[:1].strip()]
    assert lines == ["Cluster", "Asked", "Verdict", "Sure", "Price", "Next"]
    said = " ".join(printed.split())
    assert "6 seeds (7 to 12)" in said and "Published is +11.5 %" in said
    assert "None of the 15 sets of 2 new seeds reaches" in said
    assert "Verdict: Worse" in said and "Guard missed: e2e_p95_ms on mixed" in said
    found = json.loads((tmp_path / "check.json").read_text())
    assert found["gain"]["mean"] == pytest.approx(_gain_by_hand(task, program, tuple(range(7, 13))))
    assert found["gain_on_search_seeds"]["mean"] == pytest.approx(
        _gain_by_hand(task, program, (42, 456))
    )


def _gain_by_hand(task: Path, program: Path, seeds: tuple[int, ...]) -> float:
    loaded = load_task(task)
    scores = []
    for policy, scorers in (("round-robin", ""), (f"{program}:route", loaded.base.routing_scorers)):
        config = loaded.base.replace(routing_policy=policy, routing_scorers=scorers)
        source = loaded.requests[0].source
        (runs,) = Experiment.on(source, seeds, "reference", tuple(WEIGHTS)).run([config])
        scores.append(sum(0.5 * np.mean(metric_values(runs, name)) for name in WEIGHTS))
    return 100 * (1 - scores[1] / scores[0])


def test_a_go_program_is_checked_as_its_policy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("tree_sitter_go", reason="the extra evolve reads Go")
    (tmp_path / "routing.go").write_text(whole("ties"))
    task = task_file(tmp_path, seeds="[42]")
    assert check(tmp_path, str(tmp_path / "routing.go"), str(task), "--seeds", "3") == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "Is routing.go better than round-robin on 3 seeds (1000 to 1002)" in said
    assert "Verdict: No difference is sure" in said and "3 seeds give no verdict" in said
    assert "Give 6 or more" in said


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--seeds", "3", "--first-seed", "456"), "the search used seeds 456"),
        (("--seeds", "1,2,42"), "the search used seeds 42"),
        (("--seeds", "2"), "2 runs are too few"),
        (("--first-seed", "7"), "nothing says how many seeds follow"),
        (("--seeds", "some"), "neither a number of seeds nor a list"),
    ],
)
def test_seeds_that_are_refused(
    words: tuple[str, ...], sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert check(tmp_path, str(program_file(tmp_path)), str(task_file(tmp_path)), *words) == 2
    assert sentence in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("x = 1\n", "no function is decorated with @routing_policy()"),
        ("x = (1\n", "program.py:1: not Python"),
        (
            "from blis_jax.policies import routing_policy\n\n\n@routing_policy()\ndef one(params, state, context):\n"
            "    return 0, state\n\n\n@routing_policy()\ndef two(params, state, context):\n    return 0, state\n",
            "several policies, one, two; give program.py:NAME",
        ),
    ],
)
def test_programs_that_are_refused(
    text: str, sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program = tmp_path / "program.py"
    program.write_text(text)
    assert check(tmp_path, str(program), str(task_file(tmp_path))) == 2
    assert sentence in capsys.readouterr().err


def _runs(values: list[float]) -> list[RunSummary]:
    return [
        RunSummary(Outcome.COMPLETED, {"e2e_mean_ms": value, "e2e_p95_ms": value})
        for value in values
    ]


def test_the_gain_is_of_means_over_seeds_and_then_over_workloads(tmp_path: Path) -> None:
    requests: StudyRequests = load_task(task_file(tmp_path)).requests[0]
    pairs = [
        RunPair(requests, _runs([10.0, 30.0]), _runs([5.0, 5.0])),  # 75 %
        RunPair(requests, _runs([2.0, 2.0]), _runs([3.0, 2.0])),  # -25 %
    ]
    assert gain(pairs, WEIGHTS, Inference()).mean == pytest.approx(25.0)
    assert reached(pairs, WEIGHTS, 1, 20.0) == (1, 2)  # of 0 % and 41.7 %
    assert reached(pairs, WEIGHTS, 3, 20.0) == (0, 0)

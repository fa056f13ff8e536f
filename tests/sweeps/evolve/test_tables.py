"""Programs of a search as tables: none is compiled, equal ones cost nothing; others are compiled, and it is said."""

from __future__ import annotations

from pathlib import Path

import pytest

from sweeps.evolve.score import TaskEvaluator
from tests.support.evolve.tasks import PROGRAM, task_file

EXACT = "load - exact_product(3.0, context.scores)"
SAME = "jnp.where(load >= 0.0, load, load) - exact_product(context.scores, 1.0 + 2.0)"
OTHER = "exact_product(load, 1.0 + context.snapshots.kv_utilization)"
PLAIN = "load - 3.0 * context.scores"


@pytest.fixture
def evaluator(tmp_path: Path) -> TaskEvaluator:
    return TaskEvaluator(task_file(tmp_path, baseline="weighted"), tmp_path / "programs")


def answer(evaluator: TaskEvaluator, score: str, stage: str = "all") -> dict:
    answered = evaluator.answer(PROGRAM.format(score=score), ".py", stage)
    assert "error" not in answered["artifacts"], answered["artifacts"]
    return answered


def test_a_new_program_compiles_nothing_and_an_equal_one_runs_nothing(
    evaluator: TaskEvaluator,
) -> None:
    runner = evaluator.runs.runner
    compiled = set(runner.compiled)
    first = answer(evaluator, EXACT)
    assert "notes" not in first["artifacts"]
    count = runner.timing.num_rows
    assert answer(evaluator, SAME)["metrics"] == first["metrics"]
    assert runner.timing.num_rows == count
    assert answer(evaluator, OTHER)["metrics"] != first["metrics"]
    assert runner.timing.num_rows == count + 2  # of two seeds
    assert runner.compiled == compiled and evaluator.num_compiled == 0


def test_figures_are_those_of_the_compiled_program(
    evaluator: TaskEvaluator, tmp_path: Path
) -> None:
    other = tmp_path / "compiled"
    other.mkdir()
    task = task_file(other, baseline="weighted", compile_programs="true")
    compiling = TaskEvaluator(task, other / "programs")
    alone = answer(compiling, EXACT)
    assert alone == answer(evaluator, EXACT)
    assert compiling.num_compiled == 2  # the baseline too


def test_a_program_without_a_table_is_compiled_and_it_is_said(evaluator: TaskEvaluator) -> None:
    answered = answer(evaluator, PLAIN)
    assert (
        "compiled: the routing policy route: a product that enters a sum"
        in (answered["artifacts"]["notes"])
    )
    assert evaluator.num_compiled == 1
    assert answered["metrics"]["combined_score"] == pytest.approx(
        answer(evaluator, EXACT)["metrics"]["combined_score"]
    )

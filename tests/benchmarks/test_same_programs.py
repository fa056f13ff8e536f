"""Programs of two sides: what counts as the same, what as changed."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import __main__ as command
from benchmarks.speed.against import REPO, Found, compare_programs, compared, program_table

PROGRAM = [
    "func.func private @body_3(%arg0: tensor<i32>) -> tensor<i32> {",
    "  %12 = stablehlo.add %arg0, %arg0 : tensor<i32>",
    "  return %12 : tensor<i32>",
]


def test_the_same_lines_are_the_same_program() -> None:
    found = compared("a-case", Found(PROGRAM), Found(list(PROGRAM)))
    assert found.is_same and found.num_own == (0, 0)


def test_other_numbers_of_values_are_told_from_other_operations() -> None:
    shifted = [line.replace("%12", "%13").replace("@body_3", "@body_4") for line in PROGRAM]
    found = compared("a-case", Found(PROGRAM), Found(shifted))
    assert not found.is_same and found.num_own == (0, 0)
    more = [*PROGRAM[:2], "  %13 = stablehlo.negate %12 : tensor<i32>", PROGRAM[2]]
    found = compared("a-case", Found(PROGRAM, 1_959), Found(more, 1_960))
    assert (found.num_lines, found.num_own) == ((3, 4), (0, 1))
    assert "| `a-case` | 3 | 4 | 0 | 1 | changed | 1,959 | 1,960 |" in program_table(
        "before", [found]
    )


@pytest.mark.slow
def test_a_tree_beside_itself_is_the_same() -> None:
    found = compare_programs("single-baseline", (REPO, REPO), Path(), {})
    assert found.is_same and 0 < found.num_calls[0] == found.num_calls[1]


def test_programs_need_another_revision(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--programs"]) == 2
    assert "--programs goes with --against" in capsys.readouterr().err

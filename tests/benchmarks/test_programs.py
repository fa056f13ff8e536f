"""What programs of a search cost: the programs differ, and a row says what was measured."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from benchmarks.programs import Cost, programs, task_file
from sweeps.evolve.go.reader import policy_of
from sweeps.evolve.go.source import read

pytest.importorskip("tree_sitter_go", reason="the extra `evolve` is not installed")


def test_programs_differ_and_are_vectors(tmp_path: Path) -> None:
    texts = list(programs())
    assert len(set(texts)) == len(texts) > 12
    path = tmp_path / "program.go"
    path.write_text(texts[0])
    assert "GoRouter(context, state)" in policy_of(read(path))


def test_a_row_has_programs_a_minute_on_one_core_and_on_two() -> None:
    row = Cost("new", (1.0, 3.0), 6, "beside").row
    assert row == ("new", 2, "2.00", "1.00 to 3.00", "6", "30 to 60", "beside")


def test_the_task_has_the_shape_of_set_c(tmp_path: Path) -> None:
    task = yaml.safe_load(task_file(tmp_path, None, 1500).read_text())
    assert len(task["workloads"]) == 3 and len(task["seeds"]) == 8
    assert task["num_requests"] == 1500

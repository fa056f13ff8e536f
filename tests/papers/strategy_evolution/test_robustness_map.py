"""Figure 10's data from the table of a robustness map."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from papers.strategy_evolution.figures.robustness_map import main

HEADER = "rate,arrival_cv,kv_blocks,kv_cpu_blocks,instances,shape,step_constant,recommended\n"


def cells(folder: Path, *recommended: str) -> Path:
    """A table of cells at two rates in turns."""
    path = folder / "map.csv"
    lines = [
        f"{(500, 2000)[row % 2]},1,5000,0,8,mixed,6910,{name}\n"
        for row, name in enumerate(recommended)
    ]
    path.write_text(HEADER + "".join(lines))
    return path


def test_recommendations_are_counted_by_value(tmp_path: Path) -> None:
    path = cells(tmp_path, "found", "tuned", "found", "undecided", "baseline", "tuned")
    assert main([str(path), "--data", str(tmp_path)]) == 0
    with (tmp_path / "robustness_map.csv").open() as file:
        rows = {(row["axis"], row["x"], row["recommended"]): row for row in csv.DictReader(file)}
    assert (
        rows["rate", "500", "found"]["mean"] == "2" and rows["rate", "2000", "found"]["mean"] == "0"
    )
    assert float(rows["rate", "2000", "tuned"]["percent"]) == pytest.approx(66.667)
    assert rows["shape", "mixed", "undecided"]["mean"] == "1"
    assert rows["instances", "all", "all"]["mean"] == "6"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (HEADER + "500,1,5000,0,8,mixed,6910,mine\n", "recommends 'mine'; the figure knows"),
        ("a,b\n1,2\n", "has no column rate"),
        (None, "is no file; give the .csv"),
    ],
)
def test_other_tables_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str | None, says: str
) -> None:
    path = tmp_path / "map.csv"
    if text is not None:
        path.write_text(text)
    assert main([str(path), "--data", str(tmp_path)]) == 2
    assert says in capsys.readouterr().err
    assert not list(tmp_path.glob("robustness*"))

"""A robustness map's page: a cell each, numbers of the map, and what is recommended."""

from __future__ import annotations

from pathlib import Path

import pytest

from sweeps.reports.robustness import MOST_CELLS, study_of, write_report
from sweeps.robustness.question import Question
from sweeps.robustness.verdict import answer
from tests.sweeps.robustness.made_map import cell, made_map

BASE = (100.0, 500.0, 17_000.0)


def test_every_cell_has_its_differences_and_its_recommendation(tmp_path: Path) -> None:
    pytest.importorskip("vl_convert", reason="the extra `report` is not installed")
    dataset = made_map(
        [cell(BASE, (80.0, 520.0, 17_000.0), rate=rate) for rate in (1000.0, 2000.0)]
    )
    dataset.attrs["reference_cell"] = '{"rate": 2000.0}'
    question = Question()
    verdicts = answer(dataset, question)
    study = study_of(dataset, verdicts, question, ["one line"])
    assert sorted(study.places) == ["rate 1,000 requests/s", "rate 2,000 requests/s"]
    assert study.places[0] == "rate 2,000 requests/s"  # the reference cell comes first
    critical = [one for one in study.differences if one.slo_class == "critical"]
    assert len(critical) == 2 and {one.verdict for one in critical} == {"better"}
    assert critical[0].percent.mean == pytest.approx(-20.0)
    assert all("tuned" in line for line in study.more["What is recommended"])
    write_report(dataset, verdicts, question, ["one line"], tmp_path / "map.html")
    assert "rate 1,000 requests/s" in (tmp_path / "map.html").read_text(encoding="utf-8")


def test_a_large_map_shows_some_cells_and_says_so() -> None:
    rates = [500.0 + step for step in range(MOST_CELLS + 20)]
    dataset = made_map([cell(BASE, (80.0, 520.0, 17_000.0), rate=rate) for rate in rates])
    study = study_of(dataset, answer(dataset, Question()), Question(), [])
    assert len(study.places) == MOST_CELLS
    assert f"The page has {MOST_CELLS} of them" in study.lead

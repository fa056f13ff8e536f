"""The page of results is what the command makes of the tables that come with the package."""

from __future__ import annotations

import csv
import math
from pathlib import Path

import pytest

from papers.corrected import profiles
from papers.corrected.__main__ import main
from papers.corrected.profiles import PARTS, VERDICTS
from papers.pages import rows_of
from papers.routing_evolution.record import RECORD as ROUTING
from papers.strategy_evolution.record import RECORD as SCHEDULING
from tests.support.recorded.reference_data import REPO_ROOT

PAGE = REPO_ROOT / "docs" / "results" / "corrected-record.md"
DATA = REPO_ROOT / "papers" / "corrected" / "data"


def table(name: str) -> list[dict[str, str]]:
    return rows_of(DATA / name)


def test_the_page_is_that_of_the_saved_tables(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--saved", "--page", str(tmp_path / "page.md")]) == 0
    assert (tmp_path / "page.md").read_text() == PAGE.read_text()
    said = capsys.readouterr().out
    turned = sum(row["verdict"] in profiles.TURNED for row in table("claims.csv"))
    assert f"Verdict: {turned} of {len(table('claims.csv'))} are turned." in said
    assert "scheduling, conclusions: " in said


def test_every_claim_of_both_records_has_a_row_with_the_published_profile() -> None:
    rows = table("claims.csv")
    for record in (SCHEDULING, ROUTING):
        with (record.folder / "results" / "published.csv").open(encoding="utf-8") as file:
            published = list(csv.DictReader(file))
        here = [row for row in rows if row["track"] == record.name]
        for row, other in zip(here, published, strict=True):
            assert row["claim"].partition("; but ")[0] == other["claim"]
            assert row["verdict"] in VERDICTS
            assert row["exact"].partition(" on seed ")[0] == other["ours"], row["claim"]


def test_the_parts_add_up_to_ttft() -> None:
    rows = table("ttft_parts.csv")
    assert len({row["setting"] for row in rows}) == 5
    for row in rows:
        total = sum(float(row[name]) for name in PARTS)
        assert math.isclose(total, float(row["TTFT"]), abs_tol=0.3)

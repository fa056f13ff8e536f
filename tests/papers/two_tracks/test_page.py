"""The page of results is what the command makes of the tables that come with the package."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest

from papers.two_tracks import tables
from papers.two_tracks.__main__ import main
from tests.support.recorded.reference_data import REPO_ROOT

PAGE = REPO_ROOT / "docs" / "results" / "two-tracks.md"


def test_the_page_is_that_of_the_saved_tables(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--saved", "--page", str(tmp_path / "page.md")]) == 0
    assert (tmp_path / "page.md").read_text() == PAGE.read_text()
    said = capsys.readouterr().out
    assert "row 11 (compound, searched" in said
    assert (
        "orth: gate alone, worst_ttft_p99_ms 102 ms, 29 % rejected." in said
    )  # as the joint table has it


def test_a_tree_needs_a_map_to_be_checked_on(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--map", "one.json"]) == 2
    assert "give both --map and --check" in capsys.readouterr().err


def test_the_rows_are_those_of_the_ledger() -> None:
    saved = (REPO_ROOT / "papers" / "two_tracks" / "data" / "iterations.csv").read_text()
    rows = list(csv.DictReader(io.StringIO(saved)))
    assert rows == tables.ledger_rows(REPO_ROOT / tables.TRACK)

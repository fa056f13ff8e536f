"""The ledgers of the tracks: unchanged, rendered, and each row as the file of hypotheses has it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from sweeps.ledger import render
from sweeps.ledger.adding import read_rows
from sweeps.ledger.book import Ledger
from sweeps.ledger.check import check
from sweeps.strategies.file import load_strategy
from tests.support.recorded.reference_data import REPO_ROOT

TRACKS = REPO_ROOT / "sweeps" / "tracks"
ROWS = {
    "adapters": {f"slots-{count}" for count in (2, 3, 4, 6, 8, 16)},
    "routing": {str(number) for number in range(11, 21)},
    "opportunities_memory": {
        "c",
        "c-classes",
        "c-reuse",
        "d",
        "d-offload",
        "f",
        "f-half",
        "f-apart",
        "f-apart-half",
        "c-tier-second",
        "c-tier-classes",
        "c-tier",
        "d-forecast-offload",
    },
}


@pytest.fixture(scope="module", params=list(ROWS))
def track(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def ledger(track: str) -> Ledger:
    return Ledger(TRACKS / track)


def test_no_record_was_changed_and_the_page_is_rendered(ledger: Ledger) -> None:
    assert not check(ledger).problems
    assert render.rendered(ledger) == render.page_text(ledger)


def test_every_hypothesis_of_the_file_has_its_row_and_result(track: str, ledger: Ledger) -> None:
    entries = {entry["id"]: entry for entry in read_rows(TRACKS / track / "iterations.yaml")}
    rows = {row.id: row for row in ledger.rows()}
    assert set(rows) == set(entries) >= ROWS[track]
    for name, row in rows.items():
        assert row.hypothesis.statement == entries[name]["hypothesis"]
        assert list(row.hypothesis.predictions) == entries[name]["predict"]
        assert row.result is not None and row.findings and row.resolution


def test_rows_are_judged_on_seeds_that_their_searches_did_not_see(
    track: str, ledger: Ledger
) -> None:
    for row in ledger.rows():
        arm = row.hypothesis.arms["strategy"].text
        strategy = load_strategy(Path(re.split("[@:]", arm)[0]).name)
        if (
            track != "adapters"
        ):  # where nothing but a few candidates was tried, on the strategy's seeds
            assert strategy.search.calls == (50 if (track, row.id) == ("routing", "20") else 30)
        assert not set(row.hypothesis.seeds) & set(strategy.seeds)

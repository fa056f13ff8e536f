"""The track's rows against what the reference was measured to give, at the printed precision."""

from __future__ import annotations

import csv
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from papers.record.claims import PublishedClaim
from papers.record.published import Classifier
from papers.record.runs import PaperRuns, SettingSample
from papers.record.tables import published_records
from papers.routing_evolution.record import RECORD, TTFT, WORST_TTFT
from sweeps.claims import words

Measured = dict[str, str]
with (Path(__file__).parent / "measured.csv").open(encoding="utf-8") as file:
    MEASURED: list[Measured] = list(csv.DictReader(file))
SEEDS = {"1": (42,), "2": (42, 123), "3": RECORD.seeds}
ROWS = [row for row in MEASURED if not RECORD.settings[row["setting"]].missing]
CHEAP = ("orth_200x500_rr", "orth_400x500_rr")  # one compiled program


def check(row: Measured, sample: SettingSample) -> None:
    """Both metrics after the printed rounding, and the number of completed requests."""
    sample = sample.at(SEEDS[row["seeds"]])
    for name, metric in (("worst", WORST_TTFT), ("cluster", TTFT)):
        if row[name]:
            _, _, fraction = row[name].partition(".")
            ours = float(sample.column(metric).mean())
            # half a unit of the last printed digit, and a hair for the rounding of halves
            assert abs(ours - float(row[name])) <= 0.5001 * 10 ** -len(fraction), (row, ours)
    if row["completed"]:
        ours = float(sample.column("num_completed").mean())
        assert ours == pytest.approx(float(row["completed"]), abs=0.51), row


@pytest.fixture(scope="module")
def cheap(tmp_path_factory: pytest.TempPathFactory) -> dict[str, SettingSample]:
    runs = PaperRuns(tmp_path_factory.mktemp("parts"), "reference")
    settings = [RECORD.settings[name] for name in CHEAP]
    return runs.get(settings, RECORD.seeds, RECORD.measurement)


def test_cheap_rows_come_out_to_the_printed_precision(cheap: dict[str, SettingSample]) -> None:
    for name in CHEAP:
        (row,) = [row for row in ROWS if row["setting"] == name]
        check(row, cheap[name])


def test_the_tracks_own_metrics(cheap: dict[str, SettingSample]) -> None:
    """The worst instance is at least as slow as the cluster; printed blocks count requests twice."""
    for sample in cheap.values():
        assert (sample.column(WORST_TTFT) >= sample.column(TTFT)).all()
        twice = 2 * sample.column("num_completed")
        assert np.array_equal(sample.column("printed_completed"), twice)
        assert (sample.column("completion_rate") == 1).all()


def test_shipped_rows_are_what_was_measured() -> None:
    """Every number in ms of the table that comes with the package, of settings that were measured."""
    measured = {row["setting"]: row for row in MEASURED if row["seeds"] == "3"}
    with (RECORD.folder / "results" / "published.csv").open(encoding="utf-8") as file:
        shipped = list(csv.DictReader(file))
    assert [row["claim"] for row in shipped] == [claim.label for claim in RECORD.claims]
    num_checked = 0
    for claim, row in zip(RECORD.claims, shipped, strict=True):
        if not isinstance(claim, PublishedClaim) or claim.of != WORST_TTFT or claim.plus:
            continue
        if claim.published.unit != "ms" or claim.seeds or claim.at not in measured:
            continue
        if not row["ours"]:
            assert row["class"] in (words.MISSING, words.LOST)
            continue
        expected = measured[claim.at]
        for column, name in (("ours", "worst"), (RECORD.beside_heading, "cluster")):
            if expected[name]:
                value = float(row[column].split()[0])
                _, _, fraction = row[column].split()[0].partition(".")
                places = min(len(fraction), len(expected[name].partition(".")[2]))
                assert abs(value - float(expected[name])) <= 1.01 * 10**-places, (row, expected)
                num_checked += 1
    assert num_checked > 100


def test_every_published_number_that_can_be_run_is_exact() -> None:
    """What does not read as published is an interpretation or a wrong count, and is named here."""
    with (RECORD.folder / "results" / "published.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    other = {
        (row["row"], row["claim"])
        for row in rows
        if row["class"] in (words.CONTRADICTED, words.OTHER_BASIS, words.ONE_SEED)
    }
    assert other == EXPECTED_OTHER
    kinds = Counter(row["class"] for row in rows)
    assert kinds[words.EXACT] > 60 and kinds[words.LOST] > 40


_WORST = "TTFT P99 of the worst instance"
EXPECTED_OTHER = {
    ("5", f"{_WORST} (300 requests/s, shortest job first)"),  # the record does not give its flags
    ("5", f"{_WORST} (400 requests/s, shortest job first)"),
    ("11", f"{_WORST} (400 requests/s, default scorers)"),  # 64.546, printed as 64.55, then as 64.6
    ("11", "sheddable rejected requests (the ledger's wording)"),
    ("12", f"{_WORST} (with kv-utilization)"),
    ("13", f"{_WORST} change (4:3 against round-robin, 500 requests each)"),
    *(
        ("13", f"{_WORST} change (4:3 against 3:2, {n} requests)")
        for n in ("500", "1,000", "2,000")
    ),
    ("13", "4:3 is better than 3:2, 1,000 requests"),
}


def test_every_setting_is_used_by_a_claim() -> None:
    used = {name for claim in RECORD.claims for name in claim.settings}
    assert used == set(RECORD.settings)


def test_claims_that_cannot_be_run_say_why() -> None:
    lost = {claim.row for claim in RECORD.claims if claim.lost}
    assert {"0", "1", "2", "3", "4", "6", "8", "9", "10", "16", "17"} <= lost
    assert all(claim.settings or claim.lost for claim in RECORD.claims)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_every_row_comes_out_to_the_printed_precision(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    runs = PaperRuns(tmp_path_factory.mktemp("parts"), "reference")
    samples = runs.get(RECORD.runnable(RECORD.claims), RECORD.seeds, RECORD.measurement)
    for row in ROWS:
        check(row, samples[row["setting"]])
    missing = {name: one.missing for name, one in RECORD.settings.items() if one.missing}
    classifier = Classifier(samples, RECORD.seeds, RECORD.beside, missing)
    records = published_records(classifier.classified(RECORD.claims), RECORD.beside_heading)
    with (RECORD.folder / "results" / "published.csv").open(encoding="utf-8") as file:
        assert records == list(csv.DictReader(file))

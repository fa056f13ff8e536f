"""Checks of the catalogue at full size: verdicts, and the figures that re-runs with BLIS recorded.

The figures are three-seed means in ms as the record prints them: of seeds 42, 123 and 7777 on the
routing track, 42 to 44 on the scheduling track.
"""

from __future__ import annotations

import numpy as np
import pytest

from sweeps.principles.catalogue import load_catalogue
from sweeps.principles.lab import Lab
from sweeps.principles.verdicts import Verdict, check, metrics_of

WORST, CLUSTER = "worst_ttft_p99_ms", "ttft_p99_ms"
CRITICAL, STANDARD = "ttft_p99_ms[critical]", "ttft_p99_ms[standard]"
SHEDDABLE = "ttft_p99_ms[sheddable]"

RECORDED = {
    "RP-6": (
        "holds, narrower",
        {
            ("with_132139", WORST): 61.25,
            ("without_132139", WORST): 61.31,
            ("with_2000", WORST): 101.08,
            ("without_2000", WORST): 61.31,
            ("with_1000", WORST): 109.73,
        },
    ),
    "RP-8": (
        "not supported",
        {
            ("guess_5000", WORST): 87.29,
            ("guess_5000", CLUSTER): 74.69,
            ("guess_2000", WORST): 9087.89,
            ("guess_2000", CLUSTER): 8219.38,
            ("round_robin_5000", WORST): 64.20,
            ("round_robin_5000", CLUSTER): 59.92,
        },
    ),
    "RP-9": (
        "holds",
        {
            ("round_robin", WORST): 266.16,
            ("priority", WORST): 406.67,
            ("gate", WORST): 112.93,
            ("both", WORST): 140.96,
            ("both", CLUSTER): 111.40,
            ("both", "rejected_share"): 0.297,
        },
    ),
    "RP-10": (
        "holds, narrower",
        {
            ("four_three", WORST): 120.01,
            ("three_two", WORST): 131.10,
            ("four_two", WORST): 933.20,
            ("two_two", WORST): 140.67,
            ("two_three", CLUSTER): 100.21,
        },
    ),
    "RP-13": (
        "not supported",
        {
            ("rr_1", WORST): 462.78,
            ("compound_1", WORST): 140.86,
            ("rr_2", WORST): 495.94,
            ("compound_2", WORST): 174.19,
            ("rr_2_half", WORST): 252.79,
            ("compound_2_half", WORST): 136.29,
        },
    ),
    "RP-14": (
        "not supported",
        {
            ("rr_4", WORST): 462.88,
            ("compound_4", WORST): 205.50,
            ("rr_16", WORST): 479.34,
            ("compound_16", WORST): 122.47,
        },
    ),
    "C-16": ("holds", {("round_robin", CLUSTER): 22.96, ("affinity", WORST): 32.01}),
    "C-19": (
        "holds",
        {("gate", WORST): 111.95, ("both", WORST): 174.19, ("gate", CRITICAL): 105.5},
    ),
    "S1": (
        "holds",
        {
            ("base", CRITICAL): 268.77,
            ("tiers_scorer", CRITICAL): 131.78,
            ("tiers", CRITICAL): 134.38,
        },
    ),
    "S6": (
        "holds",
        {
            ("base", CLUSTER): 269.12,
            ("tiers", CLUSTER): 437.77,
            ("gate", CLUSTER): 142.92,
            ("gate", CRITICAL): 121.74,
            ("base_1000", CLUSTER): 96.38,
            ("best_1000", CLUSTER): 87.34,
        },
    ),
    "S7": ("holds", {("fixed", CRITICAL): 131.78, ("adaptive", CLUSTER): 443.11}),
    "S9": ("holds", {("cut", CRITICAL): 132.31, ("whole", CRITICAL): 89.84}),
    "S12": (
        "holds, narrower",
        {
            ("plenty", CRITICAL): 89.99,
            ("blocks_5000", CRITICAL): 90.21,
            ("blocks_3000", CRITICAL): 99.51,
            ("blocks_2000", SHEDDABLE): 543.20,
            ("one_tier_2000", SHEDDABLE): 694.70,
        },
    ),
    "S15": (
        "holds, narrower",
        {("off_2000", SHEDDABLE): 543.20, ("on_2000", SHEDDABLE): 793.99},
    ),
    "S16": (
        "not supported",
        {
            ("base_5", STANDARD): 60.60,
            ("best_5", STANDARD): 65.76,
            ("whole_5", STANDARD): 40.64,
            ("base_4", CRITICAL): 53.13,
            ("best_4", CRITICAL): 37.05,
        },
    ),
}


def checked(entry_id: str) -> Verdict:
    catalogue = load_catalogue()
    entry = catalogue.entries[entry_id]
    return check(catalogue, entry, Lab("reference", metrics_of([entry])), entry.seeds)


@pytest.mark.slow
@pytest.mark.parametrize("entry_id", RECORDED)
def test_verdict_and_recorded_figures(entry_id: str) -> None:
    expected, figures = RECORDED[entry_id]
    found = checked(entry_id)
    assert found.verdict == expected
    for (arm, metric), value in figures.items():
        decimals = len(f"{value:g}".partition(".")[2])
        mean = float(np.mean(found.arms[arm]["figures"][metric]))
        assert mean == pytest.approx(value, abs=0.51 * 10**-decimals), (arm, metric)


@pytest.mark.slow
def test_gains_at_equal_duration_grow_with_the_cluster() -> None:
    found = checked("RP-14")
    readings = [finding.verdict.reading for finding in found.findings]
    parts = [reading.parts for reading in readings if reading is not None]
    assert parts[0]["gain_to"] == pytest.approx(55.6, abs=0.05)
    assert parts[0]["gain_of"] == pytest.approx(69.6, abs=0.05)
    assert parts[1]["gain_of"] == pytest.approx(74.5, abs=0.05)


@pytest.mark.slow
def test_the_interaction_of_priority_and_chunks() -> None:
    reading = checked("S4").findings[0].verdict.reading
    assert reading is not None
    assert reading.mean.mean == pytest.approx(-28.2, abs=0.1)

"""What a published figure turns out to be a figure of."""

from __future__ import annotations

import numpy as np
import pytest

from sweeps.claims.grammar import parse_claim
from sweeps.ledger.result import NO_BASIS, compare_published

SEEDS = (42, 43, 44)
STRATEGY = {
    "ttft_p99_ms[critical]": np.array([90.04, 95.04, 100.04]),
    "ttft_p99_ms": np.array([200.0, 210.0, 220.0]),
}
BASELINE = {
    "ttft_p99_ms[critical]": np.array([180.0, 200.0, 250.0]),
    "ttft_p99_ms": np.array([300.0, 310.0, 320.0]),
}


@pytest.mark.parametrize(
    ("text", "basis"),
    [
        ("ttft_p99_ms[critical] = 95.04", "the mean of the seeds"),
        ("ttft_p99_ms[critical] = 95", "the mean of the seeds"),
        ("ttft_p99_ms[critical] = -54.7%", "the mean of the seeds"),
        ("ttft_p99_ms[critical] = 90.0", "seed 42 alone"),
        ("ttft_p99_ms[critical] = -50.0%", "seed 42 alone"),
        ("ttft_p99_ms[critical] = -57.1%", "seed 42 against the baseline's mean"),
        ("ttft_p99_ms[critical] = -69.3%", "the mean against the baseline's of all classes"),
        ("ttft_p99_ms[critical] = -33%", NO_BASIS),
        ("ttft_p99_ms[standard] = -33%", NO_BASIS),
    ],
)
def test_basis(text: str, basis: str) -> None:
    strategy = STRATEGY | {"ttft_p99_ms[standard]": np.full(3, np.nan)}
    baseline = BASELINE | {"ttft_p99_ms[standard]": np.full(3, np.nan)}
    (found,) = compare_published([parse_claim(text)], strategy, baseline, SEEDS)
    assert found["basis"] == basis


def test_the_mean_of_rounded_values() -> None:
    values = {"scheduling_delay_p99_ms": np.array([174.66, 198.89, 233.49])}
    (found,) = compare_published(
        [parse_claim("scheduling_delay_p99_ms = 202.4")], values, values, SEEDS
    )
    assert found["basis"] == "the mean of the seeds' rounded values"
    assert found["measured"] == pytest.approx(202.35, abs=0.01)

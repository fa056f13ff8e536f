"""Figures of a steady state from one run, against a queue that is known and by hand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from benchmarks.coverage.steady import true_percentile, waits
from blis_jax.errors import ConfigError
from blis_jax.statistics.steady import (
    growing_waits,
    num_warm_up,
    steady_mean,
    steady_percentile,
)


def test_the_first_requests_of_another_kind_are_left_out() -> None:
    rng = np.random.default_rng(0)
    values = np.concatenate([rng.normal(50, 1, 500), rng.normal(10, 1, 4500)])
    assert num_warm_up(values) in range(500, 520)
    found = steady_mean(values)
    assert found.low < 10 < found.high < 10.2 and found.num_warm_up >= 500


def test_independent_requests_are_worth_what_they_are() -> None:
    rng = np.random.default_rng(1)
    worth = [steady_mean(rng.normal(size=4000)).num_independent for _ in range(40)]
    assert np.median(worth) == pytest.approx(4000, rel=0.4)


def test_neighbours_that_are_alike_are_worth_less() -> None:
    values = np.repeat(np.random.default_rng(2).normal(size=1000), 20)
    assert 300 < steady_mean(values).num_independent < 3000


def test_means_and_percentiles_of_a_long_queue_hold_the_truth() -> None:
    runs = waits(np.random.default_rng(3), 60, 20_000, 0.5)
    for found, truth in (
        ([steady_mean(one) for one in runs], 1.0),
        ([steady_percentile(one, 95) for one in runs], true_percentile(0.5, 95)),
    ):
        assert np.mean([one.low <= truth <= one.high for one in found]) >= 0.85
        assert np.mean([one.is_enough for one in found]) > 0.9
        assert np.median([one.high - one.low for one in found]) < 0.3 * truth


def test_a_short_run_of_a_busy_queue_is_called_short() -> None:
    runs = waits(np.random.default_rng(4), 20, 2000, 0.9)
    assert np.mean([steady_percentile(one, 99).is_enough for one in runs]) < 0.2


def test_equal_values_have_an_interval_of_no_width() -> None:
    found = steady_mean(np.full(1000, 7.0))
    assert (found.value, found.low, found.high) == (7, 7, 7) and found.is_enough
    assert steady_percentile(np.full(1000, 7.0), 99).low == 7


def test_too_few_requests_and_no_percentile_are_refused() -> None:
    with pytest.raises(
        ConfigError, match="got 100 requests; 320 or more are needed, so run longer"
    ):
        steady_mean(np.ones(100))
    with pytest.raises(ConfigError, match="got 100, allowed is between 0 and 100"):
        steady_percentile(np.ones(1000), 100)


def requests_of(waits_us: np.ndarray, gap_us: int, service_us: int) -> Any:
    """Records of requests that come every `gap_us`, wait, and are then served one behind the other."""
    arrival_us = gap_us * np.arange(len(waits_us))
    left_us = arrival_us + waits_us + service_us
    return SimpleNamespace(
        arrival_us=arrival_us, first_sched_delay_us=waits_us, left_us=left_us, e2e_us=left_us
    )


@pytest.mark.parametrize(("service_us", "is_full"), [(20_000, True), (9_000, False)])
def test_requests_that_come_faster_than_they_are_served_are_told(
    service_us: int, is_full: bool
) -> None:
    """Every 10 ms one comes; a server of 20 ms each leaves half of them behind, one of 9 ms none."""
    waits_us = np.arange(400) * max(service_us - 10_000, 0)
    told = growing_waits(requests_of(waits_us, 10_000, service_us))
    assert (told is not None) == is_full
    if told is not None:
        assert "they come at 100 a second and leave at 50" in told


def test_a_queue_of_chance_is_not_called_full() -> None:
    """Up to 85 % of what is served comes: of 200 queues of 400 requests that begin empty, few seem to be full."""
    generator = np.random.default_rng(3)
    num_told = 0
    for _ in range(200):
        gaps_us, service_us = generator.exponential(10_000, 400), generator.exponential(8_500, 400)
        wait, waits_us = 0.0, np.zeros(400, np.int64)
        for at in range(1, 400):
            wait = max(wait + service_us[at - 1] - gaps_us[at], 0.0)
            waits_us[at] = round(wait)
        num_told += growing_waits(requests_of(waits_us, 10_000, 8_500)) is not None
    assert num_told <= 10

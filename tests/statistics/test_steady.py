"""Figures of a steady state from one run, against a queue that is known and by hand."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.coverage.steady import true_percentile, waits
from blis_jax.errors import ConfigError
from blis_jax.statistics.steady import num_warm_up, steady_mean, steady_percentile


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

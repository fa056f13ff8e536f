"""Intervals and paired differences against closed forms."""

import numpy as np
import pytest
from scipy import stats

from benchmarks.coverage.ratios import lognormal
from blis_jax.metrics.metric import HIGHER, LOWER
from blis_jax.statistics.intervals import BY_STUDENT, estimate, linear_change, t_quantile
from blis_jax.statistics.paired import (
    BETTER,
    SAME,
    UNCLEAR,
    WORSE,
    Pair,
    difference,
    differences,
)


@pytest.mark.parametrize("num_seeds", [2, 3, 4, 5, 10, 30, 256, 1000, 100_000])
def test_t_quantiles_are_students(num_seeds: int) -> None:
    expected = stats.t.ppf(0.975, num_seeds - 1)
    assert t_quantile(num_seeds) == pytest.approx(expected, rel=1e-12)
    expected = stats.t.ppf(1 - 0.025 / 300, num_seeds - 1)  # one of 300 that hold together
    assert t_quantile(num_seeds, 1 - 0.05 / 300) == pytest.approx(expected, rel=1e-12)


def test_an_estimate_is_the_mean_with_its_t_interval() -> None:
    values = np.array([3.0, 1.0, 4.0, 1.5, np.nan])
    found = estimate(values)
    low, high = stats.t.interval(0.95, 3, values[:4].mean(), stats.sem(values[:4]))
    assert (found.mean, found.num_seeds) == (values[:4].mean(), 4)
    assert (found.low, found.high) == pytest.approx((low, high), rel=1e-6)


def test_one_seed_has_no_interval() -> None:
    found = estimate(np.array([2.0]))
    assert found.mean == 2.0
    assert np.isnan([found.low, found.high]).all()
    assert estimate(np.array([np.nan])).num_seeds == 0


def test_a_difference_is_paired() -> None:
    """What both share cancels: a shift of 1 under noise of 100 is seen."""
    noise = np.random.default_rng(1).normal(1000, 100, 50)
    shift = np.linspace(0.9, 1.1, 50)
    change = difference(noise, noise + shift)
    result = stats.ttest_rel(noise + shift, noise).confidence_interval(0.95)
    assert change.absolute.mean == pytest.approx(1.0)
    expected = (result.low, result.high)
    assert (change.absolute.low, change.absolute.high) == pytest.approx(expected, rel=1e-6)
    assert change.verdict == WORSE
    assert difference(noise, noise + shift, HIGHER).verdict == BETTER


def test_percent_is_of_the_first_mean_and_exact_for_a_fixed_ratio() -> None:
    first = np.array([10.0, 20.0, 60.0])
    change = difference(first, 0.5 * first, LOWER)
    assert change.percent.mean == pytest.approx(-50)
    assert (change.percent.low, change.percent.high) == pytest.approx((-50, -50))


def test_percent_interval_covers_the_truth() -> None:
    """400 samples of 30 seeds; fails by chance less than once in 10,000 (95 % ± 4.3 points)."""
    rng = np.random.default_rng(7)
    hits = 0
    for _ in range(400):
        first = rng.gamma(25, 4, 30)
        percent = difference(first, first * 0.8 + rng.normal(0, 5, 30)).percent
        hits += percent.low <= -20 <= percent.high
    assert 0.907 <= hits / 400 <= 0.993


def test_percent_interval_is_that_of_the_logarithm() -> None:
    first, second = np.array([300.0, 500.0, 200.0, 400.0]), np.array([90.0, 50.0, 60.0, 10.0])
    found = difference(first, second).percent
    ratio = second.mean() / first.mean()
    shares = second / second.mean() - first / first.mean()  # what each seed adds to its logarithm
    half = stats.t.ppf(0.975, 3) * stats.sem(shares)
    ends = [100 * (ratio * np.exp(sign * half) - 1) for sign in (-1, 1)]
    assert [found.low, found.high] == pytest.approx(ends, rel=1e-6)
    assert found.low > -100 > linear_change(first, second).low
    assert difference(first, 0 * second).percent.high == -100
    below = difference(first, -second).percent  # no ratio of positive figures: symmetric
    assert below.mean - below.low == pytest.approx(below.high - below.mean)


@pytest.mark.parametrize(("num_seeds", "spread"), [(3, 0.5), (5, 0.5), (20, 1.0)])
def test_percent_interval_covers_the_truth_of_uneven_figures(num_seeds: int, spread: float) -> None:
    """4,000 samples whose coverage `benchmarks.coverage.ratios` has as 92.1 to 94.3 %; ±1.5 points."""
    draw = lognormal(spread)
    drawn = draw(np.random.default_rng(8), (4000, num_seeds))
    found = [
        difference(*pair).percent for pair in zip(drawn.first, 0.3 * drawn.second, strict=True)
    ]
    hits = np.mean([one.low <= -70 <= one.high for one in found])
    assert 0.906 <= hits <= 0.958
    assert min(one.low for one in found) > -100


def test_verdicts() -> None:
    first, less = np.arange(6.0), np.array([1.0, 1.1, 0.9, 1.0, 1.05, 0.95])
    assert difference(first, first).verdict == SAME
    assert difference(first, first + np.array([1.0, -1.0, 0.5] * 2)).verdict == UNCLEAR
    assert difference(first, first - less).verdict == BETTER
    assert difference(first, first - 1).verdict == BETTER  # without spread only the signs count
    assert difference(first[:5], first[:5] - less[:5]).verdict == UNCLEAR  # one in 16 by chance
    assert difference(first[:1], first[:1] - 1).verdict == UNCLEAR
    assert np.isnan(difference(np.zeros(6), first).percent.mean)


def test_verdicts_hold_for_a_family() -> None:
    """Each of twelve differences is one alone at 95 %; only the largest is one among twelve."""
    noise = np.array([1.0, -1.0, 0.5, -0.5, 0.0, 0.0])
    shifts = [0.8] * 11 + [2.8]  # p of 0.034 but for the last
    pairs = [Pair(np.zeros(6), shift + noise, HIGHER) for shift in shifts]
    found = differences(pairs, BY_STUDENT)
    assert difference(pairs[0].first, pairs[0].second, HIGHER).verdict == BETTER
    assert [change.verdict for change in found] == [UNCLEAR] * 11 + [BETTER]
    assert found[-1].p_adjusted < 0.05


def test_seeds_without_a_partner_are_left_out() -> None:
    change = difference(np.array([1.0, np.nan, 3.0, 5.0]), np.array([2.0, 7.0, 5.0, np.nan]))
    assert change.absolute.num_seeds == 2
    assert change.absolute.mean == 1.5

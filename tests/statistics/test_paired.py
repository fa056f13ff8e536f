"""Statistics of paired differences, against scipy, closed forms, worked examples and simulation."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from blis_jax.files.atomic_write import plain
from blis_jax.metrics.metric import HIGHER, LOWER
from blis_jax.statistics.intervals import (
    BOOTSTRAP,
    NO_INTERVAL,
    NO_SPREAD,
    STUDENT,
    Inference,
    interval_of,
    relative_change,
    seed_mean,
    student_interval,
)
from blis_jax.statistics.paired import (
    BETTER,
    SAME,
    UNCLEAR,
    WORSE,
    Difference,
    Pair,
    can_tell_pooled,
    difference,
    differences,
    fewest_for_verdict,
    holm,
    p_of_counts,
    p_value,
    sign_test,
    with_some_against,
)
from blis_jax.statistics.pooled import excess_against

QUICK = Inference(num_resamples=999)


def one(first: object, second: object, direction: str = LOWER) -> Difference:
    (found,) = differences(
        [Pair(np.array(first, float), np.array(second, float), direction)], QUICK
    )
    return found


def normal(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape)


def test_few_pairs_have_the_paired_t_interval_and_p_value() -> None:
    first, second = 10 + normal(1, 5), 8 + normal(2, 5)
    found = one(first, second)
    theirs = stats.ttest_rel(second, first)
    ends = theirs.confidence_interval(0.95)
    assert found.absolute.method == STUDENT
    assert p_value(second - first) == pytest.approx(theirs.pvalue)
    assert theirs.pvalue < found.p_value < 3 * theirs.pvalue  # with a further seed against it
    assert [found.absolute.low, found.absolute.high] == pytest.approx([ends.low, ends.high])
    assert found.p_adjusted == found.p_value
    assert found.simultaneous.low == pytest.approx(ends.low)


def test_percent_is_that_of_the_sweeps_for_linear_changes() -> None:
    first = 100 + normal(3, 8)
    second = 0.8 * first + 0.1 * normal(4, 8)
    ours, theirs = one(first, second).percent, difference(first, second).percent
    assert ours.mean == pytest.approx(theirs.mean)
    assert [ours.low, ours.high] == pytest.approx([theirs.low, theirs.high], rel=1e-3)


def test_many_pairs_have_scipys_bootstrap() -> None:
    change = normal(5, 20) ** 2
    found = interval_of(seed_mean, [change], QUICK)
    ends = stats.bootstrap(
        (change,), np.mean, n_resamples=999, method="BCa", rng=np.random.default_rng(0)
    ).confidence_interval
    assert found.method == BOOTSTRAP
    assert (found.low, found.high) == pytest.approx((ends.low, ends.high))
    again = interval_of(seed_mean, [change], QUICK)
    other = interval_of(seed_mean, [change], Inference(num_resamples=999, random_state=1))
    assert again == found != other


def test_holm_as_worked_out_by_hand() -> None:
    found = holm(np.array([0.01, 0.04, 0.03, 0.005]))
    assert found == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm(np.array([0.4, 0.9])) == pytest.approx([0.8, 0.9])


def test_an_effect_is_found_and_none_is_not() -> None:
    noise = normal(6, 20)
    found = one(50 + noise, 45 + noise + 0.1 * normal(7, 20))
    assert found.verdict == BETTER and found.absolute.high < 0
    assert one(50 + noise, 45 + noise + 0.1 * normal(7, 20), HIGHER).verdict == WORSE
    nothing = one(50 + noise, 50 + noise + normal(8, 20))
    assert nothing.verdict == UNCLEAR and nothing.simultaneous.holds(0.0)


def test_differences_without_spread() -> None:
    same = one([1.0, 2.0, 3.0], [1.0, 2.0, 3.0])
    assert same.verdict == SAME and same.p_value == 1 and same.absolute.mean == 0
    two = one([1.0, 2.0], [2.0, 3.0])
    assert two.absolute.method == NO_SPREAD and two.p_value == 0.5 and two.verdict == UNCLEAR
    assert two.simultaneous.holds(0.0)
    many = one(np.arange(1.0, 21.0), np.arange(2.0, 22.0))
    assert many.p_value == pytest.approx(2 / 2**20) and many.verdict == WORSE
    assert (many.simultaneous.low, many.simultaneous.high) == (1, 1)
    assert sign_test(np.array([1.0, 1, 1, -1])) == pytest.approx(0.625)


def test_runs_that_are_alike_on_every_seed_differ_exactly() -> None:
    """Two seeds of a workload that draws nothing say as much as any number of them."""
    first, second = np.array([183.7, 183.7]), np.array([214.8, 214.8])
    (exact,) = differences([Pair(first, second, LOWER, is_exact=True)])
    assert (exact.verdict, exact.p_adjusted, exact.is_exact) == (WORSE, 0.0, True)
    assert (exact.simultaneous.low, exact.simultaneous.high) == pytest.approx((31.1, 31.1))
    (drawn,) = differences([Pair(first, second, LOWER)])
    assert drawn.verdict == UNCLEAR
    (same,) = differences([Pair(first, first, LOWER, is_exact=True)])
    assert (same.verdict, same.p_value) == (SAME, 1.0)


def test_rounding_is_no_difference() -> None:
    first = np.array([0.1, 0.2, 0.7])
    assert one(first, (first + 0.3) - 0.3).verdict == SAME
    assert one(first, first + 1e-9).verdict != SAME


def test_only_seeds_that_both_have_count() -> None:
    found = one([1.0, math.nan, 3.0, 4.0], [2.0, 2.0, math.nan, 6.0])
    assert found.num_pairs == 2
    assert (found.first_mean, found.second_mean) == (2.5, 4.0)
    assert found.absolute.mean == 1.5
    alone = one([1.0, math.nan], [2.0, math.nan])
    assert alone.num_pairs == 1 and alone.absolute.method == NO_INTERVAL
    assert alone.verdict == UNCLEAR and alone.p_value == 1
    nothing = one([math.nan], [1.0])
    assert nothing.num_pairs == 0 and math.isnan(nothing.absolute.mean)


def test_percentages_of_nothing_do_not_exist() -> None:
    assert math.isnan(one([0.0, 0.0, 0.0], [1.0, 2.0, 3.0]).percent.mean)
    seldom = one([0.0, 0.0, 0.3], [1.0, 2.0, 3.0]).percent
    assert -100 < seldom.low < seldom.mean < seldom.high and seldom.method == STUDENT
    with_a_negative = one([-1.0, 2.0, 3.0], [4.0, -5.0, 2.0]).percent
    assert with_a_negative.low < -100  # no ratio of positive figures: symmetric
    rare = np.r_[np.zeros(18), 0.1, 0.2]
    assert one(rare, rare + 0.1 * normal(9, 20) ** 2).percent.mean > 0


def test_verdicts_and_simultaneous_intervals_agree_in_every_family() -> None:
    rng = np.random.default_rng(10)
    verdicts = set()
    for _ in range(60):
        count = int(rng.integers(1, 12))
        size = int(rng.choice([3, 6, 9]))
        shifts = rng.choice([0.0, 0.8, 3.0, -30.0], count)
        pairs = [
            Pair(normal(11, size), rng.normal(shift, 1, size) + normal(11, size))
            for shift in shifts
        ]
        for found in differences(pairs, QUICK):
            is_clear = found.verdict in (BETTER, WORSE)
            assert is_clear == (not found.simultaneous.holds(0.0))
            assert is_clear == (size > 3 and found.p_adjusted <= 0.05)
            assert found.simultaneous.holds(found.absolute.mean)
            verdicts.add(found.verdict)
    assert verdicts == {BETTER, WORSE, UNCLEAR}


@pytest.mark.parametrize("size", [3, 4, 5, 6])
def test_few_seeds_give_no_verdict(size: int) -> None:
    """Two arms that are alike in truth and far apart on every seed: the t-test calls one seed in 2^(n - 1) proof."""
    rng = np.random.default_rng(size)
    signs = rng.choice([-1.0, 1.0], (2000, size))
    changes = signs * rng.uniform(0.95, 1.05, (2000, size))
    judged = [difference(np.zeros(size), change) for change in changes]
    alone = np.mean([found.p_value <= 0.05 for found in judged])
    false = np.mean([found.verdict != UNCLEAR for found in judged])
    assert alone == pytest.approx(2.0 ** (1 - size), abs=0.03)
    assert false == (0.0 if size < fewest_for_verdict(0.95) else alone) and false < 0.05
    exact = Pair(np.zeros(size), np.full(size, 1.0), is_exact=True)
    assert differences([exact], QUICK)[0].verdict == WORSE


def test_a_pooled_percentile_can_be_told_from_so_many_seeds_on() -> None:
    assert [fewest_for_verdict(level) for level in (0.5, 0.9, 0.95, 0.99)] == [2, 5, 6, 8]
    fewest = [
        min(count for count in range(40) if can_tell_pooled(count, family, 0.95))
        for family in (1, 3, 30, 105)
    ]
    assert fewest == [11, 13, 15, 16]


def test_holm_finds_what_bonferroni_does_not() -> None:
    size, strong = 6, np.array([10.0, 10.1, 9.9, 10.05, 9.95, 10.0])
    weak = stats.norm.ppf(np.linspace(0.1, 0.9, size)) + 1.18  # p between 0.05/2 and 0.05
    pairs = [Pair(np.zeros(size), values) for values in (strong, weak)]
    found = differences(pairs, QUICK)[1]
    assert 0.025 < found.p_value < 0.05 and found.verdict == WORSE
    assert 0 < found.simultaneous.low < 1e-300


@pytest.mark.statistical
def test_coverage_of_single_intervals() -> None:
    """400 samples each; 99.9 % band of the share is ±5.4 points at 90 %, ±3.6 at 95 %."""
    for num_pairs, least, most in ((3, 0.914, 0.986), (15, 0.87, 0.98), (30, 0.88, 0.985)):
        values = normal(20 + num_pairs, 400, num_pairs)
        found = [interval_of(seed_mean, [row], QUICK) for row in values]
        covered = np.mean([interval.holds(0.0) for interval in found])
        assert least <= covered <= most, (num_pairs, covered)


@pytest.mark.statistical
def test_a_family_without_effects_is_seldom_wrong() -> None:
    """600 families of 8; wrong in at most 5 %, 99.9 % band up to 7.8 %; Bonferroni's intervals too."""
    wrong = missed = 0
    for family in range(600):
        values = normal(1000 + family, 8, 6)
        pairs = [Pair(np.zeros(6), row) for row in values]
        p_values = np.array([stats.ttest_1samp(row, 0).pvalue for row in values])
        wrong += bool((holm(p_values) <= 0.05).any())
        level = 1 - 0.05 / 8
        intervals = [student_interval(seed_mean, [pair.second], level) for pair in pairs]
        missed += any(not interval.holds(0.0) for interval in intervals)
    assert 0.02 <= wrong / 600 <= 0.078
    assert 0.02 <= missed / 600 <= 0.078


def test_no_positive_figure_falls_by_more_than_everything() -> None:
    found = one([300.0, 500.0, 200.0], [9.0, 150.0, 60.0])
    for percent in (found.percent, found.simultaneous_percent):
        assert percent.mean == pytest.approx(-78.1)
        assert -100 < percent.low < -90 < -50 < percent.high
    family = differences([Pair(np.array([300.0, 500.0]), np.array([9.0, 150.0]))] * 300, QUICK)
    assert family[0].simultaneous_percent.low == pytest.approx(-100)
    assert family[0].simultaneous_percent.high == math.inf
    nothing_left = one([3.0, 5.0, 2.0], [0.0, 0.0, 0.0]).percent
    assert (nothing_left.low, nothing_left.high) == (-100, -100)


@pytest.mark.statistical
def test_coverage_of_percentages() -> None:
    """300 samples of 6 pairs, 95 %: 99.9 % band ±4.1 points, less 3 for the ratio."""
    rng = np.random.default_rng(30)
    covered = 0
    for _ in range(300):
        common = rng.normal(100, 10, 6)
        first, second = common + rng.normal(0, 3, 6), 0.7 * common + rng.normal(0, 3, 6)
        covered += relative_change(first, second, 0.95).holds(-30.0)
    assert 0.88 <= covered / 300 <= 0.991


def test_a_difference_comes_back_from_what_was_written() -> None:
    rng = np.random.default_rng(5)
    first, second = rng.normal(10, 1, 6), rng.normal(12, 1, 6)
    found = difference(first, second)
    again = Difference.of_json(plain(found.to_json()))
    assert again.to_json() == found.to_json()
    assert again.simultaneous == again.in_family and again.num_pairs == 6
    nothing = difference(np.array([np.nan]), np.array([1.0]))
    assert np.isnan(Difference.of_json(plain(nothing.to_json())).first_mean)


@pytest.mark.parametrize("seeds", [10, 20, 40, 80, 800])
def test_a_pooled_percentile_must_outlive_further_seeds_against_it(seeds: int) -> None:
    change = normal(12, seeds) + 8 / math.sqrt(seeds)
    sure = 100 * np.array([-1.0, 1.0])[None, :, None] + normal(13, 3, 2, seeds)
    pooled = Pair(np.zeros(seeds), change, LOWER, excess=sure)
    more = {10: 4, 20: 2, 40: 2, 80: 1.25, 800: 1}[seeds]
    assert pooled.p_value() == pytest.approx(p_value(with_some_against(change, more)))
    assert pooled.p_value() > p_value(change)
    assert p_of_counts(np.ones((2, 2, seeds)), is_anytime=True) == 0.0  # no spread anywhere
    unsure = normal(14, 3, 2, seeds)
    by_count = p_of_counts(excess_against(unsure, True, 0.25))
    assert Pair(np.zeros(seeds), change, LOWER, excess=unsure).p_value() == by_count > 0.05


def test_a_pooled_percentile_of_one_bad_seed_gets_no_verdict() -> None:
    """100 seeds of which one makes the difference: one more such seed, of the other arm, takes it back."""
    change = np.full(100, -0.01)
    change[3] = 5.0
    sure = 100 * np.array([-1.0, 1.0])[None, :, None] + normal(13, 3, 2, 100)
    assert not with_some_against(change, 1).any()
    assert Pair(np.zeros(100), change, LOWER, excess=sure).p_value() == 1.0
    even = np.where(np.arange(100) % 2, 1.0, 1.2)
    against = with_some_against(even, 3)
    assert against[-3:].tolist() == [-1.2] * 3 and len(against) == 103
    assert Pair(np.zeros(100), even, LOWER, excess=sure).p_value() < 1e-9


def test_a_part_of_a_seed_against_has_a_part_of_its_size() -> None:
    change = np.array([-3.0, -2.0, 0.5])
    assert with_some_against(change, 0.25).tolist() == [*change, 0.75]
    assert with_some_against(change, 1.25).tolist() == [*change, 3.0, 0.75]
    assert with_some_against(change, 1).tolist() == [*change, 3.0]
    assert not with_some_against(np.zeros(3), 2).any()


def test_what_a_difference_must_outlive_bounds_its_adjusted_p_value_from_below() -> None:
    change = np.array([2.2, 0.4, 1.9, 0.7, 2.4, 0.6, 2.0])
    zeros = np.zeros(len(change))
    for must_outlive in (0.0, 0.5, 1.0):
        (found,) = differences([Pair(zeros, change, must_outlive=must_outlive)], QUICK)
        least = p_value(np.append(change, [-2.4 * must_outlive] * (must_outlive > 0)))
        assert found.p_adjusted == pytest.approx(max(p_value(change, is_guarded=True), least))
        assert (found.verdict == UNCLEAR) == (found.simultaneous.low <= 0)
    (exact,) = differences([Pair(zeros, change, is_exact=True, must_outlive=1.0)], QUICK)
    assert exact.p_adjusted == 0.0

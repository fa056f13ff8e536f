"""One trace in blocks of arrival time: contributions, lengths of blocks, coverage, verdicts."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.coverage.blocks import Case, coverage, run_of
from blis_jax.statistics import trace_blocks as blocks
from blis_jax.statistics.intervals import BY_STUDENT
from blis_jax.statistics.paired import BETTER, UNCLEAR, WORSE
from sweeps.compare.judge import OneTrace


def in_blocks(num_blocks: int = 8) -> tuple[blocks.TimeBlocks, np.ndarray]:
    rng = np.random.default_rng(5)
    arrival_us = np.sort(rng.integers(0, 10**8, 300))
    return blocks.time_blocks(arrival_us, num_blocks), rng.exponential(100.0, 300)


def test_the_mean_of_the_contributions_is_the_figure() -> None:
    one, values = in_blocks()
    values[::7] = np.nan  # requests without such a latency
    assert one.mean(values).mean() == pytest.approx(np.nanmean(values))
    for level in (0.5, 0.99):
        assert one.quantile(values, level).mean() == pytest.approx(np.nanquantile(values, level))


def test_a_contribution_is_what_a_figure_would_be_without_the_block() -> None:
    one, values = in_blocks()
    known = np.isfinite(values)
    for found, figure in (
        (one.mean(values), np.mean),
        (one.quantile(values, 0.9), lambda of: np.quantile(of, 0.9)),
    ):
        without = np.array([figure(values[known & (one.place != at)]) for at in range(8)])
        np.testing.assert_allclose(found - found.mean(), 7 * (without.mean() - without))


def test_contributions_to_a_mean_of_even_blocks_are_the_means_of_the_blocks() -> None:
    one = blocks.time_blocks(np.arange(80) * 1000, 8)
    values = np.random.default_rng(2).normal(size=80)
    np.testing.assert_allclose(one.mean(values), values.reshape(8, 10).mean(axis=1))
    assert one.block_s == pytest.approx(0.079 / 8)


def test_blocks_without_a_value_have_no_part() -> None:
    one, values = in_blocks()
    nothing = np.full(300, np.nan)
    assert np.isnan(one.mean(nothing)).all() and np.isnan(one.quantile(nothing, 0.9)).all()
    some = np.where(one.place < 3, values, np.nan)
    for found, figure in (
        (one.mean(some), np.nanmean(some)),
        (one.quantile(some, 0.9), np.nanquantile(some, 0.9)),
    ):
        assert np.isfinite(found).tolist() == [True] * 3 + [False] * 5
        assert np.nanmean(found) == pytest.approx(figure)


def test_a_burst_of_one_moment_gives_no_verdict_however_far_arms_are_apart() -> None:
    arrival_us = np.array([0] * 900 + [10**7] * 100)
    values = np.random.default_rng(1).exponential(100.0, 1000)
    arms = [(run_of(arrival_us, values),), (run_of(arrival_us, 3 * values),)]
    judge = OneTrace(arms, BY_STUDENT)
    assert judge.num_blocks == 2
    (found,) = judge.differences([(arms[0], arms[1], "ttft_mean_ms")])
    assert found.verdict == UNCLEAR and found.num_pairs == 2
    assert found.absolute.mean == pytest.approx(2 * values.mean())


def test_blocks_grow_with_how_long_differences_stay_alike() -> None:
    rng = np.random.default_rng(3)
    noise = rng.normal(size=200)
    slow = np.cumsum(rng.normal(size=200)) * 0.1
    assert blocks.wanted_length(noise) <= 3 < blocks.wanted_length(slow + 0.05 * noise)
    assert blocks.wanted_length(np.ones(200)) == 1
    assert blocks.usual_number([np.ones(200)]) == 33  # the cube root of their number is the least
    assert blocks.usual_number([noise, slow]) == blocks.usual_number([slow]) < 6


@pytest.mark.statistical
@pytest.mark.parametrize("case", [Case(1000, 0.0), Case(1000, 0.9)], ids=str)
def test_intervals_hold_the_truth_as_often_as_they_say(case: Case) -> None:
    """100 made-up traces of 1,000 requests; 95 % intervals of the differences of mean and P90.

    At least 84 of 100 must hold the truth: with a true coverage of 92 % a false alarm comes once in 200.
    """
    found = coverage(case, 100, figures=("mean", "p90"))
    assert min(found.values()) >= 0.84, found


def alike(rng: np.random.Generator, slowness: float) -> bool:
    """Return whether any two of four arms that are alike get a verdict on 2,000 requests that stay alike for long."""
    arrival_us = np.arange(2000) * 10_000
    arms = []
    for _ in range(4):
        level = np.zeros(2000)
        steps = rng.normal(size=2000)
        for at in range(1, 2000):
            level[at] = slowness * level[at - 1] + steps[at]
        arms.append((run_of(arrival_us, np.exp(0.3 * np.sqrt(1 - slowness**2) * level)),))
    asked = [(arms[0], arm, "ttft_mean_ms") for arm in arms[1:]]
    return any(
        difference.verdict in (BETTER, WORSE)
        for difference in OneTrace(arms, BY_STUDENT).differences(asked)
    )


@pytest.mark.statistical
@pytest.mark.parametrize("slowness", [0.0, 0.999])
def test_arms_that_are_alike_get_no_verdict(slowness: float) -> None:
    """60 made-up traces; at 0.999 one has two independent stretches. More than 8 come once in 200 by chance, at 5 %."""
    rng = np.random.default_rng(7)
    assert sum(alike(rng, slowness) for _ in range(60)) <= 8


def test_a_difference_that_one_block_would_undo_is_unclear() -> None:
    rng = np.random.default_rng(4)
    arrival_us = np.arange(4000) * 10_000
    first = rng.normal(100.0, 1.0, 4000)
    second = first + rng.normal(0.1, 6.0, 4000) + 3.0 * (np.arange(4000) // 200 == 7)
    arms = [(run_of(arrival_us, values),) for values in (first, second)]
    judge = OneTrace(arms, BY_STUDENT, block_s=2.0)
    (found,) = judge.differences([(*arms, "ttft_mean_ms")])
    assert found.p_value < 0.05 < found.p_adjusted
    assert found.verdict == UNCLEAR

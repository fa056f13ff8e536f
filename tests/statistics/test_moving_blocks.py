"""Resampling one trace in blocks of arrival time: exact resamples, lengths of blocks, coverage, verdicts."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from benchmarks.coverage.blocks import Case, coverage, made_up
from blis_jax.statistics import moving_blocks as blocks
from blis_jax.statistics.intervals import NO_INTERVAL, Inference
from blis_jax.statistics.moving_blocks import BlockResampling, Resampled, ResampledPair

INFERENCE = Inference(num_resamples=199)


def resampling(num_requests: int = 300, length: int = 4) -> tuple[BlockResampling, np.ndarray]:
    rng = np.random.default_rng(5)
    arrival_us = np.sort(rng.integers(0, 10**8, num_requests))
    bins = blocks.time_bins(arrival_us)
    weights = blocks.block_weights(bins.num_bins, length, INFERENCE)
    return BlockResampling(bins, length, weights), rng.exponential(100.0, num_requests)


def test_a_resample_is_that_of_its_requests_repeated() -> None:
    one, values = resampling()
    values[::7] = np.nan  # requests without such a latency
    mean, tail = one.mean(values), one.quantile(values, 0.99)
    assert mean.value == pytest.approx(np.nanmean(values))
    assert tail.value == pytest.approx(np.nanquantile(values, 0.99))
    for at in range(0, 199, 20):
        repeated = np.repeat(values, one.weights[at][one.bins.place])
        assert mean.draws[at] == pytest.approx(np.nanmean(repeated))
        assert tail.draws[at] == pytest.approx(np.nanquantile(repeated, 0.99))


def test_percentiles_are_looked_for_among_the_requests_around_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one, values = resampling()
    whole = one.quantile(values, 0.5)
    monkeypatch.setattr(blocks, "MOST_RANKS", 120)
    np.testing.assert_array_equal(one.quantile(values, 0.5).draws, whole.draws)


def test_resamples_are_as_long_as_the_trace_and_made_of_blocks() -> None:
    weights = blocks.block_weights(50, 5, INFERENCE)
    assert (weights.sum(axis=1) == 50).all()
    assert abs(weights.mean(axis=0) - 1).max() < 0.35
    inside = np.mean(weights[:, 20] * weights[:, 21]) - 1
    apart = np.mean(weights[:, 20] * weights[:, 35]) - 1
    assert inside > 0.4 and abs(apart) < 0.3


def test_blocks_grow_with_how_long_differences_stay_alike() -> None:
    rng = np.random.default_rng(3)
    noise = rng.normal(size=200)
    slow = np.cumsum(rng.normal(size=200)) * 0.1
    assert blocks.wanted_length(noise) <= 3 < blocks.wanted_length(slow + 0.05 * noise)
    assert blocks.wanted_length(np.ones(200)) == 1
    assert blocks.usual_length([slow]) == 20  # ten blocks remain


@pytest.mark.statistical
@pytest.mark.parametrize("case", [Case(1000, 0.0), Case(1000, 0.9)], ids=str)
def test_intervals_hold_the_truth_as_often_as_they_say(case: Case) -> None:
    """100 made-up traces of 1,000 requests; 95 % intervals of the differences of mean and P90.

    At least 84 of 100 must hold the truth: with a true coverage of 92 % a false alarm comes once in 200.
    """
    found = coverage(case, 100, num_resamples=199, figures=("mean", "p90"))
    assert min(found.values()) >= 0.84, found


def test_intervals_without_blocks_would_be_too_narrow() -> None:
    """The twin of the coverage: single requests drawn again, whose neighbours are alike."""
    arrival_us, first, second = made_up(Case(1000, 0.98), np.random.default_rng(1))
    bins = blocks.time_bins(arrival_us)
    widths = []
    for length in (1, 12):
        one = BlockResampling(bins, length, blocks.block_weights(bins.num_bins, length, INFERENCE))
        change = one.mean(second - first)
        widths.append(np.ptp(np.quantile(change.draws, [0.025, 0.975])))
    assert widths[1] > 1.3 * widths[0]


def pair_of(shift: float) -> tuple[ResampledPair, int]:
    one, values = resampling()
    noise = np.random.default_rng(8).normal(0, 5.0, len(values))
    return ResampledPair(one.mean(values), one.mean(values + noise + shift)), one.num_blocks


@pytest.mark.parametrize(("shift", "verdict"), [(-20, "better"), (20, "worse"), (0, "unclear")])
def test_verdicts_and_simultaneous_intervals_agree(shift: float, verdict: str) -> None:
    pair, num_blocks = pair_of(shift)
    (found, *_) = blocks.differences([pair] * 3, num_blocks, INFERENCE)
    assert found.verdict == verdict and found.num_pairs == num_blocks
    for interval in (found.simultaneous, found.simultaneous_percent):
        assert interval.holds(0.0) == (verdict == "unclear")
    assert found.simultaneous.low < found.absolute.low < found.absolute.high
    assert found.absolute.mean == pytest.approx(shift, abs=1.5)


def test_what_is_the_same_and_what_no_request_makes() -> None:
    pair, num_blocks = pair_of(0.0)
    same = dataclasses.replace(pair, second=pair.first)
    of_run = ResampledPair(blocks.only_a_value(3.0, 199), blocks.only_a_value(4.0, 199))
    found = blocks.differences([same, of_run], num_blocks, INFERENCE)
    assert found[0].verdict == "same" and found[0].p_value == 1.0
    assert found[1].verdict == "unclear" and found[1].absolute.method == NO_INTERVAL
    assert found[1].first_mean == 3.0 and found[1].absolute.mean == 1.0


def test_runs_of_several_seeds_are_drawn_again_too() -> None:
    parts = [Resampled(1.0, np.full(199, 1.0)), Resampled(3.0, np.full(199, 3.0))]
    whole = blocks.average(parts, blocks.seed_counts(2, INFERENCE))
    assert whole.value == 2.0 and set(np.unique(whole.draws)) == {1.0, 2.0, 3.0}

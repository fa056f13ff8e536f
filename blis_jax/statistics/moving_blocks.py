"""Differences on one trace, with intervals by a bootstrap of blocks of arrival time.

One trace has no seeds to repeat, and the latencies of neighbouring requests depend on each other, since they wait in
the same queues. So neither runs nor single requests can be resampled, but stretches of time can. The span of arrivals
is cut into equal bins, and a resample puts blocks of neighbouring bins end to end until it is as long as the trace (the
circular block bootstrap of Politis and Romano, 1992). All strategies get the same blocks, so the effect of the traffic
on all of them cancels.

A block must be long against the time over which latencies depend on each other. Its length follows from the differences
themselves: twice the length by the rule of Politis and White (2004, corrected by Patton, Politis and White, 2009),
since blocks that are too short make intervals too narrow, and the rule aims at the variance.

Single intervals are percentiles of the resamples, widened for the number of blocks as Student's t is
(Hesterberg, 2015, "expanded percentile"). P-values and simultaneous intervals are Student's t with the
standard error of the resamples and one degree of freedom less than there are blocks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from blis_jax.lazy import special
from blis_jax.metrics.metric import LOWER
from blis_jax.statistics.intervals import (
    NO_INTERVAL,
    NO_SPREAD,
    STUDENT,
    Estimate,
    Inference,
    t_quantile,
)
from blis_jax.statistics.paired import (
    ROUNDING,
    SAME,
    UNCLEAR,
    Difference,
    agreeing,
    holm,
    verdict_on,
)

if TYPE_CHECKING:
    from jaxtyping import Float, Int

BLOCKS = "bootstrap (blocks of arrival time)"
LEAST_REQUESTS = 100  # below it an interval would be guessed
LEAST_BLOCKS = 10
LONGER = 2  # times the rule's block, see above
REQUESTS_PER_BIN, MOST_BINS = 5, 200
MOST_RANKS = 8192  # on each side of a percentile in which its resamples are looked for
LAGS_IN_A_ROW = 5  # that are insignificant where correlation has ended
SIGNIFICANT = 2.0  # correlations beyond so many standard errors count


@dataclass(frozen=True)
class TimeBins:
    """Equal bins of arrival time, and the bin of each request."""

    place: Int[np.ndarray, "request"]
    num_bins: int
    bin_s: float


def time_bins(arrival_us: Int[np.ndarray, "request"], num_bins: int | None = None) -> TimeBins:
    """Divide arrival time into equal bins of `REQUESTS_PER_BIN` requests on average, at most `MOST_BINS` bins."""
    if num_bins is None:
        num_bins = max(min(len(arrival_us) // REQUESTS_PER_BIN, MOST_BINS), 1)
    start, end = (int(arrival_us.min()), int(arrival_us.max())) if len(arrival_us) else (0, 0)
    bin_us = max(end - start, 1) / num_bins
    place = np.minimum(((arrival_us - start) / bin_us).astype(np.int64), num_bins - 1)
    return TimeBins(place, num_bins, bin_us / 1e6)


# --- blocks ---------------------------------------------------------------------------------------


def usual_length(series: Sequence[Float[np.ndarray, "bin"]]) -> int:
    """Return the block length in bins: the longest that a series needs, limited so that there are `LEAST_BLOCKS`."""
    return max(min(longest_wanted(series), len(series[0]) // LEAST_BLOCKS), 1)


def longest_wanted(series: Sequence[Float[np.ndarray, "bin"]]) -> int:
    """Return the block length in bins that the series need, even if the trace has too few such blocks."""
    least = math.ceil(len(series[0]) ** (1 / 3))
    return max(least, *(LONGER * wanted_length(each) for each in series))


def wanted_length(series: Float[np.ndarray, "bin"]) -> int:
    """Return the block length in bins by the rule of Politis and White, for a circular bootstrap of a mean."""
    count = len(series)
    centred = series - series.mean()
    variance = float(centred @ centred) / count
    if variance <= ROUNDING * float(np.square(series).max(initial=0.0)):
        return 1
    last = min(max(math.ceil(math.sqrt(count)), LAGS_IN_A_ROW) + LAGS_IN_A_ROW, count - 1)
    covariance = np.array(
        [float(centred[lag:] @ centred[: count - lag]) for lag in range(last + 1)]
    )
    covariance /= count
    is_small = np.abs(covariance[1:]) < (
        SIGNIFICANT * math.sqrt(math.log10(count) / count) * variance
    )
    # lags after which correlation has ended
    runs = [lag for lag in range(len(is_small)) if is_small[lag : lag + LAGS_IN_A_ROW].all()]
    width = min(2 * max(runs[0] if runs else len(is_small), 1), last)
    lags = np.arange(width + 1)
    taper = np.clip(2 * (1 - lags / width), 0, 1) if width else np.ones(1)
    weighted = taper * covariance[: width + 1]
    spread = weighted[0] + 2 * weighted[1:].sum()  # of the mean, at frequency 0
    bend = 2 * float((lags * weighted)[1:].sum())
    if spread <= 0:
        return 1
    return max(math.ceil((1.5 * (bend / spread) ** 2 * count) ** (1 / 3)), 1)


def block_weights(
    num_bins: int, length: int, inference: Inference
) -> Int[np.ndarray, "resample bin"]:
    """Draw the resamples; return how often each bin is in each of them."""
    rng = np.random.default_rng(inference.random_state)
    num_blocks = -(-num_bins // length)
    starts = rng.integers(num_bins, size=(inference.num_resamples, num_blocks, 1))
    chosen = ((starts + np.arange(length)) % num_bins).reshape(inference.num_resamples, -1)
    rows = np.arange(inference.num_resamples)[:, None] * num_bins
    counts = np.bincount(
        (rows + chosen[:, :num_bins]).ravel(), minlength=inference.num_resamples * num_bins
    )
    weights: np.ndarray = counts.reshape(inference.num_resamples, num_bins)
    return weights


@dataclass(frozen=True)
class BlockResampling:
    """The blocks that all strategies and metrics of one trace share."""

    bins: TimeBins
    length: int  # bins of a block
    weights: Int[np.ndarray, "resample bin"]

    @property
    def num_blocks(self) -> int:
        """Return the number of blocks in a resampled trace; the last one may be cut off."""
        return -(-self.bins.num_bins // self.length)

    @property
    def block_s(self) -> float:
        """Return the length of a block in seconds."""
        return self.length * self.bins.bin_s

    def mean(self, values: Float[np.ndarray, "request"]) -> Resampled:
        """Return the mean over the requests with a value, with its resamples."""
        has_value = np.isfinite(values)
        place, known = self.bins.place[has_value], values[has_value]
        sums = np.bincount(place, known, self.bins.num_bins)
        counts = np.bincount(place, minlength=self.bins.num_bins)
        if not len(known):
            return nothing(len(self.weights))
        with np.errstate(invalid="ignore", divide="ignore"):
            draws = (self.weights @ sums) / (self.weights @ counts)
        return Resampled(float(known.mean()), draws)

    def quantile(self, values: Float[np.ndarray, "request"], level: float) -> Resampled:
        """Return a quantile over the requests with a value, interpolated as in metrics, with its resamples."""
        has_value = np.isfinite(values)
        order = np.argsort(values[has_value], kind="stable")
        ranked, place = values[has_value][order], self.bins.place[has_value][order]
        if not len(ranked):
            return nothing(len(self.weights))
        middle = int(level * (len(ranked) - 1))
        first, last = max(middle - MOST_RANKS, 0), min(middle + MOST_RANKS, len(ranked))
        below = np.bincount(place[:first], minlength=self.bins.num_bins)
        here = np.zeros((last - first, self.bins.num_bins), np.int32)
        here[np.arange(last - first), place[first:last]] = 1
        counts = below + np.cumsum(here, axis=0, dtype=np.int32)  # up to a rank, by bin
        totals = self.weights @ np.bincount(place, minlength=self.bins.num_bins)
        position = level * np.maximum(totals - 1, 0)
        low = np.floor(position).astype(np.int64)
        ends = [
            ranked[first + self._rank(counts, np.minimum(at, totals - 1))] for at in (low, low + 1)
        ]
        draws = ends[0] + (ends[1] - ends[0]) * (position - low)
        return Resampled(float(np.quantile(ranked, level)), np.where(totals > 0, draws, np.nan))

    def _rank(
        self, counts: Int[np.ndarray, "rank bin"], at: Int[np.ndarray, "resample"]
    ) -> Int[np.ndarray, "resample"]:
        """Return for each resample the first rank up to which it has more than `at` requests, by bisection."""
        low = np.zeros(len(at), np.int64)
        high = np.full(len(at), len(counts) - 1)
        while (low < high).any():
            middle = (low + high) // 2
            is_past = np.einsum("rb,rb->r", self.weights, counts[middle]) > at
            low, high = np.where(is_past, low, middle + 1), np.where(is_past, middle, high)
        return low


@dataclass(frozen=True)
class Resampled:
    """A figure of one strategy, and its value in each resample."""

    value: float
    draws: Float[np.ndarray, "resample"]


def nothing(num_resamples: int) -> Resampled:
    """Return the figure over no requests: NaN, in all resamples too."""
    return Resampled(math.nan, np.full(num_resamples, math.nan))


def only_a_value(value: float, num_resamples: int) -> Resampled:
    """Return a figure that cannot be resampled, such as one of the whole run: every resample is NaN."""
    return Resampled(value, np.full(num_resamples, math.nan))


def average(parts: Sequence[Resampled], chosen: Int[np.ndarray, "resample seed"]) -> Resampled:
    """Return the mean over runs of several seeds; each resample weights them by `chosen`, see `seed_counts`."""
    draws = np.stack([part.draws for part in parts], axis=1)
    values = [part.value for part in parts]
    return Resampled(float(np.mean(values)), (draws * chosen).sum(axis=1) / len(parts))


def seed_counts(num_seeds: int, inference: Inference) -> Int[np.ndarray, "resample seed"]:
    """Draw how often each resample takes the run of each seed."""
    rng = np.random.default_rng([inference.random_state, num_seeds])
    even = np.full(num_seeds, 1 / num_seeds)
    return rng.multinomial(num_seeds, even, inference.num_resamples)


# --- inference ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ResampledPair:
    """One metric of two strategies on the same blocks; `direction` says which values are better."""

    first: Resampled
    second: Resampled
    direction: str = LOWER


def interval_of(figure: Resampled, num_blocks: int, confidence: float) -> Estimate:
    """Return a figure with its percentile interval, widened for the number of blocks."""
    draws = figure.draws
    if not math.isfinite(figure.value) or num_blocks < 2 or not np.isfinite(draws).all():
        return Estimate(figure.value, math.nan, math.nan, num_blocks, NO_INTERVAL)
    if np.ptp(draws) <= ROUNDING * max(abs(figure.value), float(np.abs(draws).max())):
        return Estimate(figure.value, figure.value, figure.value, num_blocks, NO_SPREAD)
    widened = math.sqrt(num_blocks / (num_blocks - 1)) * t_quantile(num_blocks, confidence)
    tail = float(special.ndtr(-widened))
    low, high = np.quantile(draws, [tail, 1 - tail])
    return Estimate(figure.value, float(low), float(high), num_blocks, BLOCKS)


def differences(
    pairs: Sequence[ResampledPair], num_blocks: int, inference: Inference
) -> list[Difference]:
    """Return the difference, second minus first, of each pair of a family, judged together by Holm's method."""
    changes = [_change(pair) for pair in pairs]
    p_values = np.array([p_value(change, num_blocks) for change in changes])
    adjusted = holm(p_values)
    level = 1 - (1 - inference.confidence) / max(len(pairs), 1)
    judged = []
    for pair, change, p, p_adjusted in zip(pairs, changes, p_values, adjusted, strict=True):
        is_clear = bool(p_adjusted <= 1 - inference.confidence)
        in_family = _student(change, num_blocks, level)
        judged.append(
            Difference(
                num_pairs=num_blocks if np.isfinite(change.value) else 0,
                first_mean=pair.first.value,
                second_mean=pair.second.value,
                absolute=interval_of(change, num_blocks, inference.confidence),
                percent=interval_of(_percent(pair), num_blocks, inference.confidence),
                in_family=in_family,
                simultaneous=_agreeing(in_family, is_clear),
                simultaneous_percent=_agreeing(_student_percent(pair, num_blocks, level), is_clear),
                p_value=float(p),
                p_adjusted=float(p_adjusted),
                verdict=_verdict(change, is_clear, pair.direction),
            )
        )
    return judged


def p_value(change: Resampled, num_blocks: int) -> float:
    """Return the two-sided p-value of Student's t; 1 if the error is unknown, or there is no difference."""
    error = _standard_error(change.draws, num_blocks)
    if not math.isfinite(error) or error == 0 or not math.isfinite(change.value):
        return 1.0
    return float(2 * special.stdtr(num_blocks - 1, -abs(change.value) / error))


def _change(pair: ResampledPair) -> Resampled:
    """Return second minus first, resample by resample; 0 for differences of the size of rounding errors."""
    value, draws = pair.second.value - pair.first.value, pair.second.draws - pair.first.draws
    size = max(abs(pair.first.value), abs(pair.second.value))
    draws = np.where(np.abs(draws) <= ROUNDING * size, 0.0, draws)
    return Resampled(0.0 if abs(value) <= ROUNDING * size else value, draws)


def _percent(pair: ResampledPair) -> Resampled:
    with np.errstate(invalid="ignore", divide="ignore"):
        value, draws = (
            100 * (np.divide(second, first) - 1)
            for first, second in (
                (pair.first.value, pair.second.value),
                (pair.first.draws, pair.second.draws),
            )
        )
    return Resampled(float(value), draws)


def _standard_error(draws: Float[np.ndarray, "resample"], num_blocks: int) -> float:
    if num_blocks < 2 or not np.isfinite(draws).all():
        return math.nan
    return float(draws.std(ddof=1)) * math.sqrt(num_blocks / (num_blocks - 1))


def _student(figure: Resampled, num_blocks: int, confidence: float) -> Estimate:
    error = _standard_error(figure.draws, num_blocks)
    if not (math.isfinite(figure.value) and math.isfinite(error)):
        return Estimate(figure.value, math.nan, math.nan, num_blocks, NO_INTERVAL)
    if error == 0:
        return Estimate(figure.value, figure.value, figure.value, num_blocks, NO_SPREAD)
    half = t_quantile(num_blocks, confidence) * error
    return Estimate(figure.value, figure.value - half, figure.value + half, num_blocks, STUDENT)


def _student_percent(pair: ResampledPair, num_blocks: int, confidence: float) -> Estimate:
    """Return the change in % with Student's t interval of the log ratio, or a symmetric one without a logarithm."""
    percent = _percent(pair)
    ratios = 1 + percent.draws / 100
    if not (1 + percent.value / 100 > 0 and np.isfinite(ratios).all() and (ratios > 0).all()):
        return _student(percent, num_blocks, confidence)
    ratio = Resampled(math.log1p(percent.value / 100), np.log(ratios))
    interval = _student(ratio, num_blocks, confidence)
    if interval.method == NO_INTERVAL:
        return Estimate(percent.value, math.nan, math.nan, num_blocks, NO_INTERVAL)
    with np.errstate(over="ignore"):
        low, high = 100 * np.expm1([interval.low, interval.high])
    return Estimate(percent.value, float(low), float(high), num_blocks, interval.method)


def _verdict(change: Resampled, is_clear: bool, direction: str) -> str:
    if not math.isfinite(change.value):
        return UNCLEAR
    if change.value == 0 and not np.nan_to_num(change.draws).any():
        return SAME if np.isfinite(change.draws).all() else UNCLEAR
    return verdict_on(change.value, is_clear, direction)


def _agreeing(interval: Estimate, is_clear: bool) -> Estimate:
    return interval if interval.method == NO_SPREAD else agreeing(interval, is_clear)

"""Figures of one trace as means over blocks of arrival time, for intervals and verdicts.

One trace has no seeds to repeat, and the latencies of neighbouring requests depend on each other, since they wait in
the same queues. So neither runs nor single requests can be compared, but stretches of time can. The span of arrivals is
cut into equal blocks, the same for all strategies, so the effect of the traffic on all of them cancels. A block
contributes to a figure by what the figure is without it (the jackknife's pseudo-values): the mean of the contributions
is the figure, and their spread gives its error. So intervals and verdicts treat blocks as they treat seeds (`paired`):
a verdict takes six of them.

A block must be long against the time over which latencies depend on each other. Its length follows from the latencies
of each strategy and from their differences: twice the length by the rule of Politis and White (2004, corrected by
Patton, Politis and White, 2009), since blocks that are too short make verdicts too sure, and the rule aims at the
variance (`python -m benchmarks.coverage.blocks`). A trace of a busy cluster may hold fewer than six such blocks,
however many requests it has. Then it cannot tell what other traffic like it would do.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from blis_jax.statistics.paired import ROUNDING

if TYPE_CHECKING:
    from jaxtyping import Float, Int

LEAST_REQUESTS = 100  # below it an interval would be guessed
LONGER = 2  # times the rule's block, see above
REQUESTS_PER_BIN, MOST_BINS = 5, 200
LAGS_IN_A_ROW = 5  # that are insignificant where correlation has ended
SIGNIFICANT = 2.0  # correlations beyond so many standard errors count


@dataclass(frozen=True)
class TimeBlocks:
    """Equal blocks of arrival time, and the block of each request."""

    place: Int[np.ndarray, "request"]
    num_blocks: int
    block_s: float

    @property
    def num_filled(self) -> int:
        """Return the number of blocks in which requests arrive."""
        return len(np.unique(self.place))

    def mean(self, values: Float[np.ndarray, "request"]) -> Float[np.ndarray, "block"]:
        """Return each block's contribution to the mean over the requests that have a value; NaN for blocks without."""
        known, place = self._known(values)
        of_block = np.bincount(place, minlength=self.num_blocks)
        sums = known.sum() - np.bincount(place, known, self.num_blocks)
        counts = len(known) - of_block
        figure = float(known.mean()) if len(known) else math.nan
        without = np.where(counts, sums / np.maximum(counts, 1), figure)
        return _contributions(figure, np.where(of_block, without, np.nan))

    def quantile(
        self, values: Float[np.ndarray, "request"], level: float
    ) -> Float[np.ndarray, "block"]:
        """Return each block's contribution to a quantile, interpolated as in metrics, of the requests that have a
        value; NaN for blocks without."""
        known, place = self._known(values)
        order = np.argsort(known)
        ranked, place = known[order], place[order]
        without = np.full(self.num_blocks, math.nan)
        figure = _quantile(ranked, level) if len(known) else math.nan
        for block in np.unique(place):
            rest = ranked[place != block]
            without[block] = _quantile(rest, level) if len(rest) else figure
        return _contributions(figure, without)

    def _known(
        self, values: Float[np.ndarray, "request"]
    ) -> tuple[Float[np.ndarray, "known"], Int[np.ndarray, "known"]]:
        has_value = np.isfinite(values)
        return values[has_value], self.place[has_value]


def _contributions(
    figure: float, without: Float[np.ndarray, "block"]
) -> Float[np.ndarray, "block"]:
    """Return the jackknife's pseudo-values around the figure, from the figures without each block that has a part."""
    filled = np.isfinite(without)
    contributions = np.full(len(without), math.nan)
    if filled.any():
        of_filled = without[filled]
        contributions[filled] = figure + (len(of_filled) - 1) * (of_filled.mean() - of_filled)
    return contributions


def _quantile(ranked: Float[np.ndarray, "request"], level: float) -> float:
    place = level * (len(ranked) - 1)
    low = int(place)
    high = min(low + 1, len(ranked) - 1)
    return float(ranked[low] + (ranked[high] - ranked[low]) * (place - low))


def time_blocks(arrival_us: Int[np.ndarray, "request"], num_blocks: int) -> TimeBlocks:
    """Divide arrival time into equal blocks."""
    start, end = (int(arrival_us.min()), int(arrival_us.max())) if len(arrival_us) else (0, 0)
    block_us = max(end - start, 1) / num_blocks
    place = np.minimum(((arrival_us - start) / block_us).astype(np.int64), num_blocks - 1)
    return TimeBlocks(place, num_blocks, block_us / 1e6)


def num_bins(num_requests: int) -> int:
    """Return in how many bins to look how long requests stay alike: `REQUESTS_PER_BIN` each, at most `MOST_BINS`."""
    return max(min(num_requests // REQUESTS_PER_BIN, MOST_BINS), 1)


def usual_number(series: Sequence[Float[np.ndarray, "bin"]]) -> int:
    """Return how many blocks a trace holds, each as long as the series need that needs the longest; 1 or more."""
    least = math.ceil(len(series[0]) ** (1 / 3))
    length = max(least, *(LONGER * wanted_length(each) for each in series))
    return max(len(series[0]) // length, 1)


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

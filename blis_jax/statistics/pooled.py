"""Percentiles of the requests of all runs together, as means over seeds of each seed's contribution.

The mean over runs of each run's P99 and the P99 of all their requests are two quantities. The first depends on how
many requests a run has: of 200 requests the P99 lies between the second and the third largest. The second does not,
and a few busy runs may make most of it.

With F̂ the share of the N pooled requests at or below a value, q̂ the percentile and f̂ the density there, seed i with
n_i requests, c_i of them above q̂, contributes

    q̂ + R (d_i - d̄) ÷ (N f̂),    d_i = c_i - (1 - p) n_i,    over R seeds,

which is the infinitesimal jackknife. The mean of the contributions is q̂, and their spread over seeds gives its
standard error, whatever the requests of one run have in common. So paired tests, intervals and families treat a
pooled percentile as any other figure that has one value per seed. f̂ is taken between the two quantiles that lie two
standard errors of F̂(q̂) to either side (R. S. Woodruff, Confidence intervals for medians and other position measures,
JASA 47, 1952).
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from blis_jax.results.metrics.tails import RANKS, Tails

if TYPE_CHECKING:
    from jaxtyping import Bool, Float

ERRORS_TO_EACH_SIDE = 2.0


def whole(tails: Tails) -> Bool[np.ndarray, "run"]:
    """Which runs came to their end."""
    return tails.count >= 0


def only(tails: Tails, is_chosen: Bool[np.ndarray, "run"]) -> Tails:
    """The same with some of the runs; the others count as not ended."""
    return replace(tails, count=np.where(is_chosen, tails.count, -1))


def contributions_ms(tails: Tails, percent: float = 99.0) -> Float[np.ndarray, "run"]:
    """What each run contributes to the pooled percentile, ms; their mean is the percentile.

    Args:
        tails: what is kept of each run.
        percent: of the percentile; from 90 on, since it is the tail that is kept.

    Returns:
        One value a run; NaN for runs that did not end, and for all of them if there is no request at all.
    """
    found = np.full(len(tails.count), np.nan)
    runs = np.flatnonzero(whole(tails))
    values = [_values_ms(int(tails.count[run]), tails.top_us[run]) for run in runs]
    size, share = sum(map(len, values)), 1 - percent / 100
    if not size:
        return found
    pool = np.sort(np.concatenate(values))
    middle = _quantile(pool, 1 - share)
    excess = np.array([np.count_nonzero(one > middle) - share * len(one) for one in values])
    excess -= excess.mean()
    found[runs] = middle
    error = math.sqrt(len(runs) / max(len(runs) - 1, 1) * float(np.square(excess).sum())) / size
    if error:
        found[runs] += excess * len(runs) / size / _density(pool, share, error)
    return found


def _values_ms(count: int, top_us: np.ndarray) -> Float[np.ndarray, "request"]:
    """The latencies of one run, linear between the kept ones."""
    kept = np.flatnonzero(np.isfinite(top_us))
    if not count:
        return np.zeros(0)
    values: np.ndarray = np.interp(np.arange(count), np.array(RANKS)[kept], top_us[kept]) / 1000
    return values


def _quantile(pool: Float[np.ndarray, "request"], level: float) -> float:
    """Linear between neighbours, as every percentile here."""
    rank = min(max(level, 0.0), 1.0) * (len(pool) - 1)
    below = math.floor(rank)
    above = min(below + 1, len(pool) - 1)
    return float(pool[below] + (pool[above] - pool[below]) * (rank - below))


def _density(pool: Float[np.ndarray, "request"], share: float, error: float) -> float:
    """Probability per ms around the quantile; infinite where all values there are equal."""
    reach = ERRORS_TO_EACH_SIDE * error
    low, high = max(1 - share - reach, 0.0), min(1 - share + reach, 1 - 0.5 / len(pool))
    width = _quantile(pool, high) - _quantile(pool, low)
    return (high - low) / width if width > 0 else math.inf

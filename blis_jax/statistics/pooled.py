"""Percentiles of the requests of all runs together, as means over seeds of each seed's contribution.

The mean over runs of each run's P99 and the P99 of all their requests are two quantities. The first depends on how
many requests a run has: of 200 requests the P99 lies between the second and the third largest. The second does not,
and a few busy runs may make most of it.

The estimate is that of F. E. Harrell and C. E. Davis (A new distribution-free quantile estimator, Biometrika 69,
1982): of N pooled values x_1 ≤ … ≤ x_N the mean with weights of a beta law around the percentile, which are those of
the neighbours within some √(N p (1 - p)) ranks. It is a smooth function of all values there, so that the infinitesimal
jackknife holds: with J the beta density and p_k = k ÷ N, a value x_j moves the estimate by

    IF_j = Σ_k J(p_k) (x_{k+1} - x_k) (p_k - [k ≥ j]),

and seed i of R contributes the estimate and R ÷ N times the sum of its IF_j. The mean of the contributions is the
estimate, and their spread over seeds gives its standard error, whatever the requests of one run have in common. So
paired tests, intervals and families treat a pooled percentile as any other figure that has one value per seed.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from blis_jax.metrics.tails import RANKS, Tails

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int

REACH = 20.0  # standard deviations of the beta law within which weights are not nothing


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
    sizes = np.array([len(one) for one in values], int)
    if not sizes.sum():
        return found
    pool = np.concatenate(values)
    of_run = np.repeat(np.arange(len(runs)), sizes)
    order = np.argsort(pool, kind="stable")
    estimate, influence = _harrell_davis(pool[order], percent / 100)
    moved = np.bincount(of_run[order], influence, len(runs)) * len(runs) / len(pool)
    found[runs] = estimate + moved - moved.mean()
    return found


def _values_ms(count: int, top_us: np.ndarray) -> Float[np.ndarray, "request"]:
    """The latencies of one run, linear between the kept ones."""
    kept = np.flatnonzero(np.isfinite(top_us))
    if not count:
        return np.zeros(0)
    values: np.ndarray = np.interp(np.arange(count), np.array(RANKS)[kept], top_us[kept]) / 1000
    return values


class _Weights(NamedTuple):
    """Of the values in ascending order, from the first on that has any."""

    first: int
    of_values: Float[np.ndarray, "value"]
    densities: Float[np.ndarray, "gap"]  # at the shares below the gaps between them
    shares: Float[np.ndarray, "gap"]


def _weights(size: int, level: float) -> _Weights:
    from scipy import stats

    law = stats.beta((size + 1) * level, (size + 1) * (1 - level))
    first = max(math.floor(size * (level - REACH * law.std())), 0)
    places: Int[np.ndarray, "edge"] = np.arange(first, size + 1)
    shares = places[1:-1] / size
    return _Weights(first, np.diff(law.cdf(places / size)), law.pdf(shares), shares)


def _harrell_davis(
    ordered: Float[np.ndarray, "value"], level: float
) -> tuple[float, Float[np.ndarray, "value"]]:
    """The quantile, and by how much each value moves it."""
    weights = _weights(len(ordered), level)
    near = ordered[weights.first :]
    gaps = weights.densities * np.diff(near)
    influence = np.full(len(ordered), float((weights.shares * gaps).sum()))
    above = np.append(np.cumsum(gaps[::-1])[::-1], 0.0)
    influence[weights.first :] -= above
    influence[: weights.first] -= above[0]
    return float(weights.of_values @ near / weights.of_values.sum()), influence

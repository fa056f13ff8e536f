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
intervals and families of differences treat a pooled percentile like any other figure with one value per seed.

A verdict needs more. Where latencies lie apart beyond the percentile, both the estimate and its standard error hang on
which few seeds a sample has, and together they mislead: of arms that have one P99 and different distributions,
Student's t still tells too many apart on 500 seeds. Counts do not have this fault. If both arms have the percentile u,
then of each arm's requests one share lies above u, whatever their densities there. For a given u the numbers above it
are two means over seeds, judged by Hotelling's T². As nobody knows u, that value counts which speaks least for a
difference, as in the continuous-updating estimates of L. P. Hansen, J. Heaton and A. Yaron (Finite-sample properties of
some alternative GMM estimators, J. Bus. Econ. Statist. 14, 1996).
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from blis_jax.lazy import special
from blis_jax.metrics.run_summary import RANKS, Tails
from blis_jax.metrics.scalars import pooled_latency
from blis_jax.metrics.summaries import LATENCIES

if TYPE_CHECKING:
    import xarray as xr
    from jaxtyping import Bool, Float, Int

REACH = 20.0  # standard deviations of the beta law within which weights are not nothing
# values that are tried; the shares above them, of the share above the percentile
NUM_VALUES, FROM, TO = (
    60,
    0.05,
    5.0,
)
FEWEST_PAIRS = 3  # of which two means have a T²
SINGULAR = 1e-9
_RANKS = np.array(RANKS)


def whole(tails: Tails) -> Bool[np.ndarray, "run"]:
    """Return which runs came to their end."""
    return tails.count >= 0


def only(tails: Tails, is_chosen: Bool[np.ndarray, "run"]) -> Tails:
    """Return the tails of the chosen runs; the others are marked as not ended."""
    return replace(tails, count=np.where(is_chosen, tails.count, -1))


def contributions_ms(tails: Tails, percent: float = 99.0) -> Float[np.ndarray, "run"]:
    """Return each run's contribution to the pooled percentile, ms; the mean of the contributions is the percentile.

    Args:
        tails: the kept latencies of each run.
        percent: 90 or more, since only the tail is kept.

    Returns:
        One value for each run; NaN for runs that did not end, and for all runs if there is no request at all.
    """
    contributions = np.full(len(tails.count), np.nan)
    runs = np.flatnonzero(whole(tails))
    if not tails.count[runs].sum():
        return contributions
    estimate, moved = _parts(tails, runs, percent)
    contributions[runs] = estimate + moved - moved.mean()
    return contributions


def excess_counts(
    first: Tails, second: Tails, percent: float = 99.0
) -> Float[np.ndarray, "value arm pair"]:
    """Return how many requests of each run lie above each of some values, less the share beyond the percentile.

    If both arms have the percentile at one of the values, the expected means over seeds are 0 there.

    Args:
        first: the kept latencies of the first arm's runs; seeds on which a run of either arm did not end are left out.
        second: those of the second arm's runs, on the same seeds.
        percent: 90 or more, since only the tail is kept.
    """
    both = np.flatnonzero(whole(first) & whole(second))
    above = 1 - percent / 100
    runs = [
        _values_ms(int(arm.count[at]), arm.top_us[at]) for arm in (first, second) for at in both
    ]
    sizes = np.array([len(run) for run in runs], int)
    pool = np.concatenate(runs or [np.zeros(0)])
    if len(pool) < 2:
        return np.zeros((0, 2, len(both)))
    ends = np.clip(above * len(pool) * np.array([FROM, TO]), 1, len(pool) - 1)
    ranks = np.unique(np.geomspace(ends[0], ends[1], NUM_VALUES).astype(int))
    tried = np.sort(np.partition(pool, len(pool) - 1 - ranks)[len(pool) - 1 - ranks])
    is_near = pool > tried[0]
    cells = np.repeat(np.arange(len(runs)), sizes)[is_near] * len(tried)
    cells += np.searchsorted(tried, pool[is_near]) - 1  # the largest of the values below
    below = np.bincount(cells, minlength=len(runs) * len(tried)).reshape(len(runs), -1)
    counts = np.cumsum(below[:, ::-1], axis=1)[:, ::-1] - above * sizes[:, None]
    return counts.reshape(2, len(both), -1).transpose(2, 0, 1)


def excess_against(
    excess: Float[np.ndarray, "value arm pair"], is_second_larger: bool, number: float
) -> Float[np.ndarray, "value arm more"]:
    """Append a fraction `number` of a seed against the difference.

    At each value the arm with the smaller percentile gets this fraction of the largest excess of any run of either arm,
    the other arm this fraction of its mean.
    """
    against = number * excess.mean(axis=-1, keepdims=True)
    against[:, int(not is_second_larger)] = number * excess.max(axis=(1, 2))[:, None]
    return np.concatenate([excess, against], axis=-1)


def excess_score(excess: Float[np.ndarray, "value arm pair"]) -> float:
    """Return the least T over the values, as a t statistic of one pair less; 0 for fewer than three pairs.

    T tests at one value that both arms' mean excess is 0.
    """
    num_pairs = excess.shape[-1]
    if num_pairs < FEWEST_PAIRS or not len(excess):
        return 0.0
    mean = excess.mean(axis=-1)
    deviation = excess - mean[..., None]
    spread = np.einsum("vap,vbp->vab", deviation, deviation) / (num_pairs - 1)
    squares = spread[:, 0, 0] * spread[:, 1, 1]
    determinant = squares - spread[:, 0, 1] ** 2
    is_known = determinant > SINGULAR * squares
    form = (
        mean[:, 0] ** 2 * spread[:, 1, 1]
        - 2 * mean[:, 0] * mean[:, 1] * spread[:, 0, 1]
        + mean[:, 1] ** 2 * spread[:, 0, 0]
    )
    least = (form[is_known] / determinant[is_known]).min(initial=math.inf)
    return math.sqrt(max(least, 0.0) * num_pairs * (num_pairs - 2) / (num_pairs - 1))


def _parts(
    tails: Tails, runs: Int[np.ndarray, "run"], percent: float
) -> tuple[float, Float[np.ndarray, "run"]]:
    """Return the pooled percentile of these runs, ms, and by how much each run's values move it, ms."""
    values = [_values_ms(int(tails.count[run]), tails.top_us[run]) for run in runs]
    of_run = np.repeat(np.arange(len(runs)), [len(of_one) for of_one in values])
    pool = np.concatenate(values)
    weights = _weights(len(pool), percent / 100)
    order = np.argpartition(pool, weights.first)  # those below are not told apart
    order[weights.first :] = order[weights.first :][np.argsort(pool[order[weights.first :]])]
    estimate, influence = _harrell_davis(pool[order], weights)
    return estimate, np.bincount(of_run[order], influence, len(runs)) * len(runs) / len(pool)


def _values_ms(count: int, top_us: np.ndarray) -> Float[np.ndarray, "request"]:
    """Return the latencies of one run, ms, interpolated linearly between the kept ones."""
    kept = np.flatnonzero(np.isfinite(top_us))
    if not count:
        return np.zeros(0)
    values: np.ndarray = np.interp(np.arange(count), _RANKS[kept], top_us[kept]) / 1000
    return values


class _Weights(NamedTuple):
    """The weights of the sorted values in the estimate of a quantile, from the first value with a weight above 0."""

    first: int
    of_values: Float[np.ndarray, "value"]
    densities: Float[np.ndarray, "gap"]  # at the shares below the gaps between them
    shares: Float[np.ndarray, "gap"]


def _weights(size: int, level: float) -> _Weights:
    below, above = (size + 1) * level, (size + 1) * (1 - level)
    first = max(math.floor(size * (level - REACH * math.sqrt(level * (1 - level) / (size + 2)))), 0)
    places: Int[np.ndarray, "edge"] = np.arange(first, size + 1)
    shares = places[1:-1] / size
    # of `scipy.stats`, which takes longer to import than a sweep to compare, to the ninth digit
    logs = special.xlogy(below - 1, shares) + special.xlog1py(above - 1, -shares)
    densities = np.exp(logs - special.betaln(below, above))
    return _Weights(first, np.diff(special.betainc(below, above, places / size)), densities, shares)


def _harrell_davis(
    ordered: Float[np.ndarray, "value"], weights: _Weights
) -> tuple[float, Float[np.ndarray, "value"]]:
    """Return the quantile, and by how much each value moves it; values before the first weight may be in any order."""
    near = ordered[weights.first :]
    gaps = weights.densities * np.diff(near)
    influence = np.full(len(ordered), float((weights.shares * gaps).sum()))
    above = np.append(np.cumsum(gaps[::-1])[::-1], 0.0)
    influence[weights.first :] -= above
    influence[: weights.first] -= above[0]
    return float(weights.of_values @ near / weights.of_values.sum()), influence


# --- figures that a Dataset keeps -----------------------------------------------------------------


def values_of(dataset: xr.Dataset, metric: str) -> xr.DataArray:
    """Return a metric by name, such as `ttft_p99_ms`, from a sweep's Dataset; contributions for a pooled metric.

    Raises:
        KeyError: the Dataset does not have the metric.
    """
    pooled = pooled_latency(metric)
    if pooled is not None:
        return _kept_contributions(dataset, pooled)
    if metric == "reject_rate":
        with np.errstate(invalid="ignore", divide="ignore"):
            return dataset["num_rejected"] / dataset["num_requests"]
    for latency in LATENCIES:
        name, _, rest = metric.partition("_p")
        if name == latency and rest.endswith("_ms") and rest[:-3].isdecimal():
            return dataset[f"{latency}_ms"].sel(quantile=int(rest[:-3]) / 100, method="nearest")
    return dataset[metric]


def _kept_contributions(dataset: xr.Dataset, latency: str) -> xr.DataArray:
    """Return the contribution of each run, ms, from the kept latencies; a run without a duration did not end."""
    largest_us = dataset[f"{latency}_top_us"].transpose(..., "seed", "rank")
    count = dataset[f"{latency}_count"].where(np.isfinite(dataset["duration_s"]), -1)
    counts = count.transpose(*largest_us.dims[:-1]).values
    contributions = np.full(counts.shape, np.nan)
    for at in np.ndindex(*counts.shape[:-1]):
        contributions[at] = contributions_ms(Tails(counts[at], largest_us.values[at]))
    return largest_us.isel(rank=0, drop=True).copy(data=contributions)

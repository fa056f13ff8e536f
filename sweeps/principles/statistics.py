"""The figures that claims are about, computed from the runs of their arms, with values per seed.

Ratios and gains are of means over the seeds, as the record has them; their intervals are Student's t
at 95 %, of ratios on the logarithm. A kind is a function of the runs and the claim.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING, Any

import numpy as np

from blis_jax.errors import ConfigError
from blis_jax.metrics.metric import HIGHER
from blis_jax.metrics.run_summary import RunSummary, share_differing
from blis_jax.statistics.intervals import Estimate, estimate
from blis_jax.statistics.paired import difference
from sweeps.claims.judge import ClaimReading
from sweeps.principles.catalogue import PrincipleClaim
from sweeps.principles.lab import Lab, metric_of
from sweeps.principles.probes import PROBES, spread_ratio

if TYPE_CHECKING:
    from jaxtyping import Float

Runs = Mapping[str, tuple[RunSummary, ...]]  # by arm


@dataclass(frozen=True)
class Bound:
    """A claim with the runs that its figure is computed from."""

    claim: PrincipleClaim
    runs: Runs
    lab: Lab | None = None  # for kinds that run more

    def values(self, arm: str, metric: str | None = None) -> Float[np.ndarray, "seed"]:
        """Return an arm's metric on every seed; the claim's metric unless another is named."""
        return np.array([run.value(metric or self.claim.metric) for run in self.runs[arm]])

    def mean(self, arm: str, metric: str | None = None) -> float:
        """Return the mean of an arm's metric; NaN if a run did not finish."""
        return float(np.mean(self.values(arm, metric)))


Kind = Callable[[Bound], ClaimReading]


def _figure(
    value: float,
    per_seed: tuple[float, ...] = (),
    low: float = math.nan,
    high: float = math.nan,
    parts: Mapping[str, float] | None = None,
    failure: str = "",
) -> ClaimReading:
    return ClaimReading(per_seed, Estimate(value, low, high, len(per_seed)), parts or {}, failure)


def compute(bound: Bound) -> ClaimReading:
    """Compute the figure of a claim; NaN, with a reason, if a run did not finish."""
    claim = bound.claim
    if claim.kind not in KINDS:
        raise ConfigError(f"claim kind {claim.kind!r} is unknown; use one of {', '.join(KINDS)}")
    if claim.kind not in ("ended", "least_regret"):
        failure = _failures(bound.runs, claim.arms())
        if failure:
            return _figure(math.nan, failure=failure)
    reading = KINDS[claim.kind](bound)
    num_missing = sum(math.isnan(value) for value in reading.per_seed)
    if num_missing and not math.isnan(reading.mean.mean):
        failure = f"there is no figure on {num_missing} of {len(reading.per_seed)} seeds"
        return _figure(math.nan, reading.per_seed, failure=failure)
    return reading


def _failures(runs: Runs, arms: Sequence[str]) -> str:
    failures = []
    for arm in arms:
        outcomes = [run.outcome.name for run in runs[arm] if not run.is_whole]
        counts = [f"{outcomes.count(name)} × {name}" for name in dict.fromkeys(outcomes)]
        if counts:
            failures.append(f"{arm} did not end ({', '.join(counts)})")
    return "; ".join(failures)


def _of_seeds(
    values: Float[np.ndarray, "seed"], parts: Mapping[str, float] | None = None
) -> ClaimReading:
    return ClaimReading(tuple(values.tolist()), estimate(values), parts or {})


def _parts(bound: Bound) -> dict[str, float]:
    return {arm: bound.mean(arm) for arm in bound.claim.arms()}


def _value(bound: Bound) -> ClaimReading:
    """Return the metric of one arm."""
    return _of_seeds(bound.values(bound.claim.of))


def _ratio(bound: Bound) -> ClaimReading:
    """Return the mean of `of` ÷ the mean of `to`."""
    first, second = bound.values(bound.claim.to), bound.values(bound.claim.of)
    per_seed = np.divide(second, first, out=np.full(len(first), np.nan), where=first != 0)
    return _of_means(bound, first, second, tuple(per_seed))


def _of_means(
    bound: Bound, first: np.ndarray, second: np.ndarray, per_seed: tuple[float, ...]
) -> ClaimReading:
    """Return the ratio of two means over the seeds, second ÷ first."""
    ratio = difference(first, second).percent.through(lambda percent: 1 + percent / 100)
    return _figure(ratio.mean, per_seed, ratio.low, ratio.high, _parts(bound))


def _differing(bound: Bound) -> ClaimReading:
    """Return the share of requests of which anything recorded differs between two arms."""
    pairs = zip(bound.runs[bound.claim.of], bound.runs[bound.claim.to], strict=True)
    return _of_seeds(np.array([share_differing(*pair) for pair in pairs]))


def _interaction(bound: Bound) -> ClaimReading:
    """Return both − a − b + base, for `of` = [base, a, b, both]."""
    base, first, second, both = (bound.values(arm) for arm in bound.claim.of)
    return _of_seeds(both - first - second + base, _parts(bound))


def _gain(values: Float[np.ndarray, "..."], of: Float[np.ndarray, "..."]) -> Any:
    return 100 * (1 - values / of)


def _gain_change(bound: Bound) -> ClaimReading:
    """Return the gain of `of` = [arm, its base] minus that of `to`, in percentage points."""
    gains, means = [], []
    for arm, base in (bound.claim.of, bound.claim.to):
        gains.append(_gain(bound.values(arm), bound.values(base)))
        means.append(_gain(np.array(bound.mean(arm)), np.array(bound.mean(base))))
    change = gains[0] - gains[1]
    interval = estimate(change)
    half = interval.high - interval.mean
    value = float(means[0] - means[1])
    parts = {"gain_of": float(means[0]), "gain_to": float(means[1])}
    return _figure(value, tuple(change.tolist()), value - half, value + half, parts)


def _change_share(bound: Bound) -> ClaimReading:
    """Return the relative change of `of` = [arm, its base] ÷ that of `to`."""
    per_seed, means = [], []
    for arm, base in (bound.claim.of, bound.claim.to):
        per_seed.append(bound.values(arm) / bound.values(base) - 1)
        means.append(bound.mean(arm) / bound.mean(base) - 1)
    parts = {"change_of": means[0], "change_to": means[1]}
    return _figure(means[0] / means[1], tuple((per_seed[0] / per_seed[1]).tolist()), parts=parts)


def _best_ratio(bound: Bound) -> ClaimReading:
    """Return the mean of `of` ÷ the best mean among the arms in `to`."""
    best = min(bound.claim.to, key=bound.mean)
    of = bound.values(bound.claim.of)
    others = np.array([bound.values(arm) for arm in bound.claim.to])
    per_seed = tuple((of / others.min(axis=0)).tolist())
    return _of_means(bound, bound.values(best), of, per_seed)


def _least_regret(bound: Bound) -> ClaimReading:
    """Return the smallest, over settings, of the largest loss against the best setting of a column, in %.

    `of` has a list of arms for every column, with the settings in the same order. An arm with an unfinished run has an
    infinite loss.
    """
    means = np.array([[bound.mean(arm) for arm in column] for column in bound.claim.of])
    means = np.where(np.isnan(means), np.inf, means)
    regret = 100 * (means / means.min(axis=1, keepdims=True) - 1)
    return _figure(float(regret.max(axis=0).min()), parts=_parts(bound))


def _ended(bound: Bound) -> ClaimReading:
    """Return the share of an arm's runs that finished."""
    runs = bound.runs[bound.claim.of]
    values = np.array([float(run.is_whole) for run in runs])
    failure = _failures(bound.runs, [bound.claim.of])
    parts = {failure: float("nan")} if failure else {}
    return _figure(float(values.mean()), tuple(values.tolist()), parts=parts)


def _rank_changes(bound: Bound) -> ClaimReading:
    """Return the number of pairs of arms that two metrics, `options.metrics`, rank differently."""
    metrics = bound.claim.options["metrics"]
    worth = {
        metric: np.array([bound.values(arm, metric) for arm in bound.claim.of])
        * (-1 if metric_of(metric)[0].direction == HIGHER else 1)
        for metric in metrics
    }

    def swapped(values: Sequence[Float[np.ndarray, "arm"]]) -> float:
        first, second = values
        pairs = combinations(range(len(first)), 2)
        return float(sum((first[i] - first[j]) * (second[i] - second[j]) < 0 for i, j in pairs))

    tables = [worth[metric] for metric in metrics]
    per_seed = [swapped([table[:, place] for table in tables]) for place in range(len(tables[0].T))]
    parts = {
        f"{metric} {arm}": bound.mean(arm, metric) for metric in metrics for arm in bound.claim.of
    }
    return _figure(swapped([table.mean(axis=1) for table in tables]), tuple(per_seed), parts=parts)


def _probe(bound: Bound) -> ClaimReading:
    """Return the figure of a check of policy functions, which needs no runs; see probes.py."""
    options = dict(bound.claim.options)
    name = options.pop("name")
    if name not in PROBES:
        raise ConfigError(f"probe {name!r} is unknown; use one of {', '.join(PROBES)}")
    value, parts = PROBES[name](**options)
    return _figure(value, parts=parts)


def _tuner_spread(bound: Bound) -> ClaimReading:
    """Return the spread of the best values that a search finds, at more parameters ÷ at fewer."""
    value, parts = spread_ratio(**bound.claim.options)
    return _figure(value, parts=parts)


KINDS: Mapping[str, Kind] = {
    "value": _value,
    "ratio": _ratio,
    "differing": _differing,
    "interaction": _interaction,
    "gain_change": _gain_change,
    "change_share": _change_share,
    "best_ratio": _best_ratio,
    "least_regret": _least_regret,
    "ended": _ended,
    "rank_changes": _rank_changes,
    "probe": _probe,
    "tuner_spread": _tuner_spread,
}

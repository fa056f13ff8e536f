"""Paired differences over seeds: intervals for each, and verdicts for all of a family at once.

Each difference has an interval of its own: a bootstrap of the pairs (BCa) from 15 pairs on, below that
Student's t, since a handful of pairs has too few resamples to say anything about 95 %. The verdict is
another matter: many differences are looked at together, so p-values (paired t) are adjusted by Holm's
method over the whole family, and the simultaneous intervals are Bonferroni's, cut at 0 where Holm's
finer steps exclude it. They agree: an interval holds 0 exactly where the verdict is not a difference.
Student's intervals of changes in % are those of the logarithm of the ratio of both means.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from blis_jax.compare import BETTER, SAME, UNCLEAR, WORSE, relative_change
from blis_jax.scalar_metrics import LOWER

if TYPE_CHECKING:
    from jaxtyping import Float

LEAST_PAIRS_FOR_BOOTSTRAP = 15
BOOTSTRAP, PERCENTILE, STUDENT = "bootstrap (BCa)", "bootstrap (percentile)", "Student's t"
ROUNDING = 1e-12
NO_SPREAD, NO_INTERVAL = "equal on every seed", "none"
NEITHER = ""  # a direction in which nothing is better
Statistic = Callable[..., "np.ndarray"]  # of one array of seeds per sample, over the last axis


@dataclass(frozen=True)
class Inference:
    """How sure intervals and verdicts are to be, and the resampling."""

    confidence: float = 0.95
    num_resamples: int = 9999
    random_state: int = 0


@dataclass(frozen=True)
class Interval:
    """A value and where it may lie; NaN where that cannot be said. `method` is one of those above."""

    value: float
    low: float
    high: float
    method: str

    def holds(self, value: float) -> bool:
        """Whether a value lies within; also where nothing can be said."""
        return not (value < self.low or value > self.high)


@dataclass(frozen=True)
class Pair:
    """One metric of two strategies by seed; NaN where a seed has none. `direction`: what is better."""

    first: Float[np.ndarray, "seed"]
    second: Float[np.ndarray, "seed"]
    direction: str = LOWER

    def common(self) -> tuple[Float[np.ndarray, "pair"], Float[np.ndarray, "pair"]]:
        """The values of the seeds that both have."""
        both = np.isfinite(self.first) & np.isfinite(self.second)
        return self.first[both], self.second[both]

    def change(self) -> Float[np.ndarray, "pair"]:
        """Second minus first on those seeds; 0 where only rounding tells them apart."""
        first, second = self.common()
        size = np.maximum(np.abs(first), np.abs(second))
        return np.where(np.abs(second - first) <= ROUNDING * size, 0.0, second - first)


@dataclass(frozen=True)
class Difference:
    """Second minus first. `absolute` and `percent` stand for themselves; the rest holds for the family."""

    num_pairs: int
    first_mean: float
    second_mean: float
    absolute: Interval
    percent: Interval  # of the first's mean
    simultaneous: Interval
    simultaneous_percent: Interval
    p_value: float  # two-sided
    p_adjusted: float
    verdict: str  # BETTER, WORSE, UNCLEAR, or SAME: equal on every seed


def differences(pairs: Sequence[Pair], inference: Inference | None = None) -> list[Difference]:
    """The differences of a family, judged together."""
    inference = inference or Inference()
    changes = [pair.change() for pair in pairs]
    p_values = np.array([p_value(change) for change in changes])
    adjusted = holm(p_values)
    return [
        _difference(pair, change, inference, float(p), float(p_adjusted), len(pairs))
        for pair, change, p, p_adjusted in zip(pairs, changes, p_values, adjusted, strict=True)
    ]


def _difference(
    pair: Pair,
    change: Float[np.ndarray, "pair"],
    inference: Inference,
    p: float,
    p_adjusted: float,
    size: int,
) -> Difference:
    first, second = pair.common()
    means = [float(values.mean()) if len(values) else math.nan for values in (first, second)]
    absolute = interval_of(seed_mean, [change], inference)
    level = 1 - (1 - inference.confidence) / size
    is_clear = p_adjusted <= 1 - inference.confidence
    if not len(change):
        verdict = UNCLEAR
    elif not change.any():
        verdict = SAME
    elif is_clear and pair.direction != NEITHER:
        verdict = BETTER if (absolute.value < 0) == (pair.direction == LOWER) else WORSE
    else:
        verdict = UNCLEAR
    percent = simultaneous_percent = Interval(math.nan, math.nan, math.nan, NO_INTERVAL)
    if len(change) and means[0] != 0:
        percent = percent_interval(first, second, inference)
        simultaneous_percent = student_percent(first, second, level)
    return Difference(
        num_pairs=len(change),
        first_mean=means[0],
        second_mean=means[1],
        absolute=absolute,
        percent=percent,
        simultaneous=_agreeing(student_interval(seed_mean, [change], level), is_clear),
        simultaneous_percent=_agreeing(simultaneous_percent, is_clear),
        p_value=p,
        p_adjusted=p_adjusted,
        verdict=verdict,
    )


def seed_mean(change: np.ndarray, axis: int = -1) -> np.ndarray:
    """The statistic of a difference."""
    return np.asarray(change.mean(axis=axis))


def percent_change(first: np.ndarray, second: np.ndarray, axis: int = -1) -> np.ndarray:
    """How much the second's mean is above the first's, %."""
    with np.errstate(divide="ignore", invalid="ignore"):  # a resample may hold zeros alone
        return np.asarray(100 * (second.mean(axis=axis) / first.mean(axis=axis) - 1))


# --- one interval ---------------------------------------------------------------------------------


def percent_interval(
    first: Float[np.ndarray, "pair"], second: Float[np.ndarray, "pair"], inference: Inference
) -> Interval:
    """A change in % of the first's mean: bootstrap of the pairs, of few Student's t."""
    if len(first) < LEAST_PAIRS_FOR_BOOTSTRAP:
        return student_percent(first, second, inference.confidence)
    return interval_of(percent_change, [first, second], inference)


def student_percent(
    first: Float[np.ndarray, "pair"], second: Float[np.ndarray, "pair"], confidence: float
) -> Interval:
    """Student's t of the logarithm of the ratio of means; see `relative_change`."""
    found = relative_change(first, second, confidence)
    if not math.isfinite(found.low):
        return Interval(found.mean, math.nan, math.nan, NO_INTERVAL)
    if found.high - found.low <= 1e-9 * abs(found.mean):  # by rounding alone
        return Interval(found.mean, found.mean, found.mean, NO_SPREAD)
    return Interval(found.mean, found.low, found.high, STUDENT)


def interval_of(
    statistic: Statistic, samples: Sequence[Float[np.ndarray, "pair"]], inference: Inference
) -> Interval:
    """A statistic of samples that are paired by seed, with its interval.

    Bootstrap of the pairs from `LEAST_PAIRS_FOR_BOOTSTRAP` on; below it Student's t over the jackknife's
    pseudo-values, which for a mean are the values themselves.
    """
    if len(samples[0]) < LEAST_PAIRS_FOR_BOOTSTRAP:
        return student_interval(statistic, samples, inference.confidence)
    value = float(statistic(*samples))
    if not math.isfinite(value):
        return Interval(value, math.nan, math.nan, NO_INTERVAL)
    pseudo = _pseudo_values(statistic, samples, value)
    if np.isfinite(pseudo).all() and _is_constant(pseudo):
        return Interval(value, value, value, NO_SPREAD)
    return _bootstrap(statistic, samples, value, inference)


def student_interval(
    statistic: Statistic, samples: Sequence[Float[np.ndarray, "pair"]], confidence: float
) -> Interval:
    """Student's t over the jackknife's pseudo-values."""
    num_pairs = len(samples[0])
    if not num_pairs:
        return Interval(math.nan, math.nan, math.nan, NO_INTERVAL)
    value = float(statistic(*samples))
    if num_pairs < 2 or not math.isfinite(value):
        return Interval(value, math.nan, math.nan, NO_INTERVAL)
    pseudo = _pseudo_values(statistic, samples, value)
    if not np.isfinite(pseudo).all():
        return Interval(value, math.nan, math.nan, NO_INTERVAL)
    if _is_constant(pseudo):
        return Interval(value, value, value, NO_SPREAD)
    half = _half_width(pseudo, confidence)
    return Interval(value, value - half, value + half, STUDENT)


def _bootstrap(
    statistic: Statistic,
    samples: Sequence[Float[np.ndarray, "pair"]],
    value: float,
    inference: Inference,
) -> Interval:
    """BCa; percentiles of the same resamples where its corrections do not exist."""
    import warnings

    from scipy import stats

    for name, method in ((BOOTSTRAP, "BCa"), (PERCENTILE, "percentile")):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of degenerate data, which are looked at below
            ends = stats.bootstrap(
                samples,
                statistic,
                paired=True,
                vectorized=True,
                confidence_level=inference.confidence,
                n_resamples=inference.num_resamples,
                method=method,
                rng=np.random.default_rng(inference.random_state),
            ).confidence_interval
        if math.isfinite(ends.low) and math.isfinite(ends.high):
            return Interval(value, float(ends.low), float(ends.high), name)
    return Interval(value, math.nan, math.nan, NO_INTERVAL)


def _pseudo_values(
    statistic: Statistic, samples: Sequence[Float[np.ndarray, "pair"]], value: float
) -> Float[np.ndarray, "pair"]:
    count = len(samples[0])
    without = np.array(
        [float(statistic(*(np.delete(sample, at) for sample in samples))) for at in range(count)]
    )
    return count * value - (count - 1) * without


def _half_width(values: Float[np.ndarray, "pair"], confidence: float) -> float:
    from scipy import stats

    quantile = stats.t.ppf(0.5 + confidence / 2, len(values) - 1)
    return float(quantile * values.std(ddof=1) / math.sqrt(len(values)))


def _is_constant(values: Float[np.ndarray, "pair"]) -> bool:
    """Up to rounding: nothing can be said about spread."""
    return bool(np.ptp(values) <= 1e-9 * np.abs(values).max(initial=0.0))


# --- the family -----------------------------------------------------------------------------------


def p_value(change: Float[np.ndarray, "pair"]) -> float:
    """Of the paired t-test; of the sign test where all differences are equal; 1 for fewer than two."""
    from scipy import stats

    if len(change) < 2 or not change.any():
        return 1.0
    if _is_constant(change):
        return sign_test(change)
    return float(stats.ttest_1samp(change, 0.0).pvalue)


def sign_test(change: Float[np.ndarray, "pair"]) -> float:
    """Two-sided p-value of the numbers of positive and negative differences."""
    from scipy import stats

    signs = np.sign(change[change != 0])
    if not len(signs):
        return 1.0
    return float(stats.binomtest(int((signs > 0).sum()), len(signs)).pvalue)


def holm(p_values: Float[np.ndarray, "comparison"]) -> Float[np.ndarray, "comparison"]:
    """Holm's step-down adjustment: p of rank k of m counts m − k + 1 times, and never less than before."""
    count = len(p_values)
    order = np.argsort(p_values, kind="stable")
    steps = (count - np.arange(count)) * p_values[order]
    adjusted = np.empty(count)
    adjusted[order] = np.minimum(np.maximum.accumulate(steps), 1.0)
    return adjusted


def _agreeing(interval: Interval, is_clear: bool) -> Interval:
    """Cut at 0 where Holm's steps are finer than Bonferroni's; holding 0 where nothing was found."""
    low, high = interval.low, interval.high
    if not math.isfinite(low):
        return interval
    if not is_clear:
        return Interval(interval.value, min(low, 0.0), max(high, 0.0), interval.method)
    if low <= 0 <= high:
        beyond = math.nextafter(0.0, interval.value)
        low, high = (beyond, high) if interval.value > 0 else (low, beyond)
    return Interval(interval.value, low, high, interval.method)


__all__ = [
    "BETTER",
    "BOOTSTRAP",
    "LEAST_PAIRS_FOR_BOOTSTRAP",
    "NEITHER",
    "NO_INTERVAL",
    "NO_SPREAD",
    "PERCENTILE",
    "SAME",
    "STUDENT",
    "UNCLEAR",
    "WORSE",
    "Difference",
    "Inference",
    "Interval",
    "Pair",
    "differences",
    "holm",
    "interval_of",
    "p_value",
    "percent_change",
    "percent_interval",
    "seed_mean",
    "sign_test",
    "student_interval",
    "student_percent",
]

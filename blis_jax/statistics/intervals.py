"""Figures over seeds, each with an interval of its own; quantiles and bootstraps are scipy's.

The interval of a mean is Student's t. That of any other statistic is Student's t over the jackknife's
pseudo-values, or from 15 seeds on, where it is asked for, a bootstrap of the seeds (BCa): a handful of
seeds has too few resamples to say anything about 95 %. A change in % is of means over seeds, with an
interval of the logarithm of their ratio, so that no positive figure falls by more than 100 %.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from blis_jax.lazy import special, stats

if TYPE_CHECKING:
    from jaxtyping import Float

    Values = Float[np.ndarray, "seed"]


CONFIDENCE = 0.95
METHOD = "Student's t over seeds, paired by seed, 95 %"
ANYTIME_METHOD = "anytime-valid t over seeds, paired by seed, 95 %"
LEAST_PAIRS_FOR_BOOTSTRAP = 15
BOOTSTRAP, PERCENTILE, STUDENT = "bootstrap (BCa)", "bootstrap (percentile)", "Student's t"
ANYTIME = "anytime-valid t"
# τ of `sequential`: intervals are narrowest, against Student's, at some 60 seeds
EFFECT_SPREAD = 0.4
NO_SPREAD, NO_INTERVAL = "equal on every seed", "none"
SAME_BUT_FOR_ROUNDING = 1e-9  # of the largest value
Statistic = Callable[..., "np.ndarray"]  # of one array of seeds per sample, over the last axis


@dataclass(frozen=True)
class Inference:
    """The confidence of intervals and verdicts, and the bootstrap; without one if `num_resamples` is 0.

    `is_anytime`: the number of seeds was chosen by looking at results, see `sequential`; then there is no bootstrap.
    """

    confidence: float = CONFIDENCE
    num_resamples: int = 9999
    random_state: int = 0
    is_anytime: bool = False

    @property
    def method(self) -> str:
        """Return the name, for pages and documents, of the method of single intervals without a bootstrap."""
        return ANYTIME_METHOD if self.is_anytime else METHOD


BY_STUDENT = Inference(num_resamples=0)


@dataclass(frozen=True)
class Estimate:
    """The mean of a figure over seeds, with an interval; NaN for an unknown end."""

    mean: float
    low: float
    high: float
    num_seeds: int
    method: str = STUDENT  # one of those above

    def holds(self, value: float) -> bool:
        """Return whether a value lies within the interval; True if an end is NaN."""
        return not (value < self.low or value > self.high)

    def through(self, rising: Callable[[float], float]) -> Estimate:
        """Return the estimate of an increasing function of the figure."""
        mean, low, high = (rising(value) for value in (self.mean, self.low, self.high))
        return Estimate(mean, low, high, self.num_seeds, self.method)

    def to_json(self) -> dict[str, Any]:
        """Return the mean, its interval and the method as plain data."""
        return {"mean": self.mean, "low": self.low, "high": self.high, "method": self.method}

    @classmethod
    def of_json(cls, entry: Mapping[str, Any], num_seeds: int = 0) -> Estimate:
        """Return the estimate that `to_json` wrote; null becomes NaN."""
        mean, low, high = (read_number(entry[name]) for name in ("mean", "low", "high"))
        return cls(mean, low, high, num_seeds, entry["method"])


def read_number(value: float | None) -> float:
    """Return a number read from a document; null, read as None, becomes NaN."""
    return math.nan if value is None else float(value)


def t_quantile(num_seeds: int, confidence: float = CONFIDENCE) -> float:
    """Return the half-width of a two-sided t interval in standard errors; infinite for one seed."""
    return (
        float(special.stdtrit(num_seeds - 1, 0.5 + confidence / 2)) if num_seeds > 1 else math.inf
    )


def normal_quantile(confidence: float = CONFIDENCE) -> float:
    """Return the half-width of a two-sided normal interval in standard errors: 1.96 at 95 %."""
    return float(special.ndtri(0.5 + confidence / 2))


def anytime_quantile(num_seeds: int, confidence: float = CONFIDENCE) -> float:
    """Return the half-width, in standard errors, of an interval valid at all numbers of seeds; may be infinite."""
    if num_seeds < 2:
        return math.inf
    degrees, share = num_seeds - 1, 1 / (1 + num_seeds * EFFECT_SPREAD**2)
    factor = (1 / ((1 - confidence) * math.sqrt(share))) ** (2 / num_seeds)
    if factor * share >= 1:
        return math.inf
    return math.sqrt(degrees * (factor - 1) / (1 - factor * share))


def anytime_p_value(score: float, num_seeds: float) -> float:
    """Return the two-sided p-value of a t statistic, valid however often one has looked before."""
    degrees, share = num_seeds - 1, 1 / (1 + num_seeds * EFFECT_SPREAD**2)
    square = score**2 / degrees
    evidence = 0.5 * math.log(share) + num_seeds / 2 * (
        math.log1p(square) - math.log1p(share * square)
    )
    return min(1.0, math.exp(-evidence))


def score_p_value(score: float, num_seeds: float, is_anytime: bool = False) -> float:
    """Return the two-sided p-value of a t statistic of `num_seeds` values, which may have a fraction."""
    if math.isinf(score):
        return 0.0
    if is_anytime:
        return anytime_p_value(score, num_seeds)
    return float(2 * special.stdtr(num_seeds - 1, -abs(score)))


def half_width(
    values: Float[np.ndarray, "..."],
    confidence: float = CONFIDENCE,
    axis: int = -1,
    is_anytime: bool = False,
) -> Float[np.ndarray, "..."]:
    """Return the half-width of the mean's t interval along an axis; NaN for a single value."""
    count = values.shape[axis]
    if count < 2:
        return np.full(np.delete(values.shape, axis), np.nan)
    error: np.ndarray = values.std(axis=axis, ddof=1) / math.sqrt(count)
    quantile = anytime_quantile if is_anytime else t_quantile
    return quantile(count, confidence) * error


def percentile_ends(
    drawn: Float[np.ndarray, "resample ..."], confidence: float = CONFIDENCE
) -> Float[np.ndarray, "2 ..."]:
    """Return the lower and upper percentile that enclose the share `confidence` of resamples."""
    tail = 100 * (1 - confidence) / 2
    return np.asarray(np.percentile(drawn, (tail, 100 - tail), axis=0))


# --- means ----------------------------------------------------------------------------------------


def seed_mean(values: np.ndarray, axis: int = -1) -> np.ndarray:
    """Return the mean over seeds, the statistic of a figure or a difference."""
    return np.asarray(values.mean(axis=axis))


def estimate(values: Values, confidence: float = CONFIDENCE, is_anytime: bool = False) -> Estimate:
    """Return mean and Student's interval over the seeds that have a value."""
    return student_interval(seed_mean, [values[np.isfinite(values)]], confidence, is_anytime)


def interval_of(statistic: Statistic, samples: Sequence[Values], inference: Inference) -> Estimate:
    """Return a statistic of samples paired by seed, with a bootstrap interval, or Student's t for few pairs."""
    interval = student_interval(statistic, samples, inference.confidence, inference.is_anytime)
    if inference.is_anytime:
        return interval
    few = len(samples[0]) < LEAST_PAIRS_FOR_BOOTSTRAP or not inference.num_resamples
    if few or interval.method == NO_SPREAD or not math.isfinite(interval.mean):
        return interval
    return _bootstrap(statistic, samples, interval.mean, inference)


def student_interval(
    statistic: Statistic,
    samples: Sequence[Values],
    confidence: float = CONFIDENCE,
    is_anytime: bool = False,
) -> Estimate:
    """Return a statistic with Student's t interval over jackknife pseudo-values, which for a mean are the values."""
    count = len(samples[0])
    value = float(statistic(*samples)) if count else math.nan
    if count < 2 or not math.isfinite(value):
        return Estimate(value, math.nan, math.nan, count, NO_INTERVAL)
    pseudo = samples[0] if statistic is seed_mean else _pseudo_values(statistic, samples, value)
    if not np.isfinite(pseudo).all():
        return Estimate(value, math.nan, math.nan, count, NO_INTERVAL)
    if is_constant(pseudo):
        return Estimate(value, value, value, count, NO_SPREAD)
    half = float(half_width(pseudo, confidence, is_anytime=is_anytime))
    method = ANYTIME if is_anytime else STUDENT
    return Estimate(value, value - half, value + half, count, method)


def is_constant(values: Values) -> bool:
    """Return whether the values are equal up to rounding, so that their spread is unknown."""
    size = np.abs(values).max(initial=0.0)
    return bool(np.ptp(values) <= SAME_BUT_FOR_ROUNDING * size)


def _pseudo_values(statistic: Statistic, samples: Sequence[Values], value: float) -> Values:
    count = len(samples[0])
    without = np.array(
        [float(statistic(*(np.delete(sample, at) for sample in samples))) for at in range(count)]
    )
    return count * value - (count - 1) * without


def _bootstrap(
    statistic: Statistic, samples: Sequence[Values], value: float, inference: Inference
) -> Estimate:
    """Return the BCa bootstrap interval, or the percentile interval if BCa's corrections do not exist."""
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
            return Estimate(value, float(ends.low), float(ends.high), len(samples[0]), name)
    return Estimate(value, math.nan, math.nan, len(samples[0]), NO_INTERVAL)


# --- changes in % ---------------------------------------------------------------------------------


def percent_change(first: np.ndarray, second: np.ndarray, axis: int = -1) -> np.ndarray:
    """Return by how much the second's mean exceeds the first's, %."""
    with np.errstate(divide="ignore", invalid="ignore"):  # a resample may hold zeros alone
        return np.asarray(100 * (second.mean(axis=axis) / first.mean(axis=axis) - 1))


def percent_interval(first: Values, second: Values, inference: Inference) -> Estimate:
    """Return the change in % of the first's mean, with a bootstrap interval, or Student's t for few pairs."""
    few = len(first) < LEAST_PAIRS_FOR_BOOTSTRAP or not inference.num_resamples
    if few or inference.is_anytime:
        return relative_change(first, second, inference.confidence, inference.is_anytime)
    if not first.mean():
        return Estimate(math.nan, math.nan, math.nan, len(first), NO_INTERVAL)
    return interval_of(percent_change, [first, second], inference)


def linear_change(
    first: Values, second: Values, confidence: float = CONFIDENCE, is_anytime: bool = False
) -> Estimate:
    """Return the change in % of the first's mean, with a symmetric interval by linearisation."""
    mean = float(first.mean()) if len(first) else 0.0
    if mean == 0:
        return Estimate(math.nan, math.nan, math.nan, len(first), NO_INTERVAL)
    change = second - first
    ratio = float(change.mean()) / mean
    percent = 100 * ratio
    if len(first) < 2:
        return Estimate(percent, math.nan, math.nan, len(first), NO_INTERVAL)
    error = float(half_width(change - ratio * first, confidence, is_anytime=is_anytime))
    half, method = error * abs(100 / mean), ANYTIME if is_anytime else STUDENT
    return Estimate(percent, percent - half, percent + half, len(first), method)


def relative_change(
    first: Values, second: Values, confidence: float = CONFIDENCE, is_anytime: bool = False
) -> Estimate:
    """Return the change in %, with an interval by the logarithm of the ratio; symmetric if a figure is below 0."""
    change = linear_change(first, second, confidence, is_anytime)
    if not math.isfinite(change.low):
        return change
    if change.high - change.low <= SAME_BUT_FOR_ROUNDING * abs(change.mean):
        return Estimate(change.mean, change.mean, change.mean, change.num_seeds, NO_SPREAD)
    if change.mean <= -100 or min(first.min(), second.min()) < 0:
        return change
    return on_logarithm(change)


def on_logarithm(percent: Estimate) -> Estimate:
    """Convert the symmetric interval of a change in % to an interval that is symmetric in the logarithm."""
    ratio = 1 + percent.mean / 100
    half = (percent.high - percent.mean) / (100 * ratio)
    with np.errstate(over="ignore"):  # seeds that tell nothing leave the upper end infinite
        low, high = 100 * np.expm1(np.log(ratio) + np.array([-half, half]))
    return Estimate(percent.mean, float(low), float(high), percent.num_seeds, percent.method)

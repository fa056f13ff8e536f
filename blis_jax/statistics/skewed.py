"""Means whose values are skewed, as where most runs are good and a few are very bad: p-values and bounds.

Student's t takes such a mean for surer than it is: few seeds may lack the rare ones of a tail, and neither their mean
nor their spread shows it. Two ways allow for that.

*A further seed.* The smaller the error allowed, the more t errs: at 5 % a little, in a family of 45 comparisons, each
of which has 0.1 %, by far. So a p-value below `UNHELPED` is that of the sample with a further seed against the
difference, `WIDTHS` times as far beyond the sample's end as the sample is wide, with a weight of `PER_POWER_OF_TEN`
seeds for each power of ten by which the p-value is smaller. A difference that is large against the spread of its seeds
outlives that, unlike one in which a tail may be missing.

*The sample's own skewness* (`skewed_bounds`), where a bound may be wrong on one side only. Of values from a Beta
distribution near 1 Student's one-sided 5 % bound is wrong in 17 % of cases (`python -m
benchmarks.coverage.verdicts.capacity`). Hall's transformation corrects the statistic by the skewness (Hall, P. 1992,
On the removal of skewness by transformation, J. R. Statist. Soc. B 54).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from blis_jax.statistics.intervals import score_p_value, t_quantile

if TYPE_CHECKING:
    from jaxtyping import Float

# chosen on other seeds than those of the tables that say what they hold (`benchmarks.coverage.verdicts`)
UNHELPED, WIDTHS, PER_POWER_OF_TEN = 0.05, 2.0, 0.06
HALVINGS = 40  # of the logarithm of a p-value


def guarded_p_value(values: Float[np.ndarray, "seed"], is_anytime: bool = False) -> float:
    """Return the two-sided p-value of a mean of 0, with a further seed where it is small.

    Args:
        values: two or more that are not all equal.
        is_anytime: whether the p-value holds however often one has looked before.
    """
    sample = _Sample.of(values if values.sum() > 0 else -values)
    p = score_p_value(sample.score(0.0), sample.size, is_anytime)
    if not 0 < p < UNHELPED:
        return p
    low, high = math.log(p), math.log(UNHELPED)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        weight = _weight(math.exp(middle))
        score = max(sample.score(weight), 0.0)
        is_above = score_p_value(score, sample.size + weight, is_anytime) > math.exp(middle)
        low, high = (middle, high) if is_above else (low, middle)
    return math.exp(low)


def _weight(error: float) -> float:
    """Return the weight of the further seed where this error is allowed, in seeds."""
    return PER_POWER_OF_TEN * max(math.log10(UNHELPED / error), 0.0)


class _Sample(NamedTuple):
    """What a further seed below the values needs of them; `gap` is how far below their mean it stands."""

    size: int
    mean: float
    squares: float  # of the deviations from the mean, summed
    gap: float

    @classmethod
    def of(cls, values: Float[np.ndarray, "seed"]) -> _Sample:
        mean = float(values.mean())
        squares = float(np.square(values - mean).sum())
        gap = mean - float(values.min()) + WIDTHS * float(np.ptp(values))
        return cls(len(values), mean, squares, gap)

    def score(self, weight: float) -> float:
        """Return the t statistic of the mean with a further seed of this weight."""
        moved, error = self._with_further(weight)
        return (self.mean - moved) / error if error else math.copysign(math.inf, self.mean)

    def _with_further(self, weight: float) -> tuple[float, float]:
        """Return by how much a further seed lowers the mean, and the standard error with it."""
        count = self.size + weight
        squares = self.squares + self.size * weight / count * self.gap**2
        return weight * self.gap / count, math.sqrt(squares / (count - 1) / count)


def skewed_bounds(values: Float[np.ndarray, "seed"], error: float) -> tuple[float, float]:
    """Return a lower and an upper bound of the mean; each is wrong with a probability of `error`.

    Equal values have bounds equal to their mean; fewer than two values have infinite bounds.
    """
    count = len(values)
    if count < 2:
        return -math.inf, math.inf
    mean, spread = float(values.mean()), float(values.std())
    if not spread:
        return mean, mean
    skewness = float((((values - mean) / spread) ** 3).mean())
    standard_error = spread / math.sqrt(count - 1)
    quantile = t_quantile(count, 1 - 2 * error)
    low, high = (_untransformed(at, skewness, count) for at in (quantile, -quantile))
    return mean - standard_error * low, mean - standard_error * high


def _untransformed(value: float, skewness: float, count: int) -> float:
    """Return the t statistic whose Hall transform is `value`."""
    slope = skewness / math.sqrt(count)
    if abs(slope) < 1e-6:
        return value
    return float(3 / slope * (np.cbrt(1 + slope * (value - slope / 6)) - 1))

"""Bounds of a mean whose values are skewed, as where most runs are good and a few are very bad.

Student's t takes such a mean for surer than it is: of values from a Beta distribution near 1 its one-sided 5 % bound is
wrong in 17 % of cases (`python -m benchmarks.coverage.verdicts.capacity`). Hall's transformation corrects the
statistic by the sample's own skewness (Hall, P. 1992, On the removal of skewness by transformation, J. R. Statist.
Soc. B 54).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from blis_jax.statistics.intervals import t_quantile

if TYPE_CHECKING:
    from jaxtyping import Float


def skewed_bounds(values: Float[np.ndarray, "seed"], error: float) -> tuple[float, float]:
    """Lower and upper bound of the mean; each is wrong with a probability of `error`.

    Equal values have bounds equal to their mean; of fewer than two, nothing is known.
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
    """The t statistic whose transform has this value."""
    slope = skewness / math.sqrt(count)
    if abs(slope) < 1e-6:
        return value
    return float(3 / slope * (np.cbrt(1 + slope * (value - slope / 6)) - 1))

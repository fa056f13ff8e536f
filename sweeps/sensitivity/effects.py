"""Effects of one and two parameters, averaged over the others, and where the best points are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from blis_jax.statistics.intervals import half_width
from sweeps.sensitivity.design import across, along, levels_of
from sweeps.sensitivity.indices import Resampling
from sweeps.sensitivity.model import Response
from sweeps.strategies.space import Dimension, sobol_shares

BEST_SHARE = 0.05  # of all points
RANGE_PERCENT = (5.0, 95.0)  # of the best points, which a range holds between
NEAR = 0.08  # of a range, within which an end of the best points counts as at a bound
ANYWHERE, LOWER, UPPER, INSIDE = "anywhere", "lower bound", "upper bound", "inside"


@dataclass(frozen=True)
class Effect:
    """Means along one parameter, all others drawn; arrays are `[metric, level]`."""

    shares: np.ndarray  # [level]
    mean: np.ndarray
    of_points: np.ndarray  # half interval of the mean over the points that are averaged
    of_seeds: np.ndarray  # half interval from the seeds, without what they do to all levels alike


@dataclass(frozen=True)
class PairEffect:
    """Means over a grid of two parameters, `[metric, level, level]`."""

    places: tuple[int, int]
    shares: tuple[np.ndarray, np.ndarray]
    mean: np.ndarray


def effect_of(
    response: Response,
    dimensions: Sequence[Dimension],
    place: int,
    num_levels: int,
    num_bases: int,
    resampling: Resampling,
) -> Effect:
    """Measure the effect of one parameter; the points averaged over are the same for all levels."""
    starts = sobol_shares(len(dimensions), num_bases, resampling.state + 2)
    levels = levels_of(dimensions[place], num_levels)
    values = response.evaluate(along(starts, place, levels))
    values = values.reshape(num_bases, len(levels), *values.shape[1:])  # [start, level, seed, …]
    values = values[np.isfinite(values).any(axis=(1, 2, 3))]
    by_seed = _mean(values, 0)  # [level, seed, metric]
    by_start = _mean(values, 2)  # [start, level, metric]
    by_seed_alone = by_seed - by_seed.mean(axis=0, keepdims=True)
    by_start_alone = by_start - by_start.mean(axis=1, keepdims=True)
    return Effect(
        levels,
        by_seed.mean(axis=1).T,
        _half_interval(by_start_alone, 0, resampling.confidence).T,
        _half_interval(by_seed_alone, 1, resampling.confidence).T,
    )


def _mean(values: np.ndarray, axis: int) -> np.ndarray:
    """Return the mean of those that are there, NaN where none is."""
    is_there = np.isfinite(values)
    count = is_there.sum(axis=axis)
    total = np.where(is_there, values, 0).sum(axis=axis)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)


def _half_interval(values: np.ndarray, axis: int, confidence: float) -> np.ndarray:
    """Return half the interval of the mean along an axis; zero where there is one value."""
    if values.shape[axis] < 2:
        return np.zeros(np.delete(values.shape, axis))
    return half_width(values, confidence, axis)


def pair_effect_of(
    response: Response,
    dimensions: Sequence[Dimension],
    places: tuple[int, int],
    num_levels: int,
    num_bases: int,
    state: int,
) -> PairEffect:
    """Measure the joint effect of two parameters."""
    starts = sobol_shares(len(dimensions), num_bases, state + 3)
    levels = (
        levels_of(dimensions[places[0]], num_levels),
        levels_of(dimensions[places[1]], num_levels),
    )
    values = response.evaluate(across(starts, places, levels)).mean(axis=1)
    values = values.reshape(num_bases, len(levels[0]), len(levels[1]), -1)
    return PairEffect(places, levels, np.moveaxis(_mean(values, 0), -1, 0))


@dataclass(frozen=True)
class BestRange:
    """The range of a parameter among the best points."""

    parameter: str
    low: tuple[Any, ...]  # value at the lower end with its interval; empty for choices
    high: tuple[Any, ...]
    best: object  # of the best point
    where: str  # ANYWHERE, LOWER, UPPER or INSIDE
    shares: tuple[float, ...] = ()  # of the best points by category, for choices


def best_ranges(
    dimensions: Sequence[Dimension],
    shares: np.ndarray,
    scores: np.ndarray,
    num_rows: int,
    resampling: Resampling,
) -> list[BestRange]:
    """Return the middle nine tenths of the best `BEST_SHARE` of the points, by parameter.

    `shares` is `[point, parameter]`, `scores` `[point]` with small ones better and NaN for failures;
    the points form `num_rows` rows that are drawn as wholes.
    """
    order = np.where(np.isfinite(scores), scores, np.inf)
    if not np.isfinite(order).any():
        return []
    ends = _ends(shares, order)
    size = len(order) // num_rows
    by_row, order_by_row = shares.reshape(num_rows, size, -1), order.reshape(num_rows, size)
    drawn = np.array(
        [
            _ends(by_row[rows].reshape(-1, shares.shape[1]), order_by_row[rows].ravel())
            for rows in resampling.rows(num_rows)[: min(resampling.resamples, 400)]
        ]
    )  # [resample, end, parameter]
    intervals = resampling.interval(ends, drawn)  # [end, parameter, figure]
    best = shares[int(order.argmin())]
    chosen = shares[_best(order)]
    return [
        _range(dimension, intervals[:, place], float(best[place]), chosen[:, place])
        for place, dimension in enumerate(dimensions)
    ]


def _best(order: np.ndarray) -> np.ndarray:
    """Places of the best points that did not fail."""
    count = max(int(np.ceil(BEST_SHARE * len(order))), 1)
    places = np.argsort(order, kind="stable")[:count]
    chosen: np.ndarray = places[np.isfinite(order[places])]
    return chosen


def _ends(shares: np.ndarray, order: np.ndarray) -> np.ndarray:
    chosen = _best(order)
    if not len(chosen):
        return np.full((2, shares.shape[1]), np.nan)
    ends: np.ndarray = np.percentile(shares[chosen], RANGE_PERCENT, axis=0)
    return ends


def _range(
    dimension: Dimension, intervals: np.ndarray, best: float, chosen: np.ndarray
) -> BestRange:
    value = dimension.at(best)
    if dimension.kind == "categorical":
        count = len(dimension.categories)
        places = np.minimum((chosen * count).astype(int), count - 1)
        shares = np.bincount(places, minlength=count) / len(chosen)
        return BestRange(dimension.name, (), (), value, INSIDE, tuple(shares.tolist()))
    low, high = (tuple(dimension.at(float(share)) for share in end) for end in intervals)
    return BestRange(dimension.name, low, high, value, _where(intervals))


def _where(intervals: np.ndarray) -> str:
    """Return how the range `[end, figure]` lies in that of the parameter."""
    reaches_low = intervals[0, 1] <= NEAR
    reaches_high = intervals[1, 2] >= 1 - NEAR
    if reaches_low and reaches_high:
        return ANYWHERE
    return LOWER if reaches_low else UPPER if reaches_high else INSIDE

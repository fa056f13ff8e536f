"""Effects of one and two parameters averaged over all others, ranges of the best points, total indices in a region."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from blis_jax.errors import ConfigError
from blis_jax.statistics.intervals import half_width
from sweeps.sensitivity.indices import Resampling, TotalIndices, rows_of, total_indices
from sweeps.sensitivity.model import Response, across, along, levels_of
from sweeps.strategies.space import Dimension, sobol_shares

BEST_SHARE, REGION_SHARE = 0.05, 0.25  # of all points, for a range and for a region
RANGE_PERCENT = (5.0, 95.0)  # of the best points, which a range or a region holds between
NEAR = 0.08  # of a range, within which an end of the best points counts as at a bound
ANYWHERE, LOWER, UPPER, INSIDE = "anywhere", "lower bound", "upper bound", "inside"


@dataclass(frozen=True)
class Effect:
    """The effect of one parameter: means at each level, over random values of the others; arrays `[metric, level]`."""

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


def points_along(
    dimensions: Sequence[Dimension], place: int, num_levels: int, num_bases: int, state: int
) -> np.ndarray:
    """Return the points at which the effect of one parameter is measured, `[start × level, parameter]`."""
    starts = sobol_shares(len(dimensions), num_bases, state + 2)
    return along(starts, place, levels_of(dimensions[place], num_levels))


def effect_of(
    response: Response,
    dimensions: Sequence[Dimension],
    place: int,
    num_levels: int,
    num_bases: int,
    resampling: Resampling,
) -> Effect:
    """Measure the effect of one parameter; all levels are averaged over the same points."""
    levels = levels_of(dimensions[place], num_levels)
    points = points_along(dimensions, place, num_levels, num_bases, resampling.state)
    values = response.evaluate(points)
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
    """Return the mean over finite values, NaN where there are none."""
    is_there = np.isfinite(values)
    count = is_there.sum(axis=axis)
    total = np.where(is_there, values, 0).sum(axis=axis)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)


def _half_interval(values: np.ndarray, axis: int, confidence: float) -> np.ndarray:
    """Return half the width of the mean's interval along an axis; zero where there is one value."""
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
    """The range that a parameter has among the best points."""

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
    """Return, by parameter, the range of the middle nine tenths of the best `BEST_SHARE` of the points.

    `shares` is `[point, parameter]`, `scores` `[point]` with small ones better and NaN for failures;
    the points form `num_rows` rows, each resampled as a whole.
    """
    order = np.where(np.isfinite(scores), scores, np.inf)
    if not np.isfinite(order).any():
        return []
    ends = _ends(shares, order)
    size = len(order) // num_rows
    by_row, order_by_row = shares.reshape(num_rows, size, -1), order.reshape(num_rows, size)
    # [resample, end, parameter]
    drawn = np.array(
        [
            _ends(by_row[rows].reshape(-1, shares.shape[1]), order_by_row[rows].ravel())
            for rows in resampling.rows(num_rows)[: min(resampling.resamples, 400)]
        ]
    )
    intervals = resampling.interval(ends, drawn)  # [end, parameter, figure]
    best = shares[int(order.argmin())]
    chosen = shares[_best(order)]
    return [
        _range(dimension, intervals[:, place], float(best[place]), chosen[:, place])
        for place, dimension in enumerate(dimensions)
    ]


def _best(order: np.ndarray) -> np.ndarray:
    """Return the indices of the best points that did not fail."""
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
    """Return the position of a range `[end, figure]` within the parameter's range: anywhere, lower, upper or inside."""
    reaches_low = intervals[0, 1] <= NEAR
    reaches_high = intervals[1, 2] >= 1 - NEAR
    if reaches_low and reaches_high:
        return ANYWHERE
    return LOWER if reaches_low else UPPER if reaches_high else INSIDE


# --- regions --------------------------------------------------------------------------------------

# The variance of a whole space can sit in a corner that nobody would run. An index then says what leads
# into that corner. The same index inside a region, or of the logarithm, says what matters elsewhere.

BEST, WHOLE, NONE = "best quarter", "whole space", "none"


@dataclass(frozen=True)
class Region:
    """A box in the unit cube; `low` and `high` are shares of the parameters' ranges, by parameter."""

    name: str
    low: tuple[float, ...]
    high: tuple[float, ...]

    def inside(self, shares: np.ndarray) -> np.ndarray:
        """Map points of the unit cube `[point, parameter]` linearly into the box."""
        low, high = np.array(self.low), np.array(self.high)
        points: np.ndarray = low + shares * (high - low)
        return points

    def words(self, dimensions: Sequence[Dimension]) -> str:
        """Return a text with the values inside the box, for the parameters that it narrows."""
        parts = [
            f"{dimension.name} {_shown(dimension.at(low))} to {_shown(dimension.at(high))}"
            for dimension, low, high in zip(dimensions, self.low, self.high, strict=True)
            if (low, high) != (0.0, 1.0)
        ]
        return ", ".join(parts) or "all of every range"


@dataclass(frozen=True)
class RegionIndices:
    """Total indices in a region by metric: those of the metric and those of its logarithm."""

    region: Region
    plain: Mapping[str, TotalIndices]
    log: Mapping[str, TotalIndices]


def region_indices(
    region: Region, metrics: Sequence[str], values: np.ndarray, size: int, resampling: Resampling
) -> RegionIndices:
    """Return the indices of values `[point, seed, metric]` at a Saltelli design in the region, with `size` points per
    row.

    A metric that is 0 or less somewhere has no logarithm; a metric that does not vary has no index.
    """
    plain, log, count = {}, {}, len(region.low)
    for place, metric in enumerate(metrics):
        rows, num_left_out = rows_of(values[..., place], size)
        indices = total_indices(rows, num_left_out, count, resampling)
        if indices is None:
            continue
        plain[metric] = indices
        if (rows > 0).all():
            of_log = total_indices(np.log(rows), num_left_out, count, resampling)
            if of_log is not None:
                log[metric] = of_log
    return RegionIndices(region, plain, log)


def whole(count: int) -> Region:
    """Return the region that is the whole space of `count` parameters."""
    return Region(WHOLE, (0.0,) * count, (1.0,) * count)


def best_region(dimensions: Sequence[Dimension], shares: np.ndarray, scores: np.ndarray) -> Region:
    """Return the box of the middle nine tenths, by parameter, of the best quarter of the points.

    `shares` is `[point, parameter]`, `scores` `[point]` with small ones better and NaN for failures. All values of a
    choice stay in the region.
    """
    order = np.where(np.isfinite(scores), scores, np.inf)
    chosen = shares[np.argsort(order, kind="stable")[: max(int(REGION_SHARE * len(order)), 1)]]
    low, high = np.percentile(chosen, RANGE_PERCENT, axis=0)
    is_choice = np.array([dimension.kind == "categorical" for dimension in dimensions])
    return Region(
        BEST,
        tuple(np.where(is_choice, 0.0, low).tolist()),
        tuple(np.where(is_choice, 1.0, high).tolist()),
    )


def regions_of(text: str, dimensions: Sequence[Dimension]) -> tuple[Region, ...]:
    """Return the regions that `--within` names; `best` has no box yet, because the box depends on scores.

    The text is `best`, `none`, or PARAMETER=LOW:HIGH separated by commas, where an omitted LOW or HIGH is the end of
    the range; semicolons separate regions.
    """
    parts = [part.strip() for part in text.split(";") if part.strip()]
    if parts in ([], [NONE]):
        return ()
    unit = whole(len(dimensions))
    return tuple(
        replace(unit, name=BEST) if part == "best" else _box(part, dimensions) for part in parts
    )


def _box(text: str, dimensions: Sequence[Dimension]) -> Region:
    low, high = [0.0] * len(dimensions), [1.0] * len(dimensions)
    names = [dimension.name for dimension in dimensions]
    for part in text.split(","):
        name, equals, window = (piece.strip() for piece in part.partition("="))
        if not equals or ":" not in window:
            raise ConfigError(
                f"--within: {part.strip()!r} is no region; give best, none, or PARAMETER=LOW:HIGH"
            )
        if name not in names:
            raise ConfigError(
                f"--within: {name!r} is no parameter of this strategy; use one of {', '.join(names)}"
            )
        place = names.index(name)
        low[place], high[place] = _window(dimensions[place], window)
    return Region(text, tuple(low), tuple(high))


def _window(dimension: Dimension, window: str) -> tuple[float, float]:
    """Return the shares of the range at the two ends of `LOW:HIGH`."""
    if dimension.kind == "categorical":
        raise ConfigError(f"--within: {dimension.name} is a choice, which has no range to narrow")
    ends = []
    for text, usual in zip(window.split(":", 1), (dimension.low, dimension.high), strict=True):
        try:
            ends.append(float(text) if text.strip() else usual)
        except ValueError:
            raise ConfigError(
                f"--within: {text!r} is no number; give {dimension.name}=LOW:HIGH"
            ) from None
    if not dimension.low <= ends[0] < ends[1] <= dimension.high or math.isnan(sum(ends)):
        raise ConfigError(
            f"--within: got {dimension.name}={window}; allowed is LOW below HIGH, from "
            f"{_shown(dimension.low)} to {_shown(dimension.high)}"
        )
    half = 0.0
    if dimension.kind == "integer" and not dimension.is_log:
        half = 0.5 / (dimension.high - dimension.low + 1)  # both ends belong to the range
    low, high = (dimension.share(end) for end in ends)
    return max(low - half, 0.0), min(high + half, 1.0)


def _shown(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)

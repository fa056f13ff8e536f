"""Total indices where people tune: in a part of the space, and of a metric's logarithm.

The variance of a whole space can sit in a corner that nobody would run. An index then says what leads
into that corner. The same index inside a region, or of the logarithm, says what matters elsewhere.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from blis_jax.errors import ConfigError
from sweeps.sensitivity.indices import Resampling, TotalIndices, rows_of, total_indices
from sweeps.strategies.space import Dimension

BEST, WHOLE, NONE = "best quarter", "whole space", "none"
BEST_SHARE = 0.25
RANGE_PERCENT = (5, 95)  # of the best points, by parameter


@dataclass(frozen=True)
class Region:
    """A box in the unit cube; `low` and `high` are shares of the ranges, by parameter."""

    name: str
    low: tuple[float, ...]
    high: tuple[float, ...]

    def inside(self, shares: np.ndarray) -> np.ndarray:
        """Draw points of the unit cube `[point, parameter]` together into the box."""
        low, high = np.array(self.low), np.array(self.high)
        points: np.ndarray = low + shares * (high - low)
        return points

    def words(self, dimensions: Sequence[Dimension]) -> str:
        """Describe the values that the box leaves, of the parameters that it narrows."""
        parts = [
            f"{dimension.name} {_shown(dimension.at(low))} to {_shown(dimension.at(high))}"
            for dimension, low, high in zip(dimensions, self.low, self.high, strict=True)
            if (low, high) != (0.0, 1.0)
        ]
        return ", ".join(parts) or "all of every range"


@dataclass(frozen=True)
class RegionIndices:
    """Total indices in a region by metric, of the metric and of its logarithm."""

    region: Region
    plain: Mapping[str, TotalIndices]
    log: Mapping[str, TotalIndices]


def region_indices(
    region: Region, metrics: Sequence[str], values: np.ndarray, size: int, resampling: Resampling
) -> RegionIndices:
    """Compute indices of values `[point, seed, metric]` at a Saltelli design in the region, `size` points per row.

    A metric that is 0 or less somewhere has no logarithm, one that does not vary no index.
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
    """Return the region that is all of the space."""
    return Region(WHOLE, (0.0,) * count, (1.0,) * count)


def best_region(dimensions: Sequence[Dimension], shares: np.ndarray, scores: np.ndarray) -> Region:
    """Return the box of the middle nine tenths, by parameter, of the best quarter of the points.

    `shares` is `[point, parameter]`, `scores` `[point]` with small ones better and NaN for failures. A
    choice keeps all its values.
    """
    order = np.where(np.isfinite(scores), scores, np.inf)
    chosen = shares[np.argsort(order, kind="stable")[: max(int(BEST_SHARE * len(order)), 1)]]
    low, high = np.percentile(chosen, RANGE_PERCENT, axis=0)
    is_choice = np.array([dimension.kind == "categorical" for dimension in dimensions])
    return Region(
        BEST,
        tuple(np.where(is_choice, 0.0, low).tolist()),
        tuple(np.where(is_choice, 1.0, high).tolist()),
    )


def regions_of(text: str, dimensions: Sequence[Dimension]) -> tuple[Region, ...]:
    """Return the regions that `--within` names; `BEST` comes without a box, which needs scores first.

    `best` or `none`, or PARAMETER=LOW:HIGH with commas, LOW or HIGH left out for the end of the range;
    regions are parted by semicolons.
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
    names = [one.name for one in dimensions]
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
    """Shares of the range at the two ends of `LOW:HIGH`."""
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

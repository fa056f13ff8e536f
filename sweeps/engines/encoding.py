"""Points of a space as features in the unit cube, and back."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from sweeps.space import Dimension, Point, Space


class Encoding:
    """A number is a share of its range, a choice one feature for each of its values."""

    def __init__(self, space: Space) -> None:
        """For a space."""
        self.space = space
        self.places: list[slice] = []
        at = 0
        for dimension in space.dimensions:
            width = len(dimension.categories) or 1
            self.places.append(slice(at, at + width))
            at += width
        self.width = at

    @property
    def is_free(self) -> np.ndarray:
        """Which features a gradient may move: not those of choices."""
        free = np.ones(self.width, bool)
        for dimension, place in zip(self.space.dimensions, self.places, strict=True):
            free[place] = dimension.kind != "categorical"
        return free

    def features(self, points: Sequence[Point]) -> np.ndarray:
        """Of points, `[point, feature]`."""
        return self.of_shares(np.array([self.shares(point) for point in points]))

    def of_shares(self, shares: np.ndarray) -> np.ndarray:
        """Of shares `[point, parameter]` of the ranges."""
        made = np.zeros((len(shares), self.width))
        for column, (dimension, place) in enumerate(
            zip(self.space.dimensions, self.places, strict=True)
        ):
            if dimension.kind != "categorical":
                made[:, place.start] = shares[:, column]
                continue
            count = len(dimension.categories)
            chosen = np.minimum((shares[:, column] * count).astype(int), count - 1)
            made[np.arange(len(shares)), place.start + chosen] = 1.0
        return made

    def point(self, features: np.ndarray) -> Point:
        """The point of features `[feature]`."""
        shares = []
        for dimension, place in zip(self.space.dimensions, self.places, strict=True):
            if dimension.kind == "categorical":
                count = len(dimension.categories)
                shares.append((int(features[place].argmax()) + 0.5) / count)
            else:
                shares.append(float(features[place.start]))
        return self.space.at(shares)

    def shares(self, point: Point) -> list[float]:
        """Shares of the ranges that give a point."""
        return [
            share_of(dimension, value)
            for dimension, value in zip(self.space.dimensions, point, strict=True)
        ]


def share_of(dimension: Dimension, value: Any) -> float:
    """The share of the range at which a value is; for whole numbers and choices the middle of theirs."""
    if dimension.kind == "categorical":
        names = [repr(one) for one in dimension.categories]
        return (names.index(repr(value)) + 0.5) / len(names)
    if dimension.is_log:
        low, high = math.log(dimension.low), math.log(dimension.high)
        return (math.log(value) - low) / (high - low)
    if dimension.kind == "integer":
        return (value - dimension.low + 0.5) / (dimension.high - dimension.low + 1)
    return (value - dimension.low) / (dimension.high - dimension.low)

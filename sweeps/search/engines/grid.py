"""A full grid with as many values of every parameter as the budget allows."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from blis_jax.errors import ConfigError
from sweeps.search.engines.base import Told
from sweeps.strategies.file import Search
from sweeps.strategies.space import Dimension, Point, Space


class Grid:
    """All categories and evenly spaced values, both ends included; the last parameter changes first."""

    def __init__(self, space: Space, search: Search) -> None:
        """Chooses the values; refuses budgets below the number of combinations of categories."""
        self.points = list(itertools.product(*_values(space, search)))

    def ask(self, told: Sequence[Told], count: int) -> list[Point]:
        """The next points of the grid, none at its end."""
        return self.points[len(told) : len(told) + count]


def _values(space: Space, search: Search) -> list[list[object]]:
    sizes = [len(one.categories) or 1 for one in space.dimensions]
    if math.prod(sizes) > search.calls:
        raise ConfigError(
            f"search.calls: a grid over the categories alone has {math.prod(sizes)} points, but the "
            f"budget is {search.calls}; raise it, or use another engine"
        )
    while True:
        growing = [
            place
            for place, one in enumerate(space.dimensions)
            if sizes[place] < _most(one)
            and math.prod(sizes) // sizes[place] * (sizes[place] + 1) <= search.calls
        ]
        if not growing:
            break
        sizes[min(growing, key=lambda place: sizes[place])] += 1
    return [_spread(one, size) for one, size in zip(space.dimensions, sizes, strict=True)]


def _most(dimension: Dimension) -> float:
    if dimension.kind == "categorical":
        return len(dimension.categories)
    return dimension.high - dimension.low + 1 if dimension.kind == "integer" else math.inf


def _spread(dimension: Dimension, size: int) -> list[object]:
    if dimension.kind == "categorical":
        return list(dimension.categories)
    if size == 1:
        return [dimension.at(0.5)]
    shares = [place / (size - 1) for place in range(size)]
    if dimension.kind == "integer" and not dimension.is_log:
        width = dimension.high - dimension.low
        return [round(dimension.low + share * width) for share in shares]
    return [dimension.at(share) for share in shares]

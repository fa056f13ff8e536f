"""Points without a model: drawn, of a Sobol sequence, or on a grid."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from blis_jax.errors import ConfigError
from sweeps.search.engines.encoding import Told, generator
from sweeps.strategies.parts import Search
from sweeps.strategies.space import Dimension, Point, Space, sobol_shares


class Random:
    """Uniform, or uniform in the logarithm, over every dimension."""

    def __init__(self, space: Space, search: Search) -> None:
        """Keep the space and the random state."""
        self.space, self.search = space, search

    def ask(self, told: Sequence[Told], count: int) -> list[Point]:
        """Return the next points; a point depends on its place alone."""
        points = []
        for place in range(len(told), len(told) + count):
            shares = generator(self.search, place).random(len(self.space.dimensions))
            points.append(self.space.at(shares))
        return points


class Sobol:
    """Even in every dimension and over pairs of them; best balanced at powers of two."""

    def __init__(self, space: Space, search: Search) -> None:
        """Keep the space and the random state."""
        self.space, self.search = space, search

    def ask(self, told: Sequence[Told], count: int) -> list[Point]:
        """Return the next points of the sequence."""
        end, width = len(told) + count, len(self.space.dimensions)
        shares = sobol_shares(width, end, self.search.random_state)[len(told) :]
        return [self.space.at(share) for share in shares]


class Grid:
    """A grid of all categories and evenly spaced values, both ends included; the last parameter changes first."""

    def __init__(self, space: Space, search: Search) -> None:
        """Choose the values; refuse budgets below the number of combinations of categories."""
        self.points = list(itertools.product(*_values(space, search)))

    def ask(self, told: Sequence[Told], count: int) -> list[Point]:
        """Return the next points of the grid, none at its end."""
        return self.points[len(told) : len(told) + count]


def _values(space: Space, search: Search) -> list[list[object]]:
    sizes = [len(dimension.categories) or 1 for dimension in space.dimensions]
    if math.prod(sizes) > search.calls:
        raise ConfigError(
            f"search.calls: a grid over the categories alone has {math.prod(sizes)} points, but the "
            f"budget is {search.calls}; raise it, or use another engine"
        )
    while True:
        growing = [
            place
            for place, dimension in enumerate(space.dimensions)
            if sizes[place] < _most(dimension)
            and math.prod(sizes) // sizes[place] * (sizes[place] + 1) <= search.calls
        ]
        if not growing:
            break
        sizes[min(growing, key=lambda place: sizes[place])] += 1
    return [
        _spread(dimension, size) for dimension, size in zip(space.dimensions, sizes, strict=True)
    ]


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

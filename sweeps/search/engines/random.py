"""Points drawn independently over the space."""

from __future__ import annotations

from collections.abc import Sequence

from sweeps.search.engines.base import Told, generator
from sweeps.strategies.file import Search
from sweeps.strategies.space import Point, Space


class Random:
    """Uniform, or uniform in the logarithm, over every dimension."""

    def __init__(self, space: Space, search: Search) -> None:
        """For a space."""
        self.space, self.search = space, search

    def ask(self, told: Sequence[Told], count: int) -> list[Point]:
        """The next points; a point depends on its place alone."""
        points = []
        for place in range(len(told), len(told) + count):
            shares = generator(self.search, place).random(len(self.space.dimensions))
            points.append(self.space.at(shares))
        return points

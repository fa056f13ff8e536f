"""A scrambled Sobol sequence: points that fill the space evenly."""

from __future__ import annotations

from collections.abc import Sequence

from sweeps.search.engines.base import Told
from sweeps.strategies.file import Search
from sweeps.strategies.space import Point, Space


class Sobol:
    """Even in every dimension and over pairs of them; best balanced at powers of two."""

    def __init__(self, space: Space, search: Search) -> None:
        """For a space."""
        self.space, self.search = space, search

    def ask(self, told: Sequence[Told], count: int) -> list[Point]:
        """The next points of the sequence."""
        from scipy.stats import qmc

        sequence = qmc.Sobol(len(self.space.dimensions), rng=self.search.random_state)
        exponent = (len(told) + count - 1).bit_length()
        shares = sequence.random_base2(exponent)[len(told) : len(told) + count]
        return [self.space.at(share) for share in shares]

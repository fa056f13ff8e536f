"""Several objectives at once: a Gaussian process on a new random weighting for every batch.

This is scalarisation (ParEGO: Knowles 2006): each batch minimises an augmented Chebyshev sum of the
objectives, scaled to what has been seen, so that the batches spread along the front.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sweeps.search.engines.base import Told, generator, modelled
from sweeps.search.engines.gp import proposed
from sweeps.search.engines.sobol import Sobol
from sweeps.strategies.file import Search
from sweeps.strategies.space import Point, Space

AUGMENTATION = 0.05  # share of the plain sum, which tells weakly dominated points apart; Knowles'


class Pareto:
    """Sobol points to begin with, then batches for random weightings of the objectives."""

    def __init__(self, space: Space, search: Search) -> None:
        """For a space."""
        self.space, self.search = space, search
        self.first = Sobol(space, search)

    def ask(self, told: Sequence[Told], count: int) -> list[Point]:
        """The next points."""
        whole = [one for one in told if not one.has_failed]
        if len(told) < self.search.initial:
            return self.first.ask(told, min(count, self.search.initial - len(told)))
        if not whole:
            return self.first.ask(told, count)
        weights = generator(self.search, len(told), 1).dirichlet(np.ones(len(whole[0].objectives)))
        values = modelled(told, _weighted(told, weights))
        return proposed(self.space, self.search, told, values, count)


def _weighted(told: Sequence[Told], weights: np.ndarray) -> list[float]:
    """One number for each point; penalties count in units of the first objective's range."""
    whole = np.array([one.objectives for one in told if not one.has_failed])
    low = whole.min(axis=0)
    span = np.maximum(whole.max(axis=0) - low, 1e-12)
    values = []
    for one in told:
        if one.has_failed:
            values.append(np.inf)  # replaced by the model's placeholder
            continue
        parts = weights * (np.array(one.objectives) - low) / span
        values.append(float(parts.max() + AUGMENTATION * parts.sum() + one.penalty / span[0]))
    return values

"""Bayesian search: a Gaussian process over the space, expected improvement (scikit-optimize)."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from sweeps.search.engines.base import Told, generator, modelled
from sweeps.search.engines.sobol import Sobol
from sweeps.strategies.file import Search
from sweeps.strategies.space import Dimension, Point, Space


class GaussianProcess:
    """Sobol points to begin with, then batches where the model expects most."""

    model = "GP"  # scikit-optimize's name

    def __init__(self, space: Space, search: Search) -> None:
        """For a space."""
        self.space, self.search = space, search
        self.first = Sobol(space, search)

    def ask(self, told: Sequence[Told], count: int) -> list[Point]:
        """The next points; those of one batch are chosen as if the others had found the best value."""
        if len(told) < self.search.initial:
            return self.first.ask(told, min(count, self.search.initial - len(told)))
        values = _compressed(modelled(told))
        return proposed(self.space, self.search, told, values, count, self.model)


def _compressed(scores: np.ndarray) -> np.ndarray:
    """Logarithms of the distances from the best: bad points are many times worse than good ones are."""
    above = scores - scores.min()
    scale = max(float(np.median(above)) / 4, 1e-12)
    compressed: np.ndarray = np.log1p(above / scale)
    return compressed


def proposed(
    space: Space,
    search: Search,
    told: Sequence[Told],
    values: np.ndarray,
    count: int,
    model: str = "GP",
) -> list[Point]:
    """Points with the largest expected improvement of `values`, given for each point told."""
    from skopt import Optimizer
    from threadpoolctl import threadpool_limits

    state = int(generator(search, len(told)).integers(2**31))
    with warnings.catch_warnings(), threadpool_limits(1):  # more threads are ten times slower here
        warnings.simplefilter("ignore")  # about points tried twice, and fits that were cut short
        optimizer = Optimizer(
            [skopt_dimension(dimension) for dimension in space.dimensions],
            model,
            n_initial_points=0,
            acq_func="EI",
            acq_optimizer="sampling",
            random_state=state,
        )
        optimizer.tell([list(one.point) for one in told], [float(value) for value in values])
        points = optimizer.ask(n_points=count, strategy="cl_min")
    return [tuple(plain(value) for value in point) for point in points]


def skopt_dimension(dimension: Dimension) -> Any:
    """The dimension as scikit-optimize has it."""
    from skopt.space import Categorical, Integer, Real

    if dimension.kind == "categorical":
        return Categorical(dimension.categories)
    prior = "log-uniform" if dimension.is_log else "uniform"
    kind = Integer if dimension.kind == "integer" else Real
    return kind(dimension.low, dimension.high, prior=prior)


def plain(value: object) -> Any:
    """A Python value instead of a numpy scalar, which JSON does not know."""
    return value.item() if isinstance(value, np.generic) else value

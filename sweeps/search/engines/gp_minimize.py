"""The search that the record published: scikit-optimize's `gp_minimize`, one point at a time."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
from skopt import Optimizer
from skopt.space import Categorical, Integer, Real
from skopt.utils import cook_estimator, normalize_dimensions
from threadpoolctl import threadpool_limits

from sweeps.search.engines.encoding import Told
from sweeps.strategies.parts import Search
from sweeps.strategies.space import Dimension, Point, Space


class GpMinimize:
    """Random points to begin with, then three acquisition functions in competition.

    What it proposes depends on every draw before, so a longer history is followed from where the
    last one ended, and any other one is replayed.
    """

    def __init__(self, space: Space, search: Search) -> None:
        """For a space."""
        self.space, self.search = space, search
        self.followed: list[Told] = []
        self.optimizer: Any = None
        self.proposal: list[Any] = []  # of the optimizer: an `ask` more would draw again

    def ask(self, told: Sequence[Told], count: int) -> list[Point]:
        """Return the next point, only one whatever the count."""
        if not count:
            return []
        with warnings.catch_warnings(), threadpool_limits(1):
            # about points tried twice, and fits that were cut short
            warnings.simplefilter("ignore")
            if self.optimizer is None or list(told[: len(self.followed)]) != self.followed:
                self.optimizer, self.followed = self._new(), []
                self.proposal = self.optimizer.ask()
            for result in told[len(self.followed) :]:
                self.optimizer.tell(self.proposal, result.score)
                self.followed.append(result)
                self.proposal = self.optimizer.ask()
            return [tuple(_plain(value) for value in self.proposal)]

    def _new(self) -> Any:
        """Return the optimizer as `gp_minimize` sets it up, draw by draw."""
        random = np.random.RandomState(self.search.random_state)
        dimensions = [_skopt_dimension(dimension) for dimension in self.space.dimensions]
        space = normalize_dimensions(dimensions)
        state = random.randint(0, np.iinfo(np.int32).max)
        return Optimizer(
            space,
            cook_estimator("GP", space=space, random_state=state, noise="gaussian"),
            n_initial_points=self.search.initial,
            acq_func="gp_hedge",
            random_state=random,
            acq_optimizer_kwargs={"n_points": 10_000, "n_restarts_optimizer": 5, "n_jobs": 1},
            acq_func_kwargs={"xi": 0.01, "kappa": 1.96},
        )


def _skopt_dimension(dimension: Dimension) -> Any:
    """Return the dimension as scikit-optimize has it."""
    if dimension.kind == "categorical":
        return Categorical(dimension.categories)
    prior = "log-uniform" if dimension.is_log else "uniform"
    kind = Integer if dimension.kind == "integer" else Real
    return kind(dimension.low, dimension.high, prior=prior)


def _plain(value: object) -> Any:
    """Return a Python value instead of a numpy scalar, which JSON does not know."""
    return value.item() if isinstance(value, np.generic) else value

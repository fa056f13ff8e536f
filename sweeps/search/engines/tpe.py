"""Search with a tree-structured Parzen estimator (Optuna), as a rival to the other engines."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

from blis_jax.errors import ConfigError
from sweeps.search.engines.base import Told, generator, modelled
from sweeps.search.engines.sobol import Sobol
from sweeps.strategies.file import Search
from sweeps.strategies.space import Dimension, Point, Space


class Tpe:
    """Sobol points to begin with, then batches where good points are dense and bad ones are not."""

    def __init__(self, space: Space, search: Search) -> None:
        """For a space; refuses to be made where Optuna is not installed."""
        try:
            import optuna
        except ModuleNotFoundError:
            raise ConfigError(
                "search.engine: 'tpe' needs optuna; install blis-jax[search], or use another engine"
            ) from None
        self.space, self.search, self.optuna = space, search, optuna
        self.first = Sobol(space, search)
        self.distributions = {one.name: self._distribution(one) for one in space.dimensions}

    def ask(self, told: Sequence[Told], count: int) -> list[Point]:
        """The next points; those of one batch are told apart by a constant liar."""
        if len(told) < self.search.initial:
            return self.first.ask(told, min(count, self.search.initial - len(told)))
        optuna = self.optuna
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about options that Optuna calls experimental
            sampler = optuna.samplers.TPESampler(
                n_startup_trials=0, multivariate=True, constant_liar=True,
                seed=int(generator(self.search, len(told)).integers(2**31)),
            )  # fmt: skip
            study = optuna.create_study(sampler=sampler)
            for one, score in zip(told, modelled(told).tolist(), strict=True):
                values = dict(zip(self.space.names, one.point, strict=True))
                study.add_trial(
                    optuna.trial.create_trial(
                        params=values, distributions=self.distributions, value=score
                    )
                )
            trials = [study.ask(self.distributions) for _ in range(count)]
        return [self._point(trial.params) for trial in trials]

    def _distribution(self, dimension: Dimension) -> Any:
        made = self.optuna.distributions
        if dimension.kind == "categorical":
            return made.CategoricalDistribution(dimension.categories)
        kind = made.IntDistribution if dimension.kind == "integer" else made.FloatDistribution
        return kind(dimension.low, dimension.high, log=dimension.is_log)

    def _point(self, values: dict[str, Any]) -> Point:
        return tuple(values[name] for name in self.space.names)

"""Search engines by name; `make` builds one."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module

from blis_jax.errors import ConfigError, closest
from sweeps.search.engines.base import Engine, Recommender, Told, first_of
from sweeps.strategies.file import Search
from sweeps.strategies.space import Point, Space

ENGINES = {
    "gp": "gp.GaussianProcess",
    "forest": "forest.Forest",
    "gp_minimize": "gp_minimize.GpMinimize",
    "random": "random.Random",
    "sobol": "sobol.Sobol",
    "ensemble": "ensemble.Ensemble",
    "denoised": "denoised.Denoised",
    "turbo": "turbo.Turbo",
    "tpe": "tpe.Tpe",
    "grid": "grid.Grid",
    "pareto": "pareto.Pareto",
}


def make(space: Space, search: Search) -> Engine:
    """The engine that a search names, for a space."""
    if search.engine not in ENGINES:
        raise ConfigError(
            f"search.engine: {search.engine!r} is unknown; use one of {', '.join(ENGINES)}"
            f"{closest(search.engine, ENGINES)}"
        )
    if not space.dimensions:
        raise ConfigError(
            f"{space.strategy.source}: parameters: there are none, so there is nothing to search; "
            "give one, or compare fixed strategies with python -m blis_jax.sweep"
        )
    module, name = ENGINES[search.engine].split(".")
    engine: Engine = getattr(import_module(f"sweeps.search.engines.{module}"), name)(space, search)
    return Started(engine, _starts(space, search)) if search.start else engine


class Started:
    """Points that the file names, then those of an engine, which learns of them."""

    def __init__(self, engine: Engine, points: Sequence[Point]) -> None:
        """`points` come first, in order."""
        self.engine, self.points = engine, points

    def ask(self, told: Sequence[Told], count: int) -> list[Point]:
        """The next points."""
        named = list(self.points[len(told) : len(told) + count])
        return named or self.engine.ask(told, count)


def recommends(engine: Engine) -> bool:
    """Whether an engine says which point is best; of others it is the lowest score."""
    return isinstance(engine.engine if isinstance(engine, Started) else engine, Recommender)


def recommended(engine: Engine, told: Sequence[Told], num_runs: int = 0) -> int | None:
    """Place of the tried point that an engine recommends; None where scores decide, or all points failed.

    `num_runs` are those that the point has at least, if there is one.
    """
    inner = engine.engine if isinstance(engine, Started) else engine
    if not isinstance(inner, Recommender) or all(one.has_failed for one in told):
        return None
    return first_of(inner.ranked(told), told, num_runs)


def _starts(space: Space, search: Search) -> list[Point]:
    strategy, found = space.strategy, []
    for name in search.start:
        if name not in strategy.points:
            raise strategy.refuse(
                "search.start", f"there is no point {name!r}{closest(name, list(strategy.points))}"
            )
        point = strategy.points[name]
        missing = [parameter for parameter in space.names if parameter not in point]
        if missing:
            raise strategy.refuse(
                f"points.{name}", f"a search starts there, so give {missing[0]} too"
            )
        found.append(tuple(point[parameter] for parameter in space.names))
    return found


__all__ = [
    "ENGINES", "Engine", "Recommender", "Started", "Told", "make", "recommended", "recommends",
]  # fmt: skip

"""Search engines by name; `make` builds one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from blis_jax.errors import ConfigError, closest
from sweeps.search.engines.denoised import Denoised, Pareto
from sweeps.search.engines.encoding import Engine, Recommender, Told, first_of
from sweeps.search.engines.ensemble import Ensemble
from sweeps.search.engines.known import GpMinimize, Grid, Random, Sobol
from sweeps.strategies.parts import Search
from sweeps.strategies.space import Point, Space

ENGINES: Mapping[str, Callable[[Space, Search], Engine]] = {
    "denoised": Denoised,
    "ensemble": Ensemble,
    "gp_minimize": GpMinimize,
    "pareto": Pareto,
    "random": Random,
    "sobol": Sobol,
    "grid": Grid,
}
GONE = ("gp", "forest", "tpe", "turbo")


def make(space: Space, search: Search) -> Engine:
    """Return the engine that a search names, built for a space.

    Raises:
        ConfigError: the engine is unknown or was removed, or the space has no parameters.
    """
    if search.engine in GONE:
        raise ConfigError(
            f"search.engine: {search.engine!r} has left blis_jax, and a search that it began cannot be "
            "resumed; start a new one with denoised, which is the default"
        )
    if search.engine not in ENGINES:
        raise ConfigError(
            f"search.engine: {search.engine!r} is unknown; use one of {', '.join(ENGINES)}"
            f"{closest(search.engine, ENGINES)}"
        )
    if not space.dimensions:
        raise ConfigError(
            f"{space.strategy.source}: parameters: there are none, so there is nothing to search; "
            "give one, or compare fixed strategies with blis-jax sweep"
        )
    engine = ENGINES[search.engine](space, search)
    return Started(engine, _starts(space, search)) if search.start else engine


class Started:
    """An engine whose first points are those that the file names; the engine sees their results."""

    def __init__(self, engine: Engine, points: Sequence[Point]) -> None:
        """Take the engine, and the `points` to try first, in order."""
        self.engine, self.points = engine, points

    def ask(self, told: Sequence[Told], count: int) -> list[Point]:
        """Return the named points first, then the engine's."""
        named = list(self.points[len(told) : len(told) + count])
        return named or self.engine.ask(told, count)


def recommends(engine: Engine) -> bool:
    """Return whether an engine itself recommends a point; for other engines the point with the lowest score is best."""
    return isinstance(engine.engine if isinstance(engine, Started) else engine, Recommender)


def recommended(engine: Engine, told: Sequence[Told], num_runs: int = 0) -> int | None:
    """Return the index of the tried point that an engine recommends; None where scores decide, or all points failed.

    A point with at least `num_runs` runs is preferred, if there is one.
    """
    inner = engine.engine if isinstance(engine, Started) else engine
    if not isinstance(inner, Recommender) or all(point.has_failed for point in told):
        return None
    return first_of(inner.ranked(told), told, num_runs)


def _starts(space: Space, search: Search) -> list[Point]:
    strategy, starts = space.strategy, []
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
        starts.append(tuple(point[parameter] for parameter in space.names))
    return starts


__all__ = [
    "ENGINES", "Engine", "Recommender", "Started", "Told", "make", "recommended", "recommends",
]  # fmt: skip

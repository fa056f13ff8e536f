"""Search engines by name; `make` builds one."""

from __future__ import annotations

from importlib import import_module

from blis_jax.errors import ConfigError, closest
from sweeps.search.engines.base import Engine, Told
from sweeps.strategies.file import Search
from sweeps.strategies.space import Space

ENGINES = {
    "gp": "gp.GaussianProcess",
    "forest": "forest.Forest",
    "gp_minimize": "gp_minimize.GpMinimize",
    "random": "random.Random",
    "sobol": "sobol.Sobol",
    "ensemble": "ensemble.Ensemble",
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
    return engine


__all__ = ["ENGINES", "Engine", "Told", "make"]

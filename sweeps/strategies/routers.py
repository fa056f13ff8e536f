"""Arms that differ in the router alone: one for each routing policy that is named."""

from __future__ import annotations

import dataclasses

from blis_jax.errors import ConfigError
from blis_jax.policies.moved import PATHS, known_as
from blis_jax.policies.registry import ROUTING
from sweeps.strategies.arms import Arm

REFERENCE = "round-robin"
ALL = "all"
CONTROL = "always-busiest"  # sends everything to the fullest instance: a check, no router to choose


def router_arms(text: str, base: Arm) -> tuple[Arm, ...]:
    """Return the base with each router of `all`, or of `NAME,NAME,…`; round-robin comes first if it is among them.

    Raises:
        ConfigError: fewer than two routers are named, or one twice.
    """
    names = [part.strip() for part in text.split(",") if part.strip()]
    if names == [ALL]:
        names = [name for name in ROUTING if name != CONTROL] + [*PATHS["routing"].values()]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"--routers: {name} is given twice; give each router once")
    if len(names) < 2:
        raise ConfigError(
            f"--routers: {text!r} names fewer than two routers; give all, or two or more of "
            f"{', '.join(ROUTING)} or path/to/file.py:Name, with commas"
        )
    names.sort(key=lambda name: name != REFERENCE)
    return tuple(_with_router(base, name) for name in names)


def _with_router(base: Arm, name: str) -> Arm:
    try:
        config = base.config.replace(routing_policy=name)
    except ConfigError as error:
        raise ConfigError(f"--routers: {error}") from None
    return dataclasses.replace(base, name=known_as(name).rpartition(":")[2], config=config)

"""Workloads that are known by name: those of blis_jax and those that come with this package."""

from __future__ import annotations

from functools import lru_cache
from importlib import resources

from blis_jax.errors import ConfigError, closest
from blis_jax.workload.spec import WorkloadSpec, list_builtin, load_builtin, parse_spec

FOLDER = "workloads"


def list_own() -> tuple[str, ...]:
    """Return the workloads that come with this package, beside those of blis_jax."""
    folder = resources.files("sweeps") / FOLDER
    return tuple(sorted(file.name[:-5] for file in folder.iterdir() if file.name.endswith(".yaml")))


def list_workloads() -> tuple[str, ...]:
    """Return every name, those of blis_jax first."""
    return (*list_builtin(), *list_own())


@lru_cache(maxsize=64)
def load_workload(name: str) -> WorkloadSpec:
    """Return the workload of a name; ConfigError if neither package has it."""
    if name in list_builtin():
        return load_builtin(name)
    if name not in list_own():
        known = list_workloads()
        raise ConfigError(
            f"workload {name!r} is unknown; use one of {', '.join(known)}{closest(name, known)}"
        )
    file = resources.files("sweeps") / FOLDER / f"{name}.yaml"
    return parse_spec(file.read_text(encoding="utf-8"), file.name)

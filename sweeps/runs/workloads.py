"""Workloads by their name, from a file, or of a strategy: those of blis_jax and those that come with this package."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from blis_jax.errors import ConfigError, closest
from blis_jax.metrics.measure import Measure
from blis_jax.workload.spec import (
    WorkloadSpec,
    list_builtin,
    load_builtin,
    load_spec,
    override,
    parse_spec,
)
from sweeps.strategies.file import Strategy

if TYPE_CHECKING:
    from blis_jax.workload.source import RequestSource

FOLDER = "workloads"
WORKLOAD_PREFIX = "workload."  # of an axis that is a number of the workload


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


def workload_of(strategy: Strategy, num_requests: int | None = None) -> WorkloadSpec:
    """Return the workload that a strategy names, checked; paths begin at the file, then where one is."""
    where = f"{strategy.source}: workload"
    return workload_from(strategy.workload, where, strategy.folder, num_requests)


def workload_from(
    given: str | Mapping[str, Any],
    where: str = "workload",
    folder: Path | None = None,
    num_requests: int | None = None,
) -> WorkloadSpec:
    """Return a workload by its name, from a file, or of its content; `where` begins errors."""
    if not isinstance(given, str):
        spec = parse_spec(yaml.safe_dump(dict(given)), where)
    elif given in list_workloads():
        spec = load_workload(given)
    else:
        spec = load_spec(_workload_path(given, where, folder or Path()))
    return override(spec, num_requests=num_requests) if num_requests else spec


def workload_content(spec: RequestSource) -> dict[str, Any]:
    """Return a workload as part of an identity; with what rates count in its window, if it has one."""
    window = Measure({}, spec.measure.warm_up_s, spec.measure.cool_down_s).window()
    rates = {"rates": window["rates"]} if "rates" in window else {}
    return spec.content() | rates


def _workload_path(given: str, where: str, folder: Path) -> Path:
    places = [folder / given, Path(given), folder / Path(given).name]
    for place in places:
        if place.is_file():
            return place
    raise ConfigError(
        f"{where}: {given!r} is neither a file, here or beside the strategy, nor a built-in "
        f"workload ({', '.join(list_workloads())}){closest(given, list_workloads())}"
    )

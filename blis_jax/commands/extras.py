"""The optional groups of packages: what each holds, and which commands ask for it."""

from __future__ import annotations

import importlib.util
from typing import NamedTuple


class Extra(NamedTuple):
    """An optional group, `pip install 'blis-jax[NAME]'`."""

    name: str
    modules: tuple[str, ...]
    needed_for: str

    @property
    def missing(self) -> tuple[str, ...]:
        """The modules that are not installed."""
        return tuple(one for one in self.modules if importlib.util.find_spec(one) is None)


EXTRAS = (
    Extra("surrogate", ("orbax",), "surrogate train, predict, coverage, report"),
    Extra("search", ("optuna",), "optimize --engine tpe"),
    Extra("export", ("h5netcdf", "h5py"), "outputs that end in .nc"),
    Extra("parquet", ("pyarrow",), "traces in Parquet"),
    Extra("promote", ("jsonschema", "go"), "promote: the checks at its gates, generated Go"),
    Extra("gpu", ("jax_cuda13_plugin",), "sweep --device gpu"),
    Extra("report", ("vl_convert",), "--report"),
    Extra("notebooks", ("jupytext", "nbclient", "ipykernel"), "the notebooks"),
)


def advice_on(module: str | None) -> str | None:
    """What to install for a module that is missing; None if no optional group has it."""
    top = (module or "").split(".")[0]
    for extra in EXTRAS:
        if top in extra.modules:
            return f"{top} is not installed; pip install 'blis-jax[{extra.name}]'"
    return None

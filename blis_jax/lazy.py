"""JAX, pandas, SciPy, xarray, matplotlib and others, and names of packages, imported when they are first used.

A command lists policies and their numbers before it knows whether it will compute anything, and XLA's options must be
set before JAX starts. So modules that only declare things import JAX from here. Modules that seldom need one of the
other packages import it from here too. A command declares modules of this project that load JAX as `Module`, so that
its `--help` and errors do not wait for JAX.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from importlib import import_module
from threading import Thread
from types import ModuleType
from typing import TYPE_CHECKING, Any


class Module(ModuleType):
    """Stand for a module, which is imported when one of its attributes is first read.

    Type checkers must see the real module: import it under `if TYPE_CHECKING:`, and create a `Module` under `else:`.
    """

    def __getattr__(self, attribute: str) -> Any:
        return getattr(import_module(self.__name__), attribute)

    def __reduce__(self) -> tuple[type[Module], tuple[str]]:
        """Pickle the module by its name, so that functions that use it can be sent to other processes."""
        return Module, (self.__name__,)


@cache
def ahead(*names: str) -> None:
    """Import modules in a background thread, once per process; skip modules that are not installed."""

    def load() -> None:
        for name in names:
            with suppress(ImportError):
                import_module(name)

    Thread(target=load, daemon=True).start()


if TYPE_CHECKING:
    import cloudpickle as cloudpickle
    import distributed as distributed
    import jax
    import jax.numpy as jnp
    import joblib as joblib
    import matplotlib as matplotlib
    import pandas as pandas
    import pyarrow as pyarrow
    import tree_sitter as tree_sitter
    import tree_sitter_go as tree_sitter_go
    import xarray as xarray
    import yaml as yaml
    import zarr as zarr
    from jax import lax
    from matplotlib import figure as figure
    from matplotlib import lines as lines
    from matplotlib import patches as patches
    from matplotlib import ticker as ticker
    from PIL import Image as pillow
    from PIL import PngImagePlugin as png
    from pyarrow import parquet as parquet
    from rich import console as rich_console
    from rich import progress as rich_progress
    from rich import table as rich_table
    from scipy import optimize as optimize
    from scipy import special as special
    from scipy import stats as stats
else:
    jax, jnp, lax = Module("jax"), Module("jax.numpy"), Module("jax.lax")
    optimize, special, stats = (
        Module(f"scipy.{name}") for name in ("optimize", "special", "stats")
    )
    matplotlib, pandas, pyarrow, xarray, yaml, zarr = (
        Module(name) for name in ("matplotlib", "pandas", "pyarrow", "xarray", "yaml", "zarr")
    )
    figure, lines, patches, ticker = (
        Module(f"matplotlib.{name}") for name in ("figure", "lines", "patches", "ticker")
    )
    parquet, pillow = Module("pyarrow.parquet"), Module("PIL.Image")
    png = Module("PIL.PngImagePlugin")
    rich_console, rich_progress, rich_table = (
        Module(f"rich.{name}") for name in ("console", "progress", "table")
    )
    cloudpickle, distributed, joblib = (
        Module(name) for name in ("cloudpickle", "distributed", "joblib")
    )
    tree_sitter, tree_sitter_go = Module("tree_sitter"), Module("tree_sitter_go")


def exports(package: str, names: Mapping[str, Sequence[str]]) -> Callable[[str], Any]:
    """Return a `__getattr__` for a package, which imports each exported name when it is first used.

    `names` lists the exported names by module, given relative to the package or by its whole name; `shown=own` exports
    the module's name `own` as `shown`.
    """
    places = {}
    for name_of_module, names_of_module in names.items():
        is_whole = name_of_module.startswith("blis_jax.")
        module = name_of_module if is_whole else f"{package}.{name_of_module}"
        for name in names_of_module:
            shown, _, own = name.partition("=")
            places[shown] = module, own or shown

    def get(name: str) -> Any:
        """Import and return an exported name; an AttributeError names the package where there is none."""
        if name not in places:
            raise AttributeError(
                f"module {package!r} has no attribute {name!r}",
                name=name,
                obj=import_module(package),
            )
        module, own = places[name]
        return getattr(import_module(module), own)

    return get


__all__ = [
    "Module",
    "ahead",
    "exports",
    "jax",
    "jnp",
    "lax",
    "pillow",
    "png",
    "rich_console",
    "rich_progress",
    "rich_table",
]

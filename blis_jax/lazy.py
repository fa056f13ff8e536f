"""JAX, pandas, SciPy, xarray, matplotlib and others, and names of packages, imported when they are first used.

A command lists policies and their numbers before it knows whether it will compute anything, and XLA's
options must be set before JAX starts. So modules that only declare things import JAX from here, and modules that need
one of the others for one thing of several. A command names modules of ours that load JAX as `Module`, so that its
`--help` and refusals do not wait for it.
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
    """Stand for a module until an attribute of it is asked for, which imports it.

    Type checkers get the module itself: `if TYPE_CHECKING: import` it, `else:` make one of these.
    """

    def __getattr__(self, attribute: str) -> Any:
        return getattr(import_module(self.__name__), attribute)

    def __reduce__(self) -> tuple[type[Module], tuple[str]]:
        """Let functions travel to other processes with the modules that they use."""
        return Module, (self.__name__,)


@cache
def ahead(*names: str) -> None:
    """Import modules in a thread, once, while others compile and run; what is not installed is left out."""

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
    """Make the `__getattr__` of a package whose names are imported when they are first used.

    `names` are by module inside the package, or by a module's whole name; `shown=own` shows a module's name under
    another name.
    """
    places = {}
    for name_of_module, names_of_module in names.items():
        is_whole = name_of_module.startswith("blis_jax.")
        module = name_of_module if is_whole else f"{package}.{name_of_module}"
        for name in names_of_module:
            shown, _, own = name.partition("=")
            places[shown] = module, own or shown

    def get(name: str) -> Any:
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

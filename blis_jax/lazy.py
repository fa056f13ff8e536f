"""JAX, pandas, SciPy, xarray, matplotlib and others, and names of packages, imported when they are first used.

A command lists policies and their numbers before it knows whether it will compute anything, and XLA's
options must be set before JAX starts. So modules that only declare things import JAX from here, and modules that need
one of the others for one thing of several.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import jax
    import jax.numpy as jnp
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
    from pyarrow import parquet as parquet
    from scipy import optimize as optimize
    from scipy import special as special
    from scipy import stats as stats
else:

    class _Module(ModuleType):
        """Stands for a module until an attribute of it is asked for."""

        def __getattr__(self, attribute: str) -> Any:
            return getattr(import_module(self.__name__), attribute)

    jax, jnp, lax = _Module("jax"), _Module("jax.numpy"), _Module("jax.lax")
    optimize, special, stats = (
        _Module(f"scipy.{name}") for name in ("optimize", "special", "stats")
    )
    matplotlib, pandas, pyarrow, xarray, yaml, zarr = (
        _Module(name) for name in ("matplotlib", "pandas", "pyarrow", "xarray", "yaml", "zarr")
    )
    figure, lines, patches, ticker = (
        _Module(f"matplotlib.{name}") for name in ("figure", "lines", "patches", "ticker")
    )
    parquet = _Module("pyarrow.parquet")
    tree_sitter, tree_sitter_go = _Module("tree_sitter"), _Module("tree_sitter_go")


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
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module, own = places[name]
        return getattr(import_module(module), own)

    return get


__all__ = ["exports", "jax", "jnp", "lax"]

"""JAX, pandas, SciPy, xarray, PyYAML, and names of packages, imported when they are first used.

A command lists policies and their numbers before it knows whether it will compute anything, and XLA's
options must be set before JAX starts. So modules that only declare things import JAX from here, and modules that need
pandas, SciPy or xarray for one thing of several.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import jax
    import jax.numpy as jnp
    import pandas as pandas
    import xarray as xarray
    import yaml as yaml
    from jax import lax
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
    pandas, xarray, yaml = _Module("pandas"), _Module("xarray"), _Module("yaml")


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

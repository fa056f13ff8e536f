"""JAX, imported when it is first used.

A command lists policies and their numbers before it knows whether it will compute anything, and XLA's
options must be set before JAX starts. So modules that only declare things import JAX from here.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import jax
    import jax.numpy as jnp
    from jax import lax
else:

    class _Module:
        """Stands for a module until an attribute of it is asked for."""

        def __init__(self, name: str) -> None:
            self._name = name

        def __getattr__(self, attribute: str) -> Any:
            return getattr(import_module(self._name), attribute)

    jax, jnp, lax = _Module("jax"), _Module("jax.numpy"), _Module("jax.lax")

__all__ = ["jax", "jnp", "lax"]

"""Two ways to run a phase only when it applies: a real branch, or a masked evaluation.

A single lane on a CPU branches. Many lanes in one vectorised loop evaluate every phase and keep the
small results that apply; whole tables never pass through either.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import jax
import jax.numpy as jnp
from jax import lax

T = TypeVar("T")
When = Callable[[jax.Array, Callable[[], T], Callable[[], T]], T]


def branch(predicate: jax.Array, compute: Callable[[], T], otherwise: Callable[[], T]) -> T:
    """`compute()` if the predicate holds, as a branch that is not entered otherwise."""
    return lax.cond(predicate, compute, otherwise)


def masked(predicate: jax.Array, compute: Callable[[], T], otherwise: Callable[[], T]) -> T:
    """`compute()` always; its results are kept where the predicate holds."""
    return jax.tree.map(lambda a, b: jnp.where(predicate, a, b), compute(), otherwise())

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

from blis_jax.core.columns import choose, is_apart, together

T = TypeVar("T")
When = Callable[[jax.Array, Callable[[], T], Callable[[], T]], T]


def branch(predicate: jax.Array, compute: Callable[[], T], otherwise: Callable[[], T]) -> T:
    """`compute()` if the predicate holds, as a branch that is not entered otherwise."""

    def whole(side: Callable[[], T]) -> Callable[[], T]:
        return lambda: jax.tree.map(together, side(), is_leaf=is_apart)

    return lax.cond(predicate, whole(compute), whole(otherwise))


def masked(predicate: jax.Array, compute: Callable[[], T], otherwise: Callable[[], T]) -> T:
    """`compute()` always; its results are kept where the predicate holds."""
    chosen: T = choose(predicate, compute(), otherwise())
    return chosen


def once(predicate: jax.Array, change: Callable[[T, jax.Array], T], value: T) -> T:
    """`change(value, True)` if the predicate holds; a loop of at most one turn, so tables change in place."""
    done = jnp.array(False)

    def turn(carry: tuple[jax.Array, T]) -> tuple[jax.Array, T]:
        return done, change(carry[1], jnp.array(True))

    return lax.while_loop(lambda carry: carry[0], turn, (predicate, value))[1]


def repeated(
    holds: Callable[[T], jax.Array], change: Callable[[T, jax.Array], T], value: T, most: int
) -> T:
    """`change(value, True)` as long as `holds(value)`, at most so often; tables change in place here, too."""

    def goes_on(carry: tuple[jax.Array, T]) -> jax.Array:
        return (carry[0] < most) & holds(carry[1])

    def turn(carry: tuple[jax.Array, T]) -> tuple[jax.Array, T]:
        return carry[0] + 1, change(carry[1], jnp.array(True))

    return lax.while_loop(goes_on, turn, (jnp.int32(0), value))[1]


def always(predicate: jax.Array, change: Callable[[T, jax.Array], T], value: T) -> T:
    """`change(value, predicate)`, which leaves everything as it is where the predicate does not hold."""
    return change(value, predicate)

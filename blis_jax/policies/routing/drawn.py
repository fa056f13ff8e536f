"""Ties broken by BLIS's seeded stream, as in its revision of August 2026.

Source: `sim/routing.go` and `math/rand`. There is one stream for the router, and a draw only where there is a tie.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from blis_jax.core.types import LAST, NO_DRAW, pytree
from blis_jax.lazy import jax, jnp, lax
from blis_jax.policies.contract import (
    GatewayContext,
    NoParams,
    PickerContext,
    picker,
    routing_policy,
)
from blis_jax.policies.routing.pickers import first_where

if TYPE_CHECKING:
    from jaxtyping import Array, Bool, Int

Choice = tuple["jax.Array", Any]
LARGEST_INT31 = 2**31 - 1


@pytree
class DrawState:
    """Numbers of the stream used so far."""

    used: Int[Array, ""]


def none_used(params: Any, shape: Any) -> DrawState:
    """Nothing drawn yet."""
    del params, shape
    return DrawState(jnp.zeros((), jnp.int32))


def draw_below(draws: Int[Array, "draw"], used: jax.Array, limit: jax.Array) -> Choice:
    """Go's `Intn(limit)` from the next numbers of the stream, and how many are used then.

    The unequal rest below 2^31 is drawn again. NO_DRAW stands for the number where the stream has ended.
    """
    size, wide = draws.shape[0], limit.astype(jnp.int64)
    rest = lax.rem(jnp.int64(2**31), wide)
    most = jnp.where((limit & (limit - 1)) == 0, jnp.int64(LARGEST_INT31), LARGEST_INT31 - rest)

    def at(place: jax.Array) -> jax.Array:
        return draws[jnp.minimum(place, size - 1)].astype(jnp.int64)

    def is_refused(place: jax.Array) -> jax.Array:
        return (place < size) & (at(place) > most)

    place = lax.while_loop(is_refused, lambda place: place + 1, used)
    value = lax.rem(at(place), wide).astype(jnp.int32)
    return jnp.where(place < size, value, jnp.int32(NO_DRAW)), place + 1


def one_of(is_tied: Bool[Array, "instance"], draws: Any, state: DrawState) -> Choice:
    """One of the tied instances; the stream is left alone where there is only one."""
    count = jnp.sum(is_tied, dtype=jnp.int32)
    place, used = draw_below(draws, state.used, jnp.maximum(count, 1))
    is_drawn = count > 1
    place = jnp.where(is_drawn, place, 0)
    rank = jnp.cumsum(is_tied, dtype=jnp.int32) - 1
    chosen = first_where(is_tied & (rank == place))
    chosen = jnp.where(place == NO_DRAW, jnp.int32(NO_DRAW), chosen)
    return chosen, DrawState(jnp.where(is_drawn, used, state.used))


@routing_policy(start=none_used, reads_draws=True)
def least_loaded_drawn(params: NoParams, state: DrawState, context: GatewayContext) -> Choice:
    """One of the instances with the smallest effective load, by BLIS's seeded stream."""
    del params
    seen = context.snapshots
    load = jnp.where(seen.is_active, seen.effective_load, LAST)
    return one_of(load == jnp.min(load), context.draws, state)


@picker(start=none_used, reads_draws=True)
def drawn_best(params: NoParams, state: DrawState, context: PickerContext) -> Choice:
    """One of the instances with the highest score, by BLIS's seeded stream."""
    del params
    scores = jnp.where(context.is_eligible, context.scores, -jnp.inf)
    return one_of(scores == jnp.max(scores), context.draws, state)

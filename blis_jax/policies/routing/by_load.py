"""Routing by load, or in turn; ties go to the lowest index. Source: BLIS `sim/routing.go`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from blis_jax.core.types import LAST, Snapshots, pytree
from blis_jax.lazy import jax, jnp, lax
from blis_jax.policies.contract import GatewayContext, NoParams, NoState, routing_policy
from blis_jax.policies.routing.pickers import first_where

if TYPE_CHECKING:
    from jaxtyping import Array, Int

Choice = tuple["jax.Array", Any]


def first_least_loaded(snapshots: Snapshots) -> jax.Array:
    """The first active instance with the smallest effective load."""
    load = jnp.where(snapshots.is_active, snapshots.effective_load, LAST)
    return first_where(load == jnp.min(load))


@routing_policy()
def least_loaded(params: NoParams, state: NoState, context: GatewayContext) -> Choice:
    """The first instance with the smallest effective load."""
    del params
    return first_least_loaded(context.snapshots), state


@routing_policy()
def always_busiest(params: NoParams, state: NoState, context: GatewayContext) -> Choice:
    """The first instance with the largest effective load: a deliberately bad policy."""
    del params
    seen = context.snapshots
    load = jnp.where(seen.is_active, seen.effective_load, -1)
    return first_where(load == jnp.max(load)), state


@pytree
class CounterState:
    """Requests routed so far."""

    count: Int[Array, ""]


def zero_counter(params: Any, shape: Any) -> CounterState:
    """Nothing routed yet."""
    del params, shape
    return CounterState(jnp.zeros((), jnp.int32))


@routing_policy(start=zero_counter)
def round_robin(params: NoParams, state: CounterState, context: GatewayContext) -> Choice:
    """Active instances in turn."""
    del params
    is_active = context.snapshots.is_active
    turn = lax.rem(state.count, jnp.sum(is_active, dtype=jnp.int32))
    place = jnp.cumsum(is_active, dtype=jnp.int32) - 1
    return first_where(is_active & (place == turn)), CounterState(state.count + 1)

"""Routing policies: choose the instance for an admitted request.

`context.scores` is the weighted sum of the scorers, or zeros; `context.picked` is the picker's choice by them.
Ties go to the lowest index. Source: BLIS `sim/routing.go`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from blis_jax.engine.types import LAST, NO_INSTANCE, Snapshots, pytree
from blis_jax.lazy import jax, jnp, lax
from blis_jax.policies.contract import GatewayContext, NoParams, NoState, routing_policy
from blis_jax.policies.pickers import first_where

if TYPE_CHECKING:
    from jaxtyping import Array, Int

Choice = tuple["jax.Array", Any]


@routing_policy()
def weighted(params: NoParams, state: NoState, context: GatewayContext) -> Choice:
    """The instance that the picker takes by the scores."""
    del params
    return context.picked, state


def _least_loaded(snapshots: Snapshots) -> jax.Array:
    load = jnp.where(snapshots.is_active, snapshots.effective_load, LAST)
    return first_where(load == jnp.min(load))


@routing_policy()
def least_loaded(params: NoParams, state: NoState, context: GatewayContext) -> Choice:
    """The first instance with the smallest effective load."""
    del params
    return _least_loaded(context.snapshots), state


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


@pytree
class PromptMapState:
    """Instance that first got a prompt key, `NO_INSTANCE` if none."""

    instance: Int[Array, "key"]


def empty_prompt_map(params: Any, shape: Any) -> PromptMapState:
    """No prompt seen yet."""
    del params
    return PromptMapState(jnp.full((shape.num_keys,), NO_INSTANCE, jnp.int32))


@routing_policy(start=empty_prompt_map, reads_prompt_key=True)
def prefix_affinity(params: NoParams, state: PromptMapState, context: GatewayContext) -> Choice:
    """The instance that first got a prompt with the same last full block, else the least loaded."""
    del params
    known = state.instance[context.prompt_key]
    chosen = jnp.where(known == NO_INSTANCE, _least_loaded(context.snapshots), known)
    return chosen, PromptMapState(
        lax.dynamic_update_slice(state.instance, chosen[None], (context.prompt_key,))
    )

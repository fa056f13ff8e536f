"""Routing by load, or in turn; ties go to the lowest index. Source: BLIS `sim/routing.go`."""

from __future__ import annotations

import dataclasses
import functools
from typing import TYPE_CHECKING, Any

from blis_jax.core.types import LAST, Snapshots, pytree
from blis_jax.lazy import jax, jnp, lax
from blis_jax.policies.contract import GatewayContext, NoParams, NoState, Policy, routing_policy
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


# --- how much better another choice would have been -----------------------------------------------


@pytree
class WatchedState:
    """What a watched routing policy keeps, and the regret of its first choice for each request."""

    own: Any
    regret: Int[Array, "request"]  # by `RequestView.tie_rank`, -1: not routed


@functools.cache
def watched(policy: Policy) -> Policy:
    """The same routing policy, which also keeps its regret for every request.

    That is the load of the instance that it chose less the smallest load among those that it could choose.
    """

    def start(params: Any, shape: Any) -> WatchedState:
        nothing = jnp.full((shape.num_requests + 1,), -1, jnp.int32)
        return WatchedState(policy.start(params, shape), nothing)

    @functools.wraps(policy.decide)
    def decide(params: Any, state: WatchedState, context: GatewayContext) -> Choice:
        chosen, own = policy.decide(params, state.own, context)
        load, rank = context.snapshots.effective_load, context.request.tie_rank
        least = load[first_least_loaded(context.snapshots)]
        before = state.regret[rank]  # a split request is routed again in the prefill pool
        regret = jnp.where(before < 0, load[chosen] - least, before)
        return chosen, WatchedState(own, state.regret.at[rank].set(regret))

    return dataclasses.replace(policy, decide=decide, start=start)


def regret_of(states: Any) -> Any:
    """What a watched routing policy among others has kept, from their states; None if none is watched."""
    return next((state.regret for state in states if isinstance(state, WatchedState)), None)

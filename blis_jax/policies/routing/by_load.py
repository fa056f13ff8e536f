"""Routing by load, in turn, by a prompt's earlier instance, or by prompt length; ties go to the lowest index.

Source: BLIS `sim/routing.go`. BLIS has no power of two choices: M. Mitzenmacher, "The power of two choices in
randomized load balancing", 2001.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from blis_jax.core.exact import greatest, least
from blis_jax.core.pytrees import pytree
from blis_jax.core.types import LAST, NO_INSTANCE, Record, Snapshots
from blis_jax.lazy import jax, jnp, lax
from blis_jax.policies.contexts import GatewayContext
from blis_jax.policies.contract import NoParams, NoState, Policy, routing_policy, scorer
from blis_jax.policies.numbers import number
from blis_jax.policies.routing.pickers import Choice, first_where, nth_where

if TYPE_CHECKING:
    from jaxtyping import Array, Bool, Float, Int

    from blis_jax.core.types import EngineShape


def first_least_loaded(snapshots: Snapshots) -> jax.Array:
    """Return the first active instance with the smallest effective load."""
    load = jnp.where(snapshots.is_active, snapshots.effective_load, LAST)
    return first_where(load == least(load))


@routing_policy()
def least_loaded(params: NoParams, state: NoState, context: GatewayContext) -> Choice:
    """Choose the first instance with the smallest effective load."""
    return first_least_loaded(context.snapshots), state


@routing_policy()
def always_busiest(params: NoParams, state: NoState, context: GatewayContext) -> Choice:
    """Choose the first instance with the largest effective load: a deliberately bad policy."""
    seen = context.snapshots
    load = jnp.where(seen.is_active, seen.effective_load, -1)
    return first_where(load == greatest(load)), state


@pytree
class CounterState:
    """Requests routed so far."""

    count: Int[Array, ""]


def zero_counter(params: NoParams, shape: EngineShape) -> CounterState:
    """Return the state in which nothing has been routed."""
    return CounterState(jnp.zeros((), jnp.int32))


@routing_policy(start=zero_counter)
def round_robin(params: NoParams, state: CounterState, context: GatewayContext) -> Choice:
    """Choose the active instances in turn."""
    is_active = context.snapshots.is_active
    turn = lax.rem(state.count, jnp.sum(is_active, dtype=jnp.int32))
    return nth_where(is_active, turn), CounterState(state.count + 1)


# --- how much better another choice would have been -----------------------------------------------


@pytree
class WatchedState:
    """The memory of a watched routing policy, and the regret of its first choice for each request."""

    own: Any
    regret: Int[Array, "request"]  # by `RequestView.tie_rank`, -1: not routed


@functools.cache
def watched(policy: Policy) -> Policy:
    """Return the same routing policy, which also keeps its regret for every request in its state.

    The regret is the effective load of the chosen instance minus the smallest load of any instance that could have been
    chosen.
    """

    def start(params: Record, shape: EngineShape) -> WatchedState:
        nothing = jnp.full((shape.num_requests + 1,), -1, jnp.int32)
        return WatchedState(policy.start(params, shape), nothing)

    @functools.wraps(policy.decide)
    def decide(params: Record, state: WatchedState, context: GatewayContext) -> Choice:
        chosen, inner = policy.decide(params, state.own, context)
        load, rank = context.snapshots.effective_load, context.request.tie_rank
        smallest = load[first_least_loaded(context.snapshots)]
        before = state.regret[rank]  # a split request is routed again in the prefill pool
        regret = jnp.where(before < 0, load[chosen] - smallest, before)
        return chosen, WatchedState(inner, state.regret.at[rank].set(regret))

    return dataclasses.replace(policy, decide=decide, start=start)


def regrets_of(states: Iterable[object]) -> tuple[Int[Array, "request"], ...]:
    """Return the regrets of each watched routing policy, given the final states of all policies."""
    return tuple(state.regret for state in states if isinstance(state, WatchedState))


# --- of a few drawn at random ---------------------------------------------------------------------


@pytree
class ChoicesParams:
    """The number of instances that are looked at."""

    candidates: Float[Array, ""] = number(
        2, "instances", "instances drawn at random, among which the least loaded wins",
        low=1, high=1024, is_whole=True, search=(1, 8),
    )  # fmt: skip


@routing_policy(ChoicesParams, is_random=True)
def power_of_two(
    params: ChoicesParams, state: NoState, context: GatewayContext
) -> tuple[jax.Array, Any]:
    """Choose the least loaded of a few active instances drawn without replacement; of equals, the one drawn first."""
    seen = context.snapshots
    draw = jax.random.uniform(context.key, seen.is_active.shape, jnp.float64)
    draw = jnp.where(seen.is_active, draw, 2.0)
    rank = jnp.sum(draw[None, :] < draw[:, None], axis=1, dtype=jnp.int32)  # a sort is slow here
    load = jnp.where(rank.astype(jnp.float64) < params.candidates, seen.effective_load, LAST)
    best = jnp.where(seen.is_active & (load == jnp.min(load)), rank, LAST)
    return first_where(best == jnp.min(best)), state


# --- by prompt ------------------------------------------------------------------------------------


@pytree
class PromptMapState:
    """Instance that first got a prompt key, `NO_INSTANCE` if none."""

    instance: Int[Array, "key"]


def empty_prompt_map(params: NoParams, shape: EngineShape) -> PromptMapState:
    """Return the state in which no prompt has been seen."""
    return PromptMapState(jnp.full((shape.num_keys,), NO_INSTANCE, jnp.int32))


@routing_policy(start=empty_prompt_map)
def prefix_affinity(params: NoParams, state: PromptMapState, context: GatewayContext) -> Choice:
    """Choose the instance that first got a prompt with the same last full block, else the least loaded."""
    known = state.instance[context.prompt_key]
    chosen = jnp.where(known == NO_INSTANCE, first_least_loaded(context.snapshots), known)
    return chosen, PromptMapState(
        lax.dynamic_update_slice(state.instance, chosen[None], (context.prompt_key,))
    )


@pytree
class BucketParams:
    """The bounds of short and long prompts, and the instances that take them, numbered from 0."""

    short_tokens: Float[Array, ""] = number(
        512.0, "tokens", "prompts up to this length are short", low=0, search=(64, 8192)
    )
    long_tokens: Float[Array, ""] = number(
        4096.0, "tokens", "longer prompts, if not short, are long", low=0, search=(64, 65_536)
    )
    medium_from: Float[Array, ""] = number(
        0, "instance", "first instance for prompts between the two; those before it take short ones",
        low=0, search=(0, 64), is_whole=True,
    )  # fmt: skip
    long_from: Float[Array, ""] = number(
        1_000_000, "instance", "first instance for long prompts", low=0, search=(0, 64), is_whole=True,
    )  # fmt: skip
    spill_load: Float[Array, ""] = number(
        1e9, "requests", "least load of the bucket's instances from which on all instances take its prompts",
        low=0, search=(1, 1000), prior="log-uniform",
    )  # fmt: skip


def bucket_of(params: BucketParams, context: GatewayContext) -> Bool[Array, "instance"]:
    """Return the active instances for this prompt's length; all active ones if it has none, or all of them are full."""
    seen, tokens = context.snapshots, context.request.input_len.astype(jnp.float64)
    place = lax.iota(jnp.float64, seen.is_active.shape[0])
    is_short = tokens <= params.short_tokens
    is_long = ~is_short & (tokens > params.long_tokens)
    takes_short, takes_long = place < params.medium_from, place >= params.long_from
    takes = jnp.where(
        is_short, takes_short, jnp.where(is_long, takes_long, ~takes_short & ~takes_long)
    )
    takes_part = seen.is_active & takes
    least_load = jnp.min(jnp.where(takes_part, seen.effective_load, LAST)).astype(jnp.float64)
    has_room = jnp.any(takes_part) & (least_load < params.spill_load)
    return jnp.where(has_room, takes_part, seen.is_active)


@routing_policy(BucketParams)
def length_buckets(
    params: BucketParams, state: NoState, context: GatewayContext
) -> tuple[jax.Array, Any]:
    """Choose the first instance with the smallest effective load of those for prompts of this length."""
    load = jnp.where(bucket_of(params, context), context.snapshots.effective_load, LAST)
    return first_where(load == least(load)), state


@scorer(BucketParams)
def in_bucket(
    params: BucketParams, state: NoState, context: GatewayContext
) -> tuple[jax.Array, Any]:
    """Score 1 for instances that take prompts of this length, else 0; a filter if it outweighs all others together."""
    return bucket_of(params, context).astype(jnp.float64), state

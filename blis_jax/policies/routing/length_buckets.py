"""Prompts by length to instances by number, such as short ones to small GPUs: a router, and a scorer that filters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from blis_jax.core.types import LAST, pytree
from blis_jax.lazy import jax, jnp, lax
from blis_jax.policies.contract import GatewayContext, NoState, routing_policy, scorer
from blis_jax.policies.numbers import number
from blis_jax.policies.routing.pickers import first_where

if TYPE_CHECKING:
    from jaxtyping import Array, Bool, Float


@pytree
class BucketParams:
    """What is short and long, and which instances take it; the instances of the cluster are numbered from 0."""

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
        1_000_000,
        "instance",
        "first instance for long prompts",
        low=0,
        search=(0, 64),
        is_whole=True,
    )
    spill_load: Float[Array, ""] = number(
        1e9, "requests", "least load of the bucket's instances from which on all instances take its prompts",
        low=0, search=(1, 1000), prior="log-uniform",
    )  # fmt: skip


def bucket_of(params: BucketParams, context: GatewayContext) -> Bool[Array, "instance"]:
    """The active instances for this prompt; all active ones if its bucket has none, or is full."""
    seen, tokens = context.snapshots, context.request.input_len.astype(jnp.float64)
    place = lax.iota(jnp.float64, seen.is_active.shape[0])
    is_short = tokens <= params.short_tokens
    is_long = ~is_short & (tokens > params.long_tokens)
    takes_short, takes_long = place < params.medium_from, place >= params.long_from
    takes = jnp.where(
        is_short, takes_short, jnp.where(is_long, takes_long, ~takes_short & ~takes_long)
    )
    mine = seen.is_active & takes
    least_load = jnp.min(jnp.where(mine, seen.effective_load, LAST)).astype(jnp.float64)
    has_room = jnp.any(mine) & (least_load < params.spill_load)
    return jnp.where(has_room, mine, seen.is_active)


@routing_policy(BucketParams)
def length_buckets(
    params: BucketParams, state: NoState, context: GatewayContext
) -> tuple[jax.Array, Any]:
    """The first instance with the smallest effective load of those for prompts of this length."""
    load = jnp.where(bucket_of(params, context), context.snapshots.effective_load, LAST)
    return first_where(load == jnp.min(load)), state


@scorer(BucketParams)
def in_bucket(
    params: BucketParams, state: NoState, context: GatewayContext
) -> tuple[jax.Array, Any]:
    """1 for instances that take prompts of this length, else 0; a filter if it outweighs all others together."""
    return bucket_of(params, context).astype(jnp.float64), state

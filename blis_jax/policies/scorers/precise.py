"""Scores by the router's copy of the KV caches. Source: BLIS `sim/routing_scorers.go` as of August 2026."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from blis_jax.core.exact import exact_quotient
from blis_jax.core.types import LAST, Snapshots, pytree
from blis_jax.lazy import jax, jnp, lax
from blis_jax.policies.contract import GatewayContext, NoParams, NoState, scorer

if TYPE_CHECKING:
    from jaxtyping import Array, Int

Scores = tuple["jax.Array", Any]


@scorer(reads_caches=True)
def precise_prefix_cache(params: NoParams, state: NoState, context: GatewayContext) -> Scores:
    """Leading prompt blocks in the copy of each cache, scaled between the least and the most; 1 if all are equal."""
    del params
    seen = context.snapshots
    hits = seen.cached_prompt_blocks
    least = jnp.min(jnp.where(seen.is_active, hits, LAST))
    most = jnp.max(jnp.where(seen.is_active, hits, 0))
    spread = jnp.maximum(most - least, 1).astype(jnp.float64)
    scaled = exact_quotient((hits - least).astype(jnp.float64), spread)
    return jnp.where(most == least, jnp.float64(1.0), scaled), state


@pytree
class LastUse:
    """When each instance got its last request without a cached prefix: a counter, 0 if never."""

    last: Int[Array, "instance"]


def never_used(params: Any, shape: Any) -> LastUse:
    """No instance has got one."""
    del params
    return LastUse(jnp.zeros((shape.num_instances,), jnp.int32))


def _has_hit(seen: Snapshots) -> jax.Array:
    return jnp.any(seen.is_active & (seen.cached_prompt_blocks > 0))


def _sent(params: NoParams, state: LastUse, context: GatewayContext, instance: Any) -> LastUse:
    """The instance is the one used last, if no cache had the prompt."""
    del params
    is_it = lax.iota(jnp.int32, state.last.shape[0]) == instance
    is_it = is_it & ~_has_hit(context.snapshots)
    return LastUse(jnp.where(is_it, jnp.max(state.last) + 1, state.last))


@scorer(start=never_used, reads_caches=True, routed=_sent)
def no_hit_lru(params: NoParams, state: LastUse, context: GatewayContext) -> Scores:
    """0.5 where some cache has the prompt; else the longer ago an instance got such a request, the better."""
    del params
    active, last = context.snapshots.is_active, state.last
    number = lax.iota(jnp.int32, last.shape[0])
    # those never used first, in the order of instances; then the least recent
    is_before = (last[None, :] < last[:, None]) | (
        (last[None, :] == last[:, None]) & (number[None, :] < number[:, None])
    )
    rank = jnp.sum(is_before & active[None, :], axis=1, dtype=jnp.int32)
    count = jnp.sum(active, dtype=jnp.int32)
    share = exact_quotient(rank.astype(jnp.float64), jnp.maximum(count - 1, 1).astype(jnp.float64))
    by_age = jnp.where(count > 1, jnp.float64(1.0) - share, jnp.float64(1.0))
    return jnp.where(_has_hit(context.snapshots), jnp.float64(0.5), by_age), state

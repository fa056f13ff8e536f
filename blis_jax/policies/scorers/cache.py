"""Scores by KV cache. Names and formulas: BLIS `sim/routing_scorers.go`, after llm-d's scorers.

`kv_pressure` is of the routing track, BLIS's pull request 447.
"""

from __future__ import annotations

from typing import Any

from blis_jax.core.exact import exact_quotient
from blis_jax.lazy import jax, jnp
from blis_jax.policies.contract import GatewayContext, NoParams, NoState, scorer

Scores = tuple["jax.Array", Any]


def prefix_share(context: GatewayContext) -> jax.Array:
    """Share of the prompt's full blocks in the router's index of each instance; 0 without a full block."""
    blocks = context.num_prompt_blocks
    matched = context.snapshots.prefix_match_blocks.astype(jnp.float64)
    share = exact_quotient(matched, jnp.maximum(blocks, 1).astype(jnp.float64))
    return jnp.where(blocks > 0, share, jnp.float64(0.0))


def free_share(context: GatewayContext) -> jax.Array:
    """Free share of the KV blocks, as old as the snapshot."""
    return jnp.float64(1.0) - context.snapshots.kv_utilization


@scorer(reads_prefix_index=True)
def prefix_affinity(params: NoParams, state: NoState, context: GatewayContext) -> Scores:
    """Share of the prompt's full blocks that the router has sent to the instance before."""
    del params
    return prefix_share(context), state


@scorer()
def kv_utilization(params: NoParams, state: NoState, context: GatewayContext) -> Scores:
    """Free share of the KV blocks, as old as the snapshot; a capacity signal, not affinity."""
    del params
    return free_share(context), state


@scorer()
def kv_pressure(params: NoParams, state: NoState, context: GatewayContext) -> Scores:
    """Free KV blocks, as old as the snapshot, ÷ the most that an instance has; 0 if none has any."""
    del params
    seen = context.snapshots
    most = jnp.max(jnp.where(seen.is_active, seen.free_kv_blocks, 0.0))
    share = exact_quotient(seen.free_kv_blocks, jnp.maximum(most, 1.0))
    return jnp.where(most > 0, share, jnp.float64(0.0)), state

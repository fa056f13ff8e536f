"""Scores by KV cache. Names and formulas: BLIS `sim/routing_scorers.go`, after llm-d's scorers."""

from __future__ import annotations

from typing import Any

from blis_jax.engine.exact import exact_quotient
from blis_jax.lazy import jax, jnp
from blis_jax.policies.contract import GatewayContext, NoParams, NoState, scorer

Scores = tuple["jax.Array", Any]


@scorer(reads_prefix_index=True)
def prefix_affinity(params: NoParams, state: NoState, context: GatewayContext) -> Scores:
    """Share of the prompt's full blocks that the router has sent to the instance before."""
    del params
    blocks = context.num_prompt_blocks
    matched = context.snapshots.prefix_match_blocks.astype(jnp.float64)
    share = exact_quotient(matched, jnp.maximum(blocks, 1).astype(jnp.float64))
    return jnp.where(blocks > 0, share, jnp.float64(0.0)), state


@scorer()
def kv_utilization(params: NoParams, state: NoState, context: GatewayContext) -> Scores:
    """Free share of the KV blocks, as old as the snapshot; a capacity signal, not affinity."""
    del params
    return jnp.float64(1.0) - context.snapshots.kv_utilization, state

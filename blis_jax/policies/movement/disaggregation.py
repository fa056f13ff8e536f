"""Prefill and decode pools as BLIS has them in August 2026: which prompts are computed elsewhere, and their transfers.

Source: `sim/disaggregation.go`, `sim/cluster/pd_events.go`. The settings `prefill_instances` and the like bring this
policy; it has no name of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from blis_jax.core.exact import exact_product, exact_quotient
from blis_jax.core.types import pytree
from blis_jax.lazy import jnp
from blis_jax.policies.contract import (
    GatewayContext,
    HandOver,
    HandOverContext,
    NoState,
    hand_over_policy,
)
from blis_jax.policies.numbers import FIXED, number

if TYPE_CHECKING:
    from jaxtyping import Array, Float


@pytree
class DisaggregationParams:
    """The link between the pools, and which requests are split."""

    base_latency_us: Float[Array, ""] = number(
        50.0, "µs", "time of a transfer without its bytes", low=0, setting=FIXED
    )
    bytes_per_us: Float[Array, ""] = number(
        25_000.0, "bytes/µs", "bandwidth of a transfer", low=0, excludes_low=True, setting=FIXED
    )
    shares_link: Float[Array, ""] = number(
        0, "", "1: all transfers under way at its start have the bandwidth in common with it",
        low=0, high=1, is_whole=True, setting=FIXED,
    )  # fmt: skip
    block_bytes: Float[Array, ""] = number(
        2_097_152.0, "bytes", "KV of a block", low=0, setting=FIXED
    )
    block_size: Float[Array, ""] = number(
        16, "tokens", "tokens in a block", low=1, is_whole=True, setting=FIXED
    )
    threshold: Float[Array, ""] = number(
        1e18, "tokens", "prompt tokens not cached on the decode instance above which a prompt is computed elsewhere",
        low=-1, setting=FIXED,
    )  # fmt: skip
    encodes: Float[Array, ""] = number(
        0, "", "which requests an encode pool gets: 0 none, 1 those with images or sound, 2 all",
        low=0, high=2, is_whole=True, setting=FIXED,
    )  # fmt: skip


def splits(params: DisaggregationParams, context: GatewayContext, instance: Any) -> Any:
    """Whether the prompt is longer than the threshold."""
    del instance
    return context.request.input_len.astype(jnp.float64) > params.threshold


def splits_uncached(params: DisaggregationParams, context: GatewayContext, instance: Any) -> Any:
    """Whether more of the prompt than the threshold is not in the copy of the instance's cache."""
    cached = context.snapshots.cached_prompt_blocks[instance]
    tokens = context.request.input_len - cached * jnp.asarray(context.block_size, jnp.int32)
    return tokens.astype(jnp.float64) > params.threshold


@hand_over_policy(DisaggregationParams, splits=splits)
def disaggregation(
    params: DisaggregationParams, state: NoState, context: HandOverContext
) -> tuple[HandOver, NoState]:
    """The time of a transfer: whole microseconds, at least one."""
    tokens = context.request.input_len.astype(jnp.float64)
    num_blocks = jnp.ceil(exact_quotient(tokens, params.block_size))
    active = jnp.where(params.shares_link > 0, jnp.maximum(context.num_transfers, 1), 1)
    bandwidth = exact_quotient(params.bytes_per_us, active.astype(jnp.float64))
    of_bytes = exact_quotient(exact_product(num_blocks, params.block_bytes), bandwidth)
    duration = jnp.ceil(params.base_latency_us + of_bytes)
    return HandOver(jnp.array(True), jnp.maximum(duration, 1.0)), state


@hand_over_policy(DisaggregationParams, splits=splits_uncached, reads_caches=True)
def by_cached_prefix(
    params: DisaggregationParams, state: NoState, context: HandOverContext
) -> tuple[HandOver, NoState]:
    """Likewise, with a decider that looks at the router's copy of the caches."""
    return disaggregation.decide(params, state, context)

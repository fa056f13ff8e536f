"""Prefill and decode pools: which pool serves a request, and how long its KV takes to move between the pools.

The role of an instance says in which pool it is; an instance of role `both` is in both pools. Routers, scorers and
pickers work inside a pool unchanged: only the pool's instances are active for them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from blis_jax.core.exact import exact_product, exact_quotient
from blis_jax.core.pytrees import pytree
from blis_jax.core.types import DECODE, LAST, PREFILL
from blis_jax.lazy import jnp
from blis_jax.policies.contexts import GatewayContext, HandOver, HandOverContext, Pool
from blis_jax.policies.contract import NoState, hand_over_policy
from blis_jax.policies.numbers import FIXED, number

if TYPE_CHECKING:
    import jax
    from jaxtyping import Array, Float


@pytree
class PoolParams:
    """The links between instances, and which requests are split."""

    link_latency_us: Float[Array, ""] = number(
        100.0, "µs", "time before the first byte of KV arrives", low=0, search=(0, 10_000)
    )
    link_gb_per_s: Float[Array, ""] = number(
        50.0, "GB/s", "bandwidth of an instance's link",
        low=0, excludes_low=True, search=(1, 400), prior="log-uniform",
    )  # fmt: skip
    share_link: Float[Array, ""] = number(
        0, "", "1: a transfer has the link's bandwidth ÷ the transfers from its instance at its start; 0: all of it",
        low=0, high=1, is_whole=True,
    )  # fmt: skip
    kv_bytes_per_token: Float[Array, ""] = number(
        131_072.0, "bytes", "KV of a token; 131,072 is Llama 3.1 8B in 16 bits", low=0
    )
    split_above_tokens: Float[Array, ""] = number(
        0.0, "tokens", "prompts that are longer are split, shorter ones stay in the decode pool",
        low=0, search=(0, 8192),
    )  # fmt: skip
    split_within_load: Float[Array, ""] = number(
        1e9, "requests", "requests of the least loaded prefill instance up to which prompts are split",
        low=0, search=(1, 1000), prior="log-uniform",
    )  # fmt: skip


def pool_of(params: PoolParams, context: GatewayContext) -> Pool:
    """Return the prefill pool for a new request that is split into prefill and decode, else the decode pool."""
    seen = context.snapshots
    is_prefill = seen.is_active & (seen.role == PREFILL)
    least_load = jnp.min(jnp.where(is_prefill, seen.effective_load, LAST))
    is_long = context.request.input_len.astype(jnp.float64) > params.split_above_tokens
    has_room = least_load.astype(jnp.float64) <= params.split_within_load
    splits = (context.computed_tokens == 0) & is_long & has_room
    return Pool(jnp.where(splits, seen.role != DECODE, seen.role != PREFILL), ~splits)


@hand_over_policy(PoolParams, pool=pool_of)
def pools(params: PoolParams, state: NoState, context: HandOverContext) -> tuple[HandOver, NoState]:
    """Let requests leave instances that are for prefill only, while another instance is up that makes tokens."""
    has_decode = jnp.any(context.is_up & (context.role != PREFILL))
    tokens = context.request.input_len.astype(jnp.float64)
    num_bytes = exact_product(tokens, params.kv_bytes_per_token)
    transfer_us = exact_quotient(num_bytes, params.link_gb_per_s * 1e3)
    moves = (context.role[context.instance] == PREFILL) & has_decode
    link_us = jnp.where(params.share_link > 0, transfer_us, 0.0)
    return HandOver(moves, params.link_latency_us + transfer_us, link_us), state


# --- as BLIS has them in August 2026: `sim/disaggregation.go`, `sim/cluster/pd_events.go` ---------


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


def splits(params: DisaggregationParams, context: GatewayContext, instance: jax.Array) -> jax.Array:
    """Return whether a request is split, because its prompt is longer than the threshold."""
    return context.request.input_len.astype(jnp.float64) > params.threshold


def splits_uncached(
    params: DisaggregationParams, context: GatewayContext, instance: jax.Array
) -> Any:
    """Return whether a request is split, because the prompt tokens missing from the router's copy of the instance's
    cache exceed the threshold.
    """
    cached = context.snapshots.cached_prompt_blocks[instance]
    tokens = context.request.input_len - cached * jnp.asarray(context.block_size, jnp.int32)
    return tokens.astype(jnp.float64) > params.threshold


@hand_over_policy(DisaggregationParams, splits=splits)
def disaggregation(
    params: DisaggregationParams, state: NoState, context: HandOverContext
) -> tuple[HandOver, NoState]:
    """Return the time of a transfer: whole microseconds, at least one."""
    tokens = context.request.input_len.astype(jnp.float64)
    num_blocks = jnp.ceil(exact_quotient(tokens, params.block_size))
    active = jnp.where(params.shares_link > 0, jnp.maximum(context.num_transfers, 1), 1)
    bandwidth = exact_quotient(params.bytes_per_us, active.astype(jnp.float64))
    of_bytes = exact_quotient(exact_product(num_blocks, params.block_bytes), bandwidth)
    duration = jnp.ceil(params.base_latency_us + of_bytes)
    return HandOver(jnp.array(True), jnp.maximum(duration, 1.0)), state


@hand_over_policy(DisaggregationParams, splits=splits_uncached)
def by_cached_prefix(
    params: DisaggregationParams, state: NoState, context: HandOverContext
) -> tuple[HandOver, NoState]:
    """Do what `disaggregation` does, with a decider that looks at the router's copy of the caches."""
    return disaggregation.decide(params, state, context)

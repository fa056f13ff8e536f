"""Scorers: rate every instance for one request, in [0, 1], higher is better.

Each has the signature `(params, view, snapshots, infinity) -> float64[instance]`; values outside [0, 1]
are clamped by the picker. Names and formulas: BLIS `sim/routing_scorers.go`, after llm-d's scorers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from blis_jax.exact import exact_product, exact_quotient
from blis_jax.policies.admission import NoParams, is_sheddable
from blis_jax.types import CRITICAL, LAST, RoutedView, Snapshots, pytree

if TYPE_CHECKING:
    from jaxtyping import Array, Float


def queue_depth(
    params: NoParams, view: RoutedView, snapshots: Snapshots, infinity: Any
) -> jax.Array:
    """Effective load scaled between the least and most loaded instance; 1 if all are equal."""
    del params, view, infinity
    load = snapshots.effective_load
    least = jnp.min(jnp.where(snapshots.is_active, load, LAST))
    most = jnp.max(jnp.where(snapshots.is_active, load, 0))
    spread = jnp.maximum(most - least, 1).astype(jnp.float64)
    scaled = exact_quotient((most - load).astype(jnp.float64), spread)
    return jnp.where(most == least, jnp.float64(1.0), scaled)


def prefix_affinity(
    params: NoParams, view: RoutedView, snapshots: Snapshots, infinity: Any
) -> jax.Array:
    """Share of the prompt's full blocks that the router has sent to the instance before."""
    del params, infinity
    blocks = view.num_prompt_blocks
    matched = snapshots.prefix_match_blocks.astype(jnp.float64)
    share = exact_quotient(matched, jnp.maximum(blocks, 1).astype(jnp.float64))
    return jnp.where(blocks > 0, share, jnp.float64(0.0))


def kv_utilization(
    params: NoParams, view: RoutedView, snapshots: Snapshots, infinity: Any
) -> jax.Array:
    """Free share of the KV blocks, as old as the snapshot; a capacity signal, not affinity."""
    del params, view, infinity
    return jnp.float64(1.0) - snapshots.kv_utilization


def load_balance(
    params: NoParams, view: RoutedView, snapshots: Snapshots, infinity: Any
) -> jax.Array:
    """1 / (1 + effective load)."""
    del params, view, infinity
    load = snapshots.effective_load.astype(jnp.float64)
    return exact_quotient(jnp.ones_like(load), jnp.float64(1.0) + load)


@pytree
class SloPriorityParams:
    """How strongly a class prefers unloaded instances."""

    bias_critical: Float[Array, ""]
    bias_sheddable: Float[Array, ""]


def slo_priority(
    params: SloPriorityParams, view: RoutedView, snapshots: Snapshots, infinity: Any
) -> jax.Array:
    """The queue-depth score blended with a neutral 0.5 by class."""
    slo_class = view.request.slo_class
    bias = jnp.where(
        slo_class == CRITICAL,
        params.bias_critical,
        jnp.where(is_sheddable(slo_class), params.bias_sheddable, jnp.float64(0.5)),
    )
    by_load = queue_depth(NoParams(), view, snapshots, infinity)
    neutral = exact_product(jnp.float64(1.0) - bias, jnp.float64(0.5), infinity)
    return exact_product(bias, by_load, infinity) + neutral

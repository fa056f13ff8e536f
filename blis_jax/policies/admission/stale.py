"""A gate that takes instances for full whose metrics are too old, as llm-d's utilization-detector does.

Ours; BLIS has the gate without stale instances, `gaie-legacy`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from blis_jax.core.types import pytree
from blis_jax.lazy import jax, jnp
from blis_jax.policies.classes import is_sheddable
from blis_jax.policies.contract import GatewayContext, NoState, admission_policy
from blis_jax.policies.gateway_classes import mean_saturation
from blis_jax.policies.numbers import number

if TYPE_CHECKING:
    from jaxtyping import Array, Float


@pytree
class StaleGatedParams:
    """Numbers of the gate; the thresholds are the detector's own."""

    num_stale: Float[Array, ""] = number(
        1, "instances", "how many, from the first one on, have metrics that are always too old and count as full",
        low=0, is_whole=True, search=(0, 8),
    )  # fmt: skip
    queue_threshold: Float[Array, ""] = number(
        5.0, "requests", "wait queue of a full instance", low=0, excludes_low=True, search=(1, 50)
    )
    kv_threshold: Float[Array, ""] = number(
        0.8, "", "KV utilization of a full instance",
        low=0, high=1, excludes_low=True, search=(0.2, 1),
    )  # fmt: skip


@admission_policy(StaleGatedParams)
def stale_gated(
    params: StaleGatedParams, state: NoState, context: GatewayContext
) -> tuple[jax.Array, Any]:
    """Reject sheddable classes while the instances are full on average; those with stale metrics count as full."""
    seen = context.snapshots
    place = jnp.arange(seen.is_active.shape[0], dtype=jnp.float64)
    is_stale = place < params.num_stale
    mean = mean_saturation(seen, params.queue_threshold, params.kv_threshold, is_stale)
    return ~((mean >= 1.0) & is_sheddable(context.request.slo_class)), state

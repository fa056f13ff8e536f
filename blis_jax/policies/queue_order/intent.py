"""Class tiers to which the router adds what it meant: a detour made good, and the hit that it expected."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from blis_jax.core.exact import exact_product
from blis_jax.core.types import pytree
from blis_jax.lazy import jax, jnp
from blis_jax.policies.contract import NoState, QueueContext, priority_policy
from blis_jax.policies.numbers import number
from blis_jax.policies.queue_order.priority import TieredParams, slo_tiered

if TYPE_CHECKING:
    from jaxtyping import Array, Float


@pytree
class IntentParams(TieredParams):
    """Numbers of the tiers, and what the router's expectation is worth."""

    expected_block: Float[Array, ""] = number(
        0.001, "priority/block", "priority that a block is worth which the router expected to be cached",
        low=0, search=(0.0001, 1), prior="log-uniform",
    )  # fmt: skip


@priority_policy(IntentParams, reads_handed=True)
def intent_tiered(
    params: IntentParams, state: NoState, context: QueueContext
) -> tuple[jax.Array, Any]:
    """As slo-tiered, where a request is older by the µs that the router handed over, and expected hits add to it."""
    tiered, _ = slo_tiered.decide(params, state, context)
    lead = exact_product(params.age_weight, context.handed)
    blocks = context.num_expected_blocks.astype(jnp.float64)
    return tiered + lead + exact_product(params.expected_block, blocks), state

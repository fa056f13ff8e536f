"""A gate on free KV blocks, of the instance that the request would be routed to and of the cluster.

Source: item 14 of the routing track's plan, never built there: reject when the routed instance has fewer free blocks
than a threshold.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from blis_jax.core.types import pytree
from blis_jax.policies.contract import GatewayContext, NoState, admission_policy
from blis_jax.policies.described.shared import mean_over_active
from blis_jax.policies.numbers import number

if TYPE_CHECKING:
    from jaxtyping import Array, Bool, Float


@pytree
class KvGatedParams:
    """How few free blocks are too few."""

    instance_blocks: Float[Array, ""] = number(
        64.0, "blocks", "free KV blocks of the instance routed to, below which a request is rejected",
        low=0, search=(1, 10_000), prior="log-uniform",
    )  # fmt: skip
    cluster_blocks: Float[Array, ""] = number(
        0.0, "blocks", "mean free KV blocks per instance, below which a request is rejected",
        low=0, search=(0, 10_000),
    )  # fmt: skip


@admission_policy(KvGatedParams, reads_route=True)
def kv_gated(
    params: KvGatedParams, state: NoState, context: GatewayContext
) -> tuple[Bool[Array, ""], NoState]:
    """Reject while the instance that the router would choose, or the mean one, has too few free KV blocks."""
    free = context.snapshots.free_kv_blocks
    has_room = free[context.picked] >= params.instance_blocks
    return has_room & (mean_over_active(context.snapshots, free) >= params.cluster_blocks), state

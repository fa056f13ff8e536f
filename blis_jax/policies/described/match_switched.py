"""Dynamic weight switching: one set of weights where some instance matches the prompt, another where none does.

Source: iteration 2 of the routing track, of which the code is lost: "if any instance matches, 3:2:2, else qd1 kv1".
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from blis_jax.core.types import pytree
from blis_jax.lazy import jnp
from blis_jax.policies.contract import GatewayContext, NoState, routing_policy
from blis_jax.policies.described.shared import best_by_weights, matches
from blis_jax.policies.numbers import number

if TYPE_CHECKING:
    from jaxtyping import Array, Float, Int


@pytree
class MatchSwitchedParams:
    """The weights on a match, and those without one."""

    affinity: Float[Array, ""] = number(
        3.0, "", "weight of prefix-affinity on a match", low=0, search=(0, 8)
    )
    queue: Float[Array, ""] = number(
        2.0, "", "weight of queue-depth on a match", low=0, excludes_low=True, search=(0.1, 8)
    )
    kv: Float[Array, ""] = number(
        2.0, "", "weight of kv-utilization on a match", low=0, search=(0, 8)
    )
    queue_alone: Float[Array, ""] = number(
        1.0, "", "weight of queue-depth where nothing matches",
        low=0, excludes_low=True, search=(0.1, 8),
    )  # fmt: skip
    kv_alone: Float[Array, ""] = number(
        1.0, "", "weight of kv-utilization where nothing matches", low=0, search=(0, 8)
    )


@routing_policy(MatchSwitchedParams, reads_prefix_index=True)
def match_switched(
    params: MatchSwitchedParams, state: NoState, context: GatewayContext
) -> tuple[Int[Array, ""], NoState]:
    """Weighted routing with other weights for a prompt that no instance has a block of; of equals the first."""
    is_match = jnp.any(matches(context) > 0)
    weights = (
        jnp.where(is_match, params.affinity, 0.0),
        jnp.where(is_match, params.queue, params.queue_alone),
        jnp.where(is_match, params.kv, params.kv_alone),
    )
    return best_by_weights(context, weights), state

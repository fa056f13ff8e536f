"""Power of two choices: look at two random instances, take the less loaded one.

Source: M. Mitzenmacher, "The power of two choices in randomized load balancing", 2001. BLIS has no such policy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from blis_jax.core.types import LAST, pytree
from blis_jax.lazy import jax, jnp
from blis_jax.policies.contract import GatewayContext, NoState, routing_policy
from blis_jax.policies.numbers import number
from blis_jax.policies.routing.pickers import first_where

if TYPE_CHECKING:
    from jaxtyping import Array, Float


@pytree
class ChoicesParams:
    """How many instances are looked at."""

    candidates: Float[Array, ""] = number(
        2, "instances", "instances drawn at random, among which the least loaded wins",
        low=1, high=1024, is_whole=True, search=(1, 8),
    )  # fmt: skip


@routing_policy(ChoicesParams, is_random=True)
def power_of_two(params: ChoicesParams, state: NoState, context: GatewayContext) -> Any:
    """The least loaded of a few active instances drawn without replacement; of equals, the one drawn first."""
    seen = context.snapshots
    draw = jax.random.uniform(context.key, seen.is_active.shape, jnp.float64)
    draw = jnp.where(seen.is_active, draw, 2.0)
    rank = jnp.sum(draw[None, :] < draw[:, None], axis=1, dtype=jnp.int32)  # a sort is slow here
    load = jnp.where(rank.astype(jnp.float64) < params.candidates, seen.effective_load, LAST)
    best = jnp.where(seen.is_active & (load == jnp.min(load)), rank, LAST)
    return first_where(best == jnp.min(best)), state

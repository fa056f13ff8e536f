"""Cache-aware power of two choices, the routing track's HCAR: two instances by hash, the warmer unless it is too busy.

Source: iteration 1 of the routing track, of which the code is lost.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from blis_jax.core.exact import exact_product, exact_quotient
from blis_jax.core.types import pytree
from blis_jax.lazy import jnp
from blis_jax.policies.contract import GatewayContext, NoState, routing_policy
from blis_jax.policies.described.shared import at_rank, hashed_rank, leading_key, matches
from blis_jax.policies.numbers import number

if TYPE_CHECKING:
    from jaxtyping import Array, Float, Int


@pytree
class CachedOfTwoParams:
    """What is hashed, and what a cached block is worth in requests ahead."""

    prefix_blocks: Float[Array, ""] = number(
        1, "blocks", "leading prompt blocks whose content picks the two instances",
        low=1, high=2**30, is_whole=True, search=(1, 256), prior="log-uniform",
    )  # fmt: skip
    block_us: Float[Array, ""] = number(
        282.7, "µs", "prefill time that a cached block saves",
        low=0, search=(10, 5000), prior="log-uniform",
    )  # fmt: skip
    step_us: Float[Array, ""] = number(
        6910.4, "µs", "time of a step, by which one more request ahead delays",
        low=0, excludes_low=True, search=(500, 50_000), prior="log-uniform",
    )  # fmt: skip


@routing_policy(CachedOfTwoParams, reads_prefix_index=True, reads_contents=True, is_random=True)
def cached_of_two(
    params: CachedOfTwoParams, state: NoState, context: GatewayContext
) -> tuple[Int[Array, ""], NoState]:
    """Of two instances picked by the prompt's head the warmer one, unless its queue costs more than it saves."""
    rank = hashed_rank(context, leading_key(context, params.prefix_blocks))
    num_active = jnp.sum(context.snapshots.is_active, dtype=jnp.int32)
    first = at_rank(rank, 0)
    second = jnp.where(num_active > 1, at_rank(rank, 1), first)
    matched, load = matches(context), context.snapshots.effective_load
    is_second_warmer = matched[second] > matched[first]
    warm = jnp.where(is_second_warmer, second, first)
    cold = jnp.where(is_second_warmer, first, second)
    saved = (matched[warm] - matched[cold]).astype(jnp.float64)
    epsilon = exact_quotient(exact_product(saved, params.block_us), params.step_us)
    excess = (load[warm] - load[cold]).astype(jnp.float64)
    return jnp.where(excess > epsilon, cold, warm), state

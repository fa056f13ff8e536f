"""Session hashing with backpressure: a session keeps its instance unless that one has more than its share of the load.

Sources: the routing track's iteration 1 compares itself with a consistent hashing of which the code is lost; the bound
is that of V. Mirrokni, M. Thorup, M. Zadimoghaddam, "Consistent Hashing with Bounded Loads", 2018.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from blis_jax.core.exact import exact_product
from blis_jax.core.types import pytree
from blis_jax.lazy import jnp
from blis_jax.policies.contract import GatewayContext, NoState, routing_policy
from blis_jax.policies.described.shared import (
    first_by_rank,
    hashed_rank,
    leading_key,
)
from blis_jax.policies.numbers import number

if TYPE_CHECKING:
    from jaxtyping import Array, Float, Int


@pytree
class SessionHashedParams:
    """What makes a session, and how much more than its share an instance may carry."""

    prefix_blocks: Float[Array, ""] = number(
        1, "blocks", "leading prompt blocks whose content names the session",
        low=1, high=2**30, is_whole=True, search=(1, 256), prior="log-uniform",
    )  # fmt: skip
    slack: Float[Array, ""] = number(
        1.25, "", "most load of an instance, as a multiple of the mean",
        low=1, search=(1, 4),
    )  # fmt: skip


@routing_policy(SessionHashedParams, reads_contents=True, is_random=True)
def session_hashed(
    params: SessionHashedParams, state: NoState, context: GatewayContext
) -> tuple[Int[Array, ""], NoState]:
    """The first instance in the session's order whose load stays within the bound with this request."""
    seen = context.snapshots
    rank = hashed_rank(context, leading_key(context, params.prefix_blocks))
    count = jnp.sum(seen.is_active, dtype=jnp.int32).astype(jnp.float64)
    load = jnp.where(seen.is_active, seen.effective_load, 0)
    total = (jnp.sum(load, dtype=jnp.int32) + 1).astype(jnp.float64)
    # load + 1 <= ceil(slack * total / count), without the quotient's rounding
    is_open = exact_product(load.astype(jnp.float64), count) < exact_product(params.slack, total)
    return first_by_rank(rank, is_open & seen.is_active), state

"""Which running request is evicted when an instance has no KV blocks left.

Without such a policy it is the batch's last member, or the one of the lowest priority (`slo_preemption`), as in BLIS.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from blis_jax.core.exact import exact_product
from blis_jax.core.types import pytree
from blis_jax.lazy import jnp
from blis_jax.policies.classes import worth_of_class
from blis_jax.policies.contract import NoState, VictimContext, victim_policy
from blis_jax.policies.numbers import number

if TYPE_CHECKING:
    from jaxtyping import Array, Float


@pytree
class LeastWorthParams:
    """What a class, a token and a block are worth."""

    critical: Float[Array, ""] = number(2.0, "worth", "worth of a critical request", search=(0, 4))
    standard: Float[Array, ""] = number(
        1.0, "worth", "worth of a standard or unclassed request", search=(0, 4)
    )
    sheddable: Float[Array, ""] = number(
        0.0, "worth", "worth of a sheddable, batch or background request", search=(0, 4)
    )
    per_token: Float[Array, ""] = number(
        0.0, "worth/token", "worth of a token whose KV it holds, which it would compute again",
        search=(0, 0.01),
    )  # fmt: skip
    per_block: Float[Array, ""] = number(
        0.0, "worth/block", "what a block that it alone holds takes away, since an eviction frees it",
        search=(0, 0.1),
    )  # fmt: skip


@victim_policy(LeastWorthParams, reads_own_blocks=True)
def least_worth(
    params: LeastWorthParams, state: NoState, context: VictimContext
) -> tuple[Float[Array, "slot"], NoState]:
    """The running request that is worth least: its class, what it would compute again, less what it frees."""
    worth = worth_of_class(
        context.request.slo_class,
        critical=params.critical,
        standard=params.standard,
        sheddable=params.sheddable,
    )
    again = exact_product(context.num_tokens.astype(jnp.float64), params.per_token)
    freed = exact_product(context.num_own_blocks.astype(jnp.float64), params.per_block)
    return worth + again - freed, state

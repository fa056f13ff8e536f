"""Who is evicted when an instance has no KV blocks left, and what a CPU tier's room is given to.

Without them BLIS's rules hold: the batch's last member goes, or the one of the lowest priority, and all contents are
alike. February's tier then takes free blocks in their order until it is full; in August's the content that was used
longest ago gives way.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from blis_jax.core.exact import exact_product
from blis_jax.core.pytrees import pytree
from blis_jax.lazy import jnp
from blis_jax.policies.classes import by_tier
from blis_jax.policies.contexts import OffloadContext, VictimContext
from blis_jax.policies.contract import NoState, offload_policy, victim_policy
from blis_jax.policies.numbers import number

if TYPE_CHECKING:
    from jaxtyping import Array, Float


@pytree
class LeastWorthParams:
    """The worth of a class, a token and a block."""

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


@victim_policy(LeastWorthParams)
def least_worth(
    params: LeastWorthParams, state: NoState, context: VictimContext
) -> tuple[Float[Array, "slot"], NoState]:
    """Evict the running request that is worth least: its class, what it would compute again, less what it frees."""
    slo_class = context.request.slo_class
    worth = by_tier(slo_class, params.critical, params.standard, params.sheddable)
    again = exact_product(context.num_tokens.astype(jnp.float64), params.per_token)
    freed = exact_product(context.num_own_blocks.astype(jnp.float64), params.per_block)
    return worth + again - freed, state


@pytree
class ContentWorthParams:
    """The worth of a class and of a further request, and the least number of requests of a content."""

    critical: Float[Array, ""] = number(
        1.0, "worth", "worth of a critical request's content", search=(0, 4)
    )
    standard: Float[Array, ""] = number(
        1.0, "worth", "worth of a standard or unclassed request's content", search=(0, 4)
    )
    sheddable: Float[Array, ""] = number(
        1.0, "worth", "worth of a sheddable, batch or background request's content", search=(0, 4)
    )
    per_taker: Float[Array, ""] = number(
        0.0, "worth/request", "worth of every request after the first that took the content",
        search=(0, 2),
    )  # fmt: skip
    least_takers: Float[Array, ""] = number(
        1, "requests", "requests that must have taken a content before it gets room",
        low=1, search=(1, 4), is_whole=True,
    )  # fmt: skip


@offload_policy(ContentWorthParams)
def content_worth(
    params: ContentWorthParams, state: NoState, context: OffloadContext
) -> tuple[Float[Array, "block"], NoState]:
    """Give room to contents by the class that uses them and by how many requests took them; none if few took it.

    With `least_takers` of 2 a content gets room once a second request has asked for it, as with vLLM's
    `store_threshold` (pull requests 35342 and 52227); a class of worth 0 gets none.
    """
    slo_class = context.request.slo_class
    worth = by_tier(slo_class, params.critical, params.standard, params.sheddable)
    takers = context.num_takers.astype(jnp.float64)
    more = exact_product(jnp.maximum(takers - 1.0, 0.0), params.per_taker)
    return jnp.where(takers >= params.least_takers, worth + more, 0.0), state


@pytree
class ForecastOffloadParams:
    """The limit to the GPU's use of memory."""

    limit: Float[Array, ""] = number(
        0.9, "share", "forecast share of the GPU's blocks in use above which blocks are offloaded",
        low=0, search=(0.5, 2),
    )  # fmt: skip
    ahead: Float[Array, ""] = number(
        1.0, "share", "share of the blocks for waiting prompts and the next output block of running requests",
        low=0, search=(0, 2),
    )  # fmt: skip


@offload_policy(ForecastOffloadParams)
def forecast_offload(
    params: ForecastOffloadParams, state: NoState, context: OffloadContext
) -> tuple[Float[Array, "block"], NoState]:
    """Give all free blocks room while the blocks in use and those soon asked for are more than the limit.

    The GPU must also be fuller than `kv_offload_threshold`; with a threshold of 0 the forecast alone decides.
    """
    coming = (context.num_waiting_blocks + context.num_running).astype(jnp.float64)
    expected = context.num_used_blocks.astype(jnp.float64) + exact_product(coming, params.ahead)
    is_short = expected > exact_product(context.num_blocks.astype(jnp.float64), params.limit)
    worth = jnp.where(is_short, jnp.float64(1.0), jnp.float64(0.0))
    return jnp.broadcast_to(worth, context.num_takers.shape), state

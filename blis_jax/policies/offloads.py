"""What a CPU tier's room is given to: contents of KV blocks, by what they are worth.

Without such a policy all contents are alike, as in BLIS: February's tier takes free blocks in their order until it is
full, and in August's the content that was used longest ago gives way.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from blis_jax.core.exact import exact_product
from blis_jax.core.types import pytree
from blis_jax.lazy import jnp
from blis_jax.policies.classes import worth_of_class
from blis_jax.policies.contract import NoState, OffloadContext, offload_policy
from blis_jax.policies.numbers import number

if TYPE_CHECKING:
    from jaxtyping import Array, Float


@pytree
class ContentWorthParams:
    """What a class and a further request are worth, and how many requests a content must have had."""

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
    """Room for contents by the class that uses them and by how many requests took them; one that few took gets none.

    With `least_takers` of 2 a content gets room once a second request has asked for it, as with vLLM's
    `store_threshold` (pull requests 35342 and 52227); a class of worth 0 gets none.
    """
    worth = worth_of_class(
        context.request.slo_class,
        critical=params.critical,
        standard=params.standard,
        sheddable=params.sheddable,
    )
    takers = context.num_takers.astype(jnp.float64)
    more = exact_product(jnp.maximum(takers - 1.0, 0.0), params.per_taker)
    return jnp.where(takers >= params.least_takers, worth + more, 0.0), state


@pytree
class ForecastOffloadParams:
    """How full the GPU may become."""

    limit: Float[Array, ""] = number(
        0.9, "share", "forecast share of the GPU's blocks in use above which blocks are offloaded",
        low=0, search=(0.5, 2),
    )  # fmt: skip
    ahead: Float[Array, ""] = number(
        1.0, "share", "share of the blocks for waiting prompts and the next output block of running requests",
        low=0, search=(0, 2),
    )  # fmt: skip


@offload_policy(ForecastOffloadParams, reads_demand=True)
def forecast_offload(
    params: ForecastOffloadParams, state: NoState, context: OffloadContext
) -> tuple[Float[Array, "block"], NoState]:
    """All free blocks go, while the blocks in use and those that are soon asked for are more than the limit.

    The GPU must also be fuller than `kv_offload_threshold`; with a threshold of 0 the forecast alone decides.
    """
    coming = (context.num_waiting_blocks + context.num_running).astype(jnp.float64)
    expected = context.num_used_blocks.astype(jnp.float64) + exact_product(coming, params.ahead)
    is_short = expected > exact_product(context.num_blocks.astype(jnp.float64), params.limit)
    worth = jnp.where(is_short, jnp.float64(1.0), jnp.float64(0.0))
    return jnp.broadcast_to(worth, context.num_takers.shape), state

"""A weight profile for each SLO class, and no requests for instances whose CPU tier holds them up.

Source: `sim/routing_adaptive.go` of BLIS's pull request 447. `routing_scorers` and the picker do not count.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from blis_jax.core.types import LAST, pytree
from blis_jax.lazy import jax, jnp
from blis_jax.policies.classes import of_class
from blis_jax.policies.contract import GatewayContext, NoState, routing_policy
from blis_jax.policies.numbers import FIXED, number
from blis_jax.policies.routing.pickers import first_where
from blis_jax.policies.routing.profiles import Profile, best_by, weight

if TYPE_CHECKING:
    from jaxtyping import Array, Float

_CRITICAL, _STANDARD = "for critical requests", "for standard and unclassed requests"
_SHEDDABLE, _BATCH, _BACKGROUND = (
    f"for {slo_class} requests" for slo_class in ("sheddable", "batch", "background")
)


@pytree
class AdaptiveParams:
    """Weights of the classes' profiles, and when an instance is thrashing; BLIS has no options for them."""

    critical_prefix: Float[Array, ""] = weight(1.0, "prefix-affinity", _CRITICAL)
    critical_depth: Float[Array, ""] = weight(5.0, "queue-depth", _CRITICAL)
    critical_kv: Float[Array, ""] = weight(2.0, "kv-utilization", _CRITICAL)
    standard_prefix: Float[Array, ""] = weight(3.0, "prefix-affinity", _STANDARD)
    standard_depth: Float[Array, ""] = weight(2.0, "queue-depth", _STANDARD)
    standard_kv: Float[Array, ""] = weight(2.0, "kv-utilization", _STANDARD)
    sheddable_prefix: Float[Array, ""] = weight(3.0, "prefix-affinity", _SHEDDABLE)
    sheddable_depth: Float[Array, ""] = weight(2.0, "queue-depth", _SHEDDABLE)
    sheddable_kv: Float[Array, ""] = weight(1.0, "kv-utilization", _SHEDDABLE)
    batch_prefix: Float[Array, ""] = weight(5.0, "prefix-affinity", _BATCH)
    batch_depth: Float[Array, ""] = weight(1.0, "queue-depth", _BATCH)
    batch_kv: Float[Array, ""] = weight(1.0, "kv-utilization", _BATCH)
    background_prefix: Float[Array, ""] = weight(5.0, "prefix-affinity", _BACKGROUND)
    background_depth: Float[Array, ""] = weight(0.5, "queue-depth", _BACKGROUND)
    thrashing_rate: Float[Array, ""] = number(
        0.1, "", "share of reloads soon after their offload above which an instance is avoided",
        low=0, high=1, setting=FIXED,
    )  # fmt: skip


def profile_of(params: AdaptiveParams, slo_class: Any) -> Profile:
    """The weights for a class; a request without one is standard, and KV use does not count for background."""

    def of(scorer: str) -> jax.Array:
        names = ("critical", "standard", "sheddable", "batch", "background")
        values = {name: getattr(params, f"{name}_{scorer}", 0.0) for name in names}
        return of_class(slo_class, **values)

    return Profile(of("prefix"), of("depth"), of("kv"))


@routing_policy(AdaptiveParams, reads_prefix_index=True, keeps_own_index=True, reads_cpu_tier=True)
def adaptive_weighted(
    params: AdaptiveParams, state: NoState, context: GatewayContext
) -> tuple[jax.Array, Any]:
    """The best instance by the class's weights; if its CPU tier holds it up, the least loaded one that is not."""
    seen = context.snapshots
    chosen = best_by(profile_of(params, context.request.slo_class), context)
    if seen.kv_thrashing_rate is None:
        return chosen, state
    is_healthy = (seen.pending_transfer_us <= 0) & (seen.kv_thrashing_rate <= params.thrashing_rate)
    load = jnp.where(seen.is_active & is_healthy, seen.effective_load, LAST)
    least = jnp.min(load)
    stays = is_healthy[chosen] | (least == LAST)
    return jnp.where(stays, chosen, first_where(load == least)), state

"""Weights that switch when an instance's KV cache fills up.

Source: `sim/routing_kv_adaptive.go` of BLIS's pull request 447, whose comments tell of a blend; its code switches.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from blis_jax.core.types import pytree
from blis_jax.lazy import jax, jnp
from blis_jax.policies.contract import GatewayContext, NoState, routing_policy
from blis_jax.policies.numbers import FIXED, number
from blis_jax.policies.routing.profiles import Profile, best_by, weight

if TYPE_CHECKING:
    from jaxtyping import Array, Float

_NORMAL, _PRESSED = "below the threshold", "from the threshold on"


@pytree
class KvAdaptiveParams:
    """The threshold and the weights on either side; BLIS has no options for them."""

    threshold: Float[Array, ""] = number(
        0.5, "", "largest KV utilisation of an instance from which the cluster is under pressure",
        low=0, high=1, setting=FIXED,
    )  # fmt: skip
    normal_prefix: Float[Array, ""] = weight(3.0, "prefix-affinity", _NORMAL)
    normal_depth: Float[Array, ""] = weight(2.0, "queue-depth", _NORMAL)
    normal_kv: Float[Array, ""] = weight(2.0, "kv-utilization", _NORMAL)
    pressed_prefix: Float[Array, ""] = weight(2.0, "prefix-affinity", _PRESSED)
    pressed_depth: Float[Array, ""] = weight(2.0, "queue-depth", _PRESSED)
    pressed_kv: Float[Array, ""] = weight(5.0, "kv-utilization", _PRESSED)


@routing_policy(KvAdaptiveParams, reads_prefix_index=True, keeps_own_index=True)
def kv_adaptive(
    params: KvAdaptiveParams, state: NoState, context: GatewayContext
) -> tuple[jax.Array, Any]:
    """The best instance by weights that favour free KV blocks once an instance is half full."""
    seen = context.snapshots
    fullest = jnp.max(jnp.where(seen.is_active, seen.kv_utilization, 0.0))
    is_normal = fullest < params.threshold
    profile = Profile(
        jnp.where(is_normal, params.normal_prefix, params.pressed_prefix),
        jnp.where(is_normal, params.normal_depth, params.pressed_depth),
        jnp.where(is_normal, params.normal_kv, params.pressed_kv),
    )
    return best_by(profile, context), state

"""Dynamic weight switching in general: weights by the regime that the cluster is in, KV pressure before load.

Source: the routing track's principle RP-7, which names best weights for three regimes, and no rule that tells them
apart.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from blis_jax.core.types import pytree
from blis_jax.lazy import jnp
from blis_jax.policies.contract import GatewayContext, NoState, routing_policy
from blis_jax.policies.described.shared import best_by_weights, mean_over_active
from blis_jax.policies.numbers import number

if TYPE_CHECKING:
    from jaxtyping import Array, Float, Int


def _weight(default: float, scorer: str, regime: str) -> Any:
    is_queue = scorer == "queue-depth"
    return number(
        default, "", f"weight of {scorer} {regime}",
        low=0, excludes_low=is_queue, search=(0.1 if is_queue else 0, 8),
    )  # fmt: skip


@pytree
class RegimeSwitchedParams:
    """Where the regimes begin, and the weights in each."""

    kv_threshold: Float[Array, ""] = number(
        0.5, "", "highest KV utilisation of an instance above which the cluster is pressed",
        low=0, high=1,
    )  # fmt: skip
    load_threshold: Float[Array, ""] = number(
        16.0, "requests", "mean load per instance above which the cluster is busy",
        low=0, search=(1, 400), prior="log-uniform",
    )  # fmt: skip
    affinity_calm: Float[Array, ""] = _weight(3.0, "prefix-affinity", "in calm")
    queue_calm: Float[Array, ""] = _weight(2.0, "queue-depth", "in calm")
    kv_calm: Float[Array, ""] = _weight(2.0, "kv-utilization", "in calm")
    affinity_busy: Float[Array, ""] = _weight(4.0, "prefix-affinity", "when busy")
    queue_busy: Float[Array, ""] = _weight(3.0, "queue-depth", "when busy")
    kv_busy: Float[Array, ""] = _weight(0.0, "kv-utilization", "when busy")
    affinity_pressed: Float[Array, ""] = _weight(3.0, "prefix-affinity", "when pressed")
    queue_pressed: Float[Array, ""] = _weight(2.0, "queue-depth", "when pressed")
    kv_pressed: Float[Array, ""] = _weight(0.0, "kv-utilization", "when pressed")


@routing_policy(RegimeSwitchedParams, reads_prefix_index=True)
def regime_switched(
    params: RegimeSwitchedParams, state: NoState, context: GatewayContext
) -> tuple[Int[Array, ""], NoState]:
    """Weighted routing with the weights of the regime: pressed by KV use, else busy by load, else calm."""
    seen = context.snapshots
    fullest = jnp.max(jnp.where(seen.is_active, seen.kv_utilization, 0.0))
    is_pressed = fullest > params.kv_threshold
    is_busy = mean_over_active(seen, seen.effective_load) > params.load_threshold
    return best_in_regime(params, context, is_pressed, is_busy), state


def best_in_regime(
    params: RegimeSwitchedParams, context: GatewayContext, is_pressed: Any, is_busy: Any
) -> Int[Array, ""]:
    """The best instance by the weights of the regime; pressed comes before busy."""

    def of_regime(pressed: Any, busy: Any, calm: Any) -> Any:
        return jnp.where(is_pressed, pressed, jnp.where(is_busy, busy, calm))

    weights = (
        of_regime(params.affinity_pressed, params.affinity_busy, params.affinity_calm),
        of_regime(params.queue_pressed, params.queue_busy, params.queue_calm),
        of_regime(params.kv_pressed, params.kv_busy, params.kv_calm),
    )
    return best_by_weights(context, weights)

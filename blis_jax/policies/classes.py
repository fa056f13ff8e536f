"""SLO classes in policies; and their priorities, with the policies that use them, in BLIS's revision of August 2026.

Source: `sim/slo.go`, `sim/admission.go`. A higher priority is more urgent here; inside an instance BLIS uses the
reverse.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from blis_jax.core.exact import exact_quotient
from blis_jax.core.pytrees import pytree
from blis_jax.core.types import BACKGROUND, BATCH, CRITICAL, SHEDDABLE, STANDARD, Snapshots
from blis_jax.lazy import jax, jnp
from blis_jax.policies.contexts import GatewayContext, QueueContext
from blis_jax.policies.contract import NoState, admission_policy, priority_policy
from blis_jax.policies.numbers import FIXED, number

if TYPE_CHECKING:
    from jaxtyping import Array, Bool, Float, Int

    from blis_jax.core.exact import Number


def is_sheddable(slo_class: Int[Array, "..."]) -> jax.Array:
    """Return whether the class is sheddable, batch or background."""
    return slo_class > STANDARD


def of_class(
    params: object, slo_class: Int[Array, "..."], field: str = "{}", otherwise: float = 0.0
) -> jax.Array:
    """Return the number whose field name contains the request's class, in the place of `{}` in `field`; for no class,
    the standard class's number.

    A class without such a field has the value `otherwise`.
    """

    def value_of(name: str) -> Number:
        value: Number = getattr(params, field.format(name), otherwise)
        return value

    value = jnp.where(slo_class == CRITICAL, value_of("critical"), value_of("standard"))
    for code, name in ((SHEDDABLE, "sheddable"), (BATCH, "batch"), (BACKGROUND, "background")):
        value = jnp.where(slo_class == code, value_of(name), value)
    return value


def by_tier(
    slo_class: Int[Array, "..."], critical: Number, standard: Number, sheddable: Number
) -> jax.Array:
    """Return each request's value by its class, where batch and background count as sheddable."""
    rest = jnp.where(is_sheddable(slo_class), sheddable, standard)
    return jnp.where(slo_class == CRITICAL, critical, rest)


def ttft_budget(default: float, slo_class: str) -> Any:
    """Declare a policy's number: the greatest time to first token, in µs, of a class's requests.

    BLIS has no option for this number.
    """
    return number(
        default, "µs", f"time to first token that {slo_class} requests may take",
        low=0, excludes_low=True, setting=FIXED,
    )  # fmt: skip


# --- priorities -----------------------------------------------------------------------------------


def _priority(default: float, slo_class: str) -> Any:
    """Declare the priority of a class; a policy bundle of BLIS may set it, but no option does."""
    return number(default, "priority", f"priority of {slo_class} requests", low=-100, high=100,
                  is_whole=True, setting=FIXED)  # fmt: skip


@pytree
class ClassPriorities:
    """The gateway's priority of each class."""

    critical: Float[Array, ""] = _priority(4, "critical")
    standard: Float[Array, ""] = _priority(3, "standard and unclassed")
    batch: Float[Array, ""] = _priority(-1, "batch")
    sheddable: Float[Array, ""] = _priority(-2, "sheddable")
    background: Float[Array, ""] = _priority(-3, "background")


@priority_policy(ClassPriorities)
def gateway_class(
    params: ClassPriorities, state: NoState, context: QueueContext
) -> tuple[jax.Array, Any]:
    """Return the priority of the request's class, whatever its age."""
    return of_class(params, context.request.slo_class), state


@pytree
class TierShedParams(ClassPriorities):
    """Numbers of the tiered shedding."""

    threshold: Float[Array, ""] = number(
        0, "requests", "largest effective load above which less urgent requests are rejected",
        low=0, is_whole=True, search=(4, 400), prior="log-uniform", setting="tier_shed_threshold",
    )  # fmt: skip
    min_priority: Float[Array, ""] = number(
        0, "priority", "least priority that is let in above the threshold",
        low=-100, high=100, is_whole=True, search=(-3, 4), setting="tier_shed_min_priority",
    )  # fmt: skip


@admission_policy(TierShedParams)
def tier_shed(
    params: TierShedParams, state: NoState, context: GatewayContext
) -> tuple[jax.Array, Any]:
    """Reject classes below a priority while some instance's effective load is above the threshold."""
    seen = context.snapshots
    most = jnp.max(jnp.where(seen.is_active, seen.effective_load, 0)).astype(jnp.float64)
    is_low = of_class(params, context.request.slo_class) < params.min_priority
    return ~((most > params.threshold) & is_low), state


@pytree
class GaieLegacyParams(ClassPriorities):
    """Numbers of the saturation gate."""

    queue_threshold: Float[Array, ""] = number(
        5.0, "requests", "wait queue of a saturated instance",
        low=0, excludes_low=True, search=(1, 50), setting="gaie_qd_threshold",
    )  # fmt: skip
    kv_threshold: Float[Array, ""] = number(
        0.8, "", "KV utilization of a saturated instance",
        low=0, high=1, excludes_low=True, search=(0.2, 1), setting="gaie_kv_threshold",
    )  # fmt: skip


def mean_saturation(
    seen: Snapshots,
    queue_threshold: Float[Array, ""],
    kv_threshold: Float[Array, ""],
    is_full: Bool[Array, "instance"] | None = None,
) -> jax.Array:
    """Return the mean over active instances of the larger of queue and KV saturation; 1 if no instance is active.

    Args:
        seen: the instances as the router sees them.
        queue_threshold: number of waiting requests at which the queue's saturation is 1.
        kv_threshold: KV utilization at which the cache's saturation is 1.
        is_full: bool[instance], instances whose saturation is taken as 1 whatever they report; None for no instance.
    """
    queue = exact_quotient(seen.queue_depth.astype(jnp.float64), queue_threshold)
    kv = exact_quotient(seen.kv_utilization, kv_threshold)
    count = jnp.sum(seen.is_active, dtype=jnp.int32)
    shown = jnp.maximum(queue, kv)
    if is_full is not None:
        shown = jnp.where(is_full, 1.0, shown)
    each = jnp.where(seen.is_active, shown, 0.0)
    total = jnp.float64(0.0)
    for instance in range(each.shape[0]):  # added in the order of instances
        total = total + each[instance]
    mean = exact_quotient(total, jnp.maximum(count, 1).astype(jnp.float64))
    return jnp.where(count == 0, jnp.float64(1.0), mean)


@admission_policy(GaieLegacyParams)
def gaie_legacy(
    params: GaieLegacyParams, state: NoState, context: GatewayContext
) -> tuple[jax.Array, Any]:
    """Reject classes below priority 0 while the instances are saturated on average, by queue or KV cache."""
    mean = mean_saturation(context.snapshots, params.queue_threshold, params.kv_threshold)
    is_low = of_class(params, context.request.slo_class) < 0
    return ~((mean >= 1.0) & is_low), state


# --- instances whose metrics are too old count as full, as in llm-d's utilization-detector; not in BLIS -


@pytree
class StaleGatedParams:
    """Numbers of the gate; the thresholds are the detector's own."""

    num_stale: Float[Array, ""] = number(
        1, "instances", "how many, from the first one on, have metrics that are always too old and count as full",
        low=0, is_whole=True, search=(0, 8),
    )  # fmt: skip
    queue_threshold: Float[Array, ""] = number(
        5.0, "requests", "wait queue of a full instance", low=0, excludes_low=True, search=(1, 50)
    )
    kv_threshold: Float[Array, ""] = number(
        0.8, "", "KV utilization of a full instance",
        low=0, high=1, excludes_low=True, search=(0.2, 1),
    )  # fmt: skip


@admission_policy(StaleGatedParams)
def stale_gated(
    params: StaleGatedParams, state: NoState, context: GatewayContext
) -> tuple[jax.Array, Any]:
    """Reject sheddable classes while the instances are full on average; those with stale metrics count as full."""
    seen = context.snapshots
    place = jnp.arange(seen.is_active.shape[0], dtype=jnp.float64)
    is_stale = place < params.num_stale
    mean = mean_saturation(seen, params.queue_threshold, params.kv_threshold, is_stale)
    return ~((mean >= 1.0) & is_sheddable(context.request.slo_class)), state

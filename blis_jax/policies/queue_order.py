"""The order of waiting requests: priority policies and schedulers.

A higher priority is more urgent; priorities are computed whenever a waiting request is chosen. A scheduler's decision
is `(value[slot], rank[slot])`: the request with the least value comes first, among equal values that with the least
rank; ranks are unique. Source: BLIS `sim/priority.go`, `sim/scheduler.go`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from blis_jax.core.exact import exact_product, exact_quotient
from blis_jax.core.pytrees import pytree
from blis_jax.core.types import STANDARD_NONE
from blis_jax.lazy import jax, jnp
from blis_jax.policies.classes import by_tier, of_class
from blis_jax.policies.contexts import QueueContext
from blis_jax.policies.contract import NoParams, NoState, priority_policy, scheduler
from blis_jax.policies.numbers import FIXED, number

if TYPE_CHECKING:
    from jaxtyping import Array, Float


# --- priorities -----------------------------------------------------------------------------------


Urgency = tuple["jax.Array", Any]


def age_us(context: QueueContext) -> jax.Array:
    """Return the time since each request arrived, in µs."""
    return (context.now_us - context.request.arrival_us).astype(jnp.float64)


@priority_policy()
def constant(params: NoParams, state: NoState, context: QueueContext) -> Urgency:
    """Give every request the same priority."""
    return jnp.zeros(context.request.slo_class.shape, jnp.float64), state


@pytree
class AgeParams:
    """Numbers of the age-based priorities; BLIS has no options for them."""

    base: Float[Array, ""] = number(0.0, "priority", "priority at arrival", setting=FIXED)
    age_weight: Float[Array, ""] = number(
        1e-6, "priority/µs", "priority gained per µs of age", low=0, setting=FIXED
    )


@priority_policy(AgeParams)
def slo_based(params: AgeParams, state: NoState, context: QueueContext) -> Urgency:
    """Give older requests a higher priority."""
    return params.base + exact_product(params.age_weight, age_us(context)), state


@priority_policy(AgeParams)
def inverted_slo(params: AgeParams, state: NoState, context: QueueContext) -> Urgency:
    """Give younger requests a higher priority: a deliberately bad policy."""
    return params.base - exact_product(params.age_weight, age_us(context)), state


@pytree
class ClassParams:
    """Numbers of the routing track's class priority; BLIS has no options for them."""

    base_critical: Float[Array, ""] = number(10.0, "priority", "critical", setting=FIXED)
    base_standard: Float[Array, ""] = number(5.0, "priority", "standard", setting=FIXED)
    base_sheddable: Float[Array, ""] = number(3.0, "priority", "sheddable", setting=FIXED)
    base_batch: Float[Array, ""] = number(1.0, "priority", "batch", setting=FIXED)
    base_background: Float[Array, ""] = number(0.0, "priority", "background", setting=FIXED)
    base_none: Float[Array, ""] = number(0.0, "priority", "requests without a class", setting=FIXED)
    age_weight: Float[Array, ""] = number(
        1e-5, "priority/µs", "priority gained per µs of age", low=0, setting=FIXED
    )


@priority_policy(ClassParams)
def slo_class(params: ClassParams, state: NoState, context: QueueContext) -> Urgency:
    """Add the base score of the class and the age; the routing track's policy."""
    code = context.request.slo_class
    base = of_class(params, code, "base_{}")
    base = jnp.where(code == STANDARD_NONE, params.base_none, base)
    return base + exact_product(params.age_weight, age_us(context)), state


@pytree
class Bases:
    """Base priorities of the classes."""

    base_critical: Float[Array, ""] = number(
        10.0, "priority", "base priority of critical requests", search=(5, 20), setting="slo_base_critical",
    )  # fmt: skip
    base_standard: Float[Array, ""] = number(
        5.0, "priority", "base priority of standard requests", search=(2, 10), setting="slo_base_standard",
    )  # fmt: skip
    base_sheddable: Float[Array, ""] = number(
        1.0, "priority", "base priority of sheddable, batch and background requests",
        search=(0, 5), setting="slo_base_sheddable",
    )  # fmt: skip


@pytree
class TieredParams(Bases):
    """Numbers of the class-tiered priority."""

    age_weight: Float[Array, ""] = number(
        1e-5, "priority/µs", "priority gained per µs of age", low=0, search=(1e-06, 0.0001), prior="log-uniform",
        setting="slo_age_weight",
    )  # fmt: skip
    grace_standard_us: Float[Array, ""] = number(
        100_000, "µs", "age from which standard requests gain priority",
        low=0, is_whole=True, search=(0, 300_000), setting="slo_threshold_standard",
    )  # fmt: skip
    grace_sheddable_us: Float[Array, ""] = number(
        200_000, "µs", "age from which sheddable requests gain priority",
        low=0, is_whole=True, search=(50_000, 500_000), setting="slo_threshold_sheddable",
    )  # fmt: skip


def _gained(params: TieredParams, context: QueueContext) -> jax.Array:
    grace = by_tier(
        context.request.slo_class,
        jnp.float64(0.0),
        params.grace_standard_us,
        params.grace_sheddable_us,
    )
    raised = exact_product(params.age_weight, age_us(context) - grace)
    return jnp.maximum(jnp.float64(0.0), raised)


@priority_policy(TieredParams)
def slo_tiered(params: TieredParams, state: NoState, context: QueueContext) -> Urgency:
    """Add the base score of the class and urgency that grows with age after the class's grace period."""
    base = by_tier(
        context.request.slo_class, params.base_critical, params.base_standard, params.base_sheddable
    )
    return base + _gained(params, context), state


@pytree
class LoadAdaptiveParams(TieredParams):
    """Numbers of the load-adaptive priority: those of the tiers and where the gap opens."""

    low_depth: Float[Array, ""] = number(
        2, "requests", "wait-queue length up to which classes are equal",
        low=0, is_whole=True, search=(0, 10), setting="load_adaptive_low",
    )  # fmt: skip
    high_depth: Float[Array, ""] = number(
        15, "requests", "wait-queue length from which classes are fully apart",
        low=0, is_whole=True, search=(5, 60), setting="load_adaptive_high",
    )  # fmt: skip


@priority_policy(LoadAdaptiveParams)
def load_adaptive(params: LoadAdaptiveParams, state: NoState, context: QueueContext) -> Urgency:
    """Rank by class tiers whose gap opens with the length of the wait queue."""
    waiting = context.queue_depth.astype(jnp.float64)
    span = params.high_depth - params.low_depth
    share = exact_quotient(waiting - params.low_depth, jnp.where(span > 0, span, jnp.float64(1.0)))
    degenerate = jnp.where(waiting > 0, jnp.float64(1.0), jnp.float64(0.0))
    factor = jnp.where(span > 0, jnp.clip(share, 0.0, 1.0), degenerate)
    low = params.base_sheddable
    base = by_tier(
        context.request.slo_class,
        low + exact_product(factor, params.base_critical - low),
        low + exact_product(factor, params.base_standard - low),
        low,
    )
    return base + _gained(params, context), state


# --- schedulers -----------------------------------------------------------------------------------


Order = tuple[tuple["jax.Array", "jax.Array"], Any]


@scheduler()
def fcfs(params: NoParams, state: NoState, context: QueueContext) -> Order:
    """Serve in order of entry into the queue, which is not order of arrival."""
    return (context.queued_us, context.request.queue_rank), state


@scheduler()
def priority_fcfs(params: NoParams, state: NoState, context: QueueContext) -> Order:
    """Serve the highest priority first, then by arrival."""
    return (-context.priority, context.request.tie_rank), state


@scheduler()
def reverse_priority(params: NoParams, state: NoState, context: QueueContext) -> Order:
    """Serve the lowest priority first: a deliberately bad policy."""
    return (context.priority, context.request.tie_rank), state


@scheduler()
def sjf(params: NoParams, state: NoState, context: QueueContext) -> Order:
    """Serve the shortest prompt first, then by arrival."""
    return (context.request.input_len, context.request.tie_rank), state

"""Priority policies: higher is more urgent; asked whenever a waiting request is to be chosen.

Source: BLIS `sim/priority.go`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from blis_jax.core.exact import exact_product, exact_quotient
from blis_jax.core.types import CRITICAL, pytree
from blis_jax.lazy import jax, jnp
from blis_jax.policies.classes import is_sheddable
from blis_jax.policies.contract import NoParams, NoState, QueueContext, priority_policy
from blis_jax.policies.numbers import FIXED, number

if TYPE_CHECKING:
    from jaxtyping import Array, Float

Urgency = tuple["jax.Array", Any]


def _age_us(context: QueueContext) -> jax.Array:
    return (context.now_us - context.request.arrival_us).astype(jnp.float64)


@priority_policy()
def constant(params: NoParams, state: NoState, context: QueueContext) -> Urgency:
    """Everyone alike."""
    del params
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
    """Older is more urgent."""
    return params.base + exact_product(params.age_weight, _age_us(context)), state


@priority_policy(AgeParams)
def inverted_slo(params: AgeParams, state: NoState, context: QueueContext) -> Urgency:
    """Younger is more urgent: a deliberately bad policy."""
    return params.base - exact_product(params.age_weight, _age_us(context)), state


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
    """Base score of the class plus age; the routing track's policy."""
    bases = (
        params.base_none,
        params.base_critical,
        params.base_standard,
        params.base_sheddable,
        params.base_batch,
        params.base_background,
    )
    base = bases[0]
    for code in range(1, len(bases)):
        base = jnp.where(context.request.slo_class == code, bases[code], base)
    return base + exact_product(params.age_weight, _age_us(context)), state


@pytree
class _Bases:
    base_critical: Float[Array, ""] = number(
        10.0,
        "priority",
        "base priority of critical requests",
        search=(5, 20),
        setting="slo_base_critical",
    )
    base_standard: Float[Array, ""] = number(
        5.0,
        "priority",
        "base priority of standard requests",
        search=(2, 10),
        setting="slo_base_standard",
    )
    base_sheddable: Float[Array, ""] = number(
        1.0, "priority", "base priority of sheddable, batch and background requests",
        search=(0, 5), setting="slo_base_sheddable",
    )  # fmt: skip


@pytree
class TieredParams(_Bases):
    """Numbers of the class-tiered priority."""

    age_weight: Float[Array, ""] = number(
        1e-5,
        "priority/µs",
        "priority gained per µs of age",
        low=0,
        search=(1e-06, 0.0001),
        prior="log-uniform",
        setting="slo_age_weight",
    )
    grace_standard_us: Float[Array, ""] = number(
        100_000, "µs", "age from which standard requests gain priority",
        low=0, is_whole=True, search=(0, 300_000), setting="slo_threshold_standard",
    )  # fmt: skip
    grace_sheddable_us: Float[Array, ""] = number(
        200_000, "µs", "age from which sheddable requests gain priority",
        low=0, is_whole=True, search=(50_000, 500_000), setting="slo_threshold_sheddable",
    )  # fmt: skip


def _by_class(slo_class: jax.Array, critical: Any, standard: Any, sheddable: Any) -> jax.Array:
    rest = jnp.where(is_sheddable(slo_class), sheddable, standard)
    return jnp.where(slo_class == CRITICAL, critical, rest)


def _gained(params: TieredParams, context: QueueContext) -> jax.Array:
    grace = _by_class(
        context.request.slo_class,
        jnp.float64(0.0),
        params.grace_standard_us,
        params.grace_sheddable_us,
    )
    raised = exact_product(params.age_weight, _age_us(context) - grace)
    return jnp.maximum(jnp.float64(0.0), raised)


@priority_policy(TieredParams)
def slo_tiered(params: TieredParams, state: NoState, context: QueueContext) -> Urgency:
    """Base score of the class plus urgency that grows with age after the class's grace period."""
    base = _by_class(
        context.request.slo_class, params.base_critical, params.base_standard, params.base_sheddable
    )
    return base + _gained(params, context), state


@pytree
class Deadlines:
    """Ages by which requests want their first token, the same settings in every policy that has deadlines."""

    deadline_critical_us: Float[Array, ""] = number(
        100_000, "µs", "age by which a critical request wants its first token",
        low=0, is_whole=True, search=(20_000, 500_000), prior="log-uniform", setting="slo_deadline_critical",
    )  # fmt: skip
    deadline_standard_us: Float[Array, ""] = number(
        250_000, "µs", "age by which a standard request wants its first token",
        low=0, is_whole=True, search=(50_000, 1_000_000), prior="log-uniform", setting="slo_deadline_standard",
    )  # fmt: skip
    deadline_sheddable_us: Float[Array, ""] = number(
        1_000_000, "µs", "age by which a sheddable request wants its first token",
        low=0, is_whole=True, search=(200_000, 4_000_000), prior="log-uniform", setting="slo_deadline_sheddable",
    )  # fmt: skip


@pytree
class DeadlineParams(Deadlines, _Bases):
    """Numbers of the deadline urgency."""

    least_left_us: Float[Array, ""] = number(
        10_000, "µs", "time left to the deadline from which urgency grows no more",
        low=0, excludes_low=True, is_whole=True, setting="slo_deadline_least_left",
    )  # fmt: skip


def deadline_of(params: Deadlines, slo_class: jax.Array) -> jax.Array:
    """The deadline of each class's requests, µs after their arrival."""
    return _by_class(
        slo_class,
        params.deadline_critical_us,
        params.deadline_standard_us,
        params.deadline_sheddable_us,
    )


@priority_policy(DeadlineParams)
def slo_deadline(params: DeadlineParams, state: NoState, context: QueueContext) -> Urgency:
    """Base score of the class, times how near its deadline is: hyperbolic, and bounded by the base.

    Ours; BLIS has no such policy.
    """
    slo_class = context.request.slo_class
    base = _by_class(slo_class, params.base_critical, params.base_standard, params.base_sheddable)
    deadline = deadline_of(params, slo_class)
    least = jnp.maximum(params.least_left_us, jnp.float64(1.0))
    left = jnp.maximum(deadline - _age_us(context), least)
    return base * exact_quotient(jnp.broadcast_to(least, left.shape), left), state


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
    """Class tiers whose gap opens with the length of the wait queue."""
    waiting = context.queue_depth.astype(jnp.float64)
    span = params.high_depth - params.low_depth
    share = exact_quotient(waiting - params.low_depth, jnp.where(span > 0, span, jnp.float64(1.0)))
    degenerate = jnp.where(waiting > 0, jnp.float64(1.0), jnp.float64(0.0))
    factor = jnp.where(span > 0, jnp.clip(share, 0.0, 1.0), degenerate)
    low = params.base_sheddable
    base = _by_class(
        context.request.slo_class,
        low + exact_product(factor, params.base_critical - low),
        low + exact_product(factor, params.base_standard - low),
        low,
    )
    return base + _gained(params, context), state

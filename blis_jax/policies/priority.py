"""Priority policies: higher is more urgent; recomputed for waiting requests at the start of every step.

Each has the signature `(params, view[slot], queue_depth, clock_us, infinity) -> float64[slot]`.
Source: BLIS `sim/priority.go`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from blis_jax.exact import exact_product, exact_quotient
from blis_jax.policies.admission import NoParams, is_sheddable
from blis_jax.types import CRITICAL, RequestView, pytree

if TYPE_CHECKING:
    from jaxtyping import Array, Float


def _age_us(view: RequestView, clock: jax.Array) -> jax.Array:
    return (clock - view.arrival_us).astype(jnp.float64)


def constant(
    params: NoParams, view: RequestView, depth: Any, clock: Any, infinity: Any
) -> jax.Array:
    """Everyone alike."""
    del params, depth, clock, infinity
    return jnp.zeros(view.slo_class.shape, jnp.float64)


@pytree
class AgeParams:
    """Numbers of the age-based priorities."""

    base: Float[Array, ""]
    age_weight: Float[Array, ""]  # per µs


def slo_based(
    params: AgeParams, view: RequestView, depth: Any, clock: Any, infinity: Any
) -> jax.Array:
    """Older is more urgent."""
    del depth
    return params.base + exact_product(params.age_weight, _age_us(view, clock), infinity)


def inverted_slo(
    params: AgeParams, view: RequestView, depth: Any, clock: Any, infinity: Any
) -> jax.Array:
    """Younger is more urgent: a deliberately bad policy."""
    del depth
    return params.base - exact_product(params.age_weight, _age_us(view, clock), infinity)


@pytree
class ClassParams:
    """Numbers of the routing track's class priority."""

    base_critical: Float[Array, ""]
    base_standard: Float[Array, ""]
    base_sheddable: Float[Array, ""]
    base_batch: Float[Array, ""]
    base_background: Float[Array, ""]
    base_none: Float[Array, ""]  # requests without a class
    age_weight: Float[Array, ""]  # per µs


def slo_class(
    params: ClassParams, view: RequestView, depth: Any, clock: Any, infinity: Any
) -> jax.Array:
    """Base score of the class plus age; the routing track's policy."""
    del depth
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
        base = jnp.where(view.slo_class == code, bases[code], base)
    return base + exact_product(params.age_weight, _age_us(view, clock), infinity)


@pytree
class TieredParams:
    """Numbers of the class-tiered priority."""

    base_critical: Float[Array, ""]
    base_standard: Float[Array, ""]
    base_sheddable: Float[Array, ""]
    age_weight: Float[Array, ""]  # per µs
    grace_standard_us: Float[Array, ""]
    grace_sheddable_us: Float[Array, ""]


def _by_class(slo_class: jax.Array, critical: Any, standard: Any, sheddable: Any) -> jax.Array:
    rest = jnp.where(is_sheddable(slo_class), sheddable, standard)
    return jnp.where(slo_class == CRITICAL, critical, rest)


def _urgency(params: Any, view: RequestView, clock: jax.Array, infinity: Any) -> jax.Array:
    grace = _by_class(
        view.slo_class, jnp.float64(0.0), params.grace_standard_us, params.grace_sheddable_us
    )
    raised = exact_product(params.age_weight, _age_us(view, clock) - grace, infinity)
    return jnp.maximum(jnp.float64(0.0), raised)


def slo_tiered(
    params: TieredParams, view: RequestView, depth: Any, clock: Any, infinity: Any
) -> jax.Array:
    """Base score of the class plus urgency that grows with age after the class's grace period."""
    del depth
    base = _by_class(
        view.slo_class, params.base_critical, params.base_standard, params.base_sheddable
    )
    return base + _urgency(params, view, clock, infinity)


@pytree
class DeadlineParams:
    """Numbers of the deadline urgency."""

    base_critical: Float[Array, ""]
    base_standard: Float[Array, ""]
    base_sheddable: Float[Array, ""]
    deadline_critical_us: Float[Array, ""]  # age by which the first token is wanted
    deadline_standard_us: Float[Array, ""]
    deadline_sheddable_us: Float[Array, ""]
    least_left_us: Float[Array, ""]  # urgency grows no more from here on, so it is bounded


def slo_deadline(
    params: DeadlineParams, view: RequestView, depth: Any, clock: Any, infinity: Any
) -> jax.Array:
    """Base score of the class, times how near its deadline is: hyperbolic, and bounded by the base.

    Ours; BLIS has no such policy.
    """
    del depth, infinity
    base = _by_class(
        view.slo_class, params.base_critical, params.base_standard, params.base_sheddable
    )
    deadline = _by_class(
        view.slo_class,
        params.deadline_critical_us,
        params.deadline_standard_us,
        params.deadline_sheddable_us,
    )
    least = jnp.maximum(params.least_left_us, jnp.float64(1.0))
    left = jnp.maximum(deadline - _age_us(view, clock), least)
    return base * exact_quotient(jnp.broadcast_to(least, left.shape), left)


@pytree
class LoadAdaptiveParams:
    """Numbers of the load-adaptive priority: those of the tiers and where the gap opens."""

    base_critical: Float[Array, ""]
    base_standard: Float[Array, ""]
    base_sheddable: Float[Array, ""]
    age_weight: Float[Array, ""]  # per µs
    grace_standard_us: Float[Array, ""]
    grace_sheddable_us: Float[Array, ""]
    low_depth: Float[Array, ""]  # wait-queue length up to which classes are equal
    high_depth: Float[Array, ""]  # wait-queue length from which they are fully apart


def load_adaptive(
    params: LoadAdaptiveParams, view: RequestView, depth: jax.Array, clock: Any, infinity: Any
) -> jax.Array:
    """Class tiers whose gap opens with the length of the wait queue."""
    waiting = depth.astype(jnp.float64)
    span = params.high_depth - params.low_depth
    share = exact_quotient(waiting - params.low_depth, jnp.where(span > 0, span, jnp.float64(1.0)))
    degenerate = jnp.where(waiting > 0, jnp.float64(1.0), jnp.float64(0.0))
    factor = jnp.where(span > 0, jnp.clip(share, 0.0, 1.0), degenerate)
    low = params.base_sheddable
    base = _by_class(
        view.slo_class,
        low + exact_product(factor, params.base_critical - low, infinity),
        low + exact_product(factor, params.base_standard - low, infinity),
        low,
    )
    return base + _urgency(params, view, clock, infinity)

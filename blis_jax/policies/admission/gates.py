"""Gates: classes that can wait are turned away while the cluster is loaded.

Source: BLIS `sim/admission.go`; of the routing track's gate: `sim/admission_slo.go` of its pull request 447.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from blis_jax.core.exact import exact_quotient
from blis_jax.core.types import CRITICAL, STANDARD, STANDARD_NONE, Snapshots, pytree
from blis_jax.lazy import jax, jnp
from blis_jax.policies.classes import is_sheddable
from blis_jax.policies.contract import GatewayContext, NoState, admission_policy
from blis_jax.policies.numbers import FIXED, number

if TYPE_CHECKING:
    from jaxtyping import Array, Float

Decision = tuple["jax.Array", Any]


@pytree
class SloGatedParams:
    """Numbers of the scheduling track's gate."""

    load_threshold: Float[Array, ""] = number(
        8.0, "requests", "mean load per instance above which sheddable requests are rejected",
        low=0, search=(4, 400), prior="log-uniform", setting="slo_gated_threshold",
    )  # fmt: skip


@admission_policy(SloGatedParams)
def slo_gated(params: SloGatedParams, state: NoState, context: GatewayContext) -> Decision:
    """Reject sheddable classes while the mean effective load is above the threshold."""
    is_kept = ~is_sheddable(context.request.slo_class)
    return is_kept | (_mean_load(context.snapshots) <= params.load_threshold), state


def _mean_load(snapshots: Snapshots) -> jax.Array:
    total = jnp.sum(jnp.where(snapshots.is_active, snapshots.effective_load, 0), dtype=jnp.int32)
    count = jnp.sum(snapshots.is_active, dtype=jnp.int32)
    return exact_quotient(total.astype(jnp.float64), count.astype(jnp.float64))


@pytree
class QueueGatedParams:
    """Numbers of the routing track's gate; BLIS has no options for them."""

    standard_depth: Float[Array, ""] = number(
        10.0, "requests", "longest wait queue at which standard is rejected", low=0, setting=FIXED
    )
    sheddable_depth: Float[Array, ""] = number(
        5.0, "requests", "longest wait queue at which sheddable, batch and background are rejected",
        low=0, setting=FIXED,
    )  # fmt: skip


@admission_policy(QueueGatedParams)
def slo_queue_gated(params: QueueGatedParams, state: NoState, context: GatewayContext) -> Decision:
    """Reject by the longest wait queue: sheddable classes early, standard later, critical never."""
    seen, slo_class = context.snapshots, context.request.slo_class
    deepest = jnp.max(jnp.where(seen.is_active, seen.queue_depth, 0))
    is_standard = (slo_class == STANDARD) | (slo_class == STANDARD_NONE)
    limit = jnp.where(is_standard, params.standard_depth, params.sheddable_depth)
    return (slo_class == CRITICAL) | (deepest.astype(jnp.float64) < limit), state


@pytree
class ClassGatedParams:
    """Numbers of the gate by class."""

    standard_load: Float[Array, ""] = number(
        100.0, "requests", "mean load per instance above which standard is shed",
        low=0, search=(4, 400), prior="log-uniform", setting="class_gated_standard",
    )  # fmt: skip
    sheddable_load: Float[Array, ""] = number(
        50.0, "requests", "mean load per instance above which sheddable, batch and background are shed",
        low=0, search=(4, 400), prior="log-uniform", setting="class_gated_sheddable",
    )  # fmt: skip
    probability: Float[Array, ""] = number(
        1.0, "", "share of the class that is shed then",
        low=0, high=1, setting="class_gated_probability",
    )  # fmt: skip


@admission_policy(ClassGatedParams, is_random=True)
def class_gated(params: ClassGatedParams, state: NoState, context: GatewayContext) -> Decision:
    """Shed a share of a class while the mean effective load is above its limit; critical never.

    Ours; BLIS has no such policy. The draw has the key of the decision.
    """
    mean = _mean_load(context.snapshots)
    slo_class = context.request.slo_class
    limit = jnp.where(is_sheddable(slo_class), params.sheddable_load, params.standard_load)
    is_shed = jax.random.uniform(context.key, (), jnp.float64) < params.probability
    return (slo_class == CRITICAL) | (mean <= limit) | ~is_shed, state

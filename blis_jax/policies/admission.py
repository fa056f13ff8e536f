"""Admission policies: accept or turn away a request at the gateway.

Each has the signature `(params, state, view, snapshots, clock_us, infinity) -> (is_admitted, state)`.
Source of the first four: BLIS `sim/admission.go`; of the routing-track gate: its pull request 447.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from blis_jax.exact import exact_quotient
from blis_jax.types import CRITICAL, STANDARD, STANDARD_NONE, RoutedView, Snapshots, pytree

if TYPE_CHECKING:
    from jaxtyping import Array, Float, Int

Decision = tuple[jax.Array, Any]


@pytree
class NoParams:
    """A policy without numbers."""


@pytree
class NoState:
    """A policy without memory."""


def no_state(params: Any, shape: Any) -> NoState:
    """Initial state of a policy without memory."""
    del params, shape
    return NoState()


def always_admit(
    params: NoParams,
    state: NoState,
    view: RoutedView,
    snapshots: Snapshots,
    clock: Any,
    infinity: Any,
) -> Decision:
    """Everything is admitted."""
    del params, view, snapshots, clock, infinity
    return jnp.array(True), state


def reject_all(
    params: NoParams,
    state: NoState,
    view: RoutedView,
    snapshots: Snapshots,
    clock: Any,
    infinity: Any,
) -> Decision:
    """Nothing is admitted."""
    del params, view, snapshots, clock, infinity
    return jnp.array(False), state


@pytree
class TokenBucketParams:
    """Numbers of the token bucket."""

    capacity: Float[Array, ""]  # tokens
    refill_per_s: Float[Array, ""]  # tokens per second


@pytree
class TokenBucketState:
    """Level of the bucket when it was last touched."""

    tokens: Float[Array, ""]
    refilled_us: Float[Array, ""]


def full_bucket(params: TokenBucketParams, shape: Any) -> TokenBucketState:
    """The bucket starts full."""
    del shape
    return TokenBucketState(params.capacity, jnp.zeros((), jnp.float64))


def token_bucket(
    params: TokenBucketParams,
    state: TokenBucketState,
    view: RoutedView,
    snapshots: Snapshots,
    clock: Any,
    infinity: Any,
) -> Decision:
    """Admit while the bucket holds the prompt's tokens; it refills by elapsed time at each decision."""
    del snapshots
    now = clock.astype(jnp.float64)
    elapsed = now - state.refilled_us
    refill = exact_quotient(elapsed * params.refill_per_s, jnp.float64(1e6))
    refill = jnp.minimum(refill, infinity)
    tokens = jnp.where(
        elapsed > 0, jnp.minimum(params.capacity, state.tokens + refill), state.tokens
    )
    cost = view.request.input_len.astype(jnp.float64)
    is_admitted = tokens >= cost
    return is_admitted, TokenBucketState(jnp.where(is_admitted, tokens - cost, tokens), now)


@pytree
class SloGatedParams:
    """Numbers of the scheduling track's gate."""

    load_threshold: Float[
        Array, ""
    ]  # mean effective load above which sheddable classes are rejected


def is_sheddable(slo_class: Int[Array, "..."]) -> jax.Array:
    """Sheddable, batch and background."""
    return slo_class > STANDARD


def slo_gated(
    params: SloGatedParams,
    state: NoState,
    view: RoutedView,
    snapshots: Snapshots,
    clock: Any,
    infinity: Any,
) -> Decision:
    """Reject sheddable classes while the mean effective load is above the threshold."""
    del clock, infinity
    is_kept = ~is_sheddable(view.request.slo_class)
    return is_kept | (_mean_load(snapshots) <= params.load_threshold), state


def _mean_load(snapshots: Snapshots) -> jax.Array:
    total = jnp.sum(jnp.where(snapshots.is_active, snapshots.effective_load, 0), dtype=jnp.int32)
    count = jnp.sum(snapshots.is_active, dtype=jnp.int32)
    return exact_quotient(total.astype(jnp.float64), count.astype(jnp.float64))


@pytree
class QueueGatedParams:
    """Numbers of the routing track's gate."""

    standard_depth: Float[Array, ""]  # longest wait queue at which standard is rejected
    sheddable_depth: Float[Array, ""]  # the same for sheddable, batch and background


def slo_queue_gated(
    params: QueueGatedParams,
    state: NoState,
    view: RoutedView,
    snapshots: Snapshots,
    clock: Any,
    infinity: Any,
) -> Decision:
    """Reject by the longest wait queue: sheddable classes early, standard later, critical never."""
    del clock, infinity
    deepest = jnp.max(jnp.where(snapshots.is_active, snapshots.queue_depth, 0))
    slo_class = view.request.slo_class
    is_standard = (slo_class == STANDARD) | (slo_class == STANDARD_NONE)
    limit = jnp.where(is_standard, params.standard_depth, params.sheddable_depth)
    return (slo_class == CRITICAL) | (deepest.astype(jnp.float64) < limit), state


@pytree
class ClassGatedParams:
    """Numbers of the gate by class."""

    standard_load: Float[Array, ""]  # mean effective load above which standard is shed
    sheddable_load: Float[Array, ""]  # the same for sheddable, batch and background
    probability: Float[Array, ""]  # share of them that is shed then


def class_gated(
    params: ClassGatedParams,
    state: NoState,
    view: RoutedView,
    snapshots: Snapshots,
    clock: Any,
    infinity: Any,
) -> Decision:
    """Shed a share of a class while the mean effective load is above its limit; critical never.

    Ours; BLIS has no such policy. The draw has the key of the decision.
    """
    del clock, infinity
    mean = _mean_load(snapshots)
    slo_class = view.request.slo_class
    limit = jnp.where(is_sheddable(slo_class), params.sheddable_load, params.standard_load)
    is_shed = jax.random.uniform(view.key, (), jnp.float64) < params.probability
    return (slo_class == CRITICAL) | (mean <= limit) | ~is_shed, state


__all__ = [
    "ClassGatedParams",
    "NoParams",
    "NoState",
    "QueueGatedParams",
    "SloGatedParams",
    "TokenBucketParams",
    "TokenBucketState",
    "always_admit",
    "class_gated",
    "full_bucket",
    "is_sheddable",
    "no_state",
    "reject_all",
    "slo_gated",
    "slo_queue_gated",
    "token_bucket",
]

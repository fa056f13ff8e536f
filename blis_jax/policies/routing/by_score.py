"""Routing by the scorers: weighted sums of scores, in the order and precision of BLIS; and weights that adapt."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from blis_jax.core.exact import exact_product, exact_quotient
from blis_jax.core.pytrees import pytree
from blis_jax.core.types import LAST
from blis_jax.lazy import jax, jnp
from blis_jax.policies.classes import of_class
from blis_jax.policies.contexts import GatewayContext
from blis_jax.policies.contract import NoParams, NoState, routing_policy
from blis_jax.policies.numbers import FIXED, number
from blis_jax.policies.routing.pickers import Choice, first_best_of, first_where
from blis_jax.policies.scorers import free_share, prefix_share, scaled_down

if TYPE_CHECKING:
    from jaxtyping import Array, Float, Int

    from blis_jax.core.types import EngineShape


@routing_policy()
def weighted(params: NoParams, state: NoState, context: GatewayContext) -> Choice:
    """Choose the instance that the picker takes by the scores."""
    return context.picked, state


# --- sums of scores -------------------------------------------------------------------------------


def shares_of(weights: Float[Array, "scorer"]) -> Float[Array, "scorer"]:
    """Return each weight's share of the weights' sum, which is added in order as the reference does."""
    total = jnp.zeros((), jnp.float64)
    for index in range(weights.shape[0]):
        total = total + weights[index]
    return exact_quotient(weights, total)


def weighted_sum(
    scores: Sequence[Float[Array, "instance"]],
    shares: Float[Array, "scorer"] | None,
    shape: tuple[int, ...],
) -> jax.Array:
    """Return the sum of each score, cut to [0, 1], times its share, added in the reference's order; else zeros."""
    total = jnp.zeros(shape, jnp.float64)
    if shares is None:  # no scorers
        return total
    for index, score in enumerate(scores):
        total = total + exact_product(jnp.clip(score, 0.0, 1.0), shares[index])
    return total


# --- weights of three scorers, which the routing track's policies change as they go ---------------


@pytree
class Profile:
    """Weights of three scorers; `kv` is None if KV utilization does not count."""

    prefix: Float[Array, ""]
    depth: Float[Array, ""]
    kv: Float[Array, ""] | None = None


def weight(default: float, scorer: str, case: str) -> Any:
    """Declare a weight of a profile as a number; the weight of `queue-depth` is above 0, so that no sum is 0."""
    return number(
        default, "", f"weight of {scorer} {case}",
        low=0, excludes_low=scorer == "queue-depth", search=(0.1, 10), setting=FIXED,
    )  # fmt: skip


def best_by(profile: Profile, context: GatewayContext) -> jax.Array:
    """Return the first active instance with the highest weighted sum of `prefix-affinity`,
    `queue-depth`, `kv-utilization`.
    """
    seen = context.snapshots
    scores = [prefix_share(context), scaled_down(seen.effective_load, seen)]
    weights = [profile.prefix, profile.depth]
    if profile.kv is not None:
        scores, weights = [*scores, free_share(context)], [*weights, profile.kv]
    shares = shares_of(jnp.stack(weights))
    return first_best_of(weighted_sum(scores, shares, seen.effective_load.shape), seen.is_active)


# Weights that follow the request's class, the fullest KV cache, or the share of rejected requests; the scorers that are
# set, and the picker, do not count. Source: `sim/routing_adaptive.go`, `routing_kv_adaptive.go` and
# `routing_epoch_adaptive.go` of BLIS's pull request 447.

# --- by class, and away from a CPU tier that holds requests up ------------------------------------


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


def profile_of(params: AdaptiveParams, slo_class: Int[Array, ""]) -> Profile:
    """Return the weights for a class; without a class it is standard, and background ignores KV utilization."""

    return Profile(
        *(of_class(params, slo_class, f"{{}}_{scorer}") for scorer in ("prefix", "depth", "kv"))
    )


@routing_policy(AdaptiveParams, keeps_own_index=True)
def adaptive_weighted(
    params: AdaptiveParams, state: NoState, context: GatewayContext
) -> tuple[jax.Array, Any]:
    """Choose the best instance by the class's weights; if its CPU tier holds it up, the least loaded free of that."""
    seen = context.snapshots
    chosen = best_by(profile_of(params, context.request.slo_class), context)
    if seen.kv_thrashing_rate is None:
        return chosen, state
    is_healthy = (seen.pending_transfer_us <= 0) & (seen.kv_thrashing_rate <= params.thrashing_rate)
    load = jnp.where(seen.is_active & is_healthy, seen.effective_load, LAST)
    least = jnp.min(load)
    stays = is_healthy[chosen] | (least == LAST)
    return jnp.where(stays, chosen, first_where(load == least)), state


# --- by the fullest KV cache: comments of BLIS tell of a blend, its code switches -----------------


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


@routing_policy(KvAdaptiveParams, keeps_own_index=True)
def kv_adaptive(
    params: KvAdaptiveParams, state: NoState, context: GatewayContext
) -> tuple[jax.Array, Any]:
    """Choose the best instance by weights that favour free KV blocks once an instance is as full as the threshold."""
    seen = context.snapshots
    fullest = jnp.max(jnp.where(seen.is_active, seen.kv_utilization, 0.0))
    is_normal = fullest < params.threshold
    profile = Profile(
        jnp.where(is_normal, params.normal_prefix, params.pressed_prefix),
        jnp.where(is_normal, params.normal_depth, params.pressed_depth),
        jnp.where(is_normal, params.normal_kv, params.pressed_kv),
    )
    return best_by(profile, context), state


# --- by the share of rejected requests, epoch by epoch --------------------------------------------


LEAST_DECAY = 0.8  # of the weight of affinity in one epoch


def _bound(default: float, which: str) -> Any:
    return number(default, "", which, low=0, excludes_low=True, setting=FIXED)


@pytree
class EpochParams:
    """How weights begin, and how they follow; BLIS has no options for them."""

    prefix: Float[Array, ""] = weight(3.0, "prefix-affinity", "at first")
    depth: Float[Array, ""] = weight(2.0, "queue-depth", "at first")
    epoch_size: Float[Array, ""] = number(
        100, "requests", "routed requests after which the weights change",
        low=1, is_whole=True, search=(20, 500), setting=FIXED,
    )  # fmt: skip
    high_rate: Float[Array, ""] = number(
        0.1, "", "rejected ÷ routed requests above which load counts more", low=0, setting=FIXED
    )
    low_rate: Float[Array, ""] = number(
        0.02, "", "rejected ÷ routed requests below which affinity counts more",
        low=0, setting=FIXED,
    )  # fmt: skip
    step_size: Float[Array, ""] = number(
        0.5, "", "20 times the relative change of both weights in an epoch without rejections",
        low=0, search=(0.1, 2), setting=FIXED,
    )  # fmt: skip
    least_prefix: Float[Array, ""] = _bound(1.0, "least weight of prefix-affinity")
    most_prefix: Float[Array, ""] = _bound(5.0, "largest weight of prefix-affinity")
    least_depth: Float[Array, ""] = _bound(2.0, "least weight of queue-depth")
    most_depth: Float[Array, ""] = _bound(5.0, "largest weight of queue-depth")
    most_ratio: Float[Array, ""] = _bound(1.33, "largest ratio of the two weights")


@pytree
class EpochState:
    """The weights now, and the counts of the epoch."""

    prefix: Float[Array, ""]
    depth: Float[Array, ""]
    num_routed: Int[Array, ""]  # in this epoch
    num_rejected: Int[Array, ""]  # before this epoch


def first_epoch(params: EpochParams, shape: EngineShape) -> EpochState:
    """Return the state in which nothing has been routed and both weights have their initial values."""
    zero = jnp.zeros((), jnp.int32)
    return EpochState(params.prefix, params.depth, zero, zero)


def adapted(
    params: EpochParams, prefix: Float[Array, ""], depth: Float[Array, ""], rate: Float[Array, ""]
) -> tuple[jax.Array, jax.Array]:
    """Return both weights after an epoch with the share `rate` of rejections, operation by operation as BLIS does.

    A rate above `high_rate` raises the weight of load and lowers that of affinity, in proportion to the excess; a rate
    below `low_rate` moves both the other way by a fixed factor. Then their ratio is bounded, first by raising the
    weight of load.
    """
    is_high, is_low = rate > params.high_rate, rate < params.low_rate
    step = exact_quotient(params.step_size, jnp.float64(10.0))
    excess = exact_product(step, rate - params.high_rate)
    half = exact_product(step, jnp.float64(0.5))

    raised = exact_product(depth, 1.0 + exact_product(excess, jnp.float64(10.0)))
    lowered = exact_product(depth, 1.0 - half)
    quiet = jnp.where(is_low, jnp.maximum(params.least_depth, lowered), depth)
    new_depth = jnp.where(is_high, jnp.minimum(params.most_depth, raised), quiet)

    decay = jnp.maximum(1.0 - exact_product(excess, jnp.float64(5.0)), LEAST_DECAY)
    lowered = jnp.maximum(params.least_prefix, exact_product(prefix, decay))
    raised = jnp.minimum(params.most_prefix, exact_product(prefix, 1.0 + half))
    new_prefix = jnp.where(is_low, raised, jnp.where(is_high, lowered, prefix))

    is_steep = exact_quotient(new_prefix, new_depth) > params.most_ratio
    wanted = exact_quotient(new_prefix, params.most_ratio)
    is_beyond = is_steep & (wanted > params.most_depth)
    depth_then = jnp.where(is_steep, jnp.minimum(wanted, params.most_depth), new_depth)
    at_bound = exact_product(params.most_depth, params.most_ratio)
    return jnp.where(is_beyond, at_bound, new_prefix), depth_then


@routing_policy(EpochParams, first_epoch, keeps_own_index=True)
def epoch_adaptive(
    params: EpochParams, state: EpochState, context: GatewayContext
) -> tuple[jax.Array, EpochState]:
    """Choose the best instance by affinity and load, whose weights follow the share of rejected requests."""
    rejected = context.snapshots.num_rejected
    count = state.num_routed + 1
    is_over = count.astype(jnp.float64) >= params.epoch_size
    in_epoch = (rejected - state.num_rejected).astype(jnp.float64)
    rate = exact_quotient(in_epoch, count.astype(jnp.float64))
    prefix, depth = adapted(params, state.prefix, state.depth, rate)
    prefix = jnp.where(is_over, prefix, state.prefix)
    depth = jnp.where(is_over, depth, state.depth)
    after = EpochState(
        prefix,
        depth,
        jnp.where(is_over, 0, count),
        jnp.where(is_over, rejected, state.num_rejected),
    )
    return best_by(Profile(prefix, depth), context), after

"""Weights of affinity and load that follow the share of rejected requests, epoch by epoch.

Source: `sim/routing_epoch_adaptive.go` of BLIS's pull request 447.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from blis_jax.core.exact import exact_product, exact_quotient
from blis_jax.core.types import pytree
from blis_jax.lazy import jax, jnp
from blis_jax.policies.contract import GatewayContext, routing_policy
from blis_jax.policies.numbers import FIXED, number
from blis_jax.policies.routing.profiles import Profile, best_by, weight

if TYPE_CHECKING:
    from jaxtyping import Array, Float, Int

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


def first_epoch(params: EpochParams, shape: Any) -> EpochState:
    """Nothing routed, the weights as they begin."""
    del shape
    zero = jnp.zeros((), jnp.int32)
    return EpochState(params.prefix, params.depth, zero, zero)


def adapted(params: EpochParams, prefix: Any, depth: Any, rate: Any) -> tuple[jax.Array, jax.Array]:
    """Both weights after an epoch with this share of rejections, operation by operation as BLIS does.

    Rejections raise the weight of load and lower that of affinity, in proportion to their excess; without
    rejections both go the other way by a fixed factor. Then the ratio is bounded, by more weight of load first.
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


@routing_policy(EpochParams, first_epoch, reads_prefix_index=True, keeps_own_index=True)
def epoch_adaptive(
    params: EpochParams, state: EpochState, context: GatewayContext
) -> tuple[jax.Array, EpochState]:
    """The best instance by affinity and load, whose weights follow the share of rejected requests."""
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

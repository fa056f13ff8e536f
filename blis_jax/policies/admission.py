"""Admission policies: whether a request is let in.

Source: BLIS `sim/admission.go`; of the routing track: `sim/admission_slo.go` and `admission_predictive.go` of its pull
request 447.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from blis_jax.core.exact import exact_product, exact_quotient
from blis_jax.core.pytrees import pytree
from blis_jax.core.types import BACKGROUND, CRITICAL, STANDARD, STANDARD_NONE, Snapshots
from blis_jax.lazy import jax, jnp
from blis_jax.policies.classes import is_sheddable, of_class, ttft_budget
from blis_jax.policies.contexts import GatewayContext
from blis_jax.policies.contract import NoParams, NoState, admission_policy
from blis_jax.policies.numbers import FIXED, number
from blis_jax.policies.scorers import WrittenTimes

if TYPE_CHECKING:
    from jaxtyping import Array, Float, Int

    from blis_jax.core.types import EngineShape

Decision = tuple["jax.Array", Any]


@admission_policy()
def always_admit(params: NoParams, state: NoState, context: GatewayContext) -> Decision:
    """Admit everything."""
    return jnp.array(True), state


@admission_policy()
def reject_all(params: NoParams, state: NoState, context: GatewayContext) -> Decision:
    """Admit nothing."""
    return jnp.array(False), state


# --- by the rate of prompt tokens -----------------------------------------------------------------


@pytree
class TokenBucketParams:
    """Numbers of the token bucket."""

    capacity: Float[Array, ""] = number(
        10000.0, "tokens", "prompt tokens the bucket holds",
        low=0, excludes_low=True, setting="token_bucket_capacity",
    )  # fmt: skip
    refill_per_s: Float[Array, ""] = number(
        1000.0, "tokens/s", "prompt tokens per second",
        low=0, excludes_low=True, setting="token_bucket_refill_rate",
    )  # fmt: skip


@pytree
class TokenBucketState:
    """Level of the bucket when it was last touched."""

    tokens: Float[Array, ""]
    refilled_us: Float[Array, ""]


def full_bucket(params: TokenBucketParams, shape: EngineShape) -> TokenBucketState:
    """Return a full bucket."""
    return TokenBucketState(params.capacity, jnp.zeros((), jnp.float64))


@admission_policy(TokenBucketParams, full_bucket)
def token_bucket(
    params: TokenBucketParams, state: TokenBucketState, context: GatewayContext
) -> Decision:
    """Admit while the bucket holds the prompt's tokens; it refills by elapsed time at each decision."""
    now = context.now_us.astype(jnp.float64)
    elapsed = now - state.refilled_us
    refill = exact_quotient(elapsed * params.refill_per_s, jnp.float64(1e6))
    tokens = jnp.where(
        elapsed > 0, jnp.minimum(params.capacity, state.tokens + refill), state.tokens
    )
    cost = context.request.input_len.astype(jnp.float64)
    is_admitted = tokens >= cost
    return is_admitted, TokenBucketState(jnp.where(is_admitted, tokens - cost, tokens), now)


# --- classes that can wait are turned away while the cluster is loaded ----------------------------


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
    return is_kept | (mean_load(context.snapshots) <= params.load_threshold), state


def mean_load(snapshots: Snapshots) -> jax.Array:
    """Return the mean effective load of the active instances, in requests."""
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


# --- whether some instance is expected to make the first token within the class's budget ----------


INDEX_BLOCK = 16  # tokens of a block of the policy's own index, whatever the cluster's are


@pytree
class PredictiveParams(WrittenTimes):
    """Budgets by class and what the estimate is made of; BLIS has no options for them."""

    budget_standard_us: Float[Array, ""] = ttft_budget(500_000, "standard and unclassed")
    budget_sheddable_us: Float[Array, ""] = ttft_budget(300_000, "sheddable")
    budget_batch_us: Float[Array, ""] = ttft_budget(5_000_000, "batch")
    headroom: Float[Array, ""] = number(
        1.0, "", "factor on the budgets", low=0, search=(0.5, 3), setting=FIXED
    )
    wait_us: Float[Array, ""] = number(
        7000.0, "µs", "step that a waiting request waits for", low=0, setting=FIXED
    )
    places: Float[Array, ""] = number(
        8.0, "requests", "requests that an idle instance takes up in a step", low=1, setting=FIXED
    )


def least_expected_us(
    params: PredictiveParams, context: GatewayContext, matched: Int[Array, "instance"]
) -> jax.Array:
    """Return the expected time to first token on the best instance, in µs, if `matched` leading blocks of the prompt
    are cached there.
    """
    seen = context.snapshots
    free = jnp.maximum(params.places - seen.batch_size.astype(jnp.float64), 1.0)
    num_steps = jnp.ceil(exact_quotient(seen.queue_depth.astype(jnp.float64), free))
    to_compute = jnp.maximum(context.request.input_len - matched * INDEX_BLOCK, 0)
    prefill = params.step_us + exact_product(params.prefill_us, to_compute.astype(jnp.float64))
    expected = exact_product(num_steps, params.wait_us) + prefill
    return jnp.min(jnp.where(seen.is_active, expected, jnp.inf))


def is_admitted(
    params: PredictiveParams, context: GatewayContext, matched: Int[Array, "instance"]
) -> jax.Array:
    """Return whether the rule admits the request, if each instance caches `matched` leading blocks of the prompt.

    Critical requests, prompts of which no instance has a block, and background requests, which have no budget, are
    admitted whatever the load.
    """
    slo_class = context.request.slo_class
    budget = of_class(params, slo_class, "budget_{}_us", jnp.inf)
    is_known = jnp.any(context.snapshots.is_active & (matched > 0))
    is_free = (slo_class == CRITICAL) | (slo_class == BACKGROUND)
    limit = exact_product(budget, params.headroom)
    is_in_time = least_expected_us(params, context, matched) <= limit
    return is_free | ~is_known | is_in_time


@admission_policy(PredictiveParams)
def predictive_slo(
    params: PredictiveParams, state: NoState, context: GatewayContext
) -> tuple[jax.Array, Any]:
    """Admit what is expected to keep its class's budget; as its index stays empty in BLIS, everything is admitted.

    BLIS gives the policy an index of its own, apart from the router's, and nothing ever fills it. So no
    prompt is known, and the bypass for unknown prompts lets every request in.
    """
    never_filled = jnp.zeros_like(context.snapshots.queue_depth)
    return is_admitted(params, context, never_filled), state

"""A request is let in if some instance is expected to make its first token within its class's budget.

Source: `sim/admission_predictive.go` of BLIS's pull request 447.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from blis_jax.core.exact import exact_product, exact_quotient
from blis_jax.core.types import BACKGROUND, CRITICAL, pytree
from blis_jax.lazy import jax, jnp
from blis_jax.policies.classes import of_class, ttft_budget
from blis_jax.policies.contract import GatewayContext, NoState, admission_policy
from blis_jax.policies.numbers import FIXED, number

if TYPE_CHECKING:
    from jaxtyping import Array, Float, Int

INDEX_BLOCK = 16  # tokens of a block of the policy's own index, whatever the cluster's are


@pytree
class PredictiveParams:
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
    step_us: Float[Array, ""] = number(6910.42, "µs", "time of a step", low=0, setting=FIXED)
    prefill_us: Float[Array, ""] = number(
        17.67, "µs/token", "time that a prompt token adds to a step", low=0, setting=FIXED
    )
    places: Float[Array, ""] = number(
        8.0, "requests", "requests that an idle instance takes up in a step", low=1, setting=FIXED
    )


def least_expected_us(
    params: PredictiveParams, context: GatewayContext, matched: Int[Array, "instance"]
) -> jax.Array:
    """Expected time to first token on the best instance, with `matched` blocks of the prompt cached."""
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
    """The rule with an index that has `matched` leading blocks of the prompt for each instance.

    Critical requests, and prompts that no instance has any block of, are let in whatever the load; so is
    background, which has no budget.
    """
    slo_class = context.request.slo_class
    budget = of_class(
        slo_class,
        critical=jnp.inf,
        standard=params.budget_standard_us,
        sheddable=params.budget_sheddable_us,
        batch=params.budget_batch_us,
        background=jnp.inf,
    )
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

"""How much of its class's budget a request would have left.

Source: `sim/routing_scorers_adaptive.go` of BLIS's pull request 447.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from blis_jax.core.exact import exact_product, exact_quotient
from blis_jax.core.types import BACKGROUND, pytree
from blis_jax.lazy import jax, jnp
from blis_jax.policies.classes import of_class, ttft_budget
from blis_jax.policies.contract import GatewayContext, NoState, scorer
from blis_jax.policies.numbers import FIXED, number

if TYPE_CHECKING:
    from jaxtyping import Array, Float


@pytree
class HeadroomParams:
    """Budgets by class, and the latency coefficients that BLIS writes into the scorer."""

    budget_critical_us: Float[Array, ""] = ttft_budget(50_000, "critical")
    budget_standard_us: Float[Array, ""] = ttft_budget(200_000, "standard and unclassed")
    budget_sheddable_us: Float[Array, ""] = ttft_budget(500_000, "sheddable")
    budget_batch_us: Float[Array, ""] = ttft_budget(5_000_000, "batch")
    step_us: Float[Array, ""] = number(6910.42, "µs", "time of a step", low=0, setting=FIXED)
    prefill_us: Float[Array, ""] = number(
        17.67, "µs/token", "time that a prompt token adds to a step", low=0, setting=FIXED
    )
    tokens_ahead: Float[Array, ""] = number(
        256.0, "tokens", "prompt tokens of each request ahead", low=0, setting=FIXED
    )


@scorer(HeadroomParams)
def slo_headroom(
    params: HeadroomParams, state: NoState, context: GatewayContext
) -> tuple[jax.Array, Any]:
    """1 − expected time to first token ÷ budget of the class; background has no budget and scores 1."""
    slo_class, load = context.request.slo_class, context.snapshots.effective_load
    budget = of_class(
        slo_class,
        critical=params.budget_critical_us,
        standard=params.budget_standard_us,
        sheddable=params.budget_sheddable_us,
        batch=params.budget_batch_us,
        background=1.0,  # does not count
    )
    input_len = context.request.input_len.astype(jnp.float64)
    own = params.step_us + exact_product(params.prefill_us, input_len)
    ahead = params.step_us + exact_product(params.prefill_us, params.tokens_ahead)
    expected = exact_product(load.astype(jnp.float64), ahead) + own
    headroom = jnp.clip(1.0 - exact_quotient(expected, budget), 0.0, 1.0)
    return jnp.where(slo_class == BACKGROUND, jnp.float64(1.0), headroom), state

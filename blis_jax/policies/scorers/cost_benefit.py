"""What a cached prefix saves against what a longer queue costs.

Source: `sim/routing_scorers_adaptive.go` of BLIS's pull request 447.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from blis_jax.core.exact import exact_product, exact_quotient
from blis_jax.core.types import LAST, pytree
from blis_jax.lazy import jax, jnp
from blis_jax.policies.contract import GatewayContext, NoState, scorer
from blis_jax.policies.numbers import FIXED, number

if TYPE_CHECKING:
    from jaxtyping import Array, Float


@pytree
class CostBenefitParams:
    """Latency coefficients that BLIS writes into the scorer; those of the run do not count."""

    step_us: Float[Array, ""] = number(6910.42, "µs", "time of a step", low=0, setting=FIXED)
    prefill_us: Float[Array, ""] = number(
        17.67, "µs/token", "time that a prompt token adds to a step", low=0, setting=FIXED
    )
    decode_us: Float[Array, ""] = number(
        2.84, "µs/token", "time that a decoded token adds to a step", low=0, setting=FIXED
    )


@scorer(CostBenefitParams, reads_prefix_index=True, keeps_own_index=True)
def cost_benefit(
    params: CostBenefitParams, state: NoState, context: GatewayContext
) -> tuple[jax.Array, Any]:
    """Prefill time saved ÷ (saved + delay by load above the least); 0.5 where both are 0."""
    seen, input_len = context.snapshots, context.request.input_len
    cached = seen.prefix_match_blocks * context.block_size
    to_compute = jnp.maximum(input_len - cached, 0).astype(jnp.float64)
    whole = exact_product(params.prefill_us, input_len.astype(jnp.float64))
    saved = jnp.maximum(whole - exact_product(params.prefill_us, to_compute), 0.0)
    least = jnp.min(jnp.where(seen.is_active, seen.effective_load, LAST))
    above_least = (seen.effective_load - least).astype(jnp.float64)
    delay = exact_product(above_least, params.step_us + params.decode_us)
    both = saved + delay
    share = exact_quotient(saved, jnp.where(both > 0, both, 1.0))
    has_blocks = context.num_prompt_blocks > 0
    return jnp.where(has_blocks & (both > 0), share, jnp.float64(0.5)), state

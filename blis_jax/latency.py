"""Step-time models: how long an engine step takes, in float64 µs before truncation.

Each has the signature `(coefficients[3], StepTokens, infinity) -> float64`. Source: BLIS `sim/latency`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from blis_jax.exact import exact_product, truncate
from blis_jax.types import StepTokens

if TYPE_CHECKING:
    from jaxtyping import Array, Float, Int


def blackbox(beta: Float[Array, "3"], tokens: StepTokens, infinity: Any) -> jax.Array:
    """Constant plus a cost per prefill token plus a cost per decode token, added in that order."""
    prefill = exact_product(beta[1], tokens.num_prefill_tokens.astype(jnp.float64), infinity)
    decode = exact_product(beta[2], tokens.num_decode_tokens.astype(jnp.float64), infinity)
    return (beta[0] + prefill) + decode


def queueing_time(
    alpha: Float[Array, "*n 3"], input_len: Int[Array, "*n"], clock: Any, infinity: Any
) -> jax.Array:
    """Time from routing to the wait queue, µs in the clock's dtype."""
    per_token = exact_product(alpha[..., 1], input_len.astype(jnp.float64), infinity)
    return truncate(alpha[..., 0] + per_token, clock)


def output_time(alpha: Float[Array, "*n 3"], clock: Any) -> jax.Array:
    """Time to hand out one token, µs in the clock's dtype."""
    return truncate(alpha[..., 2], clock)

"""Step-time models: how long an engine step takes, in float64 µs before truncation.

Each has the signature `(coefficients, StepTokens) -> float64`. Source: BLIS `sim/latency`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp

from blis_jax.exact import exact_product
from blis_jax.types import StepTokens

if TYPE_CHECKING:
    from jaxtyping import Array, Float, Int


def blackbox(beta: Float[Array, "coefficient"], tokens: StepTokens) -> jax.Array:
    """Constant plus a cost per prefill token plus a cost per decode token, added in that order."""
    prefill = exact_product(beta[1], tokens.num_prefill_tokens.astype(jnp.float64))
    decode = exact_product(beta[2], tokens.num_decode_tokens.astype(jnp.float64))
    return (beta[0] + prefill) + decode


def blackbox_context(beta: Float[Array, "4"], tokens: StepTokens) -> jax.Array:
    """The blackbox plus a cost per token of context: what attention reads of the KV cache."""
    context = tokens.num_context_tokens.astype(jnp.float64)
    return blackbox(beta, tokens) + exact_product(beta[3], context)


def queueing_time(alpha: Float[Array, "*n 3"], input_len: Int[Array, "*n"]) -> jax.Array:
    """Time from routing to the wait queue, in float64 µs before truncation."""
    per_token = exact_product(alpha[..., 1], input_len.astype(jnp.float64))
    return alpha[..., 0] + per_token

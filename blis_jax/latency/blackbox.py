"""The linear model of BLIS: `stepTime` and `queueingTime` of its blackbox backend."""

from __future__ import annotations

from typing import TYPE_CHECKING

from blis_jax.core.exact import exact_product
from blis_jax.core.step_batch import StepBatch
from blis_jax.latency.contract import latency_model
from blis_jax.lazy import jax, jnp

if TYPE_CHECKING:
    from jaxtyping import Array, Float, Int


PER_BATCH = ("µs per step", "µs per prefill token", "µs per decode token")


@latency_model(PER_BATCH)
def blackbox(beta: Float[Array, "coefficient"], batch: StepBatch) -> jax.Array:
    """Constant plus a cost per prefill token plus a cost per decode token, added in that order."""
    prefill = exact_product(beta[1], batch.num_prefill_tokens.astype(jnp.float64))
    decode = exact_product(beta[2], batch.num_decode_tokens.astype(jnp.float64))
    return (beta[0] + prefill) + decode


def queueing_time(alpha: Float[Array, "*n 3"], input_len: Int[Array, "*n"]) -> jax.Array:
    """Time from routing to the wait queue, in float64 µs before truncation."""
    per_token = exact_product(alpha[..., 1], input_len.astype(jnp.float64))
    return alpha[..., 0] + per_token

"""The blackbox models: BLIS's linear law, the law with the quadratic attention of prompts, and ours with context."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from blis_jax.core.exact import exact_product
from blis_jax.core.views import StepBatch
from blis_jax.latency.contract import latency_model
from blis_jax.lazy import jax, jnp

if TYPE_CHECKING:
    from jaxtyping import Array, Float, Int


PER_BATCH = ("µs per step", "µs per prefill token", "µs per decode token")


@latency_model(PER_BATCH)
def blackbox(beta: Float[Array, "coefficient"], batch: StepBatch) -> jax.Array:
    """Add a constant, a cost per prefill token and a cost per decode token, in that order."""
    prefill = exact_product(beta[1], batch.num_prefill_tokens.astype(jnp.float64))
    decode = exact_product(beta[2], batch.num_decode_tokens.astype(jnp.float64))
    return (beta[0] + prefill) + decode


def queueing_time(alpha: Float[Array, "*n 3"], input_len: Int[Array, "..."]) -> jax.Array:
    """Return the time from routing to the wait queue, in float64 µs before truncation."""
    per_token = exact_product(alpha[..., 1], input_len.astype(jnp.float64))
    return alpha[..., 0] + per_token


# --- the blackbox with the quadratic attention of prompts -----------------------------------------


@latency_model(
    (*PER_BATCH, "µs per product of new tokens and context of a request in prefill"),
    needs_members=True,
)
def blackbox_attention(beta: Float[Array, "4"], batch: StepBatch) -> jax.Array:
    """Return the blackbox plus a cost per product of new tokens and context, summed over members in prefill.

    The context is progress plus new tokens. Progress is BLIS's: 0 in the step that schedules a
    request, so a cached prefix counts from its second chunk on.
    """
    members = batch.members
    assert members is not None
    new = jnp.where(members.in_prefill, members.new_tokens, 0).astype(jnp.int64)
    product = jnp.sum(new * (members.progress.astype(jnp.int64) + new), dtype=jnp.int64)
    return blackbox.step_time(beta, batch) + exact_product(beta[3], product.astype(jnp.float64))


# --- the blackbox with what attention reads; ours, BLIS has no such term --------------------------


def _context_steps(beta: Float[Array, "4"], batch: StepBatch) -> Callable[[jax.Array], jax.Array]:
    assert batch.members is not None
    time, context = blackbox.step_time(beta, batch), _context_before(batch)
    count = jnp.sum(batch.members.in_decode, dtype=jnp.int32)
    return lambda steps: (
        time + exact_product(beta[3], (context + steps * count).astype(jnp.float64))
    )


@latency_model(
    (*PER_BATCH, "µs per token of context in the batch"),
    needs_members=True,
    has_equal_decode_steps=False,
    decode_steps=_context_steps,
)
def blackbox_context(beta: Float[Array, "4"], batch: StepBatch) -> jax.Array:
    """Return the blackbox plus a cost per token of context that the whole batch had before the step.

    The context is what members hold when the step ends less what the step counts.
    """
    context = _context_before(batch).astype(jnp.float64)
    return blackbox.step_time(beta, batch) + exact_product(beta[3], context)


def _context_before(batch: StepBatch) -> jax.Array:
    assert batch.members is not None
    after = jnp.sum(batch.members.context, dtype=jnp.int32)
    return after - batch.num_prefill_tokens - batch.num_decode_tokens

"""The blackbox with what attention reads; ours, BLIS has no such term."""

from __future__ import annotations

from typing import TYPE_CHECKING

from blis_jax.core.exact import exact_product
from blis_jax.core.step_batch import StepBatch
from blis_jax.latency.blackbox import PER_BATCH, blackbox
from blis_jax.latency.contract import latency_model
from blis_jax.lazy import jax, jnp

if TYPE_CHECKING:
    from jaxtyping import Array, Float


@latency_model(
    (*PER_BATCH, "µs per token of context in the batch"),
    needs_members=True,
    has_equal_decode_steps=False,
)
def blackbox_context(beta: Float[Array, "4"], batch: StepBatch) -> jax.Array:
    """The blackbox plus a cost per token of context that the whole batch had before the step.

    The context is what members hold when the step ends less what the step counts.
    """
    assert batch.members is not None
    after = jnp.sum(batch.members.context, dtype=jnp.int32)
    before = after - batch.num_prefill_tokens - batch.num_decode_tokens
    return blackbox.step_time(beta, batch) + exact_product(beta[3], before.astype(jnp.float64))

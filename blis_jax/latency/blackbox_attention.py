"""The blackbox with the quadratic attention of prompts, as in BLIS's revision of the routing track."""

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
    (*PER_BATCH, "µs per product of new tokens and context of a request in prefill"),
    needs_members=True,
)
def blackbox_attention(beta: Float[Array, "4"], batch: StepBatch) -> jax.Array:
    """The blackbox plus a cost per product of new tokens and context, summed over members in prefill.

    The context is progress plus new tokens. Progress is BLIS's: 0 in the step that schedules a
    request, so a cached prefix counts from its second chunk on.
    """
    members = batch.members
    assert members is not None
    new = jnp.where(members.in_prefill, members.new_tokens, 0).astype(jnp.int64)
    product = jnp.sum(new * (members.progress.astype(jnp.int64) + new), dtype=jnp.int64)
    return blackbox.step_time(beta, batch) + exact_product(beta[3], product.astype(jnp.float64))

"""How long every instance would take to compute one prompt alone: what a gateway knows of its instances' hardware."""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp

from blis_jax.core.exact import exact_product
from blis_jax.core.step_batch import Members, StepBatch
from blis_jax.engine.context import Context

if TYPE_CHECKING:
    from jaxtyping import Array, Float, Int

    from blis_jax.core.types import RequestView


def prompt_times(ctx: Context, request: RequestView) -> Float[Array, "instance"]:
    """µs of the steps that compute the prompt in chunks of the instance, with nothing else in the batch.

    An estimate: no block of the prompt is cached, and every chunk is timed as if it were the first.
    """
    cluster, rows = ctx.params.cluster, ctx.shape.num_instances
    budget = cluster.max_num_scheduled_tokens[:rows]
    threshold = cluster.prefill_threshold[:rows, request.slo_class]
    chunk = jnp.where(threshold > 0, jnp.minimum(threshold, budget), budget)
    tokens = jnp.minimum(jnp.maximum(request.input_len, 1), chunk)
    whole = jnp.floor_divide(jnp.maximum(request.input_len, 1) - 1, tokens)
    rest = request.input_len - whole * tokens
    beta = cluster.beta[:rows]

    def times(count: Int[Array, "instance"]) -> Float[Array, "instance"]:
        return jax.vmap(lambda own, one: _step_time(ctx, own, one, request.input_len))(beta, count)

    return exact_product(whole.astype(jnp.float64), times(tokens)) + times(rest)


def _step_time(ctx: Context, beta: jax.Array, tokens: jax.Array, input_len: jax.Array) -> jax.Array:
    """A step of one member, the first of its prefill."""
    model, zero = ctx.mechanism.latency, jnp.zeros((1,), jnp.int32)
    members = None
    if model.needs_members:
        new, is_it = tokens[None], jnp.ones((1,), bool)
        members = Members(is_it, new, zero, new, is_it, ~is_it, input_len[None], zero)
    return model.step_time(beta, StepBatch(tokens, jnp.int32(0), members))

"""The batch of a step by request, for latency models that ask for it."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from blis_jax.core.columns import together
from blis_jax.core.step_batch import Members
from blis_jax.core.types import LAST
from blis_jax.engine.context import Context, SlotRows
from blis_jax.engine.phases.steps.mid_step import Work
from blis_jax.engine.state import Past, State
from blis_jax.engine.tables.slot_write import SlotWrite


def members_of(
    ctx: Context, state: State, work: Work, instance: jax.Array, written: SlotWrite
) -> Members:
    """The members of the batch when its step has been formed.

    `written` was served in this scan step and its rows are not in the tables yet.
    """
    slots = SlotRows(state, instance)
    number = lax.iota(jnp.int32, ctx.shape.num_slots)
    is_written = (number == written.slot) & (written.instance == instance)
    request = slots.request
    spare = jnp.int32(ctx.shape.num_requests)
    rows = state.dyn[jnp.where(request < 0, spare, request)]
    past = Past(jnp.where(is_written[:, None], together(written.past.numbers)[None, :], rows))

    index = work.inst.step_index + 1
    order = jnp.where(is_written, written.row.order, slots.order)
    is_member = order != LAST
    has_token = jnp.where(is_written, written.row.finish, slots.finish) != LAST
    decoded = jnp.where(has_token, index - past.token_index, 0)
    in_decode = is_member & (decoded > 0)
    in_prefill = is_member & ~in_decode
    context = jnp.where(is_member, past.progress + decoded, 0)
    before = past.step_progress
    new = past.num_new
    if not ctx.mechanism.defects.stale_token_counts:  # a member passed over counts nothing
        new = jnp.where(past.progress == before, 0, new)
    new = jnp.where(in_prefill, new, in_decode.astype(jnp.int32))
    if ctx.mechanism.rules.passes_over:
        new = jnp.where(past.lag == index, 0, new)
    return Members(
        in_prefill=in_prefill,
        new_tokens=new,
        progress=jnp.where(in_prefill, before, jnp.where(in_decode, context - 1, 0)),
        context=context,
        in_step=new > 0,
        in_decode=in_decode & (new > 0),
        input_len=jnp.where(is_member, slots.input_len, 0),
        order=order,
    )


def decoding_alike(ctx: Context) -> Members:
    """Stands for the members of a batch that only decodes, where all such steps take the same time."""
    nothing = jnp.zeros((ctx.shape.num_slots,), jnp.int32)
    no_one = nothing.astype(bool)
    return Members(
        in_prefill=no_one,
        new_tokens=nothing,
        progress=nothing,
        context=nothing,
        in_step=no_one,
        in_decode=no_one,
        input_len=nothing,
        order=nothing,
    )

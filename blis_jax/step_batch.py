"""The batch of a step by request, for latency models that ask for it."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from blis_jax.columns import get, together
from blis_jax.context import Context, SlotRows
from blis_jax.slot_write import SlotWrite
from blis_jax.state import Dyn, Inst, Slot, State
from blis_jax.types import LAST, Members
from blis_jax.work import Work


def members_of(
    ctx: Context, state: State, work: Work, instance: jax.Array, written: SlotWrite
) -> Members:
    """The members of the batch when its step has been formed.

    `written` was served in this scan step and its rows are not in the tables yet.
    """
    slots = SlotRows(state, instance)
    number = lax.iota(jnp.int32, ctx.shape.num_slots)
    is_written = (number == written.slot) & (written.instance == instance)
    request = slots.column(Slot.REQUEST)
    spare = jnp.int32(ctx.shape.num_requests)
    dyn = state.dyn[jnp.where(request < 0, spare, request)]
    dyn = jnp.where(is_written[:, None], together(written.dyn)[None, :], dyn)

    def column(name: Slot) -> jax.Array:
        return jnp.where(is_written, get(written.row, name), slots.column(name))

    index = get(work.inst, Inst.STEP_INDEX) + 1
    is_member = column(Slot.ORDER) != LAST
    has_token = column(Slot.FINISH) != LAST
    decoded = jnp.where(has_token, index - dyn[:, Dyn.TOKEN_INDEX], 0)
    in_decode = is_member & (decoded > 0)
    in_prefill = is_member & ~in_decode
    context = jnp.where(is_member, dyn[:, Dyn.PROGRESS] + decoded, 0)
    before = dyn[:, Dyn.STEP_PROGRESS]
    new = dyn[:, Dyn.NUM_NEW]
    if not ctx.mechanism.defects.stale_token_counts:  # a member passed over counts nothing
        new = jnp.where(dyn[:, Dyn.PROGRESS] == before, 0, new)
    return Members(
        in_prefill=in_prefill,
        new_tokens=jnp.where(in_prefill, new, in_decode.astype(jnp.int32)),
        progress=jnp.where(in_prefill, before, jnp.where(in_decode, context - 1, 0)),
        context=context,
    )


def decoding_alike(ctx: Context) -> Members:
    """Stands for the members of a batch that only decodes, where all such steps take the same time."""
    nothing = jnp.zeros((ctx.shape.num_slots,), jnp.int32)
    return Members(nothing.astype(bool), nothing, nothing, nothing)

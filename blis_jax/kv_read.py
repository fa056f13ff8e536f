"""How many tokens of KV cache the attention of a step reads, for step-time models that ask for it."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from blis_jax.columns import get, together
from blis_jax.context import Context, SlotRows
from blis_jax.slot_write import SlotWrite
from blis_jax.state import Dyn, Inst, Reg, Slot, State
from blis_jax.types import LAST
from blis_jax.work import Work


def context_tokens(
    ctx: Context, state: State, work: Work, instance: jax.Array, written: SlotWrite
) -> jax.Array:
    """Tokens that the members of the batch have computed, or found cached, before the step in progress.

    They are the tokens at the step's end less those that the step counts. `written` was served in this
    scan step and its rows are not in the tables yet.
    """
    slots, registers = SlotRows(state, instance), work.registers
    number = lax.iota(jnp.int32, ctx.shape.num_slots)
    is_written = (number == written.slot) & (written.instance == instance)
    request = slots.column(Slot.REQUEST)
    spare = jnp.int32(ctx.shape.num_requests)
    dyn = state.dyn[jnp.where(request < 0, spare, request)]
    dyn = jnp.where(is_written[:, None], together(written.dyn)[None, :], dyn)

    def column(name: Slot) -> jax.Array:
        return jnp.where(is_written, get(written.row, name), slots.column(name))

    index = get(work.inst, Inst.STEP_INDEX) + 1
    has_token = column(Slot.FINISH) != LAST
    decoded = jnp.where(has_token, index - dyn[:, Dyn.TOKEN_INDEX], 0)
    is_member = column(Slot.ORDER) != LAST
    after = jnp.sum(jnp.where(is_member, dyn[:, Dyn.PROGRESS] + decoded, 0), dtype=jnp.int32)
    return after - get(registers, Reg.PREFILL_TOKENS) - get(registers, Reg.DECODE_TOKENS)

"""Completion of a request when memory is modelled block by block."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from blis_jax.block_subject import no_rows
from blis_jax.columns import as_int, get, put
from blis_jax.context import Context, SlotRows, least_key, row, slot_of
from blis_jax.kv_cache.allocation import Demand, attempt
from blis_jax.kv_cache.blocks import Asker, Do, Life, Task
from blis_jax.kv_cache.contents import nothing_found
from blis_jax.slot_write import SlotWrite, no_slot
from blis_jax.state import Dyn, Inst, Reg, Req, Slot, State
from blis_jax.work import Work


def complete_blocks(
    ctx: Context, state: State, work: Work, instance: jax.Array
) -> tuple[Work, SlotWrite]:
    """Complete the first done member in batch order: room for its last token, then its list is released.

    Nothing is written where only the allocation is attempted again.
    """
    blocks, task = state.blocks, work.task
    assert blocks is not None
    slots, inst, registers = SlotRows(state, instance), work.inst, work.registers
    is_forced = get(task, Task.DO) == Do.ATTEMPT
    index = get(inst, Inst.STEP_INDEX)
    is_done = slots.column(Slot.FINISH) == index
    slot = slot_of(least_key(is_done, slots.column(Slot.ORDER)))
    slot = jnp.where(is_forced, get(task, Task.SLOT), slot)
    slot = jnp.minimum(slot, jnp.int32(ctx.shape.num_slots - 1))
    slot_row, _ = slots.one(ctx, slot)
    request = jnp.where(is_forced, get(task, Task.REQUEST), get(slot_row, Slot.REQUEST))
    fixed, life = row(ctx.requests.table, request), row(blocks.life, request)
    held = jnp.where(is_forced, get(task, Task.HELD), index + get(slot_row, Slot.ALLOC_OFFSET))
    start = jnp.where(is_forced, get(task, Task.START), blocks.computed[instance, slot] + index)
    demand = Demand(
        asker=jnp.int32(Asker.COMPLETION),
        slot=slot,
        request=request,
        held=held,
        start=start,
        tokens=jnp.minimum(get(fixed, Req.OUTPUT_LEN), 1),
        in_prefill=jnp.array(False),
        is_clean=get(life, Life.IS_CLEAN) == 1,
        is_retry=is_forced,
        found=nothing_found(),
        is_old=jnp.array(False),
        beyond=jnp.array(False),
    )
    grant = attempt(ctx, work, instance, demand)
    leaves = 1 - as_int(is_forced)
    changes = {Reg.NUM_TO_COMPLETE: get(registers, Reg.NUM_TO_COMPLETE) - leaves}
    inst_changes = {
        Inst.LOAD: get(inst, Inst.LOAD) - leaves,
        Inst.NUM_DECODE: get(inst, Inst.NUM_DECODE) - leaves,
    }
    work = dataclasses.replace(
        work,
        registers=put(registers, changes),
        inst=put(inst, inst_changes),
        task=put(task, grant.task),
    )
    past = ctx.vector(row(state.dyn, request))
    dyn = put(past, {Dyn.FINISH_RECORD: get(registers, Reg.NUM_RECORDS)})
    spare = jnp.int32(ctx.shape.num_instances)
    rows = dataclasses.replace(no_rows(ctx), life=life, left=request)
    return work, dataclasses.replace(
        no_slot(ctx),
        instance=jnp.where(is_forced, spare, instance),
        slot=slot,
        blocks=rows,
        request=request,
        dyn=dyn,
    )

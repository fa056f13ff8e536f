"""Completion of a request when memory is modelled block by block."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from blis_jax.block_subject import no_rows
from blis_jax.columns import as_int
from blis_jax.context import Context, SlotRows, least_key, row, slot_of
from blis_jax.kv_cache.allocation import Demand, attempt
from blis_jax.kv_cache.blocks import Asker, BlockLife, Do
from blis_jax.kv_cache.contents import nothing_found
from blis_jax.slot_write import SlotWrite, no_slot
from blis_jax.state import State
from blis_jax.work import Work


def complete_blocks(
    ctx: Context, state: State, work: Work, instance: jax.Array
) -> tuple[Work, SlotWrite]:
    """Complete the first done member in batch order: room for its last token, then its list is released.

    Nothing is written where only the allocation is attempted again.
    """
    blocks, task = state.blocks, work.task
    assert blocks is not None
    slots, inst, lane = SlotRows(state, instance), work.inst, work.lane
    is_forced = task.do == Do.ATTEMPT
    index = inst.step_index
    is_done = slots.finish == index
    slot = slot_of(least_key(is_done, slots.order))
    slot = jnp.where(is_forced, task.slot, slot)
    slot = jnp.minimum(slot, jnp.int32(ctx.shape.num_slots - 1))
    slot_row = slots.one(ctx, slot)
    request = jnp.where(is_forced, task.request, slot_row.request)
    fixed, life = ctx.request(request), BlockLife(row(blocks.life, request))
    held = jnp.where(is_forced, task.held, index + slot_row.alloc_offset)
    start = jnp.where(is_forced, task.start, blocks.computed[instance, slot] + index)
    demand = Demand(
        asker=jnp.int32(Asker.COMPLETION),
        slot=slot,
        request=request,
        held=held,
        start=start,
        tokens=jnp.minimum(fixed.output_len, 1),
        in_prefill=jnp.array(False),
        is_clean=life.is_clean == 1,
        is_retry=is_forced,
        found=nothing_found(),
        is_old=jnp.array(False),
        beyond=jnp.array(False),
    )
    grant = attempt(ctx, work, instance, demand)
    leaves = 1 - as_int(is_forced)
    work = dataclasses.replace(
        work,
        lane=lane.replace(num_to_complete=lane.num_to_complete - leaves),
        inst=inst.replace(
            load=inst.load - leaves,
            num_decode=inst.num_decode - leaves,
        ),
        task=task.replace(**grant.task),
    )
    past = ctx.past(state, request).replace(finish_record=lane.num_records)
    spare = jnp.int32(ctx.shape.num_instances)
    rows = dataclasses.replace(no_rows(ctx), life=life, left=request)
    return work, dataclasses.replace(
        no_slot(ctx),
        instance=jnp.where(is_forced, spare, instance),
        slot=slot,
        blocks=rows,
        request=request,
        past=past,
    )

"""Serving one request when memory is modelled block by block.

The same visit as in `batch_formation.py`, but blocks may be missing: then content is reloaded, a request is
evicted and the visit repeated, or admission ends. Members that only store one more token in their last block
are not visited unless the budget might not reach them.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from blis_jax.batch_formation import chunk_of, member_key, queue_key, queue_priority
from blis_jax.block_records import recorded
from blis_jax.block_subject import Given, Subject, is_due, subject_of
from blis_jax.columns import as_int, get, put
from blis_jax.context import Context, SlotRows, slot_of
from blis_jax.kv_cache.allocation import Demand, Grant, attempt
from blis_jax.kv_cache.blocks import Asker, Blocks, Do, Life, Task
from blis_jax.kv_cache.contents import found_blocks, nothing_found
from blis_jax.slot_write import SlotWrite
from blis_jax.state import Dyn, Inst, Reg, Req, Slot, State
from blis_jax.types import LAST, Outcome
from blis_jax.work import Work, failing


def _choose(
    ctx: Context, state: State, work: Work, instance: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Who is visited next, as (asker, slot, priority)."""
    blocks = state.blocks
    assert blocks is not None
    slots, task, registers = SlotRows(state, instance), work.task, work.registers
    index = get(work.inst, Inst.STEP_INDEX)
    is_forced = get(task, Task.DO) == Do.ATTEMPT
    is_member = get(registers, Reg.NUM_TO_VISIT) > 0
    is_ghost = ~is_member & (get(task, Task.NUM_GHOSTS) > 0)

    def from_batch() -> tuple[jax.Array, jax.Array]:
        due = is_due(ctx, slots, index)
        return slot_of(member_key(slots, registers, due)), jnp.float64(0.0)

    def from_queue() -> tuple[jax.Array, jax.Array]:
        priority = queue_priority(ctx, slots, work)
        slot = slot_of(queue_key(ctx, slots, work, priority))
        slot = jnp.minimum(slot, jnp.int32(ctx.shape.num_slots - 1))
        return slot, priority[slot].astype(jnp.float64)

    slot, priority = ctx.when(is_member | is_ghost | is_forced, from_batch, from_queue)
    top = jnp.maximum(get(task, Task.NUM_GHOSTS) - 1, 0)
    slot = jnp.where(is_ghost, blocks.ghosts[top], slot)
    slot = jnp.where(is_forced, get(task, Task.SLOT), slot)
    slot = jnp.minimum(slot, jnp.int32(ctx.shape.num_slots - 1))
    asker = jnp.where(is_ghost, jnp.int32(Asker.GHOST), jnp.int32(Asker.QUEUE))
    asker = jnp.where(is_member, jnp.int32(Asker.MEMBER), asker)
    return jnp.where(is_forced, get(task, Task.ASKER), asker), slot, priority


def serve(ctx: Context, state: State, work: Work, instance: jax.Array) -> tuple[Work, SlotWrite]:
    """Serve the next candidate, or the one whose allocation failed before."""
    blocks = state.blocks
    assert blocks is not None
    asker, slot, priority = _choose(ctx, state, work, instance)
    one = subject_of(ctx, state, work, instance, slot, asker, priority)
    computed = blocks.computed[instance, slot]
    is_served = one.is_forced | (get(work.registers, Reg.BUDGET) > 0)
    demand, asked = _demand(ctx, blocks, work, instance, one, computed)
    is_idle = one.in_decode & (get(one.fixed, Req.OUTPUT_LEN) == 0)
    grant = attempt(ctx, work, instance, demand)
    asks = is_served & ~is_idle
    given = Given(
        asks=asks,
        is_granted=grant.is_granted | ~asks,
        is_idle=is_idle,
        tokens=jnp.where(asks, asked[Task.ASKED_TOKENS], 0),
        cached=asked[Task.ASKED_START] // ctx.shape.block_size,
        computed=computed,
    )
    is_popped = (asker == Asker.GHOST) & ~one.is_forced
    work = dataclasses.replace(work, task=_task_after(work.task, grant, asked, asks, is_popped))
    work, written = recorded(ctx, one, _counted(ctx, work, one, grant, given), grant, given)
    rows, is_admitted = written.blocks, one.is_queued & given.is_granted
    assert rows is not None
    stored = _stored_priority(ctx, blocks, instance, slot)
    rows = dataclasses.replace(rows, priority=jnp.where(is_admitted, priority, stored))
    return work, dataclasses.replace(written, instance=instance, blocks=rows)


def _stored_priority(
    ctx: Context, blocks: Blocks, instance: jax.Array, slot: jax.Array
) -> jax.Array:
    if not ctx.mechanism.evicts_lowest_priority:
        return jnp.float64(0.0)
    return blocks.priority[instance, slot]


def _demand(
    ctx: Context,
    blocks: Blocks,
    work: Work,
    instance: jax.Array,
    one: Subject,
    computed: jax.Array,
) -> tuple[Demand, dict[Any, jax.Array]]:
    """What the visited request asks for, now and when it was visited first."""
    size, task = jnp.int32(ctx.shape.block_size), work.task
    input_len = get(one.fixed, Req.INPUT_LEN)
    request = get(one.slot_row, Slot.REQUEST)
    is_retry = one.is_forced & (get(task, Task.IS_RETRY) == 1)
    where = (ctx, blocks, instance, one.slot, request)
    now = ctx.when(
        one.is_queued | is_retry,
        lambda: found_blocks(*where, lax.div(input_len, size), jnp.array(False)),
        nothing_found,
    )
    count = now.count
    steps = one.step - 1
    first = get(one.dyn, Dyn.STEP_PROGRESS)
    progress = jnp.where(one.is_again, first, computed)
    progress = jnp.where(one.in_decode, computed + steps, progress)
    start = jnp.where(one.is_queued, count * size, progress)
    chunk = chunk_of(ctx, get(work.registers, Reg.BUDGET), one.fixed, start, instance)
    chunk = jnp.where(one.in_decode, 1, chunk)
    hits = jnp.where(one.is_queued, count, 0)
    start = jnp.where(one.is_forced, get(task, Task.ASKED_START), start)
    chunk = jnp.where(one.is_forced, get(task, Task.ASKED_TOKENS), chunk)
    hits = jnp.where(one.is_forced, get(task, Task.ASKED_HITS), hits)
    asked = {Task.ASKED_START: start, Task.ASKED_TOKENS: chunk, Task.ASKED_HITS: hits}
    finds_more = is_retry & (count * size > start)
    # the blocks found first are kept, whatever the reload made of them
    is_old, end = is_retry & ~finds_more, start + chunk
    found = ctx.when(is_old, lambda: found_blocks(*where, hits, jnp.array(True)), lambda: now)
    demand = Demand(
        asker=one.asker,
        slot=one.slot,
        request=request,
        held=one.held(),
        start=jnp.where(finds_more, count * size, start),
        tokens=jnp.where(finds_more, end - count * size, chunk),
        in_prefill=~one.in_decode,
        is_clean=get(one.life, Life.IS_CLEAN) == 1,
        is_retry=is_retry,
        found=found,
        is_old=is_old,
        beyond=one.in_decode & (start - input_len >= get(one.fixed, Req.OUTPUT_LEN)),
    )
    return demand, asked


def _task_after(
    task: jax.Array,
    grant: Grant,
    asked: dict[Any, jax.Array],
    asks: jax.Array,
    is_popped: jax.Array,
) -> jax.Array:
    """The task after the visit."""
    kept = put(task, {Task.NUM_GHOSTS: get(task, Task.NUM_GHOSTS) - as_int(is_popped)})
    return jnp.where(asks, put(kept, grant.task | asked), kept)


def _counted(ctx: Context, work: Work, one: Subject, grant: Grant, given: Given) -> Work:
    """The step's counters after the visit; a request counts with the tokens of its last visit."""
    registers, asks, is_granted = work.registers, given.asks, given.is_granted
    counts = is_granted & (one.in_batch | one.is_queued) & ~given.is_idle
    before = jnp.where(one.is_again & one.in_batch, get(one.dyn, Dyn.NUM_NEW), 0)
    now = jnp.where(asks, given.tokens, stale_tokens(ctx, one))
    change = jnp.where(counts, now - before, 0)
    is_member = (one.asker == Asker.MEMBER) & ~one.is_forced
    outcome = failing(get(registers, Reg.OUTCOME), asks & grant.crashes, Outcome.REFERENCE_CRASH)
    joins = one.is_queued & is_granted
    cursor = jnp.where(is_member, get(one.slot_row, Slot.ORDER), get(registers, Reg.CURSOR))
    cursor = jnp.where(one.asker == Asker.GHOST, jnp.int32(LAST), cursor)
    changes = {
        Reg.OUTCOME: outcome,
        Reg.CURSOR: cursor,
        Reg.NUM_TO_VISIT: get(registers, Reg.NUM_TO_VISIT) - as_int(is_member),
        Reg.BUDGET: get(registers, Reg.BUDGET) - jnp.where(is_granted, given.tokens, 0),
        Reg.PREFILL_TOKENS: get(registers, Reg.PREFILL_TOKENS)
        + jnp.where(one.in_decode, 0, change),
        Reg.DECODE_TOKENS: get(registers, Reg.DECODE_TOKENS) + jnp.where(one.in_decode, change, 0),
        Reg.NUM_WAITING: get(registers, Reg.NUM_WAITING) - as_int(joins),
        Reg.NUM_SCHEDULED: get(registers, Reg.NUM_SCHEDULED) + as_int(joins),
    }
    return dataclasses.replace(work, registers=put(registers, changes))


def stale_tokens(ctx: Context, one: Subject) -> jax.Array:
    """Tokens with which a request counts that the budget did not reach: those of its last visit."""
    if not ctx.mechanism.defects.stale_token_counts:
        return jnp.int32(0)
    served = one.step - 1 - get(one.dyn, Dyn.TOKEN_INDEX) - get(one.dyn, Dyn.LAG)
    return jnp.where(one.in_decode & (served > 0), 1, get(one.dyn, Dyn.NUM_NEW))

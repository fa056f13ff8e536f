"""When no blocks are left: which running request is evicted, and what an eviction changes.

The reference goes on over the batch as it was when the step began. So an evicted request is visited once more at its
old place, and where the last member took the victim's place, that member is visited at both. These
ghosts lie behind all members, and the last one made comes first.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from blis_jax.block_service import Served
from blis_jax.block_subject import BlockRows, Subject, is_due, no_rows, subject_of
from blis_jax.columns import as_int, build, get, put
from blis_jax.context import Context, SlotRows, least_key, slot_of
from blis_jax.kv_cache.allocation import after_release
from blis_jax.kv_cache.blocks import Asker, Blocks, Do, Eviction, Life, Pool, Task
from blis_jax.state import Dyn, Inst, Reg, Slot, SlotTime, State
from blis_jax.types import LAST, Outcome
from blis_jax.work import Work, ceil_div, count_of, failing

LATER = 2  # Reg.VISIT_ALL: members are visited one by one since an eviction in this step


def give_up(ctx: Context, state: State, work: Work, instance: jax.Array) -> Served:
    """An allocation failed for good: evict a request, stop admitting, or let a completion do without."""
    task = work.task
    asker = get(task, Task.ASKER)
    is_queue, is_completion = asker == Asker.QUEUE, asker == Asker.COMPLETION
    members = get(work.inst, Inst.NUM_PREFILL) + get(work.inst, Inst.NUM_DECODE)
    evicts = ~is_queue & ~is_completion & (members > 0)
    evicted = _evict(ctx, state, work, instance)
    blocked = put(work.registers, {Reg.BUDGET: jnp.int32(0)})
    ended = _end_of_visits(ctx, state, work, instance, jnp.int32(-1))
    registers = jnp.where(is_queue, blocked, ended)
    registers = jnp.where(is_completion, work.registers, registers)
    then = jnp.where(is_completion, jnp.int32(Do.RELEASE), jnp.int32(Do.NOTHING))
    changes = {
        Task.DO: then,
        Task.DONE: jnp.int32(0),
        Task.FREED_SLOT: get(task, Task.SLOT),
        Task.FREED_BLOCKS: ceil_div(get(task, Task.HELD), ctx.shape.block_size),
        Task.AFTER_RELEASE: after_release(ctx),
        Task.AFTER_OFFLOAD: jnp.int32(Do.NOTHING),
    }
    failures = get(work.pool, Pool.NUM_FAILURES) + as_int(is_completion)
    left = dataclasses.replace(
        work,
        registers=registers,
        task=put(task, changes),
        pool=put(work.pool, {Pool.NUM_FAILURES: failures}),
    )
    nothing = _untouched(ctx, state, left, instance)
    return jax.tree.map(lambda a, b: jnp.where(evicts, a, b), evicted, nothing)


def _untouched(ctx: Context, state: State, work: Work, instance: jax.Array) -> Served:
    """The slot at hand with its rows as they are."""
    slot = get(work.task, Task.SLOT)
    asker = get(work.task, Task.ASKER)
    one = subject_of(ctx, state, work, instance, slot, asker, jnp.float64(0.0))
    blocks = state.blocks
    assert blocks is not None
    rows = dataclasses.replace(
        no_rows(ctx),
        life=one.life,
        computed=blocks.computed[instance, slot],
        priority=_priorities(ctx, state, instance)[slot],
    )
    return Served(work, slot, one.slot_row, one.slot_time_row, one.dyn, rows)


def _priorities(ctx: Context, state: State, instance: jax.Array) -> jax.Array:
    assert state.blocks is not None
    if ctx.mechanism.evicts_lowest_priority:
        return state.blocks.priority[instance]
    return jnp.zeros((ctx.shape.num_slots,), jnp.float64)


def _victim(
    ctx: Context, state: State, slots: SlotRows, instance: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Slots of the victim and of the batch's last member."""
    order = slots.column(Slot.ORDER)
    is_member = order != LAST
    last = slot_of(least_key(is_member, jnp.int32(LAST) - order))
    last = jnp.minimum(last, jnp.int32(ctx.shape.num_slots - 1))
    if not ctx.mechanism.evicts_lowest_priority:
        return last, last
    priority = _priorities(ctx, state, instance)
    least = jnp.min(jnp.where(is_member, priority, jnp.inf))
    victim = slot_of(least_key(is_member & (priority == least), order))
    return jnp.minimum(victim, jnp.int32(ctx.shape.num_slots - 1)), last


def _is_counted_ahead(ctx: Context, slots: SlotRows, work: Work, gone: jax.Array) -> jax.Array:
    """Decode members `[slot]` behind the cursor's place that were counted without a visit."""
    index, registers = get(work.inst, Inst.STEP_INDEX), work.registers
    order, finish = slots.column(Slot.ORDER), slots.column(Slot.FINISH)
    is_ahead = (order > get(registers, Reg.CURSOR)) & (order <= get(registers, Reg.ORDER_LIMIT))
    is_bulk = (finish != LAST) & ~is_due(ctx, slots, index)
    is_gone = jnp.arange(ctx.shape.num_slots, dtype=jnp.int32) == gone
    return is_ahead & is_bulk & ~is_gone & (get(registers, Reg.VISIT_ALL) == 0)


def _num_ahead(
    ctx: Context, slots: SlotRows, work: Work, order: jax.Array, visit_all: jax.Array
) -> jax.Array:
    """Members still to be visited."""
    registers, finish = work.registers, slots.column(Slot.FINISH)
    is_ahead = (order > get(registers, Reg.CURSOR)) & (order <= get(registers, Reg.ORDER_LIMIT))
    due = is_due(ctx, slots, get(work.inst, Inst.STEP_INDEX))
    return count_of(is_ahead & ((finish == LAST) | visit_all | due))


def _end_of_visits(
    ctx: Context, state: State, work: Work, instance: jax.Array, gone: jax.Array
) -> jax.Array:
    """Registers once the step gives nobody anything any more: the rest of the batch is passed over."""
    slots, registers = SlotRows(state, instance), work.registers
    ahead = count_of(_is_counted_ahead(ctx, slots, work, gone))
    order = slots.column(Slot.ORDER)
    order = jnp.where(jnp.arange(order.shape[0], dtype=jnp.int32) == gone, LAST, order)
    return put(
        registers,
        {
            Reg.BUDGET: jnp.int32(0),
            Reg.VISIT_ALL: jnp.int32(1),
            Reg.DECODE_TOKENS: get(registers, Reg.DECODE_TOKENS) - ahead,
            Reg.NUM_TO_VISIT: _num_ahead(ctx, slots, work, order, jnp.array(True)),
        },
    )


def _evict(ctx: Context, state: State, work: Work, instance: jax.Array) -> Served:
    blocks, task = state.blocks, work.task
    assert blocks is not None
    slots = SlotRows(state, instance)
    victim, last = _victim(ctx, state, slots, instance)
    one = subject_of(ctx, state, work, instance, victim, jnp.int32(Asker.MEMBER), jnp.float64(0.0))
    order = slots.column(Slot.ORDER)
    is_moved = (victim != last) & ctx.mechanism.defects.revisited_victim
    is_self = victim == get(task, Task.SLOT)
    work = _without(ctx, slots, work, one, _is_pending(blocks, task, victim))
    work = _all_visited_from_now_on(ctx, slots, work, victim, is_moved)
    place = jnp.arange(order.shape[0], dtype=jnp.int32)
    order = jnp.where(is_moved & (place == last), order[victim], order)
    order = jnp.where(place == victim, LAST, order)
    visit_all = get(work.registers, Reg.VISIT_ALL) > 0
    ahead = _num_ahead(ctx, slots, work, order, visit_all)
    work = dataclasses.replace(work, registers=put(work.registers, {Reg.NUM_TO_VISIT: ahead}))
    ended = _end_of_visits(ctx, state, work, instance, victim)
    ended = put(ended, {Reg.NUM_TO_VISIT: _num_ahead(ctx, slots, work, order, jnp.array(True))})
    registers = jnp.where(is_self, ended, work.registers)
    makes_ghost = slots.column(Slot.ORDER)[last] > get(registers, Reg.CURSOR)
    makes_ghost = makes_ghost & ctx.mechanism.defects.revisited_victim
    ghosts = get(task, Task.NUM_GHOSTS)
    again = jnp.where(is_self, jnp.int32(Do.NOTHING), jnp.int32(Do.ATTEMPT))
    after = after_release(ctx)
    changes = {
        Task.DO: jnp.int32(Do.RELEASE),
        Task.DONE: jnp.int32(0),
        Task.IS_RETRY: jnp.int32(0),
        Task.FREED_SLOT: victim,
        Task.FREED_BLOCKS: ceil_div(one.held(), ctx.shape.block_size),
        Task.AFTER_RELEASE: jnp.where(after == Do.NOTHING, again, after),
        Task.AFTER_OFFLOAD: again,
        Task.NUM_GHOSTS: ghosts + as_int(makes_ghost),
        Task.HAS_PREEMPTED: jnp.int32(1),
    }
    count = state.blocks.num_evictions if state.blocks is not None else jnp.int32(0)
    is_full = count >= ctx.shape.eviction_capacity
    outcome = failing(get(registers, Reg.OUTCOME), is_full, Outcome.EVICTIONS_FULL)
    preempted = get(work.pool, Pool.NUM_PREEMPTED) + 1
    work = dataclasses.replace(
        work,
        registers=put(registers, {Reg.OUTCOME: outcome}),
        task=put(task, changes),
        pool=put(work.pool, {Pool.NUM_PREEMPTED: preempted}),
    )
    rows = _evicted_rows(ctx, state, work, one, instance)
    none = no_rows(ctx)
    rows = dataclasses.replace(
        rows,
        ghost_at=jnp.where(makes_ghost, ghosts, none.ghost_at),
        ghost=last,
        eviction_at=jnp.minimum(count, jnp.int32(ctx.shape.eviction_capacity)),
        moved_instance=jnp.where(is_moved, instance, none.moved_instance),
        moved_slot=last,
        moved_order=get(one.slot_row, Slot.ORDER),
    )
    slot_row, dyn = _evicted_slot(one)
    # in front of everybody: earlier than any time, and the later evicted the earlier
    queued = -preempted.astype(ctx.clock)
    time_row = put(one.slot_time_row, {SlotTime.QUEUED: queued})
    return Served(work, victim, slot_row, time_row, dyn, rows)


def _is_pending(blocks: Blocks, task: jax.Array, slot: jax.Array) -> jax.Array:
    """Whether a request is still to be visited at a place that it has left."""
    place = jnp.arange(blocks.ghosts.shape[0], dtype=jnp.int32)
    return jnp.any((blocks.ghosts == slot) & (place < get(task, Task.NUM_GHOSTS)))


def _without(
    ctx: Context, slots: SlotRows, work: Work, one: Subject, is_pending: jax.Array
) -> Work:
    """Counters of the step and the batch without the victim."""
    registers, inst = work.registers, work.inst
    is_visited = one.is_again
    tokens = jnp.where(is_visited, get(one.dyn, Dyn.NUM_NEW), 0)
    size_mask = _is_bulk(ctx, slots, work, one, is_pending)
    tokens = jnp.where(is_visited, tokens, as_int(size_mask))
    is_ahead = get(one.slot_row, Slot.ORDER) > get(registers, Reg.CURSOR)
    given_back = as_int(size_mask & ~is_visited & is_ahead)
    in_decode, has_finish = one.in_decode, get(one.slot_row, Slot.FINISH) != LAST
    changes = {
        Reg.PREFILL_TOKENS: get(registers, Reg.PREFILL_TOKENS) - jnp.where(in_decode, 0, tokens),
        Reg.DECODE_TOKENS: get(registers, Reg.DECODE_TOKENS) - jnp.where(in_decode, tokens, 0),
        Reg.BUDGET: get(registers, Reg.BUDGET) + given_back,
        Reg.NUM_DECODE: get(registers, Reg.NUM_DECODE) - as_int(in_decode),
        Reg.NUM_WAITING: get(registers, Reg.NUM_WAITING) + 1,
    }
    inst_changes = {
        Inst.NUM_PREFILL: get(inst, Inst.NUM_PREFILL) - as_int(~has_finish),
        Inst.NUM_DECODE: get(inst, Inst.NUM_DECODE) - as_int(has_finish),
    }
    return dataclasses.replace(
        work, registers=put(registers, changes), inst=put(inst, inst_changes)
    )


def _is_bulk(
    ctx: Context, slots: SlotRows, work: Work, one: Subject, is_pending: jax.Array
) -> jax.Array:
    """Whether the request was counted in decode without a visit: passed by, or all were counted ahead."""
    mode, cursor = get(work.registers, Reg.VISIT_ALL), get(work.registers, Reg.CURSOR)
    due = is_due(ctx, slots, get(work.inst, Inst.STEP_INDEX))[one.slot]
    is_passed = (get(one.slot_row, Slot.ORDER) <= cursor) & ~is_pending
    return one.in_decode & ~due & ((mode == 0) | ((mode == LATER) & is_passed))


def _all_visited_from_now_on(
    ctx: Context, slots: SlotRows, work: Work, victim: jax.Array, is_moved: jax.Array
) -> Work:
    """Once a member has changed places, every member that is left is visited by itself."""
    if not ctx.mechanism.evicts_lowest_priority:
        return work
    registers = work.registers
    ahead = count_of(_is_counted_ahead(ctx, slots, work, victim))
    changes = {
        Reg.BUDGET: get(registers, Reg.BUDGET) + ahead,
        Reg.DECODE_TOKENS: get(registers, Reg.DECODE_TOKENS) - ahead,
        Reg.VISIT_ALL: jnp.maximum(get(registers, Reg.VISIT_ALL), LATER),
    }
    changed = jnp.where(is_moved, put(registers, changes), registers)
    return dataclasses.replace(work, registers=changed)


def _evicted_slot(one: Subject) -> tuple[jax.Array, jax.Array]:
    """Rows of the victim's slot and of what it has been through."""
    changes = {
        Slot.ORDER: jnp.int32(LAST),
        Slot.FINISH: jnp.int32(LAST),
        Slot.ALLOC_OFFSET: jnp.int32(0),
    }
    dyn_changes: dict[Any, jax.Array] = {
        Dyn.PROGRESS: jnp.int32(0),
        Dyn.LAG: jnp.int32(0),
        Dyn.TOKEN_RECORD: _before(one, Dyn.TOKEN_RECORD, Life.OLD_TOKEN_RECORD),
        Dyn.TOKEN_INDEX: _before(one, Dyn.TOKEN_INDEX, Life.OLD_TOKEN_INDEX),
    }
    return put(one.slot_row, changes), put(one.dyn, dyn_changes)


def _before(one: Subject, now: Dyn, old: Life) -> jax.Array:
    """A value as it was before the step in progress, in which it may have been set too early."""
    return jnp.where(one.has_token, get(one.life, old), get(one.dyn, now))


def _evicted_rows(
    ctx: Context, state: State, work: Work, one: Subject, instance: jax.Array
) -> BlockRows:
    life = one.life
    first = jnp.where(one.has_token, get(life, Life.OLD_FIRST_TOKEN), get(life, Life.FIRST_TOKEN))
    life_changes = {
        Life.STEP_PROGRESS: jnp.int32(0),
        Life.VISITED_AT: one.step,
        Life.FIRST_TOKEN: first,
    }
    decode = jnp.where(one.in_decode, get(one.dyn, Dyn.TOKEN_RECORD) + 1, 0)
    eviction = {
        Eviction.REQUEST: get(one.slot_row, Slot.REQUEST),
        Eviction.RECORD: get(work.registers, Reg.NUM_RECORDS),
        Eviction.INDEX: one.step,
        Eviction.DECODE_RECORD: decode,
        Eviction.DECODE_INDEX: get(one.dyn, Dyn.TOKEN_INDEX),
        Eviction.FIRST_TOKEN: jnp.where(one.in_decode, first, 0),
        Eviction.SCHEDULED_RECORD: get(one.dyn, Dyn.SCHEDULED_RECORD),
    }
    return dataclasses.replace(
        no_rows(ctx),
        life=put(life, life_changes),
        priority=_priorities(ctx, state, instance)[one.slot],
        eviction=build(Eviction, eviction, jnp.int32),
    )

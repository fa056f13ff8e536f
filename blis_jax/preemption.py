"""When no blocks are left: which running request is evicted, and what an eviction changes.

The reference goes on over the batch as it was when the step began. So an evicted request is visited once more at its
old place, and where the last member took the victim's place, that member is visited at both. These
ghosts lie behind all members, and the last one made comes first.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from blis_jax.block_subject import BlockRows, Subject, is_due, no_rows, subject_of
from blis_jax.columns import as_int, build, choose, get, put
from blis_jax.context import Context, SlotRows, least_key, slot_of
from blis_jax.kv_cache.allocation import after_release
from blis_jax.kv_cache.blocks import Asker, Blocks, Do, Eviction, Life, Pool, Task
from blis_jax.slot_write import SlotWrite
from blis_jax.state import Dyn, Inst, Reg, Slot, SlotTime, State
from blis_jax.types import LAST, Outcome
from blis_jax.work import Work, ceil_div, count_of, failing

LATER = 2  # Reg.VISIT_ALL: members are visited one by one since an eviction in this step


@dataclass(frozen=True)
class Batch:
    """The running batch as the eviction finds it, `[slot]`."""

    slot: jax.Array
    order: jax.Array
    in_prefill: jax.Array
    is_due: jax.Array
    is_bulk: jax.Array  # in decode, and not visited for its own sake

    def num_ahead(self, order: jax.Array, registers: jax.Array, visit_all: jax.Array) -> jax.Array:
        """Members still to be visited, if the batch is in this order."""
        is_ahead = self.is_ahead(order, registers)
        return count_of(is_ahead & (self.in_prefill | self.is_due | visit_all))

    def is_ahead(self, order: jax.Array, registers: jax.Array) -> jax.Array:
        """Members behind the one that is visited now."""
        is_behind = order > get(registers, Reg.CURSOR)
        return is_behind & (order <= get(registers, Reg.ORDER_LIMIT))


def _batch(ctx: Context, slots: SlotRows, work: Work) -> Batch:
    order, finish = slots.column(Slot.ORDER), slots.column(Slot.FINISH)
    due = is_due(ctx, slots, get(work.inst, Inst.STEP_INDEX))
    slot = jnp.arange(order.shape[0], dtype=jnp.int32)
    is_decode = finish != LAST
    return Batch(slot, order, ~is_decode & (order != LAST), due, is_decode & ~due)


def give_up(ctx: Context, state: State, work: Work, instance: jax.Array) -> tuple[Work, SlotWrite]:
    """An allocation failed for good: evict a request, stop admitting, or let a completion do without."""
    blocks, task = state.blocks, work.task
    assert blocks is not None
    asker, slots = get(task, Task.ASKER), SlotRows(state, instance)
    is_queue, is_completion = asker == Asker.QUEUE, asker == Asker.COMPLETION
    members = get(work.inst, Inst.NUM_PREFILL) + get(work.inst, Inst.NUM_DECODE)
    evicts = ~is_queue & ~is_completion & (members > 0)
    batch = _batch(ctx, slots, work)
    victim, last = _victim(ctx, state, batch, instance)
    victim = jnp.where(evicts, victim, get(task, Task.SLOT))
    is_moved = evicts & (victim != last) & ctx.mechanism.defects.revisited_victim
    asked = jnp.int32(Asker.MEMBER)
    one = subject_of(ctx, state, work, instance, victim, asked, jnp.float64(0.0))
    is_pending = _is_pending(blocks, task, victim)
    tokens, given_back = _counts_of(work, batch, one, is_pending)
    place = jnp.where(batch.slot == victim, LAST, batch.order)
    place = jnp.where(is_moved & (batch.slot == last), get(one.slot_row, Slot.ORDER), place)
    order = jnp.where(evicts, place, batch.order)
    ends = ~is_queue & ~is_completion & (~evicts | (victim == get(task, Task.SLOT)))
    makes_ghost = batch.order[last] > get(work.registers, Reg.CURSOR)
    makes_ghost = makes_ghost & evicts & ctx.mechanism.defects.revisited_victim
    work = _without(work, one, evicts, tokens, given_back)
    work = _revised(ctx, work, batch, order, is_moved, ends, is_queue, victim)
    work = _next(ctx, work, one, evicts, ends, is_completion, makes_ghost, blocks.num_evictions)
    rows = _rows(ctx, state, work, one, instance, evicts)
    none, ghosts = no_rows(ctx), get(task, Task.NUM_GHOSTS)
    rows = dataclasses.replace(
        rows,
        ghost_at=jnp.where(makes_ghost, ghosts, none.ghost_at),
        ghost=last,
        moved_instance=jnp.where(is_moved, instance, none.moved_instance),
        moved_slot=last,
        moved_order=get(one.slot_row, Slot.ORDER),
    )
    slot_row, dyn = _victim_rows(one, evicts)
    # in front of everybody: earlier than any time, and the later evicted the earlier
    front = -get(work.pool, Pool.NUM_PREEMPTED).astype(ctx.clock)
    queued = jnp.where(evicts, front, get(one.slot_time_row, SlotTime.QUEUED))
    time_row = put(one.slot_time_row, {SlotTime.QUEUED: queued})
    request = get(one.slot_row, Slot.REQUEST)
    return work, SlotWrite(instance, victim, slot_row, time_row, None, rows, request, dyn)


def _priorities(ctx: Context, state: State, instance: jax.Array) -> jax.Array:
    assert state.blocks is not None
    if ctx.mechanism.evicts_lowest_priority:
        return state.blocks.priority[instance]
    return jnp.zeros((ctx.shape.num_slots,), jnp.float64)


def _victim(
    ctx: Context, state: State, batch: Batch, instance: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Slots of the victim and of the batch's last member."""
    is_member, end = batch.order != LAST, jnp.int32(ctx.shape.num_slots - 1)
    last = jnp.minimum(slot_of(least_key(is_member, jnp.int32(LAST) - batch.order)), end)
    if not ctx.mechanism.evicts_lowest_priority:
        return last, last
    priority = _priorities(ctx, state, instance)
    least = jnp.min(jnp.where(is_member, priority, jnp.inf))
    victim = slot_of(least_key(is_member & (priority == least), batch.order))
    return jnp.minimum(victim, end), last


def _is_pending(blocks: Blocks, task: jax.Array, slot: jax.Array) -> jax.Array:
    """Whether a request is still to be visited at a place that it has left."""
    place = jnp.arange(blocks.ghosts.shape[0], dtype=jnp.int32)
    return jnp.any((blocks.ghosts == slot) & (place < get(task, Task.NUM_GHOSTS)))


def _counts_of(
    work: Work, batch: Batch, one: Subject, is_pending: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Tokens with which the victim counts in the step so far, and budget kept for it that is free again."""
    registers = work.registers
    mode, cursor = get(registers, Reg.VISIT_ALL), get(registers, Reg.CURSOR)
    is_passed = get(one.slot_row, Slot.ORDER) <= cursor
    is_ahead_of_all = (mode == 0) | ((mode == LATER) & is_passed & ~is_pending)
    is_bulk = one.in_decode & ~batch.is_due[one.slot] & is_ahead_of_all & ~one.is_again
    tokens = jnp.where(one.is_again, get(one.dyn, Dyn.NUM_NEW), as_int(is_bulk))
    return tokens, as_int(is_bulk & ~is_passed)


def _without(
    work: Work, one: Subject, evicts: jax.Array, tokens: jax.Array, given_back: jax.Array
) -> Work:
    """Counters of the step and the batch without the victim."""
    registers, inst, one_less = work.registers, work.inst, as_int(evicts)
    in_decode, has_finish = one.in_decode, get(one.slot_row, Slot.FINISH) != LAST
    tokens = tokens * one_less
    changes = {
        Reg.PREFILL_TOKENS: get(registers, Reg.PREFILL_TOKENS) - jnp.where(in_decode, 0, tokens),
        Reg.DECODE_TOKENS: get(registers, Reg.DECODE_TOKENS) - jnp.where(in_decode, tokens, 0),
        Reg.BUDGET: get(registers, Reg.BUDGET) + given_back * one_less,
        Reg.NUM_DECODE: get(registers, Reg.NUM_DECODE) - as_int(in_decode) * one_less,
        Reg.NUM_WAITING: get(registers, Reg.NUM_WAITING) + one_less,
    }
    inst_changes = {
        Inst.NUM_PREFILL: get(inst, Inst.NUM_PREFILL) - as_int(~has_finish) * one_less,
        Inst.NUM_DECODE: get(inst, Inst.NUM_DECODE) - as_int(has_finish) * one_less,
    }
    return dataclasses.replace(
        work, registers=put(registers, changes), inst=put(inst, inst_changes)
    )


def _revised(
    ctx: Context,
    work: Work,
    batch: Batch,
    order: jax.Array,
    is_moved: jax.Array,
    ends: jax.Array,
    is_queue: jax.Array,
    victim: jax.Array,
) -> Work:
    """Who is visited from now on.

    Once a member has changed places, every member that is left is visited by itself. Once the step gives nobody
    anything any more, they are visited too, to be passed over.
    """
    registers = work.registers
    mode = get(registers, Reg.VISIT_ALL)
    counted = batch.is_ahead(batch.order, registers) & batch.is_bulk & (batch.slot != victim)
    ahead = jnp.where((is_moved | ends) & (mode == 0), count_of(counted), 0)
    mode = jnp.where(is_moved, jnp.maximum(mode, LATER), mode)
    mode = jnp.where(ends, jnp.maximum(mode, 1), mode)
    to_visit = batch.num_ahead(order, registers, mode > 0)
    is_member = (get(work.task, Task.ASKER) != Asker.COMPLETION) & ~is_queue
    changes = {
        Reg.BUDGET: jnp.where(is_queue | ends, 0, get(registers, Reg.BUDGET) + ahead),
        Reg.DECODE_TOKENS: get(registers, Reg.DECODE_TOKENS) - ahead,
        Reg.VISIT_ALL: mode,
        Reg.NUM_TO_VISIT: jnp.where(is_member, to_visit, get(registers, Reg.NUM_TO_VISIT)),
    }
    return dataclasses.replace(work, registers=put(registers, changes))


def _next(
    ctx: Context,
    work: Work,
    one: Subject,
    evicts: jax.Array,
    ends: jax.Array,
    is_completion: jax.Array,
    makes_ghost: jax.Array,
    num_evictions: jax.Array,
) -> Work:
    """What memory does next: release the victim's list, or what a completion still holds, or nothing."""
    task, size, nothing = work.task, ctx.shape.block_size, jnp.int32(Do.NOTHING)
    again = jnp.where(evicts & ~ends, jnp.int32(Do.ATTEMPT), nothing)
    after = after_release(ctx)
    held = jnp.where(evicts, one.held(), get(task, Task.HELD))
    changes = {
        Task.DO: jnp.where(evicts | is_completion, jnp.int32(Do.RELEASE), nothing),
        Task.DONE: jnp.int32(0),
        Task.IS_RETRY: jnp.int32(0),
        Task.FREED_SLOT: one.slot,
        Task.FREED_BLOCKS: ceil_div(held, size),
        Task.AFTER_RELEASE: jnp.where(after == Do.NOTHING, again, after),
        Task.AFTER_OFFLOAD: again,
        Task.NUM_GHOSTS: get(task, Task.NUM_GHOSTS) + as_int(makes_ghost),
        Task.HAS_PREEMPTED: get(task, Task.HAS_PREEMPTED) | as_int(evicts),
    }
    pool = {
        Pool.NUM_PREEMPTED: get(work.pool, Pool.NUM_PREEMPTED) + as_int(evicts),
        Pool.NUM_FAILURES: get(work.pool, Pool.NUM_FAILURES) + as_int(is_completion),
    }
    is_full = evicts & (num_evictions >= ctx.shape.eviction_capacity)
    outcome = failing(get(work.registers, Reg.OUTCOME), is_full, Outcome.EVICTIONS_FULL)
    return dataclasses.replace(
        work,
        registers=put(work.registers, {Reg.OUTCOME: outcome}),
        task=put(task, changes),
        pool=put(work.pool, pool),
    )


def _victim_rows(one: Subject, evicts: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Rows of the victim's slot and of what it has been through."""
    changes = {
        Slot.ORDER: jnp.int32(LAST),
        Slot.FINISH: jnp.int32(LAST),
        Slot.ALLOC_OFFSET: jnp.int32(0),
    }
    dyn_changes: dict[Any, jax.Array] = {
        Dyn.PROGRESS: jnp.int32(0),
        Dyn.LAG: jnp.int32(0),
        Dyn.STEP_PROGRESS: jnp.int32(0),
        Dyn.TOKEN_RECORD: _before(one, Dyn.TOKEN_RECORD, Life.OLD_TOKEN_RECORD),
        Dyn.TOKEN_INDEX: _before(one, Dyn.TOKEN_INDEX, Life.OLD_TOKEN_INDEX),
    }
    slot_row = choose(evicts, put(one.slot_row, changes), one.slot_row)
    return slot_row, choose(evicts, put(one.dyn, dyn_changes), one.dyn)


def _before(one: Subject, now: Dyn, old: Life) -> jax.Array:
    """A value as it was before the step in progress, in which it may have been set too early."""
    return jnp.where(one.has_token, get(one.life, old), get(one.dyn, now))


def _rows(
    ctx: Context,
    state: State,
    work: Work,
    one: Subject,
    instance: jax.Array,
    evicts: jax.Array,
) -> BlockRows:
    """The victim's rows at block level, and the record of the preemption."""
    blocks = state.blocks
    assert blocks is not None
    life, none = one.life, no_rows(ctx)
    first = jnp.where(one.has_token, get(life, Life.OLD_FIRST_TOKEN), get(life, Life.FIRST_TOKEN))
    life_changes = {
        Life.VISITED_AT: one.step,
        Life.FIRST_TOKEN: first,
    }
    eviction = {
        Eviction.REQUEST: get(one.slot_row, Slot.REQUEST),
        Eviction.RECORD: get(work.registers, Reg.NUM_RECORDS),
        Eviction.INDEX: one.step,
        Eviction.DECODE_RECORD: jnp.where(one.in_decode, get(one.dyn, Dyn.TOKEN_RECORD) + 1, 0),
        Eviction.DECODE_INDEX: get(one.dyn, Dyn.TOKEN_INDEX),
        Eviction.FIRST_TOKEN: jnp.where(one.in_decode, first, 0),
        Eviction.SCHEDULED_RECORD: get(one.dyn, Dyn.SCHEDULED_RECORD),
    }
    at = jnp.minimum(blocks.num_evictions, none.eviction_at)
    return dataclasses.replace(
        none,
        life=choose(evicts, put(life, life_changes), life),
        computed=jnp.where(evicts, 0, blocks.computed[instance, one.slot]),
        priority=_priorities(ctx, state, instance)[one.slot],
        eviction_at=jnp.where(evicts, at, none.eviction_at),
        eviction=build(Eviction, eviction, jnp.int32),
    )

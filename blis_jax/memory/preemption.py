"""When no blocks are left: which running request is evicted, and what an eviction changes.

The reference goes on over the batch as it was when the step began. So an evicted request is visited once more at its
old place, and where the last member took the victim's place, that member is visited at both. These
ghosts lie behind all members, and the last one made comes first.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import lax

from blis_jax.core.block_counts import ceil_div
from blis_jax.core.columns import as_int, choose
from blis_jax.core.outcome import Outcome
from blis_jax.core.types import LAST
from blis_jax.engine.context import Context, SlotRows, least_key, row, slot_of
from blis_jax.engine.phases.steps.mid_step import Work, count_of, failing
from blis_jax.engine.state import Lane, Past, Resident, State
from blis_jax.engine.tables.slot_write import SlotWrite
from blis_jax.memory import kept_output
from blis_jax.memory.allocation import after_release
from blis_jax.memory.block_tables.block_rows import (
    BlockRows,
    Tenant,
    blocks_of,
    is_due,
    no_block_rows,
    tenant,
)
from blis_jax.memory.block_tables.blocks import (
    PASSED_OVER,
    Asker,
    BlockLife,
    Blocks,
    Do,
    EvictionRecord,
    MemoryTask,
)
from blis_jax.memory.memory import Choice
from blis_jax.policies.contract import NoState, VictimContext

LATER = 2  # "visit_all": members are visited one by one since an eviction in this step


@dataclass(frozen=True)
class Batch:
    """The running batch as the eviction finds it, `[slot]`."""

    slot: jax.Array
    order: jax.Array
    in_prefill: jax.Array
    is_due: jax.Array
    is_bulk: jax.Array  # in decode, and not visited for its own sake

    def num_ahead(self, order: jax.Array, lane: Lane, visit_all: jax.Array) -> jax.Array:
        """Members still to be visited, if the batch is in this order."""
        is_ahead = self.is_ahead(order, lane)
        return count_of(is_ahead & (self.in_prefill | self.is_due | visit_all))

    def is_ahead(self, order: jax.Array, lane: Lane) -> jax.Array:
        """Members behind the one that is visited now."""
        is_behind = order > lane.cursor
        return is_behind & (order <= lane.order_limit)


def _batch(ctx: Context, slots: SlotRows, work: Work) -> Batch:
    order, finish = slots.order, slots.finish
    due = is_due(ctx, slots, work.inst.step_index)
    slot = jnp.arange(order.shape[0], dtype=jnp.int32)
    is_decode = finish != LAST
    return Batch(slot, order, ~is_decode & (order != LAST), due, is_decode & ~due)


def give_up(
    ctx: Context, state: State, work: Work, instance: jax.Array
) -> tuple[Work, SlotWrite[BlockRows]]:
    """An allocation failed for good: evict a request, stop admitting, or let a completion do without."""
    blocks, task = blocks_of(state), work.task
    asker, slots = task.asker, SlotRows(state, instance)
    is_queue, is_completion = asker == Asker.QUEUE, asker == Asker.COMPLETION
    members = work.inst.num_prefill + work.inst.num_decode
    evicts = ~is_queue & ~is_completion & (members > 0)
    batch = _batch(ctx, slots, work)
    victim, last = _victim(ctx, state, work, batch, instance)
    victim = jnp.where(evicts, victim, task.slot)
    is_moved = evicts & (victim != last) & ctx.mechanism.defects.revisited_victim
    one = tenant(ctx, state, work, Choice(instance, victim, jnp.int32(Asker.MEMBER)))
    is_pending = _is_pending(blocks, task, victim)
    restarts = ctx.mechanism.rules.restarts_preempted
    tokens, given_back = _counts_of(work, batch, one, is_pending, restarts)
    place = jnp.where(batch.slot == victim, LAST, batch.order)
    place = jnp.where(is_moved & (batch.slot == last), one.row.order, place)
    order = jnp.where(evicts, place, batch.order)
    ends = ~is_queue & ~is_completion & (~evicts | (victim == task.slot))
    makes_ghost = batch.order[last] > work.lane.cursor
    makes_ghost = makes_ghost & evicts & ctx.mechanism.defects.revisited_victim
    work = _without(work, one, evicts, tokens, given_back)
    work = _revised(ctx, work, batch, order, is_moved, ends, is_queue, victim)
    work = _next(ctx, work, one, evicts, ends, is_completion, makes_ghost, blocks.num_evictions)
    rows = _rows(ctx, state, work, one, instance, evicts)
    none, ghosts = no_block_rows(ctx), task.num_ghosts
    rows = dataclasses.replace(
        rows,
        ghost_at=jnp.where(makes_ghost, ghosts, none.ghost_at),
        ghost=last,
        moved_instance=jnp.where(is_moved, instance, none.moved_instance),
        moved_slot=last,
        moved_order=one.row.order,
    )
    slot_row, past = _victim_rows(one, evicts)
    if ctx.mechanism.rules.keeps_output:
        rows, slot_row = kept_output.of_victim(ctx, state, one, evicts, rows, slot_row)
    # in front of everybody: earlier than any time, and the later evicted the earlier
    front = -work.pool.num_preempted.astype(ctx.clock)
    queued = jnp.where(evicts, front, one.row.queued)
    slot_row = slot_row.replace(queued=queued)
    return work, SlotWrite(instance, victim, slot_row, rows, one.request, past)


def _priorities(ctx: Context, state: State, instance: jax.Array) -> jax.Array:
    if ctx.mechanism.evicts_lowest_priority:
        return blocks_of(state).priority[instance]
    return jnp.zeros((ctx.shape.num_slots,), jnp.float64)


def _victim(
    ctx: Context, state: State, work: Work, batch: Batch, instance: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Slots of the victim and of the batch's last member."""
    is_member, end = batch.order != LAST, jnp.int32(ctx.shape.num_slots - 1)
    last = jnp.minimum(slot_of(least_key(is_member, jnp.int32(LAST) - batch.order)), end)
    if not ctx.mechanism.chooses_victim:
        return last, last
    if ctx.mechanism.victim is not None:
        worth = _worth(ctx, state, work, batch, instance)
        # the last one, too, where values are no numbers
        is_least = is_member & ~(worth > jnp.min(jnp.where(is_member, worth, jnp.inf)))
        victim = slot_of(least_key(is_least, jnp.int32(LAST) - batch.order))
        return jnp.minimum(victim, end), last
    priority = _priorities(ctx, state, instance)
    least = jnp.min(jnp.where(is_member, priority, jnp.inf))
    is_least = is_member & (priority == least)
    if ctx.mechanism.rules.restarts_preempted:  # of these the latest arrival, then the last member
        arrival = SlotRows(state, instance).arrival
        latest = jnp.max(jnp.where(is_least, arrival, jnp.zeros_like(arrival)))
        is_least = is_least & (arrival == latest)
        victim = slot_of(least_key(is_least, jnp.int32(LAST) - batch.order))
    else:
        victim = slot_of(least_key(is_least, batch.order))
    return jnp.minimum(victim, end), last


def _worth(ctx: Context, state: State, work: Work, batch: Batch, instance: jax.Array) -> jax.Array:
    """What the victim policy says of the instance's slots."""
    policy, slots = ctx.mechanism.victim, SlotRows(state, instance)
    assert policy is not None
    index = work.inst.step_index
    visited_at = blocks_of(state).life[slots.request, BlockLife.columns.VISITED_AT]
    steps = index + as_int(visited_at == index + 1)
    held = slots.alloc_offset + jnp.where(slots.finish != LAST, steps, 0)
    context = VictimContext(
        request=slots.view(),
        is_running=batch.order != LAST,
        place=batch.order,
        num_tokens=held,
        now_us=work.lane.now,
        instance=instance,
        num_own_blocks=_own_blocks(ctx, state, instance, held) if policy.reads_own_blocks else None,
    )
    return policy.ask(ctx.params.policy.victim, NoState(), context)[0]


def _own_blocks(ctx: Context, state: State, instance: jax.Array, held: jax.Array) -> jax.Array:
    """Blocks of every slot's list that no other list has."""
    blocks = blocks_of(state)
    lists = lax.dynamic_index_in_dim(blocks.lists, instance, keepdims=False)
    holders = row(blocks.hold, instance)[lists]
    position = lax.broadcasted_iota(jnp.int32, lists.shape, 1)
    is_listed = position < ceil_div(held, ctx.shape.block_size)[:, None]
    return jnp.sum(is_listed & (holders == 1), axis=1, dtype=jnp.int32)


def _is_pending(blocks: Blocks, task: MemoryTask, slot: jax.Array) -> jax.Array:
    """Whether a request is still to be visited at a place that it has left."""
    place = jnp.arange(blocks.ghosts.shape[0], dtype=jnp.int32)
    return jnp.any((blocks.ghosts == slot) & (place < task.num_ghosts))


def _counts_of(
    work: Work, batch: Batch, one: Tenant, is_pending: jax.Array, restarts: bool
) -> tuple[jax.Array, jax.Array]:
    """Tokens with which the victim counts in the step so far, and budget kept for it that is free again.

    With `restarts` that is all that it has got in this step.
    """
    lane = work.lane
    mode, cursor = lane.visit_all, lane.cursor
    is_passed = one.row.order <= cursor
    is_ahead_of_all = (mode == 0) | ((mode == LATER) & is_passed & ~is_pending)
    is_bulk = one.in_decode & ~batch.is_due[one.slot] & is_ahead_of_all & ~one.is_again
    tokens = jnp.where(one.is_again, one.past.num_new, as_int(is_bulk))
    if restarts:
        return tokens, tokens
    return tokens, as_int(is_bulk & ~is_passed)


def _without(
    work: Work, one: Tenant, evicts: jax.Array, tokens: jax.Array, given_back: jax.Array
) -> Work:
    """Counters of the step and the batch without the victim."""
    lane, inst, one_less = work.lane, work.inst, as_int(evicts)
    in_decode, has_finish = one.in_decode, one.row.finish != LAST
    tokens = tokens * one_less
    return dataclasses.replace(
        work,
        lane=lane.replace(
            prefill_tokens=lane.prefill_tokens - jnp.where(in_decode, 0, tokens),
            decode_tokens=lane.decode_tokens - jnp.where(in_decode, tokens, 0),
            budget=lane.budget + given_back * one_less,
            num_decode=lane.num_decode - as_int(in_decode) * one_less,
            num_waiting=lane.num_waiting + one_less,
        ),
        inst=inst.replace(
            num_prefill=inst.num_prefill - as_int(~has_finish) * one_less,
            num_decode=inst.num_decode - as_int(has_finish) * one_less,
        ),
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
    lane = work.lane
    mode = lane.visit_all
    counted = batch.is_ahead(batch.order, lane) & batch.is_bulk & (batch.slot != victim)
    ahead = jnp.where((is_moved | ends) & (mode == 0), count_of(counted), 0)
    mode = jnp.where(is_moved, jnp.maximum(mode, LATER), mode)
    mode = jnp.where(ends, jnp.maximum(mode, 1), mode)
    to_visit = batch.num_ahead(order, lane, mode > 0)
    is_member = (work.task.asker != Asker.COMPLETION) & ~is_queue
    return dataclasses.replace(
        work,
        lane=lane.replace(
            budget=jnp.where(is_queue | ends, 0, lane.budget + ahead),
            decode_tokens=lane.decode_tokens - ahead,
            visit_all=mode,
            num_to_visit=jnp.where(is_member, to_visit, lane.num_to_visit),
        ),
    )


def _next(
    ctx: Context,
    work: Work,
    one: Tenant,
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
    held = jnp.where(evicts, one.held, task.held)
    pool = {
        "num_preempted": work.pool.num_preempted + as_int(evicts),
        "num_failures": work.pool.num_failures + as_int(is_completion),
    }
    if ctx.shape.has_mirror:
        has_tier = ctx.params.cluster.kv_cpu_blocks[one.instance] > 0
        missed = as_int((task.has_reloaded == 0) & has_tier)
        pool["cpu_misses"] = work.pool.cpu_misses + missed
    is_full = evicts & (num_evictions >= ctx.shape.eviction_capacity)
    outcome = failing(work.lane.outcome, is_full, Outcome.EVICTIONS_FULL)
    return dataclasses.replace(
        work,
        lane=work.lane.replace(outcome=outcome),
        task=task.replace(
            do=jnp.where(evicts | is_completion, jnp.int32(Do.RELEASE), nothing),
            done=jnp.int32(0),
            is_retry=jnp.int32(0),
            freed_slot=one.slot,
            freed_blocks=ceil_div(held, size),
            after_release=jnp.where(after == Do.NOTHING, again, after),
            after_offload=again,
            num_ghosts=task.num_ghosts + as_int(makes_ghost),
            has_preempted=task.has_preempted | as_int(evicts),
        ),
        pool=work.pool.replace(**pool),
    )


def _victim_rows(one: Tenant, evicts: jax.Array) -> tuple[Resident, Past]:
    """Rows of the victim's slot and of what it has been through, as they were before the step in progress."""
    slot_row = choose(
        evicts,
        one.row.replace(
            order=jnp.int32(LAST),
            finish=jnp.int32(LAST),
            alloc_offset=jnp.int32(0),
        ),
        one.row,
    )
    return slot_row, choose(
        evicts,
        one.past.replace(
            progress=jnp.int32(0),
            lag=jnp.int32(0),
            step_progress=jnp.int32(0),
            token_record=jnp.where(one.has_token, one.life.old_token_record, one.past.token_record),
            token_index=jnp.where(one.has_token, one.life.old_token_index, one.past.token_index),
        ),
        one.past,
    )


def passed_over(
    ctx: Context, state: State, work: Work, one: Tenant, is_over: jax.Array
) -> BlockRows:
    """The record of a step in which a member got nothing, beside those of preemptions; see `stays.py`."""
    none = no_block_rows(ctx)
    at = jnp.minimum(blocks_of(state).num_evictions, none.eviction_at)
    entry = EvictionRecord.filled().replace(
        request=one.request,
        record=work.lane.num_records,
        index=one.step,
        scheduled_record=jnp.int32(PASSED_OVER),
    )
    return dataclasses.replace(
        none,
        eviction_at=jnp.where(is_over, at, none.eviction_at),
        eviction=entry,
    )


def _rows(
    ctx: Context,
    state: State,
    work: Work,
    one: Tenant,
    instance: jax.Array,
    evicts: jax.Array,
) -> BlockRows:
    """The victim's rows at block level, and the record of the preemption."""
    blocks = blocks_of(state)
    life, none = one.life, no_block_rows(ctx)
    first = jnp.where(one.has_token, life.old_first_token, life.first_token)
    eviction = {
        "request": one.request,
        "record": work.lane.num_records,
        "index": one.step,
        "decode_record": jnp.where(one.in_decode, one.past.token_record + 1, 0),
        "decode_index": one.past.token_index,
        "first_token": jnp.where(one.in_decode, first, 0),
        "scheduled_record": one.past.scheduled_record,
    }
    if ctx.mechanism.rules.restarts_preempted:  # the first token is reported until there is another
        eviction |= {"first_token": jnp.int32(0), "decode_record": -eviction["decode_record"]}
    at = jnp.minimum(blocks.num_evictions, none.eviction_at)
    return dataclasses.replace(
        none,
        life=choose(
            evicts,
            life.replace(
                visited_at=one.step,
                first_token=first,
            ),
            life,
        ),
        computed=jnp.where(evicts, 0, one.computed),
        priority=_priorities(ctx, state, instance)[one.slot],
        eviction_at=jnp.where(evicts, at, none.eviction_at),
        eviction=EvictionRecord.make(**eviction),
    )

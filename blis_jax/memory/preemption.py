"""Evictions when no blocks are left: which running request is evicted, and what an eviction changes.

The reference goes on over the batch as it was when the step began. So an evicted request is visited once more at its
old place, and if the last member has taken the victim's place, that member is visited at both places. These extra
visits are called ghosts; they come after all members, the last one made first.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from blis_jax.core.columns import as_int, choose
from blis_jax.core.exact import ceil_div
from blis_jax.core.outcome import Outcome
from blis_jax.core.types import LAST
from blis_jax.memory.allocation import after_release
from blis_jax.memory.block_tables.block_rows import (
    BlockRows,
    Tenant,
    no_block_rows,
    tenant,
)
from blis_jax.memory.memory import Choice
from blis_jax.memory.victims import Batch, Victims, batch_of
from blis_jax.tables.blocks import (
    Asker,
    Blocks,
    Do,
    EvictionRecord,
    MemoryTask,
)
from blis_jax.tables.context import (
    Context,
    SlotRows,
    Work,
    count_of,
    failing,
)
from blis_jax.tables.state import Past, Resident, State
from blis_jax.tables.writes import SlotWrite

LATER = 2  # "visit_all": members are visited one by one since an eviction in this step


def give_up(
    ctx: Context, state: State, work: Work, instance: jax.Array, victims: Victims
) -> tuple[Work, SlotWrite[BlockRows]]:
    """Handle an allocation that failed for good: evict a request, end admission, or let a completion do without."""
    blocks, task = state[Blocks], work.task
    asker, slots = task.asker, SlotRows(state, instance)
    is_queue, is_completion = asker == Asker.QUEUE, asker == Asker.COMPLETION
    members = work.inst.num_prefill + work.inst.num_decode
    evicts = ~is_queue & ~is_completion & (members > 0)
    batch = batch_of(ctx, slots, work)
    victim, last = victims.of(ctx, state, work, batch, instance)
    victim = jnp.where(evicts, victim, task.slot)
    is_moved = evicts & (victim != last) & ctx.mechanism.defects.revisited_victim
    evicted = tenant(ctx, state, work, Choice(instance, victim, jnp.int32(Asker.MEMBER)))
    is_pending = _is_pending(blocks, task, victim)
    tokens, given_back = _counts_of(ctx, work, batch, evicted, is_pending)
    given_back = ctx.memory.lookahead.given_back(state, evicted, given_back)
    place = jnp.where(batch.slot == victim, LAST, batch.order)
    place = jnp.where(is_moved & (batch.slot == last), evicted.row.order, place)
    order = jnp.where(evicts, place, batch.order)
    ends = ~is_queue & ~is_completion & (~evicts | (victim == task.slot))
    makes_ghost = batch.order[last] > work.lane.cursor
    makes_ghost = makes_ghost & evicts & ctx.mechanism.defects.revisited_victim
    work = _without(work, evicted, evicts, tokens, given_back)
    work = _revised(work, batch, order, is_moved, ends, is_queue, victim)
    work = _next(ctx, work, evicted, evicts, ends, is_completion, makes_ghost, blocks.num_evictions)
    rows = _rows(ctx, state, work, evicted, instance, evicts, victims)
    none, ghosts = no_block_rows(ctx), task.num_ghosts
    rows = dataclasses.replace(
        rows,
        ghost_at=jnp.where(makes_ghost, ghosts, none.ghost_at),
        ghost=last,
        moved_instance=jnp.where(is_moved, instance, none.moved_instance),
        moved_slot=last,
        moved_order=evicted.row.order,
    )
    slot_row, past = _victim_rows(evicted, evicts)
    of_memory, of_slot = ctx.memory.preempted.of_victim(ctx, state, evicted, evicts)
    rows, slot_row = rows.having(*of_memory), slot_row.replace(**of_slot)
    # in front of everybody: earlier than any time, and the later evicted the earlier
    front = -work.pool.num_preempted.astype(ctx.clock)
    queued = jnp.where(evicts, front, evicted.row.queued)
    slot_row = slot_row.replace(queued=queued)
    return work, SlotWrite(instance, victim, slot_row, rows, evicted.request, past)


def _is_pending(blocks: Blocks, task: MemoryTask, slot: jax.Array) -> jax.Array:
    """Return whether a request is still to be visited at a place that it has left."""
    place = jnp.arange(blocks.ghosts.shape[0], dtype=jnp.int32)
    return jnp.any((blocks.ghosts == slot) & (place < task.num_ghosts))


def _counts_of(
    ctx: Context, work: Work, batch: Batch, victim: Tenant, is_pending: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Return the victim's tokens counted so far in the step, and the budget that it gives back."""
    lane = work.lane
    mode, cursor = lane.visit_all, lane.cursor
    is_passed = victim.row.order <= cursor
    is_ahead_of_all = (mode == 0) | ((mode == LATER) & is_passed & ~is_pending)
    is_bulk = victim.in_decode & ~batch.is_due[victim.slot] & is_ahead_of_all & ~victim.is_again
    tokens = jnp.where(victim.is_again, victim.past.num_new, as_int(is_bulk))
    return tokens, ctx.memory.preempted.given_back(tokens, is_bulk, is_passed)


def _without(
    work: Work, victim: Tenant, evicts: jax.Array, tokens: jax.Array, given_back: jax.Array
) -> Work:
    """Return the work with the counters of step and batch reduced by the victim."""
    lane, inst, one_less = work.lane, work.inst, as_int(evicts)
    in_decode, has_finish = victim.in_decode, victim.row.finish != LAST
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
    work: Work,
    batch: Batch,
    order: jax.Array,
    is_moved: jax.Array,
    ends: jax.Array,
    is_queue: jax.Array,
    victim: jax.Array,
) -> Work:
    """Return the work with the members that are still to be visited.

    Once a member has changed places, every member that is left is visited by itself. Once the step gives no more
    tokens, they are visited too, to be passed over.
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
    victim: Tenant,
    evicts: jax.Array,
    ends: jax.Array,
    is_completion: jax.Array,
    makes_ghost: jax.Array,
    num_evictions: jax.Array,
) -> Work:
    """Return the work with memory's next operation: release the victim's list, or a completion's blocks, or nothing."""
    task, size, nothing = work.task, ctx.shape.block_size, jnp.int32(Do.NOTHING)
    again = jnp.where(evicts & ~ends, jnp.int32(Do.ATTEMPT), nothing)
    after = after_release(ctx)
    held = jnp.where(evicts, victim.held, task.held)
    pool = {
        "num_preempted": work.pool.num_preempted + as_int(evicts),
        "num_failures": work.pool.num_failures + as_int(is_completion),
    }
    if ctx.shape.has_mirror:
        has_tier = ctx.params.cluster.kv_cpu_blocks[victim.instance] > 0
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
            freed_slot=victim.slot,
            freed_blocks=ceil_div(held, size),
            after_release=jnp.where(after == Do.NOTHING, again, after),
            after_offload=again,
            num_ghosts=task.num_ghosts + as_int(makes_ghost),
            has_preempted=task.has_preempted | as_int(evicts),
        ),
        pool=work.pool.replace(**pool),
    )


def _victim_rows(victim: Tenant, evicts: jax.Array) -> tuple[Resident, Past]:
    """Return the victim's slot row and history, as they were before the step in progress."""
    slot_row = choose(
        evicts,
        victim.row.replace(
            order=jnp.int32(LAST),
            finish=jnp.int32(LAST),
            alloc_offset=jnp.int32(0),
        ),
        victim.row,
    )
    return slot_row, choose(
        evicts,
        victim.past.replace(
            progress=jnp.int32(0),
            lag=jnp.int32(0),
            step_progress=jnp.int32(0),
            token_record=jnp.where(
                victim.has_token, victim.life.old_token_record, victim.past.token_record
            ),
            token_index=jnp.where(
                victim.has_token, victim.life.old_token_index, victim.past.token_index
            ),
        ),
        victim.past,
    )


def _rows(
    ctx: Context,
    state: State,
    work: Work,
    victim: Tenant,
    instance: jax.Array,
    evicts: jax.Array,
    victims: Victims,
) -> BlockRows:
    """Return the victim's rows at block level, and the record of the preemption."""
    blocks = state[Blocks]
    life, none = victim.life, no_block_rows(ctx)
    first = jnp.where(victim.has_token, life.old_first_token, life.first_token)
    eviction = {
        "request": victim.request,
        "record": work.lane.num_records,
        "index": victim.step,
        "decode_record": jnp.where(victim.in_decode, victim.past.token_record + 1, 0),
        "decode_index": victim.past.token_index,
        "first_token": jnp.where(victim.in_decode, first, 0),
        "scheduled_record": victim.past.scheduled_record,
    }
    eviction = ctx.memory.preempted.recorded(eviction)
    at = jnp.minimum(blocks.num_evictions, none.eviction_at)
    return dataclasses.replace(
        none,
        life=choose(
            evicts,
            life.replace(
                visited_at=victim.step,
                first_token=first,
            ),
            life,
        ),
        computed=jnp.where(evicts, 0, victim.computed),
        priority=victims.priorities(ctx, state, instance)[victim.slot],
        eviction_at=jnp.where(evicts, at, none.eviction_at),
        eviction=EvictionRecord.make(**eviction),
    )

"""The end of a step: its duration, first tokens, completions, and when the instance steps next."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
from jax import lax

from blis_jax.batch_formation import keeps_prefix
from blis_jax.block_subject import RUNAWAY
from blis_jax.columns import Vector, as_int
from blis_jax.context import Context, SlotRows, least_key, row, slot_of
from blis_jax.exact import exact_quotient
from blis_jax.kv_cache.blocks import InstanceMemory
from blis_jax.kv_cache.no_eviction import allocate, read_path, release
from blis_jax.slot_write import SlotWrite, no_slot
from blis_jax.state import (
    Mode,
    State,
    StepRecord,
)
from blis_jax.step_batch import members_of
from blis_jax.types import LAST, Outcome, StepBatch, pytree
from blis_jax.work import (
    Work,
    add_chain,
    ceil_div,
    chains_of,
    failing,
    first_chain,
    has_chain,
    has_entered,
    steps_at,
    waking_time,
    with_chains,
)

if TYPE_CHECKING:
    pass

LIVELOCK_STEPS = 10_000  # consecutive steps of an instance without a completion or net progress


@pytree
class Finished:
    """A step that has been timed, and its record."""

    work: Work
    record: StepRecord


def _record(
    ctx: Context,
    work: Work,
    instance: jax.Array,
    index: jax.Array,
    num_done: jax.Array,
    **times: jax.Array,
) -> StepRecord:
    """The record of the step in progress."""
    lane, inst = work.lane, work.inst
    steps, used = lane.num_steps, inst.used_blocks
    return StepRecord.make(
        ctx.clock,
        instance=instance,
        num_steps=steps,
        last_index=index,
        running=inst.num_prefill + inst.num_decode,
        waiting=lane.num_waiting,
        used_blocks=used,
        sum_used_blocks=jnp.where(steps == 1, used, lane.sum_used),
        num_decode=lane.num_decode,
        num_completed=num_done,
        prefill_tokens=lane.prefill_tokens,
        num_scheduled=lane.num_scheduled,
        **times,
    )


def _duration(
    ctx: Context, state: State, work: Work, instance: jax.Array, written: SlotWrite
) -> tuple[jax.Array, jax.Array]:
    """How long the step takes, reloads from the CPU tier included; and the same in float64, which no clock limits."""
    prefill, decode = work.lane.prefill_tokens, work.lane.decode_tokens
    latency = ctx.mechanism.latency
    members = members_of(ctx, state, work, instance, written) if latency.needs_members else None
    batch = StepBatch(prefill, decode, members)
    raw = latency.step_time(row(ctx.params.cluster.beta, instance), batch)
    duration = ctx.truncated(raw)
    if not work.pool.is_absent:
        reloads, transfer = work.pool.pending_reloads, ctx.params.cluster.transfer_us[instance]
        duration = duration + reloads.astype(ctx.clock) * ctx.time(transfer)
        raw = raw + reloads.astype(jnp.float64) * transfer.astype(jnp.float64)
    return duration, raw


def finish_step(
    ctx: Context,
    state: State,
    work: Work,
    instance: jax.Array,
    written: SlotWrite,
) -> Finished:
    """Time the step, advance every member, and count the members that are done.

    `written` may have been served in this scan step, and its rows are not in the tables yet.
    """
    visited_slot = jnp.where(written.instance == instance, written.slot, -1)
    lane, inst, now = work.lane, work.inst, work.lane.now
    steps = lane.num_steps
    duration, unlimited = _duration(ctx, state, work, instance, written)
    last_start = now + (steps - 1).astype(ctx.clock) * duration
    before = inst.total_duration
    total = before + steps.astype(ctx.clock) * duration
    index = inst.step_index + steps
    finish = SlotRows(state, instance).finish
    is_visited = lax.iota(jnp.int32, ctx.shape.num_slots) == visited_slot
    finish = jnp.where(is_visited, written.row.finish, finish)
    num_done = jnp.sum(finish == index, dtype=jnp.int32)
    record = _record(
        ctx, work, instance, index, num_done, start=now, duration=duration, total_duration=total
    )
    pool = work.pool
    if state.blocks is not None:
        assert written.blocks is not None
        computed = row(state.blocks.computed, instance)
        computed = jnp.where(is_visited, written.blocks.computed, computed)
        pool = _watched(work, finish, computed, num_done)
    outcome = _outcome(ctx, work, instance, pool)
    # the next step would start beyond the clock; with steps that overlap their sum may leave it before
    is_beyond = ctx.is_beyond(last_start, unlimited) | (total < before)
    outcome = failing(outcome, is_beyond, Outcome.CLOCK_OVERFLOW)
    at_start = inst.steps_at_now + steps
    return Finished(
        dataclasses.replace(
            work,
            lane=lane.replace(
                outcome=outcome,
                mode=jnp.int32(Mode.COMPLETING),
                num_to_complete=num_done,
                num_records=lane.num_records + 1,
                now=last_start,
                duration=duration,
            ),
            inst=inst.replace(
                step_index=index,
                steps_at_now=jnp.where(last_start == now, at_start, 1),
                last_start=last_start,
                total_duration=total,
            ),
            pool=pool,
        ),
        record,
    )


def _outcome(ctx: Context, work: Work, instance: jax.Array, pool: InstanceMemory) -> jax.Array:
    """The outcome so far, unless memory or the log has failed; `pool` as it is after the step."""
    outcome = work.lane.outcome
    if pool.is_absent:
        outcome = _check_memory(ctx, work, instance)
    else:
        most = ctx.shape.stall_steps or LIVELOCK_STEPS
        is_stalled = pool.stalled_steps >= most
        outcome = failing(outcome, is_stalled, Outcome.LIVELOCK)
    if ctx.shape.stall_steps:  # the log is emptied before it is full
        return outcome
    is_full = work.lane.num_records >= ctx.shape.log_capacity
    return failing(outcome, is_full, Outcome.LOG_FULL)


def _watched(
    work: Work, finish: jax.Array, computed: jax.Array, num_done: jax.Array
) -> InstanceMemory:
    """The instance's memory after a step: reloads are paid for, and steps without progress are counted.

    Progress is the sum of tokens computed over the requests that stay; requests computed beyond
    their end decode for ever and make none.
    """
    pool = work.pool
    index = work.inst.step_index + work.lane.num_steps
    stays = (finish != LAST) & (finish > index)
    tokens = jnp.where(finish == LAST, computed, computed + index)
    tokens = jnp.where((finish == LAST) | (stays & (finish != RUNAWAY)), tokens, 0)
    progress = jnp.sum(tokens, dtype=jnp.int32)
    members = work.inst.num_prefill + work.inst.num_decode - num_done
    has_work = (members > 0) | (work.lane.num_waiting > 0)
    is_better = (num_done > 0) | (progress > pool.best_progress) | ~has_work
    stalled = pool.stalled_steps + work.lane.num_steps
    return pool.replace(
        pending_reloads=jnp.int32(0),
        stalled_steps=jnp.where(is_better, 0, stalled),
        best_progress=jnp.where(is_better, progress, pool.best_progress),
    )


def _check_memory(ctx: Context, work: Work, instance: jax.Array) -> jax.Array:
    """Exact while blocks never used before remain, or if no content can be looked up again."""
    total = ctx.params.cluster.total_kv_blocks[instance]
    is_over = work.inst.used_blocks > total
    is_reused = (work.inst.misses > total) & (ctx.requests.has_shared == 1)
    outcome = work.lane.outcome
    return failing(outcome, is_over | is_reused, Outcome.KV_CHECK_TRIPPED)


def complete(ctx: Context, state: State, work: Work, instance: jax.Array) -> tuple[Work, SlotWrite]:
    """Complete the first done member in batch order and release its blocks."""
    slots, inst, size = SlotRows(state, instance), work.inst, ctx.shape.block_size
    index = inst.step_index
    is_done = slots.finish == index
    slot = slot_of(least_key(is_done, slots.order))
    slot = jnp.minimum(slot, jnp.int32(ctx.shape.num_slots - 1))
    slot_row = slots.one(ctx, slot)
    request = slot_row.request
    fixed = ctx.request(request)
    held = index + slot_row.alloc_offset
    extra = jnp.minimum(fixed.output_len, 1)
    assert state.shared is not None
    path = read_path(state.shared, ctx.requests, instance, slot, request)
    before = ctx.past(state, request)
    is_full = jnp.array(0, jnp.int32)
    if ctx.shape.has_shared_outputs:
        is_prefix = keeps_prefix(ctx, before, fixed, held)
        last = lax.div(held + extra, jnp.int32(size))
        first = jnp.where(is_prefix, lax.div(held, jnp.int32(size)), last)
        allocation = allocate(path, jnp.array(False), jnp.int32(0), first, last)
        path, is_full = allocation.rows, allocation.is_full
    freed = release(path)
    is_new = (extra == 1) & (lax.rem(held, jnp.int32(size)) == 0)
    private = ceil_div(held + extra, size) - freed.num_held
    used, total = inst.used_blocks, ctx.params.cluster.total_kv_blocks[instance]
    lane = work.lane
    left = used + as_int(is_new) - private - freed.num_freed
    share = exact_quotient(left.astype(jnp.float64), total.astype(jnp.float64))
    is_short = is_new & (used >= total)
    offloads = share > ctx.params.cluster.offload_threshold[instance]
    outcome = failing(lane.outcome, is_full == 1, Outcome.COPIES_FULL)
    work = dataclasses.replace(
        work,
        lane=lane.replace(
            outcome=failing(outcome, is_short | offloads, Outcome.KV_CHECK_TRIPPED),
            num_to_complete=lane.num_to_complete - 1,
        ),
        inst=inst.replace(
            used_blocks=left,
            misses=inst.misses + as_int(is_new),
            load=inst.load - 1,
            num_decode=inst.num_decode - 1,
        ),
    )
    # the step's record was counted when the step was timed, so this is its number plus 1
    past = before.replace(finish_record=lane.num_records)
    return work, dataclasses.replace(
        no_slot(ctx), instance=instance, slot=slot, path=freed.rows, request=request, past=past
    )


def next_event(
    ctx: Context,
    slots: SlotRows,
    is_idle: jax.Array,
    chains: Vector,
    gone: jax.Array,
    busy: jax.Array,
) -> jax.Array:
    """When the instance acts next: a step event, a request that wakes it, or one to be dropped."""
    is_oversized = slots.oversized == 1
    is_there = lax.iota(jnp.int32, ctx.shape.num_slots) != gone
    queued = slots.queued
    wakes = jnp.where(
        is_there & (is_idle & ~is_oversized), waking_time(ctx, queued, busy), ctx.never
    )
    drops = jnp.where(is_there & is_oversized, queued, ctx.never)
    return jnp.minimum(first_chain(chains), jnp.min(jnp.minimum(wakes, drops)))


def close(ctx: Context, state: State, work: Work, instance: jax.Array) -> Work:
    """End the step: schedule the next one, or go idle at once if nothing is left.

    Idle means idle from the step's start on, as in the reference: a request queued before the step's
    end starts an overlapping one.
    """
    lane, inst = work.lane, work.inst
    members = inst.num_prefill + inst.num_decode
    goes_on = (members > 0) | (lane.num_waiting > 0)
    next_step = work.lane.now + work.lane.duration
    chains, fits = add_chain(chains_of(work.inst), next_step, goes_on.astype(jnp.int32), ctx.never)
    slots = SlotRows(state, instance)
    event = next_event(ctx, slots, ~goes_on, chains, jnp.int32(-1), next_step)
    inst = with_chains(inst, chains).replace(is_idle=~goes_on, event=event, busy_until=next_step)
    return dataclasses.replace(
        work,
        lane=lane.replace(
            outcome=failing(lane.outcome, ~fits, Outcome.CHAINS_FULL),
            mode=jnp.int32(Mode.BETWEEN),
        ),
        inst=inst,
    )


def find_drop(state: State, work: Work, instance: jax.Array) -> jax.Array:
    """Packed key of the oversized request whose queueing time has come."""
    slots = SlotRows(state, instance)
    now = work.lane.now
    is_due = has_entered(slots, now, steps_at(work.inst, now))
    is_due = is_due & (slots.oversized == 1)
    return least_key(is_due, slots.queue_rank)


def drop(
    ctx: Context, state: State, work: Work, instance: jax.Array, key: jax.Array
) -> tuple[Work, SlotWrite]:
    """Drop it; on an idle instance that still starts a step, an empty one.

    A step of the same microsecond may or may not come before, which decides whether the instance is idle.
    """
    slots, inst = SlotRows(state, instance), work.inst
    slot = jnp.minimum(slot_of(key), jnp.int32(ctx.shape.num_slots - 1))
    slot_row = slots.one(ctx, slot)
    is_idle = inst.is_idle == 1
    chains, fits = add_chain(
        chains_of(work.inst),
        work.lane.now,
        as_int(is_idle & ctx.mechanism.defects.second_chain),
        ctx.never,
    )
    outcome = failing(work.lane.outcome, ~fits, Outcome.CHAINS_FULL)
    has_step = has_chain(chains_of(work.inst), work.lane.now)
    is_tie = has_step & (slot_row.after_steps < 0)
    ties = work.lane.num_open_ties + as_int(is_tie)
    work = dataclasses.replace(
        work,
        lane=work.lane.replace(outcome=outcome, num_open_ties=ties),
        inst=with_chains(inst, chains).replace(
            load=inst.load - 1,
            num_oversized=inst.num_oversized - 1,
            num_dropped=inst.num_dropped + 1,
            event=next_event(ctx, slots, is_idle, chains, slot, inst.busy_until),
        ),
    )
    nothing, request = no_slot(ctx), slot_row.request
    blocks = nothing.blocks
    if blocks is not None:
        blocks = dataclasses.replace(blocks, left=request)
    past = ctx.past(state, request).replace(num_scheduled=jnp.int32(-1))
    return work, dataclasses.replace(
        nothing, instance=instance, slot=slot, blocks=blocks, request=request, past=past
    )

"""The end of a step: its duration, first tokens, completions, and when the instance steps next."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax import lax

from blis_jax.batch_formation import keeps_prefix
from blis_jax.block_subject import RUNAWAY
from blis_jax.columns import Vector, as_int, build, get, put
from blis_jax.context import Context, SlotRows, least_key, row, slot_of
from blis_jax.exact import exact_quotient
from blis_jax.kv_cache.blocks import Pool
from blis_jax.kv_cache.no_eviction import allocate, read_path, release
from blis_jax.slot_write import SlotWrite, no_slot
from blis_jax.state import (
    Dyn,
    Inst,
    InstTime,
    Log,
    LogTime,
    Mode,
    Reg,
    Req,
    Slot,
    SlotTime,
    State,
    Time,
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
    from jaxtyping import Array, Int

LIVELOCK_STEPS = 10_000  # consecutive steps of an instance without a completion or net progress


@pytree
class Finished:
    """A step that has been timed, and its record."""

    work: Work
    log: Int[Array, "column"]
    log_time: Any


def _log_row(work: Work, instance: jax.Array, index: jax.Array, num_done: jax.Array) -> jax.Array:
    """Integer columns of the record of the step in progress."""
    registers, inst = work.registers, work.inst
    steps, used = get(registers, Reg.NUM_STEPS), get(inst, Inst.USED_BLOCKS)
    record = {
        Log.INSTANCE: instance,
        Log.NUM_STEPS: steps,
        Log.LAST_INDEX: index,
        Log.RUNNING: get(inst, Inst.NUM_PREFILL) + get(inst, Inst.NUM_DECODE),
        Log.WAITING: get(registers, Reg.NUM_WAITING),
        Log.USED_BLOCKS: used,
        Log.SUM_USED_BLOCKS: jnp.where(steps == 1, used, get(registers, Reg.SUM_USED)),
        Log.NUM_DECODE: get(registers, Reg.NUM_DECODE),
        Log.NUM_COMPLETED: num_done,
        Log.PREFILL_TOKENS: get(registers, Reg.PREFILL_TOKENS),
        Log.NUM_SCHEDULED: get(registers, Reg.NUM_SCHEDULED),
    }
    return build(Log, record, jnp.int32)


def _duration(
    ctx: Context, state: State, work: Work, instance: jax.Array, written: SlotWrite
) -> tuple[jax.Array, jax.Array]:
    """How long the step takes, reloads from the CPU tier included; and the same in float64, which no clock limits."""
    registers = work.registers
    prefill, decode = get(registers, Reg.PREFILL_TOKENS), get(registers, Reg.DECODE_TOKENS)
    latency = ctx.mechanism.latency
    members = members_of(ctx, state, work, instance, written) if latency.needs_members else None
    batch = StepBatch(prefill, decode, members)
    raw = latency.step_time(row(ctx.params.cluster.beta, instance), batch)
    duration = ctx.truncated(raw)
    if work.pool is not None:
        reloads = get(work.pool, Pool.PENDING_RELOADS)
        transfer = ctx.params.cluster.transfer_us[instance]
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
    registers, inst, now = work.registers, work.inst, get(work.times, Time.NOW)
    steps = get(registers, Reg.NUM_STEPS)
    duration, unlimited = _duration(ctx, state, work, instance, written)
    last_start = now + (steps - 1).astype(ctx.clock) * duration
    before = get(work.inst_time, InstTime.TOTAL_DURATION)
    total = before + steps.astype(ctx.clock) * duration
    index = get(inst, Inst.STEP_INDEX) + steps
    finish = SlotRows(state, instance).column(Slot.FINISH)
    is_visited = lax.iota(jnp.int32, ctx.shape.num_slots) == visited_slot
    finish = jnp.where(is_visited, get(written.row, Slot.FINISH), finish)
    num_done = jnp.sum(finish == index, dtype=jnp.int32)
    log = _log_row(work, instance, index, num_done)
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
    changes = {
        Reg.OUTCOME: outcome,
        Reg.MODE: jnp.int32(Mode.COMPLETING),
        Reg.NUM_TO_COMPLETE: num_done,
        Reg.NUM_RECORDS: get(registers, Reg.NUM_RECORDS) + 1,
    }
    at_start = get(inst, Inst.STEPS_AT_NOW) + steps
    inst_changes = {
        Inst.STEP_INDEX: index,
        Inst.STEPS_AT_NOW: jnp.where(last_start == now, at_start, 1),
    }
    times = {LogTime.START: now, LogTime.DURATION: duration, LogTime.TOTAL_DURATION: total}
    time_changes = {InstTime.LAST_START: last_start, InstTime.TOTAL_DURATION: total}
    return Finished(
        dataclasses.replace(
            work,
            registers=put(registers, changes),
            times=put(work.times, {Time.NOW: last_start, Time.DURATION: duration}),
            inst=put(inst, inst_changes),
            inst_time=put(work.inst_time, time_changes),
            pool=pool,
        ),
        log,
        build(LogTime, times, ctx.clock),
    )


def _outcome(ctx: Context, work: Work, instance: jax.Array, pool: Any) -> jax.Array:
    """The outcome so far, unless memory or the log has failed; `pool` as it is after the step."""
    outcome = get(work.registers, Reg.OUTCOME)
    if pool is None:
        outcome = _check_memory(ctx, work, instance)
    else:
        most = ctx.shape.stall_steps or LIVELOCK_STEPS
        is_stalled = get(pool, Pool.STALLED_STEPS) >= most
        outcome = failing(outcome, is_stalled, Outcome.LIVELOCK)
    if ctx.shape.stall_steps:  # the log is emptied before it is full
        return outcome
    is_full = get(work.registers, Reg.NUM_RECORDS) >= ctx.shape.log_capacity
    return failing(outcome, is_full, Outcome.LOG_FULL)


def _watched(work: Work, finish: jax.Array, computed: jax.Array, num_done: jax.Array) -> jax.Array:
    """The instance's memory after a step: reloads are paid for, and steps without progress are counted.

    Progress is the sum of tokens computed over the requests that stay; requests computed beyond
    their end decode for ever and make none.
    """
    pool = work.pool
    index = get(work.inst, Inst.STEP_INDEX) + get(work.registers, Reg.NUM_STEPS)
    stays = (finish != LAST) & (finish > index)
    tokens = jnp.where(finish == LAST, computed, computed + index)
    tokens = jnp.where((finish == LAST) | (stays & (finish != RUNAWAY)), tokens, 0)
    progress = jnp.sum(tokens, dtype=jnp.int32)
    members = get(work.inst, Inst.NUM_PREFILL) + get(work.inst, Inst.NUM_DECODE) - num_done
    has_work = (members > 0) | (get(work.registers, Reg.NUM_WAITING) > 0)
    is_better = (num_done > 0) | (progress > get(pool, Pool.BEST_PROGRESS)) | ~has_work
    stalled = get(pool, Pool.STALLED_STEPS) + get(work.registers, Reg.NUM_STEPS)
    changes = {
        Pool.PENDING_RELOADS: jnp.int32(0),
        Pool.STALLED_STEPS: jnp.where(is_better, 0, stalled),
        Pool.BEST_PROGRESS: jnp.where(is_better, progress, get(pool, Pool.BEST_PROGRESS)),
    }
    return put(pool, changes)


def _check_memory(ctx: Context, work: Work, instance: jax.Array) -> jax.Array:
    """Exact while blocks never used before remain, or if no content can be looked up again."""
    total = ctx.params.cluster.total_kv_blocks[instance]
    is_over = get(work.inst, Inst.USED_BLOCKS) > total
    is_reused = (get(work.inst, Inst.MISSES) > total) & (ctx.requests.has_shared == 1)
    outcome = get(work.registers, Reg.OUTCOME)
    return failing(outcome, is_over | is_reused, Outcome.KV_CHECK_TRIPPED)


def complete(ctx: Context, state: State, work: Work, instance: jax.Array) -> tuple[Work, SlotWrite]:
    """Complete the first done member in batch order and release its blocks."""
    slots, inst, size = SlotRows(state, instance), work.inst, ctx.shape.block_size
    index = get(inst, Inst.STEP_INDEX)
    is_done = slots.column(Slot.FINISH) == index
    slot = slot_of(least_key(is_done, slots.column(Slot.ORDER)))
    slot = jnp.minimum(slot, jnp.int32(ctx.shape.num_slots - 1))
    slot_row, _ = slots.one(ctx, slot)
    request = get(slot_row, Slot.REQUEST)
    fixed = row(ctx.requests.table, request)
    held = index + get(slot_row, Slot.ALLOC_OFFSET)
    extra = jnp.minimum(get(fixed, Req.OUTPUT_LEN), 1)
    assert state.shared is not None
    path = read_path(state.shared, ctx.requests, instance, slot, request)
    before = ctx.vector(row(state.dyn, request))
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
    used, total = get(inst, Inst.USED_BLOCKS), ctx.params.cluster.total_kv_blocks[instance]
    registers = work.registers
    left = used + as_int(is_new) - private - freed.num_freed
    share = exact_quotient(left.astype(jnp.float64), total.astype(jnp.float64))
    is_short = is_new & (used >= total)
    offloads = share > ctx.params.cluster.offload_threshold[instance]
    outcome = failing(get(registers, Reg.OUTCOME), is_full == 1, Outcome.COPIES_FULL)
    changes = {
        Reg.OUTCOME: failing(outcome, is_short | offloads, Outcome.KV_CHECK_TRIPPED),
        Reg.NUM_TO_COMPLETE: get(registers, Reg.NUM_TO_COMPLETE) - 1,
    }
    inst_changes = {
        Inst.USED_BLOCKS: left,
        Inst.MISSES: get(inst, Inst.MISSES) + as_int(is_new),
        Inst.LOAD: get(inst, Inst.LOAD) - 1,
        Inst.NUM_DECODE: get(inst, Inst.NUM_DECODE) - 1,
    }
    work = dataclasses.replace(
        work, registers=put(registers, changes), inst=put(inst, inst_changes)
    )
    # the step's record was counted when the step was timed, so this is its number plus 1
    dyn = put(before, {Dyn.FINISH_RECORD: get(registers, Reg.NUM_RECORDS)})
    return work, dataclasses.replace(
        no_slot(ctx), instance=instance, slot=slot, path=freed.rows, request=request, dyn=dyn
    )


def _next_event(
    ctx: Context,
    slots: SlotRows,
    is_idle: jax.Array,
    chains: Vector,
    gone: jax.Array,
    busy: jax.Array,
) -> jax.Array:
    """When the instance acts next: a step event, a request that wakes it, or one to be dropped."""
    is_oversized = slots.column(Slot.OVERSIZED) == 1
    is_there = lax.iota(jnp.int32, ctx.shape.num_slots) != gone
    queued = slots.time(SlotTime.QUEUED)
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
    registers, inst = work.registers, work.inst
    members = get(inst, Inst.NUM_PREFILL) + get(inst, Inst.NUM_DECODE)
    goes_on = (members > 0) | (get(registers, Reg.NUM_WAITING) > 0)
    next_step = get(work.times, Time.NOW) + get(work.times, Time.DURATION)
    chains, fits = add_chain(
        chains_of(work.inst_time), next_step, goes_on.astype(jnp.int32), ctx.never
    )
    changes = {
        Reg.OUTCOME: failing(get(registers, Reg.OUTCOME), ~fits, Outcome.CHAINS_FULL),
        Reg.MODE: jnp.int32(Mode.BETWEEN),
    }
    slots = SlotRows(state, instance)
    event = _next_event(ctx, slots, ~goes_on, chains, jnp.int32(-1), next_step)
    times = {InstTime.EVENT: event, InstTime.BUSY_UNTIL: next_step}
    inst_time = put(with_chains(work.inst_time, chains), times)
    return dataclasses.replace(
        work,
        registers=put(registers, changes),
        inst=put(inst, {Inst.IS_IDLE: ~goes_on}),
        inst_time=inst_time,
    )


def find_drop(state: State, work: Work, instance: jax.Array) -> jax.Array:
    """Packed key of the oversized request whose queueing time has come."""
    slots = SlotRows(state, instance)
    now = get(work.times, Time.NOW)
    is_due = has_entered(slots, now, steps_at(work.inst, work.inst_time, now))
    is_due = is_due & (slots.column(Slot.OVERSIZED) == 1)
    return least_key(is_due, slots.column(Slot.QUEUE_RANK))


def drop(
    ctx: Context, state: State, work: Work, instance: jax.Array, key: jax.Array
) -> tuple[Work, SlotWrite]:
    """Drop it; on an idle instance that still starts a step, an empty one.

    A step of the same microsecond may or may not come before, which decides whether the instance is idle.
    """
    slots, inst = SlotRows(state, instance), work.inst
    slot = jnp.minimum(slot_of(key), jnp.int32(ctx.shape.num_slots - 1))
    slot_row, _ = slots.one(ctx, slot)
    is_idle = get(inst, Inst.IS_IDLE) == 1
    chains, fits = add_chain(
        chains_of(work.inst_time),
        get(work.times, Time.NOW),
        as_int(is_idle & ctx.mechanism.defects.second_chain),
        ctx.never,
    )
    outcome = failing(get(work.registers, Reg.OUTCOME), ~fits, Outcome.CHAINS_FULL)
    has_step = has_chain(chains_of(work.inst_time), get(work.times, Time.NOW))
    is_tie = has_step & (get(slot_row, Slot.AFTER_STEPS) < 0)
    ties = get(work.registers, Reg.NUM_OPEN_TIES) + as_int(is_tie)
    inst_changes = {
        Inst.LOAD: get(inst, Inst.LOAD) - 1,
        Inst.NUM_OVERSIZED: get(inst, Inst.NUM_OVERSIZED) - 1,
        Inst.NUM_DROPPED: get(inst, Inst.NUM_DROPPED) + 1,
    }
    busy = get(work.inst_time, InstTime.BUSY_UNTIL)
    event = _next_event(ctx, slots, is_idle, chains, slot, busy)
    work = dataclasses.replace(
        work,
        registers=put(work.registers, {Reg.OUTCOME: outcome, Reg.NUM_OPEN_TIES: ties}),
        inst=put(inst, inst_changes),
        inst_time=put(with_chains(work.inst_time, chains), {InstTime.EVENT: event}),
    )
    nothing, request = no_slot(ctx), get(slot_row, Slot.REQUEST)
    blocks = nothing.blocks
    if blocks is not None:
        blocks = dataclasses.replace(blocks, left=request)
    past = ctx.vector(row(state.dyn, request))
    dyn = put(past, {Dyn.NUM_SCHEDULED: jnp.int32(-1)})
    return work, dataclasses.replace(
        nothing, instance=instance, slot=slot, blocks=blocks, request=request, dyn=dyn
    )

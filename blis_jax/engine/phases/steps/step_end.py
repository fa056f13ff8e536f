"""The end of a step: its duration, first tokens, completions, and when the instance steps next."""

from __future__ import annotations

import dataclasses
import functools
import operator
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from blis_jax.core.columns import Vector, as_int
from blis_jax.core.outcome import Outcome
from blis_jax.core.pytrees import pytree
from blis_jax.core.views import StepBatch
from blis_jax.engine.phases.steps.decode_steps import DecodeSteps, no_earlier
from blis_jax.engine.phases.steps.step_times import (
    factors_of,
    lengthened,
    members_of,
    step_time,
)
from blis_jax.memory.block_tables.contents import nothing_found
from blis_jax.memory.memory import Choice, Demand, Left, Subject
from blis_jax.tables.blocks import Asker
from blis_jax.tables.context import (
    Context,
    SlotRows,
    Work,
    failing,
    least_key,
    slot_of,
    waking_time,
)
from blis_jax.tables.joined import add_chain, chains_of, first_chain, with_chains
from blis_jax.tables.state import Instance, Mode, State, StepRecord
from blis_jax.tables.writes import EarlierRecords, SlotWrite, no_slot


@pytree
class Finished:
    """A step that has been timed: the work, its record, and the records of earlier steps of its stretch."""

    work: Work
    record: StepRecord
    earlier: EarlierRecords | None


@pytree
class _Timed:
    """The last run of equal steps among those that end, and the totals before it."""

    num_steps: jax.Array
    duration: jax.Array
    unlimited: jax.Array  # the duration in float64 µs, which no clock limits
    start: jax.Array
    total: jax.Array  # duration of all steps before
    sum_used: jax.Array  # blocks, over these steps


def _record(
    ctx: Context,
    work: Work,
    instance: jax.Array,
    timed: _Timed,
    **changes: jax.Array,
) -> StepRecord:
    """Return the record of a run of equal steps, with default values for the last run, some of them replaced."""
    lane, inst = work.lane, work.inst
    steps = timed.num_steps
    values = {
        "last_index": inst.step_index + lane.num_steps,
        "used_blocks": inst.used_blocks,
        "num_completed": jnp.int32(0),
    }
    return StepRecord.make(
        ctx.clock,
        instance=instance,
        num_steps=steps,
        sum_used_blocks=timed.sum_used,
        running=inst.num_prefill + inst.num_decode,
        waiting=lane.num_waiting,
        num_decode=lane.num_decode,
        prefill_tokens=lane.prefill_tokens,
        num_scheduled=lane.num_scheduled,
        start=timed.start,
        duration=timed.duration,
        total_duration=timed.total + steps.astype(ctx.clock) * timed.duration,
        **(values | changes),
    )


def _timed(
    ctx: Context,
    state: State,
    work: Work,
    instance: jax.Array,
    written: SlotWrite,
    stretch: DecodeSteps | None,
) -> tuple[_Timed, EarlierRecords | None]:
    """Return the last run of equal steps among those that end, and the records of the runs before."""
    lane, inst = work.lane, work.inst

    def alike() -> tuple[_Timed, EarlierRecords | None]:
        times = _duration(ctx, state, work, instance, written)
        summed = jnp.where(lane.num_steps == 1, inst.used_blocks, lane.sum_used)
        before = lane.now, inst.total_duration, summed
        return _Timed(lane.num_steps, *times, *before), no_earlier(ctx)

    if stretch is None:
        return alike()
    in_runs = functools.partial(_in_runs, ctx, state, work, instance, stretch)

    def in_one() -> tuple[_Timed, EarlierRecords | None]:
        """Return the only run of a stretch; its sum of used blocks was computed when the stretch began."""
        before = lane.now, inst.total_duration, lane.sum_used
        return _Timed(lane.num_steps, stretch.durations[0], stretch.unlimited, *before), no_earlier(
            ctx
        )

    def some() -> tuple[_Timed, EarlierRecords | None]:
        return ctx.when(stretch.num_runs == 1, in_one, in_runs)

    return ctx.when(stretch.num_runs > 0, some, alike)


def _in_runs(
    ctx: Context, state: State, work: Work, instance: jax.Array, stretch: DecodeSteps
) -> tuple[_Timed, EarlierRecords | None]:
    """Return the last run of a stretch, and the records of the runs before it."""
    inst, slots = work.inst, SlotRows(state, instance)
    blocks_of, none, last = ctx.memory.decode_blocks, no_earlier(ctx), stretch.num_runs - 1
    taken = jnp.sum(stretch.taken, dtype=jnp.int32)
    blocks, _ = blocks_of(ctx, slots, inst.step_index, work.lane.num_steps, taken)

    def run(at: jax.Array, before: tuple[jax.Array, ...]) -> tuple[_Timed, jax.Array, jax.Array]:
        """Return the run `at` with its times, and the step index and the used blocks after it."""
        start, total, index, used = before
        steps, duration = stretch.num_steps[at], stretch.durations[at]
        more, summed = blocks_of(ctx, slots, index, steps, stretch.taken[at])
        timed = _Timed(steps, duration, stretch.unlimited, start, total, used * steps + summed)
        return timed, index + steps, used + more

    def record(at: jax.Array, carry: tuple[Any, Any]) -> tuple[Any, Any]:
        timed, index, used = run(at, carry[0])
        row = _record(ctx, work, instance, timed, last_index=index, used_blocks=used)
        passed = timed.num_steps.astype(ctx.clock) * timed.duration
        return (timed.start + passed, timed.total + passed, index, used), carry[1].with_row(at, row)

    before = work.lane.now, inst.total_duration, inst.step_index, inst.used_blocks - blocks
    if none is None:
        return run(last, before)[0], None
    before, rows = lax.fori_loop(0, last, record, (before, none))
    return run(last, before)[0], dataclasses.replace(rows, count=last)


def _duration(
    ctx: Context,
    state: State,
    work: Work,
    instance: jax.Array,
    written: SlotWrite,
) -> tuple[jax.Array, jax.Array]:
    """Return the step's duration, with reloads from the CPU tier, on the clock, and in float64 without its limit."""
    prefill, decode = work.lane.prefill_tokens, work.lane.decode_tokens
    latency = ctx.mechanism.latency
    members = members_of(ctx, state, work, instance, written) if latency.needs_members else None
    batch = StepBatch(prefill, decode, members)
    for hook in ctx.hooks:
        batch = hook.shown(ctx, state, work, instance, batch)
    raw = step_time(ctx, state, instance, batch)
    raw = ctx.mechanism.rules.step_time(raw, prefill, decode)
    for hook in ctx.hooks:
        for time in hook.further_us(ctx, state, work, instance):
            raw = raw + time
    raw = lengthened(ctx, raw, factors_of(ctx, state, work, instance, written))
    return ctx.memory.with_transfers(ctx, work, ctx.truncated(raw), raw)


def _done(
    ctx: Context,
    state: State,
    work: Work,
    instance: jax.Array,
    written: SlotWrite,
    index: jax.Array,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return every member's last step `[slot]`, how many are in it now, and how many of these continue elsewhere."""
    slots = SlotRows(state, instance)
    visited = jnp.where(written.instance == instance, written.slot, -1)
    is_visited = lax.iota(jnp.int32, ctx.shape.num_slots) == visited
    finish = jnp.where(is_visited, written.row.finish, slots.finish)
    is_done = finish == index
    num_done = jnp.sum(is_done, dtype=jnp.int32)
    moving = ctx.pools.steps.num_moving(ctx, work, slots, is_visited, is_done)
    return finish, num_done, moving


def finish_step(
    ctx: Context,
    state: State,
    work: Work,
    instance: jax.Array,
    written: SlotWrite,
    stretch: DecodeSteps | None = None,
) -> Finished:
    """Time the step, advance every member, and count the members that are done.

    `written` may hold a request served in this scan step, whose rows are not in the tables yet. A stretch has begun in
    this scan step, too.
    """
    lane, inst, now = work.lane, work.inst, work.lane.now
    steps = lane.num_steps
    timed, earlier = _timed(ctx, state, work, instance, written, stretch)
    duration, at_last = timed.duration, timed.num_steps
    last_start = timed.start + (at_last - 1).astype(ctx.clock) * duration
    before = timed.total
    total = before + at_last.astype(ctx.clock) * duration
    index = inst.step_index + steps
    finish, num_done, moving = _done(ctx, state, work, instance, written, index)
    record = _record(ctx, work, instance, timed, num_completed=num_done - moving)
    num_records = lane.num_records if earlier is None else lane.num_records + earlier.count
    outcome, pool = ctx.memory.after_step(ctx, state, work, instance, written, finish, num_done)
    if not ctx.shape.stall_steps:  # else the log is emptied before it is full
        outcome = failing(outcome, num_records >= ctx.shape.log_capacity, Outcome.LOG_FULL)
    # the next step would start beyond the clock; with steps that overlap their sum may leave it before
    is_beyond = ctx.is_beyond(last_start, timed.unlimited) | (total < before)
    outcome = failing(outcome, is_beyond, Outcome.CLOCK_OVERFLOW)
    at_start = inst.steps_at_now + steps
    return Finished(
        dataclasses.replace(
            work,
            lane=lane.replace(
                outcome=outcome,
                mode=jnp.int32(Mode.COMPLETING),
                num_to_complete=num_done,
                num_records=num_records + 1,
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
            task=ctx.memory.task_after_step(ctx, work.task),
        ),
        record,
        earlier,
    )


def complete(
    ctx: Context,
    state: State,
    work: Work,
    instance: jax.Array,
) -> tuple[Work, SlotWrite]:
    """Complete the first member that is done, in batch order: allocate its last token, then release its blocks.

    Nothing is written where only the allocation is attempted again.
    """
    memory, hand_overs = ctx.memory, ctx.pools.steps
    slots, index = SlotRows(state, instance), work.inst.step_index
    reasons = [
        (hook, ends) for hook in ctx.hooks for ends in hook.ends_early(ctx, state, work, instance)
    ]
    may_leave = slots.finish == index
    for hook, ends in reasons:
        may_leave = hook.leavers(state, slots, ends, may_leave)
    slot = slot_of(least_key(may_leave, slots.order))
    slot = ctx.existing_slot(slot)
    choice = Choice(instance, slot, jnp.int32(Asker.COMPLETION), is_last=True)
    subject = memory.subject(ctx, state, work, choice)
    moves = hand_overs.is_moving(ctx, state, subject)
    early = [functools.reduce(operator.or_, (ends for _, ends in reasons))] if reasons else []
    is_short = functools.reduce(operator.or_, early, moves)
    is_free = hand_overs.needs_none(ctx, state, subject, is_short)
    demand = Demand(
        asks=jnp.array(True),
        start=subject.position,
        tokens=jnp.where(is_free, 0, jnp.minimum(subject.fixed.output_len, 1)),
        hits=jnp.int32(0),
        found=nothing_found(),
        is_last=True,
    )
    demand = memory.remembered(work, subject, demand)
    grant = memory.allocate(ctx, state, work, subject, demand)
    grant, rows = memory.release(ctx, work, subject, grant)
    lane, inst, leaves = work.lane, work.inst, 1 - as_int(subject.is_forced)
    work = grant.on(
        work,
        lane={"num_to_complete": lane.num_to_complete - leaves},
        inst=_without(inst, subject, leaves, early),
    )
    # the step's record was counted when the step was timed, so this is its number plus 1
    work, past = hand_overs.moved_on(ctx, state, work, subject, moves)
    left = Left(work, rows)
    for hook, ends in reasons:
        left, past = hook.torn_off(ctx, state, subject, left, past, ends)
    stops = [ends for hook, ends in reasons if hook.takes_all]
    left = memory.preempted.departs(ctx, state, subject, left, (moves, *stops))
    return left.work, dataclasses.replace(
        no_slot(ctx),
        instance=jnp.where(subject.is_forced, ctx.spare_instance, instance),
        slot=subject.slot,
        memory=left.rows,
        request=subject.request,
        past=past,
    )


def next_event(
    ctx: Context,
    slots: SlotRows,
    is_idle: jax.Array,
    chains: Vector,
    gone: jax.Array,
    busy: jax.Array,
) -> jax.Array:
    """Return when the instance acts next: a step event, the arrival of a request that wakes it, or a drop."""
    is_oversized = slots.oversized == 1
    is_there = lax.iota(jnp.int32, ctx.shape.num_slots) != gone
    queued = slots.queued
    wakes = jnp.where(
        is_there & (is_idle & ~is_oversized), waking_time(ctx, queued, busy), ctx.never
    )
    drops = jnp.where(is_there & is_oversized, queued, ctx.never)
    return jnp.minimum(first_chain(chains), jnp.min(jnp.minimum(wakes, drops)))


def _without(
    inst: Instance, subject: Subject, leaves: jax.Array, early: Sequence[jax.Array]
) -> dict[str, jax.Array]:
    """Return the instance's counters after a member has left; it was in decode, unless it left early."""
    counts = {"load": inst.load - leaves, "num_decode": inst.num_decode - leaves}
    for ends in early:
        in_prefill = leaves * as_int(ends & ~subject.in_decode)
        counts["num_prefill"] = inst.num_prefill - in_prefill
        counts["num_decode"] = counts["num_decode"] + in_prefill
    return counts


def close(ctx: Context, state: State, work: Work, instance: jax.Array) -> Work:
    """End the step: schedule the next one, or go idle at once if nothing is left.

    An idle instance counts as idle from the step's start on, as in the reference: a request queued before the step's
    end starts an overlapping step.
    """
    lane, inst = work.lane, work.inst
    members = inst.num_prefill + inst.num_decode
    goes_on = (members > 0) | (lane.num_waiting > 0)
    slots, next_step, chains = SlotRows(state, instance), lane.now + lane.duration, chains_of(inst)
    for hook in ctx.hooks:
        work, goes_on, chains = hook.closing(ctx, state, work, instance, goes_on, chains)
    chains, fits = add_chain(chains, next_step, goes_on.astype(jnp.int32), ctx.never)
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

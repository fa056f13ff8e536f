"""How many steps of a batch that only decodes follow each other undisturbed, and their step times.

Such steps together are a stretch. If all of them take the same time, their number is a quotient. Otherwise a small loop
goes from one duration in whole µs to the next: the batch stays the same, so only its context grows.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
from jax import lax

from blis_jax.core.columns import branch, choose
from blis_jax.core.exact import truncate
from blis_jax.core.pytrees import Parts, pytree
from blis_jax.core.types import LAST
from blis_jax.core.views import StepBatch
from blis_jax.engine.phases.steps.step_times import (
    decoding_alike,
    factors_of,
    lengthened,
    members_of,
    step_time,
    with_source,
)
from blis_jax.memory.decode_takes import takes_after
from blis_jax.memory.memory import MAX_TAKES
from blis_jax.tables.context import Context, SlotRows, Work, row
from blis_jax.tables.state import State, StepRecord
from blis_jax.tables.writes import EarlierRecords

if TYPE_CHECKING:
    from jaxtyping import Array, Int, Real

MAX_FAST_STEPS = 2048
MAX_RUNS = 16


@pytree
class DecodeSteps:
    """A stretch: the steps of one batch in decode, as runs of equal steps; no runs if the step is in no stretch."""

    num_runs: jax.Array
    num_steps: Int[Array, "run"]
    durations: Real[Array, "run"]  # on the clock
    taken: Int[Array, "run"]  # blocks, with its first step, where members take them without a visit
    unlimited: jax.Array  # µs of the last step, float64, which no clock limits
    takes: Parts  # of blocks in these steps, see `Memory.takes_of`


def _has_stretches(ctx: Context) -> bool:
    """Return whether decode steps of one batch may differ, in time or in their records, on a clock of whole µs."""
    is_equal = ctx.mechanism.latency.has_equal_decode_steps and not ctx.memory.takes_at_once(ctx)
    return not is_equal and not ctx.shape.is_continuous


def most_runs(ctx: Context) -> int:
    """Return the most runs of a stretch; 1 in many lanes, which wait for each other, and where the log is short."""
    return MAX_RUNS if ctx.when is branch and not ctx.shape.stall_steps else 1


def no_stretch(ctx: Context) -> DecodeSteps | None:
    """Return an empty stretch; None if the program has no stretches."""
    if not _has_stretches(ctx):
        return None
    runs = most_runs(ctx)
    nothing = jnp.zeros((runs,), jnp.int32)
    durations, takes = jnp.zeros((runs,), ctx.clock), ctx.memory.no_takes(ctx)
    return DecodeSteps(jnp.int32(0), nothing, durations, nothing, jnp.float64(0.0), takes)


def no_earlier(ctx: Context) -> EarlierRecords | None:
    """Return an empty table of records of earlier steps; None if the program has none."""
    rows = most_runs(ctx) - 1
    if not _has_stretches(ctx) or not rows:
        return None
    numbers = jnp.zeros((rows, len(StepRecord.columns)), jnp.int32)
    times = jnp.zeros((rows, len(StepRecord.time_columns)), ctx.clock)
    return EarlierRecords(jnp.int32(0), numbers, times)


def fast_steps(
    ctx: Context,
    state: State,
    work: Work,
    instance: jax.Array,
    until: jax.Array,
    first_finish: jax.Array,
    most: jax.Array,
) -> tuple[jax.Array, DecodeSteps | None]:
    """Return how many decode steps start before anything else can happen on this instance, and their stretch if they
    differ.

    Args:
    """
    latency, cluster = ctx.mechanism.latency, ctx.params.cluster
    by_finish = (first_finish - work.inst.step_index).astype(jnp.int64)
    by_sum = lax.div(jnp.int32(LAST), cluster.total_kv_blocks[instance] + 1).astype(jnp.int64)
    if latency.has_equal_decode_steps and not _has_stretches(ctx):
        factors = factors_of(ctx, state, work, instance, None)
        raw = lengthened(ctx, _equal_time(ctx, state, work, instance), factors)
        in_time = _equal_steps_before(ctx, work, until, raw)
        limit = jnp.minimum(jnp.minimum(in_time, by_finish), by_sum)
        return jnp.clip(limit, 1, MAX_FAST_STEPS).astype(jnp.int32), None
    if not _has_stretches(ctx):
        return jnp.int32(1), None
    limit = jnp.minimum(jnp.minimum(by_finish, by_sum), MAX_FAST_STEPS).astype(jnp.int32)
    limit = jnp.minimum(jnp.maximum(limit, 1), most)
    nothing = no_stretch(ctx)
    assert nothing is not None
    nothing = dataclasses.replace(nothing, takes=Parts())
    stretch = ctx.when(
        limit > 0,
        lambda: _stretch(ctx, state, work, instance, until, limit),
        lambda: nothing,
    )
    count, slots = jnp.sum(stretch.num_steps, dtype=jnp.int32), SlotRows(state, instance)
    taken = jnp.sum(stretch.taken, dtype=jnp.int32)
    takes = ctx.memory.takes_of(ctx, slots, work.inst.step_index, taken)
    return jnp.maximum(count, 1), dataclasses.replace(stretch, takes=takes)


@pytree
class _Progress:
    """A stretch as far as it has been computed; times are in 64 bits."""

    count: jax.Array
    start: jax.Array  # of the step behind it
    last: jax.Array  # duration of its last step
    taken: jax.Array  # blocks, where members take them without a visit
    next_take: jax.Array  # steps before the next one in which somebody may take one
    goes_on: jax.Array
    stretch: DecodeSteps


def _stretch(
    ctx: Context,
    state: State,
    work: Work,
    instance: jax.Array,
    until: jax.Array,
    most: jax.Array,
) -> DecodeSteps:
    """Return the stretch of 1 to `most` steps that start before `until` and not after the horizon."""
    rule, decode = ctx.mechanism.rules.step_time, work.inst.num_decode
    is_equal, before = ctx.mechanism.latency.has_equal_decode_steps, _end(ctx, until)
    time_of = _decode_times(ctx, state, work, instance)
    factors = factors_of(ctx, state, work, instance, None)
    takes_blocks, is_growing = ctx.memory.takes_at_once(ctx), _is_growing(ctx)

    def raw_of(count: jax.Array) -> jax.Array:
        return lengthened(ctx, rule(time_of(count), jnp.int32(0), decode), factors)

    taking = _taking(ctx, SlotRows(state, instance), work.inst.step_index)

    def is_next(now: _Progress) -> jax.Array:
        return now.goes_on & (now.count < most)

    def step(now: _Progress) -> _Progress:
        """Add the next steps that take the same time, at most up to the next step in which a member takes a block."""
        raw = raw_of(now.count)
        duration, steps = truncate(raw, jnp.int64), jnp.int32(1)
        takes, next_take = taking(now.count, now.next_take)
        # behind a step without a duration another one would start at the same time
        has_time = (duration > 0) & (raw < ctx.never.astype(raw.dtype))
        if is_equal or is_growing:
            in_time = _steps_before(now.start, before, duration)
            # one in any case: what else is due now comes behind the first step
            in_time = jnp.clip(in_time, 1, MAX_FAST_STEPS).astype(jnp.int32)
            last = jnp.minimum(next_take, most) if takes_blocks else most
            steps = jnp.where(has_time, jnp.minimum(last - now.count, in_time), 1)
        if is_growing:
            steps, raw = _equal_ahead(raw_of, now.count, raw, steps)
        is_new = (now.count == 0) | (duration != now.last) | (takes > 0)
        taken = now.taken + takes
        fits = (~is_new | (now.stretch.num_runs < most_runs(ctx))) & (taken <= MAX_TAKES)
        made = _with_steps(ctx, now.stretch, steps, duration, raw, takes, is_new)
        # steps that have no room are the first ones of the next scan step
        made = choose(fits, made, now.stretch)
        steps = jnp.where(fits, steps, 0)
        start = now.start + duration * steps.astype(jnp.int64)
        goes_on = fits & has_time & (start < before)
        return _Progress(now.count + steps, start, duration, taken, next_take, goes_on, made)

    nothing = no_stretch(ctx)
    assert nothing is not None
    nothing = dataclasses.replace(nothing, takes=Parts())
    start, zero = work.lane.now.astype(jnp.int64), jnp.int32(0)
    first = _Progress(zero, start, jnp.int64(-1), zero, zero, jnp.array(True), nothing)
    return lax.while_loop(is_next, step, first).stretch


def _is_growing(ctx: Context) -> bool:
    """Return whether decode steps never get shorter, so that all steps between two equal ones are equal, too."""
    source = ctx.mechanism.source
    return ctx.mechanism.latency.decode_steps is not None and (
        source is None or source.step_time is None
    )


def _equal_ahead(
    raw_of: Callable[[jax.Array], jax.Array], count: jax.Array, raw: jax.Array, most: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Return how many of the next steps, at most `most`, take equally many whole µs, and the time of the last.

    Only `most` and the number that a straight line through the first two steps predicts are tried.
    """
    whole = jnp.trunc(raw)
    slope = raw_of(count + 1) - raw
    by_line = jnp.where(slope > 0, jnp.ceil((whole + 1.0 - raw) / slope), jnp.inf)
    by_line = jnp.minimum(by_line, most.astype(jnp.float64)).astype(jnp.int32)
    tried = jnp.maximum(jnp.stack([most, by_line, by_line - 1]), 1)
    times = raw_of(count + tried - 1)
    is_equal = jnp.trunc(times) == whole
    steps = jnp.where(is_equal[1], tried[1], jnp.where(is_equal[2], tried[2], 1))
    last = jnp.where(is_equal[1], times[1], jnp.where(is_equal[2], times[2], raw))
    return jnp.where(is_equal[0], tried[0], steps), jnp.where(is_equal[0], times[0], last)


def _with_steps(
    ctx: Context,
    old: DecodeSteps,
    steps: jax.Array,
    duration: jax.Array,
    raw: jax.Array,
    takes: jax.Array,
    is_new: jax.Array,
) -> DecodeSteps:
    """Return the stretch with more steps, added to its last run or as a new run."""
    runs = most_runs(ctx)
    num_runs = old.num_runs + is_new.astype(jnp.int32)
    at = num_runs - 1

    def put(values: jax.Array, value: jax.Array) -> jax.Array:
        value = value.astype(values.dtype)[None]
        return value if runs == 1 else lax.dynamic_update_slice(values, value, (at,))

    return DecodeSteps(
        num_runs,
        put(old.num_steps, old.num_steps[at] + steps),
        put(old.durations, duration),
        put(old.taken, old.taken[at] + takes),
        raw,
        Parts(),
    )


def _taking(
    ctx: Context, slots: SlotRows, index: jax.Array
) -> Callable[[jax.Array, jax.Array], tuple[jax.Array, jax.Array]]:
    """Return a function of (steps from now, next step in which a member takes a block) that returns how many members
    take a block in that step, and the next such step after it.
    """
    if not ctx.memory.takes_at_once(ctx):
        return lambda count, next_take: (jnp.int32(0), next_take)

    def counted(count: jax.Array) -> tuple[jax.Array, jax.Array]:
        return takes_after(ctx, slots, index, count)

    if ctx.mechanism.latency.has_equal_decode_steps:  # no other steps are asked about
        return lambda count, next_take: counted(count)
    return lambda count, next_take: ctx.when(
        count == next_take, lambda: counted(count), lambda: (jnp.int32(0), next_take)
    )


def _decode_times(
    ctx: Context, state: State, work: Work, instance: jax.Array
) -> Callable[[jax.Array], jax.Array]:
    """Return the function from a number of steps to the time of the decode step that comes after them, float64 µs."""
    latency, decode = ctx.mechanism.latency, work.inst.num_decode
    if latency.has_equal_decode_steps:
        time = _equal_time(ctx, state, work, instance)
        return lambda count: time
    members = members_of(ctx, state, work, instance, None)

    if latency.decode_steps is not None:
        batch = StepBatch(jnp.int32(0), decode, members)
        after = latency.decode_steps(row(ctx.params.cluster.beta, instance), batch)
        return lambda count: with_source(ctx, state, instance, after(count))

    def by_members(count: jax.Array) -> jax.Array:
        more = jnp.where(members.in_decode, count, 0)
        progress, context = members.progress + more, members.context + more
        later = dataclasses.replace(members, progress=progress, context=context)
        return step_time(ctx, state, instance, StepBatch(jnp.int32(0), decode, later))

    return by_members


def _equal_time(ctx: Context, state: State, work: Work, instance: jax.Array) -> jax.Array:
    """Return the time of a step in which every member decodes, where all such steps are equal, float64 µs."""
    members = decoding_alike(ctx) if ctx.mechanism.latency.needs_members else None
    return step_time(ctx, state, instance, StepBatch(jnp.int32(0), work.inst.num_decode, members))


def _end(ctx: Context, until: jax.Array) -> jax.Array:
    """Return the time, int64 µs, before which steps must start: `until`, or just after the horizon if that is first."""
    horizon, until = ctx.params.cluster.horizon_us, until.astype(jnp.int64)
    return jnp.where(horizon < until, horizon + 1, until)


def _steps_before(now: jax.Array, before: jax.Array, duration: jax.Array) -> jax.Array:
    """Return the number of steps of one duration that start before a time, all int64 µs."""
    duration = jnp.maximum(duration, 1)
    return lax.div(before - now + duration - 1, duration)


def _equal_steps_before(
    ctx: Context, work: Work, until: jax.Array, step_time: jax.Array
) -> jax.Array:
    """Return the number of steps of one duration that start before a time and not after the horizon, int64."""
    now = work.lane.now
    if ctx.shape.is_continuous:
        until = jnp.minimum(until, ctx.params.cluster.horizon_us.astype(ctx.clock))
        most = jnp.float64(MAX_FAST_STEPS)
        return jnp.minimum(jnp.ceil((until - now) / step_time), most).astype(jnp.int64)
    duration = truncate(step_time, ctx.clock).astype(jnp.int64)
    return _steps_before(now.astype(jnp.int64), _end(ctx, until), duration)

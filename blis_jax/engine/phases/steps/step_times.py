"""How long the steps of an instance take, and how many of a batch that only decodes follow each other.

Where all such steps take the same time, their number is a quotient. Else they are gone through one by one in a small
loop: the batch stays as it is, so only its context grows.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
from jax import lax

from blis_jax.core.columns import branch, together
from blis_jax.core.exact import in_last_block, truncate
from blis_jax.core.parts import Parts
from blis_jax.core.types import LAST, pytree
from blis_jax.core.views import Members, StepBatch
from blis_jax.memory.memory import MAX_TAKES
from blis_jax.tables.context import Context, SlotRows, Work, count_of, row
from blis_jax.tables.state import Past, State, StepRecord
from blis_jax.tables.writes import EarlierRecords, SlotWrite, no_slot

if TYPE_CHECKING:
    from jaxtyping import Array, Int, Real

MAX_FAST_STEPS = 2048
MAX_RUNS = 16  # of equal steps in a stretch; each has a record
BITS = 62  # of a number of 64 bits, for the steps to the next block


@pytree
class DecodeSteps:
    """Steps of one batch in decode, in runs of equal ones; no run: the step is not of a stretch."""

    num_runs: jax.Array
    num_steps: Int[Array, "run"]
    durations: Real[Array, "run"]  # on the clock
    unlimited: jax.Array  # µs of the last step, float64, which no clock limits
    takes: Parts  # of blocks in these steps, see `Memory.takes_of`


def _has_stretches(ctx: Context) -> bool:
    """Whether decode steps of one batch differ, in time or in what they record; not on the continuous clock."""
    is_equal = ctx.mechanism.latency.has_equal_decode_steps and not ctx.memory.takes_at_once(ctx)
    return not is_equal and not ctx.shape.is_continuous


def most_runs(ctx: Context) -> int:
    """Return the most runs of a stretch: 1 in many lanes, which would wait, and where the log is short."""
    return MAX_RUNS if ctx.when is branch and not ctx.shape.stall_steps else 1


def no_stretch(ctx: Context) -> DecodeSteps | None:
    """Return the stretch of a step that is of none; None where no program has any."""
    if not _has_stretches(ctx):
        return None
    runs = most_runs(ctx)
    nothing = jnp.zeros((runs,), jnp.int32)
    durations, takes = jnp.zeros((runs,), ctx.clock), ctx.memory.no_takes(ctx)
    return DecodeSteps(jnp.int32(0), nothing, durations, jnp.float64(0.0), takes)


def no_earlier(ctx: Context) -> EarlierRecords | None:
    """Return no records of steps before the last ones; None where there never are any."""
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
    """Return how many decode steps start before anything else can happen on this instance, and how
    long they take where they differ.

    Args:
        ctx: the run.
        state: its tables.
        work: the instance in mid-step.
        instance: its number.
        until: before this time nothing reaches it.
        first_finish: the step in which a member completes.
        most: steps that memory allows, 0 where the batch does not only decode; asked only where steps differ.
    """
    latency, cluster = ctx.mechanism.latency, ctx.params.cluster
    by_finish = (first_finish - work.inst.step_index).astype(jnp.int64)
    by_sum = lax.div(jnp.int32(LAST), cluster.total_kv_blocks[instance] + 1).astype(jnp.int64)
    if latency.has_equal_decode_steps and not _has_stretches(ctx):
        raw = _equal_time(ctx, state, work, instance)
        limit = jnp.minimum(jnp.minimum(_steps_before(ctx, work, until, raw), by_finish), by_sum)
        return jnp.clip(limit, 1, MAX_FAST_STEPS).astype(jnp.int32), None
    if not _has_stretches(ctx):
        return jnp.int32(1), None
    limit = jnp.minimum(jnp.minimum(by_finish, by_sum), MAX_FAST_STEPS).astype(jnp.int32)
    limit = jnp.minimum(jnp.maximum(limit, 1), most)
    stretch = _stretch(ctx, state, work, instance, until, limit)
    count, slots = jnp.sum(stretch.num_steps, dtype=jnp.int32), SlotRows(state, instance)
    takes = ctx.memory.takes_of(ctx, slots, work.inst.step_index, count)
    return jnp.maximum(count, 1), dataclasses.replace(stretch, takes=takes)


@pytree
class _Progress:
    """A stretch as far as it is known; times are in 64 bits."""

    count: jax.Array
    start: jax.Array  # of the step behind it
    last: jax.Array  # duration of its last step
    taken: jax.Array  # blocks, where members take them without a visit
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
    """The steps that start before a time and not after the horizon, at most so many; the first in any case."""
    horizon, clock = ctx.params.cluster.horizon_us, ctx.clock
    wide = jnp.float64 if jnp.issubdtype(clock, jnp.floating) else jnp.int64
    before = until.astype(jnp.int64)
    before = jnp.where(horizon < before, horizon + 1, before).astype(wide)
    rule, decode = ctx.mechanism.rules.step_time, work.inst.num_decode
    runs, takes_after = most_runs(ctx), None
    if ctx.memory.takes_at_once(ctx):
        takes_after = _takes_after(ctx, SlotRows(state, instance), work.inst.step_index)
    time_of = _decode_times(ctx, state, work, instance)

    def put(values: jax.Array, at: jax.Array, value: jax.Array) -> jax.Array:
        value = value.astype(values.dtype)[None]
        return value if runs == 1 else lax.dynamic_update_slice(values, value, (at,))

    def is_next(now: _Progress) -> jax.Array:
        return now.goes_on & (now.count < most)

    def step(now: _Progress) -> _Progress:
        """Go one step further; a step that has no room is left for the next scan step."""
        raw = rule(time_of(now.count), jnp.int32(0), decode)
        duration = truncate(raw, wide)
        is_new = (now.count == 0) | (duration != now.last)
        fits, taken = jnp.array(True), now.taken
        if takes_after is not None:
            taken = taken + takes_after(now.count)
            is_new, fits = is_new | (taken > now.taken), taken <= MAX_TAKES
        old = now.stretch
        fits = fits & (~is_new | (old.num_runs < runs))
        num_runs = old.num_runs + (is_new & fits).astype(jnp.int32)
        at = num_runs - 1
        # a step that has no room is the first one of the next scan step
        made = DecodeSteps(
            num_runs,
            put(old.num_steps, at, old.num_steps[at] + fits.astype(jnp.int32)),
            put(old.durations, at, jnp.where(fits, duration, now.last)),
            jnp.where(fits, raw, old.unlimited),
            Parts(),
        )
        start = now.start + duration
        # behind a step without a duration another one would start at the same time
        goes_on = fits & (duration > 0) & (start < before) & (raw < ctx.never.astype(raw.dtype))
        return _Progress(now.count + fits.astype(jnp.int32), start, duration, taken, goes_on, made)

    nothing = no_stretch(ctx)
    assert nothing is not None
    nothing = dataclasses.replace(nothing, takes=Parts())
    start = work.lane.now.astype(wide)
    zero = jnp.int32(0)
    first = _Progress(zero, start, jnp.asarray(-1, wide), zero, jnp.array(True), nothing)
    return lax.while_loop(is_next, step, first).stretch


def _takes_after(
    ctx: Context, slots: SlotRows, index: jax.Array
) -> Callable[[jax.Array], jax.Array]:
    """What says how many members whose last block is full take one in the step that comes after so many."""
    size = ctx.shape.block_size
    in_last, is_decode = in_last_block(index + slots.alloc_offset, size), slots.finish != LAST

    def counted(count: jax.Array) -> jax.Array:
        return count_of((in_last_block(in_last + count, size) == 0) & is_decode)

    if size > BITS:
        return counted
    # one bit for each number of steps after which somebody takes, again after each block
    due = in_last_block(jnp.int32(size) - in_last, size).astype(jnp.int64)
    bits = jnp.where(is_decode, lax.shift_left(jnp.ones_like(due), due), jnp.int64(0))
    taken = lax.reduce(bits, jnp.int64(0), lax.bitwise_or, (0,))

    def takes(count: jax.Array) -> jax.Array:
        bit = in_last_block(count, size).astype(jnp.int64)
        is_any = lax.shift_right_logical(taken, bit) & 1 == 1
        return ctx.when(is_any, lambda: counted(count), lambda: jnp.int32(0))

    return takes


def _decode_times(
    ctx: Context, state: State, work: Work, instance: jax.Array
) -> Callable[[jax.Array], jax.Array]:
    """What says how long the step takes that comes after so many of the batch, which only decodes; float64 µs."""
    latency, decode = ctx.mechanism.latency, work.inst.num_decode
    if latency.has_equal_decode_steps:
        time = _equal_time(ctx, state, work, instance)
        return lambda count: time
    members = members_of(ctx, state, work, instance, no_slot(ctx))

    def by_members(count: jax.Array) -> jax.Array:
        more = jnp.where(members.in_decode, count, 0)
        progress, context = members.progress + more, members.context + more
        later = dataclasses.replace(members, progress=progress, context=context)
        return step_time(ctx, state, instance, StepBatch(jnp.int32(0), decode, later))

    of_totals = latency.decode_time
    if of_totals is None:
        return by_members
    beta = row(ctx.params.cluster.beta, instance)
    progress = jnp.where(members.in_decode, members.progress.astype(jnp.int64), 0)
    total = jnp.sum(progress, dtype=jnp.int64)
    decodes = jnp.sum(members.in_decode, dtype=jnp.int64)

    def by_totals(count: jax.Array) -> jax.Array:
        context = total + count.astype(jnp.int64) * decodes
        time = of_totals(beta, decodes.astype(jnp.float64), context.astype(jnp.float64))
        return _with_source(ctx, state, instance, time)

    return by_totals


def _equal_time(ctx: Context, state: State, work: Work, instance: jax.Array) -> jax.Array:
    """The time of a step in which every member decodes, where all such steps are equal, float64 µs."""
    members = decoding_alike(ctx) if ctx.mechanism.latency.needs_members else None
    return step_time(ctx, state, instance, StepBatch(jnp.int32(0), work.inst.num_decode, members))


def _steps_before(ctx: Context, work: Work, until: jax.Array, step_time: jax.Array) -> jax.Array:
    """Steps of this duration that start before a time and not after the horizon, int64."""
    horizon, now = ctx.params.cluster.horizon_us, work.lane.now
    if ctx.shape.is_continuous:
        until = jnp.minimum(until, horizon.astype(ctx.clock))
        most = jnp.float64(MAX_FAST_STEPS)
        return jnp.minimum(jnp.ceil((until - now) / step_time), most).astype(jnp.int64)
    duration = jnp.maximum(truncate(step_time, ctx.clock).astype(jnp.int64), 1)
    until = until.astype(jnp.int64)
    until = jnp.where(horizon < until, horizon + 1, until)
    return lax.div(until - now.astype(jnp.int64) + duration - 1, duration)


def members_of(
    ctx: Context, state: State, work: Work, instance: jax.Array, written: SlotWrite
) -> Members:
    """Return the members of the batch when its step has been formed.

    `written` was served in this scan step and its rows are not in the tables yet.
    """
    slots = SlotRows(state, instance)
    number = lax.iota(jnp.int32, ctx.shape.num_slots)
    is_written = (number == written.slot) & (written.instance == instance)
    request = slots.request
    spare = jnp.int32(ctx.shape.num_requests)
    rows = state.past.rows[jnp.where(request < 0, spare, request)]
    past = Past(jnp.where(is_written[:, None], together(written.past.numbers)[None, :], rows))

    index = work.inst.step_index + 1
    order = jnp.where(is_written, written.row.order, slots.order)
    is_member = order != LAST
    has_token = jnp.where(is_written, written.row.finish, slots.finish) != LAST
    decoded = jnp.where(has_token, index - past.token_index, 0)
    in_decode = is_member & (decoded > 0)
    in_prefill = is_member & ~in_decode
    context = jnp.where(is_member, past.progress + decoded, 0)
    before = past.step_progress
    new = past.num_new
    if not ctx.mechanism.defects.stale_token_counts:  # a member passed over counts nothing
        new = jnp.where(past.progress == before, 0, new)
    new = jnp.where(in_prefill, new, in_decode.astype(jnp.int32))
    new = ctx.memory.unreached.new_tokens(new, past, index)
    return Members(
        in_prefill=in_prefill,
        new_tokens=new,
        progress=jnp.where(in_prefill, before, jnp.where(in_decode, context - 1, 0)),
        context=context,
        in_step=new > 0,
        in_decode=in_decode & (new > 0),
        input_len=jnp.where(is_member, slots.input_len, 0),
        order=order,
    )


def step_time(ctx: Context, state: State, instance: jax.Array, batch: StepBatch) -> jax.Array:
    """Return how long a step with this batch takes that begins now, float64 µs."""
    time = ctx.mechanism.latency.step_time(row(ctx.params.cluster.beta, instance), batch)
    return _with_source(ctx, state, instance, time)


def _with_source(ctx: Context, state: State, instance: jax.Array, time: jax.Array) -> jax.Array:
    """The time as a user's source of events changes it."""
    source = ctx.mechanism.source
    if source is None or source.step_time is None:
        return time
    memory = state.gateway[ctx.mechanism.of_gateway.index(source)]
    changed = source.step_time(ctx.params.policy.source, memory, instance, time)
    return jnp.asarray(changed, jnp.float64)


def decoding_alike(ctx: Context) -> Members:
    """Return members that stand for a batch that only decodes, where all such steps take the same time."""
    nothing = jnp.zeros((ctx.shape.num_slots,), jnp.int32)
    no_one = nothing.astype(bool)
    return Members(
        in_prefill=no_one,
        new_tokens=nothing,
        progress=nothing,
        context=nothing,
        in_step=no_one,
        in_decode=no_one,
        input_len=nothing,
        order=nothing,
    )

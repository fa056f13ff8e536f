"""The next phases of an instance, in a step or between two."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from blis_jax.engine.phases.completions import tell_instance
from blis_jax.engine.phases.steps.batch_formation import has_candidate, serve
from blis_jax.engine.phases.steps.hooks import StepHooks
from blis_jax.engine.phases.steps.step_end import close, complete, drop, find_drop, finish_step
from blis_jax.engine.phases.steps.step_start import begin
from blis_jax.engine.writing import no_record
from blis_jax.tables.blocks import Do
from blis_jax.tables.context import NO_KEY, Context, Work
from blis_jax.tables.state import Mode, State
from blis_jax.tables.writes import NewsWrite, RecordWrite, SlotWrite


def _finished(
    ctx: Context, state: State, work: Work, instance: jax.Array, written: SlotWrite
) -> tuple[Work, RecordWrite]:
    result = finish_step(ctx, state, work, instance, written)
    record = work.lane.num_records
    if ctx.shape.stall_steps:
        record = record - work.lane.log_base
    record = jnp.minimum(record, jnp.int32(ctx.shape.log_capacity))
    return result.work, RecordWrite(record, result.record)


def _may_serve(ctx: Context, work: Work, instance: jax.Array) -> jax.Array:
    does = ctx.memory.does
    is_free = does(work, Do.NOTHING)
    return (is_free & has_candidate(ctx, work, instance)) | does(work, Do.ATTEMPT)


def _not_served(
    ctx: Context,
    state: State,
    work: Work,
    instance: jax.Array,
    key: jax.Array,
    is_drop: jax.Array,
) -> tuple[Work, SlotWrite]:
    """An oversized request dropped, an allocation given up, or nothing."""
    return ctx.when(
        is_drop,
        lambda: drop(ctx, state, work, instance, key),
        lambda: ctx.memory.after_failure(ctx, state, work, instance),
    )


def advance(
    ctx: Context,
    state: State,
    work: Work,
    instance: jax.Array,
    until: jax.Array,
    hooks: Sequence[StepHooks],
) -> tuple[Work, SlotWrite, RecordWrite, tuple[NewsWrite, ...]]:
    """Return the instance after its next phases, as far as they touch one slot.

    Between steps it drops an oversized request or begins a step; while the batch forms it serves one request;
    when none is left the step ends, its members complete one by one, and the next step is scheduled.
    """
    when, does = ctx.when, ctx.memory.does
    is_new = work.lane.mode == Mode.BETWEEN
    may_drop = is_new & (work.inst.num_oversized > 0)
    key = when(may_drop, lambda: find_drop(state, work, instance), lambda: jnp.int64(NO_KEY))
    is_drop = key != NO_KEY
    begins = is_new & ~is_drop
    for hook in hooks:
        work, begins = hook.before_step(ctx, state, work, instance, begins)
    started = when(begins, lambda: begin(ctx, state, work, instance, until), lambda: work)
    is_forming = ~is_drop & (started.lane.mode == Mode.FORMING)
    serves = is_forming & _may_serve(ctx, started, instance)
    fails = does(started, Do.FAILED)
    formed, written = when(
        serves,
        lambda: serve(ctx, state, started, instance, hooks),
        lambda: _not_served(ctx, state, started, instance, key, is_drop),
    )
    is_sound = formed.lane.outcome == 0
    ends = is_forming & is_sound & does(formed, Do.NOTHING) & ~has_candidate(ctx, formed, instance)
    timed, record = when(
        ends,
        lambda: _finished(ctx, state, formed, instance, written),
        lambda: (formed, no_record(ctx)),
    )
    is_completing = timed.lane.mode == Mode.COMPLETING
    has_left = (timed.lane.num_to_complete > 0) & does(timed, Do.NOTHING)
    completes = is_completing & (has_left | does(timed, Do.ATTEMPT)) & ~serves & ~fails
    left, written = when(
        completes,
        lambda: complete(ctx, state, timed, instance, hooks),
        lambda: (timed, written),
    )
    is_done = completes
    for hook in hooks:
        is_done = hook.completed(ctx, state, written, is_done)
    left, news = tell_instance(ctx, state, left, instance, written, is_done)
    is_over = left.lane.mode == Mode.COMPLETING
    is_over = is_over & (left.lane.num_to_complete == 0) & does(left, Do.NOTHING)
    closed = when(is_over, lambda: close(ctx, state, left, instance, hooks), lambda: left)
    for hook in hooks:
        closed = hook.closed(ctx, state, left, closed, is_over)
    return closed, written, record, news

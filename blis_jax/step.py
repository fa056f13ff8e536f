"""One scan step: the next small thing that happens in the cluster.

Either the gateway admits or routes one request, or the instance whose event is next begins a step, serves one
request, ends the step, or completes one request. Phases compute few small rows; the rows are written at the end.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
from jax import lax

from blis_jax.advance import close, complete, drop, find_drop, finish_step
from blis_jax.batch_formation import serve
from blis_jax.begin import begin
from blis_jax.branching import branch
from blis_jax.candidates import has_candidate
from blis_jax.clock import least
from blis_jax.columns import apart, put
from blis_jax.completions import next_news, tell_gateway, tell_instance
from blis_jax.context import NO_KEY, Context
from blis_jax.exact import runtime_infinity
from blis_jax.gateway import Decisions, decide, next_times
from blis_jax.joined import INSTANCE_OF, event_times, lane_of
from blis_jax.kv_cache.blocks import Do, MemoryTask
from blis_jax.kv_cache.cpu_tier import offload, reload
from blis_jax.kv_cache.operations import pin, release, restore, roll_back, take
from blis_jax.kv_cache.turn import Operation, take_turn
from blis_jax.policies.pickers import first_where
from blis_jax.slot_write import SlotWrite
from blis_jax.state import (
    Lane,
    Mode,
    Past,
    State,
)
from blis_jax.work import Work
from blis_jax.writes import (
    NewsWrite,
    RecordWrite,
    Writes,
    no_record,
    no_writes,
    with_lane_row,
    write,
)


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


def advance_instance(
    ctx: Context, state: State, work: Work, instance: jax.Array, next_cluster: jax.Array
) -> tuple[Work, SlotWrite, RecordWrite, NewsWrite | None]:
    """The instance's next phases, as far as they touch one slot.

    Between steps it drops an oversized request or begins a step; while the batch forms it serves one request;
    when none is left the step ends, its members complete one by one, and the next step is scheduled.
    """
    when, does = ctx.when, ctx.memory.does
    is_new = work.lane.mode == Mode.BETWEEN
    may_drop = is_new & (work.inst.num_oversized > 0)
    key = when(may_drop, lambda: find_drop(state, work, instance), lambda: jnp.int64(NO_KEY))
    is_drop = key != NO_KEY
    started = when(
        is_new & ~is_drop, lambda: begin(ctx, state, work, instance, next_cluster), lambda: work
    )
    is_forming = ~is_drop & (started.lane.mode == Mode.FORMING)
    serves = is_forming & _may_serve(ctx, started, instance)
    fails = does(started, Do.FAILED)
    formed, written = when(
        serves,
        lambda: serve(ctx, state, started, instance),
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
        lambda: complete(ctx, state, timed, instance),
        lambda: (timed, written),
    )
    left, news = tell_instance(ctx, state, left, instance, written, completes)
    is_over = left.lane.mode == Mode.COMPLETING
    is_over = is_over & (left.lane.num_to_complete == 0) & does(left, Do.NOTHING)
    closed = when(is_over, lambda: close(ctx, state, left, instance), lambda: left)
    return closed, written, record, news


def _past_of_routed(past: Past, done: Decisions) -> Past:
    """A request's row once it is routed: nothing has happened to it yet, but it has a place."""
    beside = {INSTANCE_OF: done.where.instance, INSTANCE_OF + 1: done.slot.expected_blocks}
    return Past(put(apart(past.numbers), beside))


def _gateway_writes(
    ctx: Context, state: State, admit_time: jax.Array, route_time: jax.Array
) -> Writes:
    done = decide(ctx, state, admit_time, route_time)
    routed, instance = done.where.routed, done.where.instance
    nothing, joins = no_writes(ctx, state, instance), state.instance_of is None
    return dataclasses.replace(
        nothing,
        lane=done.lane,
        stale=done.stale,
        gateway=done.gateway,
        num_private=done.num_private,
        num_distinct=done.num_distinct,
        turned_away=done.where.turned_away,
        routed=routed,
        routed_to=instance,
        instance=instance,
        inst=done.inst,
        slot=dataclasses.replace(
            nothing.slot,
            request=routed if joins else nothing.slot.request,
            past=_past_of_routed(nothing.slot.past, done) if joins else nothing.slot.past,
            instance=instance,
            slot=done.where.slot,
            row=done.slot,
        ),
        route_path=done.path,
        touched=done.touched,
        private_at=done.private_at,
    )


def _instance_writes(
    ctx: Context, state: State, instance: jax.Array, next_cluster: jax.Array
) -> Writes:
    nothing = no_writes(ctx, state, instance)
    start = Work(nothing.lane, nothing.inst, nothing.task, nothing.pool, nothing.local)
    work, slot, record, news = advance_instance(ctx, state, start, instance, next_cluster)
    return dataclasses.replace(
        nothing,
        lane=work.lane,
        instance=instance,
        inst=work.inst,
        task=work.task,
        pool=work.pool,
        slot=slot,
        record=record,
        local=work.local,
        news=news,
    )


OPERATIONS = {
    Do.RELOAD: reload,
    Do.PIN: pin,
    Do.TAKE: take,
    Do.ROLL_BACK: roll_back,
    Do.RESTORE: restore,
    Do.RELEASE: release,
    Do.OFFLOAD: offload,
}
_OF_CPU_TIER = (Do.RELOAD, Do.OFFLOAD)


def move_blocks(ctx: Context, state: State) -> State:
    """What memory has to do, one window of blocks at a time; one operation may follow on another."""
    for do, operation in OPERATIONS.items():
        if do in _OF_CPU_TIER and not ctx.shape.has_cpu_tier:
            continue
        assert state.blocks is not None
        is_on = MemoryTask(state.blocks.task).do == do
        is_on = is_on & (Lane(state.registers).outcome == 0)

        def change(state: State, is_on: jax.Array, operation: Operation = operation) -> State:
            return take_turn(ctx, state, is_on, operation)

        state = ctx.in_place(is_on, change, state)
    return state


def first_of(ctx: Context, events: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The time of the next event, and the first instance that has one then."""
    if ctx.when is branch or events.dtype != jnp.int32:
        event_time = least(events)
        return event_time, first_where(events == event_time)
    # one minimum instead of two: time and instance packed
    instance = lax.iota(jnp.int64, events.shape[0])
    packed = jnp.min((events.astype(jnp.int64) << 32) | instance)
    return (packed >> 32).astype(jnp.int32), packed.astype(jnp.int32)


def scan_step(ctx: Context, state: State) -> State:
    """The next small thing that happens; nothing once the run is over."""
    with runtime_infinity(ctx.params.cluster.infinity):
        return _next_thing(ctx, state)


def _next_thing(ctx: Context, state: State) -> State:
    lane = lane_of(ctx, state)
    rows = ctx.shape.num_instances
    admit_time, route_time = next_times(ctx, lane)
    cluster_time = jnp.minimum(admit_time, route_time)
    events = event_times(state, rows)
    event_time, first = first_of(ctx, events)
    in_step = lane.mode != Mode.BETWEEN
    horizon, last = ctx.params.cluster.horizon_us, ctx.never.astype(jnp.int64)
    end = jnp.where(horizon < last, horizon, last).astype(ctx.clock)
    is_sound = lane.outcome == 0
    is_gateway = (cluster_time <= event_time) & (cluster_time <= end) & (cluster_time < ctx.never)
    is_gateway = is_gateway & is_sound & ~in_step
    is_due = (event_time <= end) & (event_time < cluster_time)
    is_instance = is_sound & (in_step | is_due)
    instance = jnp.where(in_step, lane.active, first)
    instance = jnp.where(is_instance, instance, jnp.int32(rows))
    now = jnp.where(in_step, lane.now, event_time)
    is_new = is_instance & ~in_step
    last_event = jnp.where(is_new, event_time, lane.last_event)
    is_done = ~is_gateway & ~is_instance
    lane = lane.replace(is_done=is_done, now=now, last_event=last_event)
    now_state = dataclasses.replace(state, registers=lane.numbers, times=lane.times)

    def by_gateway() -> Writes:
        if state.news is None:
            return _gateway_writes(ctx, now_state, admit_time, route_time)
        return ctx.when(
            next_news(ctx, now_state) < cluster_time,
            lambda: tell_gateway(ctx, now_state),
            lambda: _gateway_writes(ctx, now_state, admit_time, route_time),
        )

    done = ctx.when(
        is_gateway,
        by_gateway,
        lambda: ctx.when(
            is_instance,
            lambda: _instance_writes(ctx, now_state, instance, cluster_time),
            lambda: no_writes(ctx, now_state, instance),
        ),
    )
    # every read before any write: otherwise a vectorised loop copies whole tables
    state = write(ctx, state, lax.optimization_barrier(with_lane_row(state, done)))
    return move_blocks(ctx, state) if ctx.shape.num_blocks else state

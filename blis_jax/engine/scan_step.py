"""One scan step: the next small thing that happens in the cluster.

Either the gateway admits or routes one request, or the instance whose event is next begins a step, serves one
request, ends the step, or completes one request. Phases compute few small rows; the rows are written at the end.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
from jax import lax

from blis_jax.core.exact import runtime_infinity
from blis_jax.core.outcome import Outcome
from blis_jax.engine.calendar import Due, Kind, next_due, undisturbed_until
from blis_jax.engine.cluster_events import cluster_writes
from blis_jax.engine.context import NO_KEY, Context
from blis_jax.engine.phases.completions import tell_instance
from blis_jax.engine.phases.departures.fleet_view import with_emptied
from blis_jax.engine.phases.departures.giving_up import (
    after_leaving,
    closed_early,
    idle,
    is_orphan,
)
from blis_jax.engine.phases.departures.hand_over import has_completed
from blis_jax.engine.phases.departures.movement import (
    is_leaving,
    leave,
    stop,
)
from blis_jax.engine.phases.departures.reservation import released, store
from blis_jax.engine.phases.departures.stops import cooled, is_due, leaves_early, strange
from blis_jax.engine.phases.steps.batch_formation import serve
from blis_jax.engine.phases.steps.candidates import has_candidate
from blis_jax.engine.phases.steps.mid_step import Work, failing
from blis_jax.engine.phases.steps.step_end import close, complete, drop, find_drop, finish_step
from blis_jax.engine.phases.steps.step_start import begin
from blis_jax.engine.state import Lane, Mode, State
from blis_jax.engine.tables.joined import lane_of
from blis_jax.engine.tables.slot_write import SlotWrite
from blis_jax.engine.tables.writes import (
    NewsWrite,
    RecordWrite,
    Writes,
    no_record,
    no_writes,
    with_lane_row,
    write,
)
from blis_jax.memory.block_tables.blocks import Do, MemoryTask
from blis_jax.memory.block_tables.operations import pin, release, restore, roll_back, take
from blis_jax.memory.block_tables.turn import Operation, take_turn
from blis_jax.memory.index_events import heard, settled
from blis_jax.memory.second_tier.cpu_tier import offload, reload
from blis_jax.memory.second_tier.mirror import bring_back, mirror


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
    ctx: Context, state: State, work: Work, instance: jax.Array, until: jax.Array
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
    begins, orphan = is_new & ~is_drop, is_orphan(ctx, state, work, instance)
    if orphan is not None:
        finds_nobody, begins = begins & orphan, begins & ~orphan
        work = when(finds_nobody, lambda: idle(ctx, state, work, instance), lambda: work)
    started = when(begins, lambda: begin(ctx, state, work, instance, until), lambda: work)
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
    is_done = has_completed(ctx, written, completes)
    early = leaves_early(ctx, state)
    is_done = is_done if early is None else is_done & ~early
    left, news = tell_instance(ctx, state, left, instance, written, is_done)
    is_over = left.lane.mode == Mode.COMPLETING
    is_over = is_over & (left.lane.num_to_complete == 0) & does(left, Do.NOTHING)
    closed = when(is_over, lambda: close(ctx, state, left, instance), lambda: left)
    closed = closed_early(ctx, state, left, closed, is_over)
    return closed, written, record, news


def _instance_writes(ctx: Context, state: State, instance: jax.Array, due: Due) -> Writes:
    if ctx.mechanism.reserves_decode:
        is_storing = lane_of(ctx, state).mode >= Mode.STORING
        return ctx.when(
            is_storing,
            lambda: store(ctx, state, instance),
            lambda: _advanced(ctx, state, instance, due),
        )
    if ctx.shape.has_mirror and state.exits is not None:
        is_storing = lane_of(ctx, state).mode >= Mode.STORING
        return ctx.when(
            is_storing,
            lambda: released(ctx, state, instance),
            lambda: _advanced(ctx, state, instance, due),
        )
    if ctx.mechanism.cluster is None:
        return _advanced(ctx, state, instance, due)
    is_new = lane_of(ctx, state).mode == Mode.BETWEEN
    return ctx.when(
        is_new & is_leaving(ctx, state, instance, due.event),
        lambda: _left(ctx, state, instance),
        lambda: ctx.when(
            is_new & is_due(ctx, state, instance, due.event),
            lambda: stop(ctx, state, instance, due.event),
            lambda: _advanced(ctx, state, instance, due),
        ),
    )


def _left(ctx: Context, state: State, instance: jax.Array) -> Writes:
    """A request leaves the queue of an instance."""
    nothing = no_writes(ctx, state, instance)
    start = Work(nothing.lane, nothing.inst, nothing.task, nothing.pool, nothing.local)
    work, slot, movement = leave(ctx, state, start, instance)
    return dataclasses.replace(
        nothing, instance=instance, inst=work.inst, slot=slot, movement=movement
    )


def _advanced(ctx: Context, state: State, instance: jax.Array, due: Due) -> Writes:
    nothing = no_writes(ctx, state, instance)
    until = undisturbed_until(ctx, state, due, instance)
    start = Work(nothing.lane, nothing.inst, nothing.task, nothing.pool, nothing.local)
    hands_over, moves = ctx.mechanism.hand_over is not None, ctx.mechanism.moves_requests
    if hands_over:
        start = dataclasses.replace(start, gateway=nothing.gateway)
    if moves:
        start = dataclasses.replace(start, movement=nothing.movement)
    is_fed = ctx.mechanism.is_precise  # the router's index, by the allocations
    if is_fed:
        start = dataclasses.replace(start, router=nothing.router)
    work, slot, record, news = advance_instance(ctx, state, start, instance, until)
    return dataclasses.replace(
        nothing,
        gateway=work.gateway if hands_over else nothing.gateway,
        movement=work.movement if moves else nothing.movement,
        router=work.router if is_fed else nothing.router,
        lane=work.lane,
        instance=instance,
        inst=work.inst,
        task=work.task,
        pool=work.pool,
        slot=slot,
        record=record,
        local=work.local,
        news=news,
        exits=after_leaving(ctx, state, work, instance, nothing.inst),
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
_OF_ONE_TIER = {do: OPERATIONS[do] for do in OPERATIONS if do not in (Do.RELOAD, Do.OFFLOAD)}
_OF_MIRROR = {
    Do.RELOAD: bring_back,
    Do.PIN: pin,
    Do.TAKE: take,
    Do.RELEASE: release,
    Do.MIRROR: mirror,
}


def move_blocks(ctx: Context, state: State) -> State:
    """What memory has to do, a few windows of blocks at a time; one operation may follow on another.

    Nothing else happens on the instance until the operation is over, so its windows may follow each other at once.
    """
    operations = OPERATIONS if ctx.shape.has_cpu_tier else _OF_ONE_TIER
    for do, operation in (_OF_MIRROR if ctx.shape.has_mirror else operations).items():

        def is_on(state: State, do: Do = do) -> jax.Array:
            assert state.blocks is not None
            is_next = MemoryTask(state.blocks.task).do == do
            return is_next & (Lane(state.registers).outcome == 0)

        def change(state: State, is_on: jax.Array, operation: Operation = operation) -> State:
            return take_turn(ctx, state, is_on, operation)

        state = ctx.turns(is_on, change, state, ctx.shape.windows_a_step)
    return state


def scan_step(ctx: Context, state: State) -> State:
    """The next small thing that happens; nothing once the run is over."""
    with runtime_infinity(ctx.params.cluster.infinity):
        return _next_thing(ctx, state)


def _next_thing(ctx: Context, state: State) -> State:
    if ctx.mechanism.is_precise:
        state = dataclasses.replace(state, router=settled(ctx, state))
    lane = lane_of(ctx, state)
    due = next_due(ctx, state, lane)
    in_step = lane.mode != Mode.BETWEEN
    horizon, last = ctx.params.cluster.horizon_us, ctx.never.astype(jnp.int64)
    end = jnp.where(horizon < last, horizon, last).astype(ctx.clock)
    is_sound = lane.outcome == 0
    is_cluster = (due.cluster <= due.event) & (due.cluster <= end) & (due.cluster < ctx.never)
    is_cluster = is_cluster & is_sound & ~in_step
    is_due = (due.event <= end) & (due.event < due.cluster)
    is_instance = is_sound & (in_step | is_due)
    instance = jnp.where(in_step, lane.active, due.instance)
    instance = jnp.where(is_instance, instance, jnp.int32(ctx.shape.num_instances))
    now = jnp.where(in_step, lane.now, due.event)
    is_new = is_instance & ~in_step
    last_event = jnp.where(is_new, due.event, lane.last_event)
    is_done = ~is_cluster & ~is_instance
    lane = lane.replace(is_done=is_done, now=now, last_event=last_event)
    if ctx.mechanism.is_precise and ctx.mechanism.delays_index:
        assert state.router is not None  # somebody looks at what is precise
        asked = jnp.where(is_cluster, due.cluster, now), ~in_step
        router, outcome = heard(ctx, state.router, lane.outcome, *asked)
        state, lane = dataclasses.replace(state, router=router), lane.replace(outcome=outcome)
    if ctx.mechanism.cluster is not None:
        is_late = is_done & is_sound & due.is_beyond
        lane = lane.replace(outcome=failing(lane.outcome, is_late, Outcome.CLOCK_OVERFLOW))
    now_state = dataclasses.replace(state, registers=lane.numbers, times=lane.times)
    done = ctx.when(
        is_cluster,
        lambda: cluster_writes(ctx, now_state, due),
        lambda: ctx.when(
            is_instance,
            lambda: _instance_writes(ctx, now_state, instance, due),
            lambda: no_writes(ctx, now_state, instance),
        ),
    )
    # every read before any write: otherwise a vectorised loop copies whole tables
    done = lax.optimization_barrier(with_lane_row(state, done))
    state = write(ctx, state, done)
    if ctx.mechanism.cluster is not None and done.movement is not None:
        state = cooled(ctx, state, done.movement.cold)
        state = strange(ctx, state, done)
    if ctx.mechanism.places_instances:
        gives_up = is_cluster & (due.kind == Kind.DEADLINE)
        at = jnp.where(gives_up, due.cluster, now)
        state = with_emptied(ctx, state, done.instance, at, is_instance | gives_up)
    return move_blocks(ctx, state) if ctx.shape.num_blocks else state

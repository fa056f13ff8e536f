"""One scan step: the next small thing that happens in the cluster.

Either the gateway admits or routes one request, or the instance whose event is next begins a step, serves one
request, ends the step, or completes one request. Phases compute few small rows; the rows are written at the end.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax import lax

from blis_jax.advance import close, complete, drop, find_drop, finish_step, free_slot_row
from blis_jax.batch_formation import has_candidate, visit
from blis_jax.begin import begin
from blis_jax.columns import get, put
from blis_jax.context import NO_KEY, Context, row
from blis_jax.gateway import decide, next_times
from blis_jax.kv_cache.no_eviction import PathRows, no_path, write_path
from blis_jax.policies.routing import first_where
from blis_jax.state import (
    Dyn,
    Inst,
    InstTime,
    Log,
    LogTime,
    Mode,
    Reg,
    RouterIndex,
    Slot,
    SlotTime,
    State,
    Time,
)
from blis_jax.types import REJECTED, pytree
from blis_jax.work import Work

if TYPE_CHECKING:
    from jaxtyping import Array, Int


@pytree
class SlotWrite:
    """One slot's rows, and the request's; at the spare instance and request if nothing is written."""

    instance: Int[Array, ""]
    slot: Int[Array, ""]
    row: Int[Array, "column"]
    time_row: Any
    path: PathRows
    request: Int[Array, ""]
    dyn: Int[Array, "column"]


@pytree
class RecordWrite:
    """One step record; past the log's end if there is none."""

    record: Int[Array, ""]
    log: Int[Array, "column"]
    log_time: Any


def _no_slot(ctx: Context) -> SlotWrite:
    return SlotWrite(
        instance=jnp.int32(ctx.shape.num_instances),
        slot=jnp.int32(0),
        row=free_slot_row(),
        time_row=jnp.full((len(SlotTime),), ctx.never, ctx.clock),
        path=no_path(ctx.shape),
        request=jnp.int32(ctx.shape.num_requests),
        dyn=jnp.zeros((len(Dyn),), jnp.int32),
    )


def _no_record(ctx: Context) -> RecordWrite:
    return RecordWrite(
        record=jnp.int32(ctx.shape.log_capacity),
        log=jnp.zeros((len(Log),), jnp.int32),
        log_time=jnp.zeros((len(LogTime),), ctx.clock),
    )


def _dropped(
    ctx: Context, state: State, work: Work, instance: jax.Array, key: jax.Array
) -> tuple[Work, SlotWrite]:
    result = drop(ctx, state, work, instance, key)
    nothing = _no_slot(ctx)
    written = dataclasses.replace(
        nothing,
        instance=instance,
        slot=result.slot,
        request=result.request,
        dyn=put(nothing.dyn, {Dyn.NUM_SCHEDULED: jnp.int32(-1)}),
    )
    return result.work, written


def _served(ctx: Context, state: State, work: Work, instance: jax.Array) -> tuple[Work, SlotWrite]:
    result = visit(ctx, state, work, instance)
    request = get(result.slot_row, Slot.REQUEST)
    return result.work, SlotWrite(
        instance,
        result.slot,
        result.slot_row,
        result.slot_time_row,
        result.path,
        request,
        result.dyn,
    )


def _completed(
    ctx: Context, state: State, work: Work, instance: jax.Array
) -> tuple[Work, SlotWrite]:
    result = complete(ctx, state, work, instance)
    written = dataclasses.replace(
        _no_slot(ctx),
        instance=instance,
        slot=result.slot,
        path=result.path,
        request=result.request,
        dyn=result.dyn,
    )
    return result.work, written


def _finished(
    ctx: Context, state: State, work: Work, instance: jax.Array, written: SlotWrite
) -> tuple[Work, RecordWrite]:
    visited = jnp.where(written.instance == instance, written.slot, -1)
    finish = get(written.row, Slot.FINISH)
    result = finish_step(ctx, state, work, instance, visited, finish)
    record = jnp.minimum(get(work.registers, Reg.NUM_RECORDS), jnp.int32(ctx.shape.log_capacity))
    return result.work, RecordWrite(record, result.log, result.log_time)


def advance_instance(
    ctx: Context, state: State, work: Work, instance: jax.Array, next_cluster: jax.Array
) -> tuple[Work, SlotWrite, RecordWrite]:
    """The instance's next phases, as far as they touch one slot.

    Between steps it drops an oversized request or begins a step; while the batch forms it serves one request;
    when none is left the step ends, its members complete one by one, and the next step is scheduled.
    """
    when = ctx.when
    is_new = get(work.registers, Reg.MODE) == Mode.BETWEEN
    may_drop = is_new & (get(work.inst, Inst.NUM_OVERSIZED) > 0)
    key = when(may_drop, lambda: find_drop(state, work, instance), lambda: jnp.int64(NO_KEY))
    is_drop = key != NO_KEY
    started = when(
        is_new & ~is_drop, lambda: begin(ctx, state, work, instance, next_cluster), lambda: work
    )
    is_forming = ~is_drop & (get(started.registers, Reg.MODE) == Mode.FORMING)
    serves = is_forming & has_candidate(ctx, started, instance)
    formed, written = when(
        serves,
        lambda: _served(ctx, state, started, instance),
        lambda: when(
            is_drop,
            lambda: _dropped(ctx, state, started, instance, key),
            lambda: (started, _no_slot(ctx)),
        ),
    )
    is_sound = get(formed.registers, Reg.OUTCOME) == 0
    ends = is_forming & is_sound & ~has_candidate(ctx, formed, instance)
    timed, record = when(
        ends,
        lambda: _finished(ctx, state, formed, instance, written),
        lambda: (formed, _no_record(ctx)),
    )
    is_completing = get(timed.registers, Reg.MODE) == Mode.COMPLETING
    completes = is_completing & (get(timed.registers, Reg.NUM_TO_COMPLETE) > 0) & ~serves
    left, written = when(
        completes,
        lambda: _completed(ctx, state, timed, instance),
        lambda: (timed, written),
    )
    is_over = get(left.registers, Reg.MODE) == Mode.COMPLETING
    is_over = is_over & (get(left.registers, Reg.NUM_TO_COMPLETE) == 0)
    closed = when(is_over, lambda: close(ctx, state, left, instance), lambda: left)
    return closed, written, record


@pytree
class Writes:
    """Everything one scan step changes: the lane's scalars, and one row per table."""

    registers: Int[Array, "column"]
    times: Any
    stale: Any
    admission: Any
    routing: Any
    num_private: Int[Array, "instance"]
    num_distinct: Int[Array, "instance"]
    turned_away: Int[Array, ""]
    routed: Int[Array, ""]
    routed_to: Int[Array, ""]
    instance: Int[Array, ""]
    inst: Int[Array, "column"]
    inst_time: Any
    slot: SlotWrite
    path_instance: Int[Array, ""]
    record: RecordWrite
    route_path: Int[Array, "path"]
    touched: Int[Array, "path instance"]
    private_at: Int[Array, "path instance"]


def _no_writes(ctx: Context, state: State, instance: jax.Array) -> Writes:
    rows, depth = ctx.shape.num_instances, ctx.shape.path_depth
    spare_instance, spare_request = jnp.int32(rows), jnp.int32(ctx.shape.num_requests)
    return Writes(
        registers=state.registers,
        times=state.times,
        stale=state.stale,
        admission=state.admission,
        routing=state.routing,
        num_private=state.router.num_private,
        num_distinct=state.router.num_distinct,
        turned_away=spare_request,
        routed=spare_request,
        routed_to=spare_instance,
        instance=spare_instance,
        inst=row(state.inst, instance),
        inst_time=row(state.inst_time, instance),
        slot=_no_slot(ctx),
        path_instance=spare_instance,
        record=_no_record(ctx),
        route_path=jnp.full((depth,), ctx.shape.num_nodes, jnp.int32),
        touched=jnp.zeros((depth, rows), jnp.int32),
        private_at=jnp.zeros((depth, rows), jnp.int32),
    )


def _gateway_writes(
    ctx: Context, state: State, admit_time: jax.Array, route_time: jax.Array
) -> Writes:
    done = decide(ctx, state, admit_time, route_time)
    turned_away, routed, instance, slot = (get(done.where, index) for index in range(4))
    nothing = _no_writes(ctx, state, instance)
    return dataclasses.replace(
        nothing,
        registers=done.registers,
        times=done.times,
        stale=done.stale,
        admission=done.admission,
        routing=done.routing,
        num_private=done.num_private,
        num_distinct=done.num_distinct,
        turned_away=turned_away,
        routed=routed,
        routed_to=instance,
        instance=instance,
        inst=done.inst_row,
        inst_time=done.inst_time_row,
        slot=dataclasses.replace(
            nothing.slot,
            instance=instance,
            slot=slot,
            row=done.slot_row,
            time_row=done.slot_time_row,
        ),
        route_path=done.path,
        touched=done.touched,
        private_at=done.private_at,
    )


def _instance_writes(
    ctx: Context, state: State, instance: jax.Array, next_cluster: jax.Array
) -> Writes:
    nothing = _no_writes(ctx, state, instance)
    start = Work(state.registers, state.times, nothing.inst, nothing.inst_time)
    work, slot, record = advance_instance(ctx, state, start, instance, next_cluster)
    return dataclasses.replace(
        nothing,
        registers=work.registers,
        times=work.times,
        instance=instance,
        inst=work.inst,
        inst_time=work.inst_time,
        slot=slot,
        path_instance=slot.instance,
        record=record,
    )


def _put(table: jax.Array, values: jax.Array, *start: jax.Array) -> jax.Array:
    return lax.dynamic_update_slice(table, values, start)


def _write_router(ctx: Context, state: State, done: Writes) -> RouterIndex:
    router = state.router
    if not ctx.mechanism.uses_prefix_index:
        return router
    touched, private_at = router.touched, router.private_at
    if ctx.shape.path_depth > 1:
        touched = touched.at[done.route_path].set(done.touched)
    else:
        at = (get(done.route_path, 0), jnp.int32(0))
        touched = _put(touched, done.touched, *at)
    if ctx.shape.has_router_eviction:
        private_at = private_at.at[done.route_path].set(done.private_at)
    return RouterIndex(touched, private_at, done.num_private, done.num_distinct)


def _write(ctx: Context, state: State, done: Writes) -> State:
    """Put every row in its place, once per table."""
    zero, slot, record = jnp.int32(0), done.slot, done.record
    at = (zero, slot.instance, slot.slot)
    instance_of = _put(state.instance_of, jnp.full((1,), REJECTED, jnp.int32), done.turned_away)
    shared = state.shared
    if ctx.shape.num_nodes > 0:
        shared = write_path(shared, slot.path, done.path_instance, slot.slot)
    return State(
        registers=done.registers,
        times=done.times,
        slot=_put(state.slot, slot.row[:, None, None], *at),
        slot_time=_put(state.slot_time, slot.time_row[:, None, None], *at),
        inst=_put(state.inst, done.inst[None], done.instance, zero),
        inst_time=_put(state.inst_time, done.inst_time[None], done.instance, zero),
        dyn=_put(state.dyn, slot.dyn[None], slot.request, zero),
        instance_of=_put(instance_of, done.routed_to[None], done.routed),
        shared=shared,
        router=_write_router(ctx, state, done),
        stale=done.stale,
        log=_put(state.log, record.log[None], record.record, zero),
        log_time=_put(state.log_time, record.log_time[None], record.record, zero),
        admission=done.admission,
        routing=done.routing,
    )


def scan_step(ctx: Context, state: State) -> State:
    """The next small thing that happens; nothing once the run is over."""
    registers, times, rows = state.registers, state.times, ctx.shape.num_instances
    admit_time, route_time = next_times(ctx, registers)
    cluster_time = jnp.minimum(admit_time, route_time)
    events = state.inst_time[:rows, InstTime.EVENT]
    event_time = jnp.min(events)
    in_step = get(registers, Reg.MODE) != Mode.BETWEEN
    horizon, last = ctx.params.cluster.horizon_us, ctx.never.astype(jnp.int64)
    end = jnp.where(horizon < last, horizon, last).astype(ctx.clock)
    is_sound = get(registers, Reg.OUTCOME) == 0
    is_gateway = (cluster_time <= event_time) & (cluster_time <= end) & (cluster_time < ctx.never)
    is_gateway = is_gateway & is_sound & ~in_step
    is_due = (event_time <= end) & (event_time < cluster_time)
    is_instance = is_sound & (in_step | is_due)
    first = first_where(events == event_time)
    instance = jnp.where(in_step, get(registers, Reg.ACTIVE), first)
    instance = jnp.where(is_instance, instance, jnp.int32(rows))
    now = jnp.where(in_step, get(times, Time.NOW), event_time)
    is_new = is_instance & ~in_step
    last_event = jnp.where(is_new, event_time, get(times, Time.LAST_EVENT))
    state = dataclasses.replace(
        state,
        registers=put(registers, {Reg.IS_DONE: ~is_gateway & ~is_instance}),
        times=put(times, {Time.NOW: now, Time.LAST_EVENT: last_event}),
    )
    done = ctx.when(
        is_gateway,
        lambda: _gateway_writes(ctx, state, admit_time, route_time),
        lambda: ctx.when(
            is_instance,
            lambda: _instance_writes(ctx, state, instance, cluster_time),
            lambda: _no_writes(ctx, state, instance),
        ),
    )
    # every read before any write: otherwise a vectorised loop copies whole tables
    return _write(ctx, state, lax.optimization_barrier(done))

"""What one scan step changes, as one row for each table, and putting the rows in their places."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax import lax

from blis_jax.core.columns import apart, put, selected
from blis_jax.core.rows import Row
from blis_jax.core.types import REJECTED, pytree
from blis_jax.engine.context import Context
from blis_jax.engine.gateway.exits import ExitWrite, exits_after, no_exit
from blis_jax.engine.gateway.gateway_queue import QueueWrite, unchanged, written
from blis_jax.engine.phases.policy_calls import instance_row
from blis_jax.engine.phases.router_view import router_index
from blis_jax.engine.phases.router_view.late_news import LateWrite
from blis_jax.engine.state import Instance, Lane, News, State, StepRecord
from blis_jax.engine.tables.joined import INSTANCE_OF, instance_of, lane_of, side_by_side
from blis_jax.engine.tables.journeys import Journey, Movement
from blis_jax.engine.tables.router import RouterIndex
from blis_jax.engine.tables.slot_write import SlotWrite, no_slot
from blis_jax.memory.block_tables.blocks import InstanceMemory, MemoryTask

if TYPE_CHECKING:
    from jaxtyping import Array, Int


@pytree
class RecordWrite:
    """One step record; past the log's end if there is none."""

    record: Int[Array, ""]
    row: StepRecord


def no_record(ctx: Context) -> RecordWrite:
    """A record past the log's end."""
    return RecordWrite(
        record=jnp.int32(ctx.shape.log_capacity),
        row=StepRecord.filled(ctx.clock),
    )


@pytree
class NewsWrite:
    """A completion to be told later, or one that has been told; at the spare request if there is none."""

    request: Int[Array, ""]
    due: jax.Array
    latencies: jax.Array  # float64[2]


def no_news(ctx: Context) -> NewsWrite | None:
    """Nothing to tell."""
    if not ctx.mechanism.is_told_at_gateway:
        return None
    return NewsWrite(jnp.int32(ctx.shape.num_requests), ctx.never, jnp.zeros((2,), jnp.float64))


@pytree
class MovementWrite:
    """The instances that are up and whose queue leaves, and one request's journey; the spare request's if none."""

    is_up: Int[Array, "instance"]
    leave_at: jax.Array
    leave_delay: jax.Array
    stop_at: jax.Array
    stop_loses: Int[Array, "instance"]
    loses_kv: Int[Array, "instance"]
    downs: Int[Array, "instance"]
    paid: Any  # PaidTime
    cold: jax.Array  # bool[instance]: whose caches are emptied
    request: Int[Array, ""]
    journey: Journey
    reservation: Any = None  # of the same request; likewise where KV is reserved
    num_transfers: Any = None
    ordered: Any = None  # int32[instance], see Movement
    is_back: Any = None  # bool, likewise: it may have been on its instance before
    routed_at: Any = None  # of the request that is routed for the first time, else never()


def no_movement(ctx: Context, movement: Movement | None) -> MovementWrite | None:
    """Everything stays as it is."""
    if movement is None:
        return None
    spare = jnp.int32(ctx.shape.num_requests)
    journey = Journey.make(
        ctx.clock,
        came_from=-1,
        computed=0,
        first_record=-1,
        scheduled_record=-1,
        joined_record=-1,
        joins=0,
        ended=0,
        restarts=0,
        past_itl=0,
        is_lost=0,
        due=ctx.never,
        delay=ctx.never,
        link=ctx.never,
        transfer=0,
    )
    cold = jnp.zeros((ctx.shape.num_instances,), bool)
    stops = movement.stop_at, movement.stop_loses, movement.loses_kv, movement.downs
    leaving = movement.leave_at, movement.leave_delay
    nothing = MovementWrite(movement.is_up, *leaving, *stops, movement.paid, cold, spare, journey)
    routed_at = None if movement.routed_at is None else ctx.never
    is_back = None if ctx.mechanism.cluster is None else jnp.array(False)
    news = {"ordered": movement.ordered, "routed_at": routed_at, "is_back": is_back}
    nothing = dataclasses.replace(nothing, **news)
    if not ctx.mechanism.reserves_decode:
        return nothing
    kept = movement.reservation(spare)
    return dataclasses.replace(nothing, reservation=kept, num_transfers=movement.num_transfers)


@pytree
class Writes:
    """Everything one scan step changes: the lane's scalars, and one row per table."""

    lane: Lane
    stale: Any  # see State
    gateway: Any
    local: Any
    news: NewsWrite | None
    movement: MovementWrite | None
    router: router_index.RouterWrite | LateWrite | None
    task: MemoryTask
    pool: InstanceMemory
    turned_away: Int[Array, ""]
    routed: Int[Array, ""]
    routed_to: Int[Array, ""]
    instance: Int[Array, ""]
    inst: Instance
    slot: SlotWrite
    record: RecordWrite
    queue: QueueWrite | None
    exits: ExitWrite | None
    handed: Any = None  # float64, see `State.handed`


def no_writes(ctx: Context, state: State, instance: jax.Array) -> Writes:
    """Scalars and the instance's rows as they are, nothing else."""
    spare_instance, spare_request = (
        jnp.int32(ctx.shape.num_instances),
        jnp.int32(ctx.shape.num_requests),
    )
    task, pool = ctx.memory.start(state, instance)
    return Writes(
        lane=lane_of(ctx, state),
        stale=state.stale,
        gateway=state.gateway,
        local=instance_row(state, instance),
        news=no_news(ctx),
        movement=no_movement(ctx, state.movement),
        router=router_index.no_touch(ctx, state),
        task=task,
        pool=pool,
        turned_away=spare_request,
        routed=spare_request,
        routed_to=spare_instance,
        instance=spare_instance,
        inst=instance_of(ctx, state, instance),
        slot=no_slot(ctx),
        record=no_record(ctx),
        queue=unchanged(state.queue),
        exits=no_exit(state.exits),
        handed=None if state.handed is None else jnp.zeros((), jnp.float64),
    )


def _put(table: jax.Array, values: jax.Array, *start: jax.Array) -> jax.Array:
    return lax.dynamic_update_slice(table, values, start)


def _write_router(ctx: Context, state: State, done: Writes) -> RouterIndex | None:
    if state.router is None or done.router is None:
        return None
    return router_index.write(ctx, state.router, done.router)


def _write_expected(ctx: Context, state: State, done: Writes) -> jax.Array:
    if not ctx.mechanism.uses_prefix_index:
        return state.expected
    return _put(state.expected, done.slot.row.expected_blocks[None], done.routed)


def _write_handed(state: State, done: Writes) -> Any:
    if state.handed is None:
        return None
    return _put(state.handed, done.handed[None], done.routed)


def _write_local(state: State, done: Writes) -> Any:
    """The rows of the instances' policies."""

    def put_row(table: jax.Array, row: jax.Array) -> jax.Array:
        zeros = (jnp.int32(0),) * row.ndim
        return _put(table, row[None], done.instance, *zeros)

    return jax.tree.map(put_row, state.local, done.local)


def _write_news(state: State, done: Writes) -> News | None:
    news, change = state.news, done.news
    if news is None or change is None:
        return None
    latencies = _put(news.latencies, change.latencies[None], change.request, jnp.int32(0))
    return News(_put(news.due, change.due[None], change.request), latencies)


def _write_movement(state: State, done: Writes) -> Movement | None:
    change, movement = done.movement, state.movement
    if change is None or movement is None:
        return None
    zero, journey = jnp.int32(0), change.journey
    numbers, times = selected(journey.numbers)[None], selected(journey.times)[None]
    reserved: dict[str, Any] = {}
    if change.reservation is not None:
        row_, at = change.reservation, (change.request, zero)
        reserved = {
            "reserved": _put(movement.reserved, selected(row_.numbers)[None], *at),
            "reserved_time": _put(movement.reserved_time, selected(row_.times)[None], *at),
            "num_transfers": change.num_transfers,
        }
    reserved |= {"emptied": movement.emptied, "ordered": change.ordered}
    if movement.routed_at is not None:
        first = jnp.minimum(movement.routed_at[done.routed], change.routed_at)
        reserved["routed_at"] = _put(movement.routed_at, first[None], done.routed)
    return Movement(
        change.is_up,
        change.leave_at,
        change.leave_delay,
        change.stop_at,
        change.stop_loses,
        change.loses_kv,
        change.downs,
        change.paid,
        _put(movement.journey, numbers, change.request, zero),
        _put(movement.journey_time, times, change.request, zero),
        **reserved,
    )


def _write_requests(ctx: Context, state: State, done: Writes) -> dict[str, Any]:
    """What a request has been through, where it was sent, and what the router expected there."""
    turned_away = jnp.full((1,), REJECTED, jnp.int32)
    if state.instance_of is None:
        away = put(apart(ctx.no_past().numbers), {INSTANCE_OF: jnp.int32(REJECTED)})
        rows = jnp.stack([selected(away), selected(done.slot.past.numbers)])
        at = jnp.stack([done.turned_away, done.slot.request])
        return {"dyn": state.dyn.at[at].set(rows)}
    instance_of = _put(state.instance_of, turned_away, done.turned_away)
    return {
        "dyn": _put(
            state.dyn, selected(done.slot.past.numbers)[None], done.slot.request, jnp.int32(0)
        ),
        "instance_of": _put(instance_of, done.routed_to[None], done.routed),
        "expected": _write_expected(ctx, state, done),
    }


def _write_with_times(state: State, done: Writes) -> dict[str, Any]:
    """Rows of the instance, of the step record and of the lane, whose times may be columns of the same table."""
    record, zero = done.record, jnp.int32(0)
    rows: dict[str, tuple[Row, jax.Array]] = {
        "inst": (done.inst, done.instance),
        "log": (record.row, record.record),
    }
    tables: dict[str, Any] = {"registers": done.lane.numbers}
    if state.times is not None:
        tables["times"] = done.lane.times
    for name, (row_, at) in rows.items():
        table, time_table = getattr(state, name), getattr(state, f"{name}_time")
        numbers = row_.numbers if time_table is not None else side_by_side(row_)
        tables[name] = _put(table, selected(numbers)[None], at, zero)
        if time_table is not None:
            tables[f"{name}_time"] = _put(time_table, selected(row_.times)[None], at, zero)
    return tables


def _write_slot(state: State, done: Writes) -> dict[str, Any]:
    zero, slot = jnp.int32(0), done.slot
    at, table = (zero, slot.instance, slot.slot), state.slot
    if state.slot_time is None:
        both = selected(side_by_side(slot.row))
        return {"slot": _put(table, both[:, None, None], *at)}
    times = selected(slot.row.times)[:, None, None]
    return {
        "slot": _put(table, selected(slot.row.numbers)[:, None, None], *at),
        "slot_time": _put(state.slot_time, times, *at),
    }


def with_lane_row(state: State, done: Writes) -> Writes:
    """The lane's scalars as they are carried."""
    if state.times is None:
        lane = Lane(selected(side_by_side(done.lane)))
    else:
        lane = Lane(selected(done.lane.numbers), selected(done.lane.times))
    return dataclasses.replace(done, lane=lane)


def write(ctx: Context, state: State, done: Writes) -> State:
    """Put every row in its place, once per table."""
    state = dataclasses.replace(state, **ctx.memory.write(ctx, state, done))
    return dataclasses.replace(
        state,
        router=_write_router(ctx, state, done),
        stale=done.stale,
        gateway=done.gateway,
        local=_write_local(state, done),
        news=_write_news(state, done),
        movement=_write_movement(state, done),
        queue=written(state.queue, done.queue),
        exits=exits_after(state.exits, done.exits),
        handed=_write_handed(state, done),
        **_write_slot(state, done),
        **_write_requests(ctx, state, done),
        **_write_with_times(state, done),
    )

"""The writes of a scan step: rows that change nothing, and the step that writes all rows to their tables.

For each sub-tree of the state a scan step writes one row, or the whole new sub-tree. Sub-trees that are not written,
such as memory's and those that only hooks change, stay as they are.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

from blis_jax.core.columns import PastTable, Row, RowTable, Vector, apart, put, selected, with_entry
from blis_jax.core.pytrees import Parts
from blis_jax.core.types import REJECTED
from blis_jax.engine.phases.policy_calls import instance_row
from blis_jax.engine.phases.steps.decode_steps import no_earlier
from blis_jax.policies.contract import OverStep, PolicyStates
from blis_jax.prefix_index import router_index
from blis_jax.prefix_index.news import no_news as no_index_news
from blis_jax.prefix_index.news import with_news
from blis_jax.tables.adapters import AdapterRow, AdapterTable
from blis_jax.tables.context import Context
from blis_jax.tables.gateways import (
    BeforePools,
    Dispatches,
    GatewayQueue,
    QueueVictims,
    QueueWrite,
    unchanged,
    written,
)
from blis_jax.tables.joined import INSTANCE_OF, instance_of, lane_of, side_by_side
from blis_jax.tables.journeys import (
    Availability,
    Dismissals,
    Downs,
    Exits,
    ExitWrite,
    FirstRoutings,
    Journey,
    Journeys,
    Orders,
    PaidTime,
    Reservations,
    Transfers,
    exits_after,
    no_exit,
)
from blis_jax.tables.offload import Forgotten, OffloadTable
from blis_jax.tables.router import LateNews, LateWrite, RouterIndex, RouterWrite
from blis_jax.tables.state import Handed, LaneRow, News, State, StepRecord
from blis_jax.tables.writes import (
    Cold,
    FirstRouting,
    HandedOver,
    JourneyWrite,
    NewsWrite,
    RecordWrite,
    ReservationWrite,
    Return,
    SlotWrite,
    Writes,
    no_slot,
)


def no_record(ctx: Context) -> RecordWrite:
    """Return a record write past the log's end, which changes nothing."""
    return RecordWrite(
        record=jnp.int32(ctx.shape.log_capacity),
        row=StepRecord.filled(ctx.clock),
        earlier=no_earlier(ctx),
    )


def _no_move(ctx: Context) -> JourneyWrite:
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
    return JourneyWrite(ctx.spare_request, journey)


def _of_index(ctx: Context, state: State) -> tuple[object, ...]:
    return () if LateNews in state else (router_index.no_touch(ctx, state[RouterIndex]),)


def _of_availability(ctx: Context, state: State) -> tuple[object, ...]:
    return state[Availability], Cold(jnp.zeros((ctx.shape.num_instances,), bool))


def _of_reservations(ctx: Context, state: State) -> tuple[object, ...]:
    return (ReservationWrite(state[Reservations].of(ctx.spare_request)),)


def _of_paid_time(ctx: Context, state: State) -> tuple[object, ...]:
    return state[PaidTime], Return(jnp.array(False))


def _no_wait(ctx: Context) -> Forgotten:
    return Forgotten(ctx.spare_instance, jnp.int32(ctx.shape.num_slots - 1), jnp.array(False))


def no_news(ctx: Context) -> NewsWrite:
    """Return a write with no completion to report."""
    return NewsWrite(ctx.spare_request, ctx.never, jnp.zeros((2,), jnp.float64))


_NOTHING: dict[type, Callable[[Context, State], tuple[object, ...]]] = {
    RouterIndex: _of_index,
    LateNews: lambda ctx, state: (no_index_news(state[LateNews]),),
    News: lambda ctx, state: (no_news(ctx),),
    Availability: _of_availability,
    Journeys: lambda ctx, state: (_no_move(ctx),),
    PaidTime: _of_paid_time,
    Reservations: _of_reservations,
    FirstRoutings: lambda ctx, state: (FirstRouting(ctx.never),),
    GatewayQueue: lambda ctx, state: (unchanged(state[Dispatches], state[GatewayQueue]),),
    Exits: lambda ctx, state: (no_exit(state[Exits]),),
    AdapterTable: lambda ctx, state: (state[AdapterTable].row(ctx.spare_instance),),
    OffloadTable: lambda ctx, state: (_no_wait(ctx),),
    Handed: lambda ctx, state: (HandedOver(jnp.zeros((), jnp.float64)),),
} | {
    whole: lambda ctx, state, whole=whole: (state[whole],)
    for whole in (Downs, Transfers, Orders, Dismissals, QueueVictims, BeforePools)
}
"""What is written of each sub-tree where nothing of it changes."""


def no_changes(ctx: Context, state: State) -> Parts:
    """Return the writes that leave the state's sub-trees as they are."""
    tables = [_NOTHING[type(part)](ctx, state) for part in state.own if type(part) in _NOTHING]
    return Parts(*(part for parts in tables for part in parts))


def no_writes(ctx: Context, state: State, instance: jax.Array) -> Writes:
    """Return the writes that leave the lane, the instance and all tables as they are."""
    task, pool = ctx.memory.start(state, instance)
    return Writes(
        lane=lane_of(ctx, state),
        stale=state.stale,
        gateway=state.gateway,
        local=instance_row(state, instance),
        own=no_changes(ctx, state),
        task=task,
        pool=pool,
        turned_away=ctx.spare_request,
        routed=ctx.spare_request,
        routed_to=ctx.spare_instance,
        instance=ctx.spare_instance,
        inst=instance_of(ctx, state, instance),
        slot=no_slot(ctx),
        record=no_record(ctx),
        takes=ctx.memory.no_takes(ctx),
    )


def _put(table: jax.Array, values: jax.Array, *start: jax.Array) -> jax.Array:
    return lax.dynamic_update_slice(table, values, start)


def _put_row(table: jax.Array, vector: Vector, at: jax.Array) -> jax.Array:
    return _put(table, selected(vector)[None], at, jnp.int32(0))


def _put_column(table: jax.Array, vector: Vector, at: jax.Array) -> jax.Array:
    """Return the table `[column, instance]` with a vector put at instance `at`."""
    return _put(table, selected(vector)[:, None], jnp.int32(0), at)


def _write_touch(ctx: Context, state: State, done: Writes) -> State:
    return state.having(router_index.write(ctx, state[RouterIndex], done[RouterWrite]))


def _write_late(ctx: Context, state: State, done: Writes) -> State:
    return state.having(with_news(state[LateNews], done[LateWrite]))


def _write_news(ctx: Context, state: State, done: Writes) -> State:
    news, change = state[News], done[NewsWrite]
    latencies = _put(news.latencies, change.latencies[None], change.request, jnp.int32(0))
    return state.having(News(with_entry(news.due, change.due, change.request), latencies))


def _write_journey(ctx: Context, state: State, done: Writes) -> State:
    change = done[JourneyWrite]
    return state.having(state[Journeys].put(ctx.groups, change.request, change.journey))


def _write_reservation(ctx: Context, state: State, done: Writes) -> State:
    row_, at = done[ReservationWrite].row, done[JourneyWrite].request
    return state.having(state[Reservations].put(ctx.groups, at, row_))


def _write_first_routing(ctx: Context, state: State, done: Writes) -> State:
    table = state[FirstRoutings].at
    first = jnp.minimum(table[done.routed], done[FirstRouting].at)
    return state.having(FirstRoutings(with_entry(table, first, done.routed)))


def _write_queue(ctx: Context, state: State, done: Writes) -> State:
    return state.having(*written(state[Dispatches], state[GatewayQueue], done[QueueWrite]))


def _write_exit(ctx: Context, state: State, done: Writes) -> State:
    return state.having(exits_after(state[Exits], done[ExitWrite]))


def _write_handed(ctx: Context, state: State, done: Writes) -> State:
    value = done[HandedOver].value
    return state.having(Handed(with_entry(state[Handed].value, value, done.routed)))


def _as_it_is(ctx: Context, state: State, done: Writes) -> State:
    return state


_WRITE: dict[type, Callable[[Context, State, Writes], State]] = {
    RouterWrite: _write_touch,
    LateWrite: _write_late,
    NewsWrite: _write_news,
    JourneyWrite: _write_journey,
    ReservationWrite: _write_reservation,
    FirstRouting: _write_first_routing,
    QueueWrite: _write_queue,
    ExitWrite: _write_exit,
    HandedOver: _write_handed,
    AdapterRow: lambda ctx, state, done: state.having(state[AdapterTable].put(done[AdapterRow])),
    Forgotten: lambda ctx, state, done: state.having(done[Forgotten].put(state[OffloadTable])),
    Cold: _as_it_is,  # for the hooks of sources, likewise:
    Return: _as_it_is,
}
"""What puts a row of a sub-tree in its place; others are the sub-tree as it is to be."""


def _write_expected(ctx: Context, state: State, done: Writes) -> jax.Array:
    if not ctx.mechanism.uses_prefix_index:
        return state.past.expected
    return with_entry(state.past.expected, done.slot.row.expected_blocks, done.routed)


def _write_local(state: State, done: Writes) -> PolicyStates[OverStep[object]]:
    """Return the states of the instances' policies with the instance's row written."""

    def put_row(table: jax.Array, row: jax.Array) -> jax.Array:
        zeros = (jnp.int32(0),) * row.ndim
        return _put(table, row[None], done.instance, *zeros)

    rows: PolicyStates[OverStep[object]] = jax.tree.map(put_row, state.local, done.local)
    return rows


def _write_requests(ctx: Context, state: State, done: Writes) -> PastTable:
    """Return the requests' histories, places and expected blocks with this scan step's rows written."""
    turned_away, past, table = jnp.full((1,), REJECTED, jnp.int32), done.slot.past, state.past
    if table.is_joined:
        away = put(apart(ctx.no_past().numbers), {INSTANCE_OF: jnp.int32(REJECTED)})
        rows = jnp.stack([selected(away), selected(past.numbers)])
        at = jnp.stack([done.turned_away, done.slot.request])
        return PastTable((table.rows.at[at].set(rows),))
    places = _put(table.places, turned_away, done.turned_away)
    return PastTable(
        (
            _put_row(table.rows, past.numbers, done.slot.request),
            with_entry(places, done.routed_to, done.routed),
            _write_expected(ctx, state, done),
        )
    )


def _write_row(
    table: RowTable, row_: Row, at: jax.Array, put: Callable[..., jax.Array] = _put_row
) -> RowTable:
    """Return the table with a row put at `at`; its times may be columns of the same table."""
    parts = (side_by_side(row_),) if table.is_joined else (row_.numbers, row_.times)
    return RowTable(
        tuple(put(whole, part, at) for whole, part in zip(table.parts, parts, strict=True))
    )


def _write_log(log: RowTable, done: RecordWrite) -> RowTable:
    """Return the log with the records appended."""
    earlier = done.earlier
    if earlier is not None:
        first = done.record - earlier.count

        def put_row(at: jax.Array, log: RowTable) -> RowTable:
            row = StepRecord(earlier.numbers[at], earlier.times[at])
            return _write_row(log, row, first + at)

        log = lax.fori_loop(0, earlier.count, put_row, log)
    return _write_row(log, done.row, done.record)


def _write_slot(table: RowTable, slot: SlotWrite) -> RowTable:
    at = jnp.int32(0), slot.instance, slot.slot
    if table.is_joined:
        both = selected(side_by_side(slot.row))
        return RowTable((_put(table.numbers, both[:, None, None], *at),))
    times = selected(slot.row.times)[:, None, None]
    numbers = _put(table.numbers, selected(slot.row.numbers)[:, None, None], *at)
    return RowTable((numbers, _put(table.times, times, *at)))


def all_read(state: State, done: Writes) -> tuple[LaneRow, Writes]:
    """Return the lane and the other writes, ordered after all reads that they depend on."""
    vectors = (
        (side_by_side(done.lane),) if state.lane.is_joined else (done.lane.numbers, done.lane.times)
    )
    (_, *others), tree = jax.tree.flatten(done, is_leaf=lambda leaf: leaf is done.lane)
    lane, others = lax.optimization_barrier((LaneRow(tuple(map(selected, vectors))), others))
    return lane, jax.tree.unflatten(tree, (done.lane, *others))


def write(ctx: Context, state: State, lane: LaneRow, done: Writes) -> State:
    """Return the state with every row written, once per table."""
    state = ctx.memory.write(ctx, state, done)
    for change in done.own:
        put_in_place = _WRITE.get(type(change))
        state = put_in_place(ctx, state, done) if put_in_place else state.having(change)
    return dataclasses.replace(
        state,
        stale=done.stale,
        gateway=done.gateway,
        local=_write_local(state, done),
        slot=_write_slot(state.slot, done.slot),
        past=_write_requests(ctx, state, done),
        lane=lane,
        inst=_write_row(state.inst, done.inst, done.instance, _put_column),
        log=_write_log(state.log, done.record),
    )

"""Tables that are written at the same index, joined side by side: one write in each scan step instead of several.

Only in the form for many lanes, where a write is a kernel. In joined tables, times are columns after the integer
columns if the clock has 32 bits too, the lane's times follow its registers, a request's place and expected blocks
follow its history, and the copy named by a node's table is the last of its copies. Which form a table has is static.
Below are the step events of an instance.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
from jax import lax

from blis_jax.core.columns import (
    Columns,
    PastTable,
    Row,
    RowTable,
    Vector,
    apart,
    as_int,
    branch,
    get,
    is_apart,
    tail,
    with_tail,
)
from blis_jax.core.exact import first_equal, least, least_of
from blis_jax.tables.context import Context, column, count_of, row
from blis_jax.tables.state import (
    Dyn,
    Inst,
    Instance,
    InstTime,
    Lane,
    LaneRow,
    Log,
    Reg,
    SharedBlocks,
    SlotTime,
    State,
    StepRecord,
    Time,
)
from blis_jax.tables.state import Slot as SlotColumn

if TYPE_CHECKING:
    from blis_jax.core.exact import Part

INSTANCE_OF, EXPECTED = len(Dyn), len(Dyn) + 1  # columns behind those of Dyn


def _side_by_side(*parts: jax.Array, axis: int = -1) -> jax.Array:
    return jnp.concatenate(parts, axis=axis)


def joined(state: State) -> State:
    """Return the state with tables joined side by side; lanes, if any, are a leading axis."""
    past = state.past
    rows = _side_by_side(past.rows, past.places[..., None], past.expected[..., None])
    kv = state.stale.kv
    stale = state.stale.with_kv(*(row[..., at, :] for row in kv for at in range(row.shape[-2])))
    tables = dataclasses.replace(state, past=PastTable((rows,)), stale=stale)
    if SharedBlocks in state:
        holders, named = state[SharedBlocks].copies
        copies = _side_by_side(holders, jnp.expand_dims(named, -2), axis=-2)
        tables = tables.having(SharedBlocks((copies,), state[SharedBlocks].held))
    if state.slot.times.dtype != state.slot.numbers.dtype:
        return tables
    lane = state.lane
    if SharedBlocks in state:  # the operations of block-level memory read registers and times
        lane = LaneRow((_side_by_side(*lane.parts),))
    return dataclasses.replace(
        tables,
        lane=lane,
        slot=RowTable((_side_by_side(*state.slot.parts, axis=-3),)),
        inst=RowTable((_side_by_side(*state.inst.parts, axis=-2),)),
        log=RowTable((_side_by_side(*state.log.parts),)),
    )


def parted(state: State) -> State:
    """Return the state with joined tables split again."""
    rows = state.past.rows
    past = PastTable((rows[..., : len(Dyn)], rows[..., INSTANCE_OF], rows[..., EXPECTED]))
    kv = state.stale.kv
    stale = state.stale.with_kv(jnp.stack(kv, axis=-2)) if kv else state.stale
    tables = dataclasses.replace(state, past=past, stale=stale)
    if SharedBlocks in state:
        (copies,) = state[SharedBlocks].copies
        apart_ = copies[..., :-1, :], copies[..., -1, :]
        tables = tables.having(SharedBlocks(apart_, state[SharedBlocks].held))
    if state.slot.is_joined:
        split, slot, inst = len(SlotColumn), state.slot.numbers, state.inst.numbers
        tables = dataclasses.replace(
            tables,
            slot=RowTable((slot[..., :split, :, :], slot[..., split:, :, :])),
            inst=RowTable((inst[..., : len(Inst), :], inst[..., len(Inst) :, :])),
            log=_apart(state.log, len(Log)),
        )
    if state.lane.is_joined:
        lane, count = state.lane.numbers, len(Reg)
        tables = dataclasses.replace(tables, lane=LaneRow((lane[..., :count], lane[..., count:])))
    return tables


def _apart(table: RowTable, count: int) -> RowTable:
    return RowTable((table.numbers[..., :count], table.numbers[..., count:]))


def lane_of(ctx: Context, state: State) -> Lane:
    """Read the lane's row."""
    if state.lane.is_joined:
        return Lane(*_split(ctx.vector(state.lane.numbers), len(Reg)))
    return Lane(*map(ctx.vector, state.lane.parts))


def last_event(state: State) -> jax.Array:
    """Return the time of the lane's latest event."""
    lane = state.lane
    at = len(Reg) + Time.LAST_EVENT if lane.is_joined else Time.LAST_EVENT
    time: jax.Array = get(lane.parts[-1], at)
    return time


def instance_of(ctx: Context, state: State, instance: jax.Array) -> Instance:
    """Read the row of an instance."""
    inst = ctx.vector(column(state.inst.numbers, instance))
    if state.inst.is_joined:
        return Instance(*_split(inst, len(Inst)))
    return Instance(inst, ctx.vector(column(state.inst.times, instance)))


def _split(vector: Vector, count: int) -> tuple[Vector, Vector]:
    entries = apart(vector).entries
    return Columns(entries[:count]), Columns(entries[count:])


def side_by_side(row_: Row) -> Columns:
    """Return a row's whole numbers, followed by its times."""
    return Columns(apart(row_.numbers).entries + apart(row_.times).entries)


def record_of(ctx: Context, state: State, record: jax.Array) -> StepRecord:
    """Read the record of a step."""
    numbers = ctx.vector(row(state.log.numbers, record))
    if state.log.is_joined:
        return StepRecord(*_split(numbers, len(Log)))
    return StepRecord(numbers, ctx.vector(row(state.log.times, record)))


class Instances(Instance):
    """Some instances of the table, each field `[instance]`; a field is read from the tables when it is used."""

    __slots__ = ("rows", "state")

    def __init__(self, state: State, stop: int, start: int = 0) -> None:
        """Read the instances from `start` on and before `stop` from the tables of `state`."""
        self.state, self.rows = state, slice(start, stop)

    def _entry(self, part: int, place: int) -> jax.Array:
        table = self.state.inst
        if part and table.is_joined:
            part, place = 0, len(Inst) + place
        entries: jax.Array = table.parts[part][place, self.rows]
        return entries


def first_of(ctx: Context, events: Part, num_instances: int) -> tuple[jax.Array, jax.Array]:
    """Return the time of the next event of an instance, and the first instance with an event at this time.

    `events(start, stop)` are the times of the next events of some instances.
    """
    if ctx.when is branch or ctx.clock != jnp.int32:
        is_whole = jnp.issubdtype(ctx.clock, jnp.integer)
        event_time = (
            least_of(events, num_instances) if is_whole else least(events(0, num_instances))
        )
        return event_time, first_equal(events, num_instances, event_time)
    # one minimum instead of two: time and instance packed
    instance = lax.iota(jnp.int64, num_instances)
    packed = jnp.min((events(0, num_instances).astype(jnp.int64) << 32) | instance)
    return (packed >> 32).astype(jnp.int32), packed.astype(jnp.int32)


def chain_times(state: State, num_instances: int) -> jax.Array:
    """Return the times of the step events of each instance `[chain, instance]`."""
    if state.inst.is_joined:
        return state.inst.numbers[len(Inst) + InstTime.CHAIN :, :num_instances]
    times: jax.Array = state.inst.times[InstTime.CHAIN :, :num_instances]
    return times


def queued_times(state: State, num_instances: int) -> jax.Array:
    """Return when the request of each slot is queued, `[instance, slot]`."""
    return _slot_times(state, num_instances, SlotTime.QUEUED)


def with_queued_times(state: State, times: jax.Array) -> State:
    """Return the state with the `queued_times` of all instances, the spare one included, replaced."""
    if state.slot.is_joined:
        column = len(SlotColumn) + SlotTime.QUEUED
        return dataclasses.replace(
            state, slot=RowTable((state.slot.numbers.at[column].set(times),))
        )
    table = state.slot.times.at[SlotTime.QUEUED].set(times)
    return dataclasses.replace(state, slot=RowTable((state.slot.numbers, table)))


def arrival_times(state: State, num_instances: int) -> jax.Array:
    """Return when the request of each slot arrived, `[instance, slot]`."""
    return _slot_times(state, num_instances, SlotTime.ARRIVAL)


def _slot_times(state: State, num_instances: int, column: int) -> jax.Array:
    if state.slot.is_joined:
        return state.slot.numbers[len(SlotColumn) + column, :num_instances]
    times: jax.Array = state.slot.times[column, :num_instances]
    return times


def places_of(state: State) -> jax.Array:
    """Return `place_of` of every request `[request]`."""
    return state.past.rows[:, INSTANCE_OF] if state.past.is_joined else state.past.places


def place_of(state: State, request: jax.Array) -> jax.Array:
    """Return the instance of a request, or the negative code that says why it has none."""
    if state.past.is_joined:
        return state.past.rows[request, INSTANCE_OF]
    return state.past.places[request]


# --- the step events of an instance: in the reference several chains of steps may run side by side -


def take_chain(
    chains: Vector, now: jax.Array, num_new: jax.Array, never: jax.Array
) -> tuple[Vector, jax.Array]:
    """Return the step events after `num_new` were added and one at `now` was taken; and whether there was room."""
    if is_apart(chains):
        num_at_now = functools.reduce(jnp.add, (as_int(entry == now) for entry in chains.entries))
        rest: Vector = Columns(
            tuple(jnp.where(entry == now, never, entry) for entry in chains.entries)
        )
    else:
        at_now = chains == now
        num_at_now, rest = count_of(at_now), jnp.where(at_now, never, chains)
    return add_chain(rest, now, num_at_now + num_new - 1, never)


def add_chain(
    chains: Vector, time: jax.Array, count: jax.Array, never: jax.Array
) -> tuple[Vector, jax.Array]:
    """Add `count` step events at `time`; return the events, and whether there was room."""
    if is_apart(chains):
        place, entries = jnp.int32(0), []
        for entry in chains.entries:
            place = place + as_int(entry == never)
            entries.append(jnp.where((entry == never) & (place <= count), time, entry))
        return Columns(tuple(entries)), count <= place
    is_free = chains == never
    place = jnp.cumsum(is_free, dtype=jnp.int32)
    takes = is_free & (place <= count)
    return jnp.where(takes, time, chains), count <= place[-1]


def chains_of(inst: Instance) -> Vector:
    """Return the times of the instance's step events; `never` where there is none."""
    return tail(inst.times, InstTime.CHAIN)


def has_chain(chains: Vector, time: jax.Array) -> jax.Array:
    """Return whether a step event is at this time."""
    if is_apart(chains):
        return functools.reduce(jnp.logical_or, (entry == time for entry in chains.entries))
    return jnp.any(chains == time)


def first_chain(chains: Vector) -> jax.Array:
    """Return the time of the next step event."""
    if is_apart(chains):
        return functools.reduce(jnp.minimum, chains.entries)
    return jnp.min(chains)


def with_chains(inst: Instance, chains: Vector) -> Instance:
    """Return the instance with its step events replaced."""
    return Instance(inst.numbers, with_tail(inst.times, InstTime.CHAIN, chains))

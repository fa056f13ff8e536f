"""Tables that are written at one place, side by side in one table: one write in each scan step instead of several.

Only in the form for many lanes, where a write is a kernel. Parts that are elsewhere then are None in the state:
times are columns behind the integer ones where the clock has 32 bits too, the lane's times follow its registers, a
request's place and expected blocks follow what it has been through, and the copy that a node's table names is the last
of its copies.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from blis_jax.core.columns import Columns, Vector, apart
from blis_jax.core.rows import Row
from blis_jax.engine.context import Context, row
from blis_jax.engine.gateway.signals import AgedView
from blis_jax.engine.state import (
    Dyn,
    Inst,
    Instance,
    InstTime,
    Lane,
    Log,
    Reg,
    SharedBlocks,
    SlotTime,
    State,
    StepRecord,
)
from blis_jax.engine.state import Slot as SlotColumn

INSTANCE_OF, EXPECTED = len(Dyn), len(Dyn) + 1  # columns behind those of Dyn


def _side_by_side(*parts: jax.Array, axis: int = -1) -> jax.Array:
    return jnp.concatenate(parts, axis=axis)


def _with_kv(stale: Any, change: Callable[[Any], Any]) -> Any:
    """What the router has last seen, with its KV fields changed."""
    if isinstance(stale, AgedView):
        return dataclasses.replace(stale, kv=change(stale.kv))
    return change(stale)


def joined(state: State) -> State:
    """The state with tables side by side; lanes may be told apart by an axis before all others."""
    changes: dict[str, Any] = {
        "dyn": _side_by_side(state.dyn, state.instance_of[..., None], state.expected[..., None]),
        "instance_of": None,
        "expected": None,
        "stale": _with_kv(
            state.stale, lambda kv: tuple(kv[..., field, :] for field in range(kv.shape[-2]))
        ),
    }
    shared = state.shared
    if shared is not None:
        named = jnp.expand_dims(shared.named, -2)
        changes["shared"] = SharedBlocks(
            _side_by_side(shared.holders, named, axis=-2), None, shared.held
        )
    if state.slot_time.dtype == state.slot.dtype:
        changes["slot"] = _side_by_side(state.slot, state.slot_time, axis=-3)
        changes["inst"] = _side_by_side(state.inst, state.inst_time)
        changes["log"] = _side_by_side(state.log, state.log_time)
        changes |= dict.fromkeys(("slot_time", "inst_time", "log_time"))
        if state.blocks is None:  # the operations of block-level memory read registers and times
            changes["registers"] = _side_by_side(state.registers, state.times)
            changes["times"] = None
    return dataclasses.replace(state, **changes)


def parted(state: State) -> State:
    """The state with every table by itself."""
    changes: dict[str, Any] = {
        "dyn": state.dyn[..., : len(Dyn)],
        "instance_of": state.dyn[..., INSTANCE_OF],
        "expected": state.dyn[..., EXPECTED],
        "stale": _with_kv(state.stale, lambda kv: jnp.stack(kv, axis=-2)),
    }
    shared = state.shared
    if shared is not None:
        holders, named = shared.holders[..., :-1, :], shared.holders[..., -1, :]
        changes["shared"] = SharedBlocks(holders, named, shared.held)
    if state.slot_time is None:
        split = len(SlotColumn)
        changes["slot"], changes["slot_time"] = (
            state.slot[..., :split, :, :],
            state.slot[..., split:, :, :],
        )
        for name, count in (("inst", len(Inst)), ("log", len(Log))):
            table = getattr(state, name)
            changes[name], changes[f"{name}_time"] = table[..., :count], table[..., count:]
    if state.times is None:
        count = len(Reg)
        changes["registers"] = state.registers[..., :count]
        changes["times"] = state.registers[..., count:]
    return dataclasses.replace(state, **changes)


def lane_of(ctx: Context, state: State) -> Lane:
    """The lane's row."""
    if state.times is None:
        return Lane(*_split(ctx.vector(state.registers), len(Reg)))
    return Lane(ctx.vector(state.registers), ctx.vector(state.times))


def instance_of(ctx: Context, state: State, instance: jax.Array) -> Instance:
    """An instance's row."""
    inst = ctx.vector(row(state.inst, instance))
    if state.inst_time is None:
        return Instance(*_split(inst, len(Inst)))
    return Instance(inst, ctx.vector(row(state.inst_time, instance)))


def _split(vector: Vector, count: int) -> tuple[Vector, Vector]:
    entries = apart(vector).entries
    return Columns(entries[:count]), Columns(entries[count:])


def side_by_side(row_: Row) -> Columns:
    """A row's times behind its whole numbers."""
    return Columns(apart(row_.numbers).entries + apart(row_.times).entries)


def record_of(ctx: Context, state: State, record: jax.Array) -> StepRecord:
    """The record of a step."""
    numbers = ctx.vector(row(state.log, record))
    if state.log_time is None:
        return StepRecord(*_split(numbers, len(Log)))
    return StepRecord(numbers, ctx.vector(row(state.log_time, record)))


def event_times(state: State, num_instances: int) -> jax.Array:
    """When each instance acts next."""
    if state.inst_time is None:
        return state.inst[:num_instances, len(Inst) + InstTime.EVENT]
    times: jax.Array = state.inst_time[:num_instances, InstTime.EVENT]
    return times


def chain_times(state: State, num_instances: int) -> jax.Array:
    """The step events of each instance `[instance, chain]`."""
    if state.inst_time is None:
        return state.inst[:num_instances, len(Inst) + InstTime.CHAIN :]
    times: jax.Array = state.inst_time[:num_instances, InstTime.CHAIN :]
    return times


def busy_times(state: State, num_instances: int) -> jax.Array:
    """When the last step of each instance ends."""
    if state.inst_time is None:
        return state.inst[:num_instances, len(Inst) + InstTime.BUSY_UNTIL]
    times: jax.Array = state.inst_time[:num_instances, InstTime.BUSY_UNTIL]
    return times


def queued_times(state: State, num_instances: int) -> jax.Array:
    """When the request of each slot is queued, `[instance, slot]`."""
    return _slot_times(state, num_instances, SlotTime.QUEUED)


def arrival_times(state: State, num_instances: int) -> jax.Array:
    """When the request of each slot arrived, `[instance, slot]`."""
    return _slot_times(state, num_instances, SlotTime.ARRIVAL)


def _slot_times(state: State, num_instances: int, column: int) -> jax.Array:
    if state.slot_time is None:
        return state.slot[len(SlotColumn) + column, :num_instances]
    times: jax.Array = state.slot_time[column, :num_instances]
    return times


def places_of(state: State) -> jax.Array:
    """`place_of` of every request `[request]`."""
    return state.dyn[:, INSTANCE_OF] if state.instance_of is None else state.instance_of


def place_of(state: State, request: jax.Array) -> jax.Array:
    """The instance of a request, or why it has none."""
    if state.instance_of is None:
        return state.dyn[request, INSTANCE_OF]
    return state.instance_of[request]

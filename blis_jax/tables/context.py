"""The data that every phase of a scan step reads, and an instance in mid-step with helpers that phases share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import jax
import jax.numpy as jnp
from jax import lax

from blis_jax.core.columns import (
    Vector,
    When,
    always,
    apart,
    branch,
    once,
    repeated,
)
from blis_jax.core.exact import truncate
from blis_jax.core.groups import Groups, Rows
from blis_jax.core.outcome import Outcome
from blis_jax.core.pytrees import HasParts, Parts, pytree
from blis_jax.core.types import EngineShape, Mechanism, Params, RequestView, never
from blis_jax.policies.contract import OverStep, PolicyStates
from blis_jax.policies.seeds import RandomSource
from blis_jax.tables.blocks import InstanceMemory, MemoryTask
from blis_jax.tables.requests import Request, Requests
from blis_jax.tables.state import Instance, Lane, Past, Resident, State

if TYPE_CHECKING:
    from jaxtyping import Array, Bool, Int

    from blis_jax.engine.calendar import EventSource, Sources
    from blis_jax.engine.phases.departures.pools import Pools
    from blis_jax.memory.memory import Memory
    from blis_jax.tables.gateways import Gateways


T = TypeVar("T")
SLOT_BITS = 13  # low bits of a packed key hold the slot


@dataclass(frozen=True)
class Context:
    """Read-only surroundings of a scan step; built once per compilation, never traced as a whole."""

    shape: EngineShape
    mechanism: Mechanism
    params: Params
    requests: Requests
    when: When
    memory: Memory[Any, Any]  # the memory model
    pools: Pools
    gateways: Gateways
    sources: Sources
    scorer_shares: jax.Array | None = None  # of many lanes: made once, not in each scan step

    def in_place(self, predicate: jax.Array, change: Callable[[T, jax.Array], T], value: T) -> T:
        """Return `change(value, predicate)`; with real branches, skip it where the predicate does not hold."""
        return (once if self.when is branch else always)(predicate, change, value)

    def turns(
        self,
        holds: Callable[[T], jax.Array],
        change: Callable[[T, jax.Array], T],
        value: T,
        most: int,
    ) -> T:
        """Apply `change(value, holds(value))` while it holds, at most `most` times; without real branches, once."""
        if self.when is branch:
            return repeated(holds, change, value, most)
        return always(holds(value), change, value)

    def over(self, is_open: Bool[Array, "group"], fold: Callable[[T, Rows], T], first: T) -> T:
        """Return `Groups.over` of this run's requests."""
        return self.groups.over(is_open, fold, first, whole=self.when is not branch)

    def between(
        self, ends: tuple[jax.Array, jax.Array], fold: Callable[[T, Rows], T], first: T
    ) -> T:
        """Return `Groups.between` of this run's requests."""
        return self.groups.between(ends, fold, first, whole=self.when is not branch)

    @property
    def hooks(self) -> tuple[EventSource, ...]:
        """Return the sources whose hooks the steps of instances call, in that order."""
        return self.sources.hooks

    @property
    def groups(self) -> Groups:
        """Return the division of this run's requests into groups."""
        return Groups(self.shape.num_requests)

    def worked_out(self, made: Callable[[], T]) -> T:
        """Return `made()`, on a single lane behind a branch that is always taken. Without it the compiler computes the
        result again for each use, and copies tables that are read and then written.
        """
        if self.when is not branch:
            return made()
        nothing = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), jax.eval_shape(made))
        return branch(self.params.cluster.infinity > 0, made, lambda: nothing)

    def vector(self, row: Vector) -> Vector:
        """Return a table's row in the form that phases use: as it is, or with its entries apart; see columns.py."""
        return row if self.when is branch else apart(row)

    def no_past(self) -> Past:
        """Return the history row of a new request; in joined tables, place and expected blocks follow."""
        beside = 0 if self.when is branch else 2
        return Past(jnp.zeros((len(Past.columns) + beside,), jnp.int32))

    @property
    def spare_request(self) -> jax.Array:
        """Return the request number that stands for none; tables have a spare row for it."""
        return jnp.int32(self.shape.num_requests)

    @property
    def spare_instance(self) -> jax.Array:
        """Return the instance number that stands for none; tables have a spare row for it."""
        return jnp.int32(self.shape.num_instances)

    def row_of(self, request: Int[Array, "..."]) -> Int[Array, "..."]:
        """Return the table rows of requests; the spare row for `NO_REQUEST`."""
        return jnp.where(request < 0, self.spare_request, request)

    def existing_slot(self, slot: jax.Array) -> jax.Array:
        """Return the slot, limited to valid numbers: the slot of an empty key becomes any slot."""
        return jnp.minimum(slot, jnp.int32(self.shape.num_slots - 1))

    def request(self, request: jax.Array) -> Request:
        """Read the given values of a request."""
        return Request(row(self.requests.table, request))

    def past(self, state: State, request: jax.Array) -> Past:
        """Read the history of a request."""
        return Past(self.vector(row(state.past.rows, request)))

    @property
    def clock(self) -> Any:
        """Return the clock's dtype."""
        return self.shape.clock_dtype

    @property
    def never(self) -> jax.Array:
        """Return a time after every event."""
        return jnp.asarray(never(self.clock))

    def write(
        self, table: jax.Array, row: tuple[jax.Array, ...], index: jax.Array, value: jax.Array
    ) -> jax.Array:
        """Return the table with entries of one row replaced; `index` and `value` are scalars or vectors.

        On a CPU the write runs in a loop of its own: a scatter would keep the compiler from making one function of the
        run.
        """
        index, value = jnp.atleast_1d(index), jnp.atleast_1d(value)
        if self.when is not branch:
            return table.at[(*row, index)].set(value)

        def put(i: jax.Array, table: jax.Array) -> jax.Array:
            entry = lax.dynamic_index_in_dim(value, i, keepdims=True)
            at = (*row, lax.dynamic_index_in_dim(index, i, keepdims=False))
            return lax.dynamic_update_slice(table, entry.reshape((1,) * table.ndim), at)

        return lax.fori_loop(0, index.shape[0], put, table)

    def write_in_order(
        self, table: jax.Array, row: tuple[jax.Array, ...], index: jax.Array, value: jax.Array
    ) -> jax.Array:
        """Write as `write` does; of several values for one index the last one stays.

        The table's last index is a spare.
        """
        index = jnp.atleast_1d(index)
        if self.when is not branch:  # the order of a scatter's writes is open
            number = lax.iota(jnp.int32, index.shape[0])
            is_same = index[:, None] == index[None, :]
            is_over = jnp.any(is_same & (number[None, :] > number[:, None]), axis=1)
            index = jnp.where(is_over, jnp.int32(table.shape[-1] - 1), index)
        return self.write(table, row, index, value)

    def write_pairs(
        self, table: jax.Array, rows: jax.Array, columns: jax.Array, value: jax.Array
    ) -> jax.Array:
        """Return the table with the entries at these pairs of row and column replaced; see `write`."""
        if self.when is not branch:
            return table.at[rows, columns].set(value)

        def put(i: jax.Array, table: jax.Array) -> jax.Array:
            row_, column, entry = (
                lax.dynamic_index_in_dim(each, i, keepdims=False) for each in (rows, columns, value)
            )
            return lax.dynamic_update_slice(table, entry[None, None], (row_, column))

        return lax.fori_loop(0, rows.shape[0], put, table)

    def write_rows(
        self, table: jax.Array, lead: tuple[jax.Array, ...], index: jax.Array, rows: jax.Array
    ) -> jax.Array:
        """Return the table with its rows at `(*lead, index[i])` replaced by `rows[i]`; see `write`."""
        if self.when is not branch:
            return table.at[(*lead, index)].set(rows)
        zero = (jnp.int32(0),) * (rows.ndim - 1)

        def put(i: jax.Array, table: jax.Array) -> jax.Array:
            new_row = lax.dynamic_index_in_dim(rows, i, keepdims=False)
            at = (*lead, lax.dynamic_index_in_dim(index, i, keepdims=False), *zero)
            return lax.dynamic_update_slice(
                table, new_row.reshape((1,) * (len(lead) + 1) + new_row.shape), at
            )

        return lax.fori_loop(0, index.shape[0], put, table)

    def truncated(self, value: jax.Array) -> jax.Array:
        """Convert a float in µs to a time: truncated to whole µs, but unchanged on the continuous clock."""
        return value if self.shape.is_continuous else truncate(value, self.clock)

    def is_beyond(self, start: jax.Array, wait: jax.Array) -> jax.Array:
        """Return whether a float64 wait from `start` on ends beyond the clock, whose last time stands for never.

        The integer sum could wrap round, or equal never() and be lost.
        """
        return start.astype(jnp.float64) + wait >= self.never.astype(jnp.float64)

    def time(self, value: jax.Array) -> jax.Array:
        """Return a parameter in µs as a time in the clock's dtype."""
        return value.astype(self.clock)


class SlotRows(Resident):
    """The slots of one instance, each field `[slot]`; a field is read from the tables when it is first used."""

    __slots__ = ("instance", "state")

    def __init__(self, state: State, instance: jax.Array) -> None:
        """Read the slots of this instance from the tables of `state`."""
        self.state, self.instance = state, instance

    def _entry(self, part: int, place: int) -> jax.Array:
        slots = self.state.slot
        if part and slots.is_joined:  # behind the whole numbers, see joined.py
            part, place = 0, len(Resident.columns) + place
        table = slots.parts[part]
        at = (jnp.int32(place), self.instance, jnp.int32(0))
        return lax.dynamic_slice(table, at, (1, 1, table.shape[2]))[0, 0]

    def view(self) -> RequestView:
        """Return the view of the requests in the slots that policies may read."""
        return RequestView(
            slo_class=self.slo_class,
            input_len=self.input_len,
            arrival_us=self.arrival,
            tenant=self.tenant,
            tie_rank=self.tie_rank,
            queue_rank=self.queue_rank,
        )

    def one(self, ctx: Context, slot: jax.Array) -> Resident:
        """Read the row of one slot."""
        slots, at = self.state.slot, (jnp.int32(0), self.instance, slot)
        table = slots.numbers
        row = lax.dynamic_slice(table, at, (table.shape[0], 1, 1))[:, 0, 0]
        if slots.is_joined:
            count = len(Resident.columns)
            return Resident(ctx.vector(row[:count]), ctx.vector(row[count:]))
        time_row = lax.dynamic_slice(slots.times, at, (slots.times.shape[0], 1, 1))[:, 0, 0]
        return Resident(ctx.vector(row), ctx.vector(time_row))


NO_KEY = jnp.iinfo(jnp.int64).max


def least_key(mask: jax.Array, rank: jax.Array) -> jax.Array:
    """Return the packed (rank, slot) of the least rank where `mask[slot]`, NO_KEY if the mask is empty; ranks ≥ 0."""
    return jnp.min(jnp.where(mask, packed(rank), jnp.int64(NO_KEY)))


def packed(rank: Int[Array, "slot"]) -> Int[Array, "slot"]:
    """Return (rank, slot) of every slot as one number; ranks ≥ 0."""
    slot = lax.iota(jnp.int64, rank.shape[0])
    return (rank.astype(jnp.int64) << SLOT_BITS) | slot


def slot_of(key: jax.Array) -> jax.Array:
    """Return the slot of a packed key."""
    return (key & jnp.int64((1 << SLOT_BITS) - 1)).astype(jnp.int32)


def row(table: jax.Array, index: jax.Array) -> jax.Array:
    """Read one row of a two-dimensional table."""
    return lax.dynamic_slice(table, (index, jnp.int32(0)), (1, table.shape[1]))[0]


def column(table: jax.Array, index: jax.Array) -> jax.Array:
    """Read one column of a two-dimensional table."""
    return lax.dynamic_slice(table, (jnp.int32(0), index), (table.shape[0], 1))[:, 0]


def shared_numbers(
    ctx: Context, request: jax.Array, position: Int[Array, "n"]
) -> tuple[jax.Array, jax.Array]:
    """Return the number of the shared block at each block position of a request, and whether the block is shared.

    The number is the position plus the shifts of all nodes on the request's path that start at or before the position.
    """
    requests = ctx.requests
    if ctx.shape.num_nodes == 0:
        return jnp.zeros_like(position), jnp.zeros(position.shape, bool)
    start, shift = row(requests.path_start, request), row(requests.path_shift, request)
    reached = jnp.where(start[None, :] <= position[:, None], shift[None, :], 0)
    number = position + jnp.sum(reached, axis=1, dtype=jnp.int32)
    is_shared = position < requests.num_shared[request]
    return jnp.where(is_shared, number, 0), is_shared


def decision_key(
    ctx: Context, source: RandomSource, *numbers: jax.Array, place: int = 0
) -> jax.Array:
    """Return the random key of one decision, from the policy seed, the source of the draw, and `numbers` that identify
    the decision.
    """
    assert isinstance(source.origin, int)
    key = jax.random.fold_in(jax.random.key(ctx.params.policy.seed), source.origin + place)
    for number in numbers:
        key = jax.random.fold_in(key, number)
    return key


NO_PARTS, NO_STATES = Parts(), PolicyStates[object]()


@pytree
class Work(HasParts):
    """An instance in mid-step: the data that the phases of one scan step pass on."""

    lane: Lane
    inst: Instance
    task: MemoryTask  # absent without block-level memory, likewise the next
    pool: InstanceMemory
    local: PolicyStates[OverStep[object]]  # of the instance's policies
    gateway: PolicyStates[object] = NO_STATES  # of the gateway's, where requests are handed over
    own: Parts = NO_PARTS  # what else phases change, by the hooks' `carries`


def failing(outcome: jax.Array, predicate: jax.Array, code: Outcome) -> jax.Array:
    """Return `code` where the predicate holds, else `outcome`."""
    return jnp.where(predicate, jnp.int32(code), outcome)


def count_of(mask: jax.Array) -> jax.Array:
    """Count the true entries."""
    return jnp.sum(mask, dtype=jnp.int32)


def steps_at(inst: Instance, now: jax.Array) -> jax.Array:
    """Return the number of steps that the instance has started at `now`."""
    has_stepped = inst.step_index > 0
    is_now = has_stepped & (inst.last_start == now)
    return jnp.where(is_now, inst.steps_at_now, 0)


def has_entered(slots: SlotRows, now: jax.Array, steps_at_now: jax.Array) -> jax.Array:
    """Return the slots whose queueing time has come before the next step at `now`.

    If a queueing and a step fall in one microsecond, the queueing comes first, unless the host has found that some
    steps of that microsecond come before it.
    """
    queued = slots.queued
    is_before = slots.after_steps <= steps_at_now
    return (queued < now) | ((queued == now) & is_before)


def waiting_mask(slots: SlotRows, now: jax.Array, steps_at_now: jax.Array) -> jax.Array:
    """Return the slots whose request is in the wait queue at the next step at `now`."""
    in_time = has_entered(slots, now, steps_at_now)
    return in_time & (slots.oversized == 0)


def waking_time(ctx: Context, queued: jax.Array, busy_until: jax.Array) -> jax.Array:
    """Return when a request queued at `queued` starts a step on an instance with an empty batch.

    In the reference it starts at once, even while the step that emptied the batch still lasts.
    """
    if ctx.mechanism.defects.overlapping_steps:
        return queued
    return jnp.where(queued == ctx.never, queued, jnp.maximum(queued, busy_until))

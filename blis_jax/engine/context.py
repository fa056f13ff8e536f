"""What every phase of a scan step reads: static sizes, functions, numbers and the request table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax import lax

from blis_jax.core.branching import When, always, branch, once, repeated
from blis_jax.core.clock import truncate
from blis_jax.core.columns import Vector, apart
from blis_jax.core.types import EngineShape, Mechanism, Params, RequestView, never
from blis_jax.engine.state import Past, Request, Requests, Resident, State

if TYPE_CHECKING:
    from blis_jax.memory.memory import Memory

SLOT_BITS = 13  # low bits of a packed key hold the slot


@dataclass(frozen=True)
class Context:
    """Read-only surroundings of a scan step; built once per compilation, never traced as a whole."""

    shape: EngineShape
    mechanism: Mechanism
    params: Params
    requests: Requests
    when: When
    scorer_shares: Any = None  # of many lanes: made once, not in each scan step

    @property
    def memory(self) -> Memory[Any, Any]:
        """The memory model."""
        from blis_jax.memory.models import memory_of  # the models read a Context themselves

        return memory_of(self.shape)

    def in_place(self, predicate: jax.Array, change: Any, value: Any) -> Any:
        """`change(value, predicate)`, skipped where the predicate does not hold if phases are skipped at all."""
        return (once if self.when is branch else always)(predicate, change, value)

    def turns(self, holds: Any, change: Any, value: Any, most: int) -> Any:
        """`change(value, holds(value))` while it holds, at most so often; once where phases are not skipped."""
        if self.when is branch:
            return repeated(holds, change, value, most)
        return always(holds(value), change, value)

    def vector(self, row: jax.Array) -> Vector:
        """A row of a table as phases pass it on: as it is, or with its entries apart; see columns.py."""
        return row if self.when is branch else apart(row)

    def no_past(self) -> Past:
        """The row of a request that nothing has happened to; place and expected blocks beside it, see joined.py."""
        beside = 0 if self.when is branch else 2
        return Past(jnp.zeros((len(Past.columns) + beside,), jnp.int32))

    def request(self, request: jax.Array) -> Request:
        """What is given of a request."""
        return Request(row(self.requests.table, request))

    def past(self, state: State, request: jax.Array) -> Past:
        """What a request has been through."""
        return Past(self.vector(row(state.dyn, request)))

    @property
    def clock(self) -> Any:
        """The clock's dtype."""
        return self.shape.clock_dtype

    @property
    def never(self) -> jax.Array:
        """A time after every event."""
        return jnp.asarray(never(self.clock))

    def write(
        self, table: jax.Array, row: tuple[jax.Array, ...], index: jax.Array, value: jax.Array
    ) -> jax.Array:
        """The table with entries of a row replaced; `index` and `value` are scalars or vectors.

        On a CPU in a loop of its own: a scatter would keep the compiler from making one function of the run.
        """
        index, value = jnp.atleast_1d(index), jnp.atleast_1d(value)
        if self.when is not branch:
            return table.at[(*row, index)].set(value)

        def put(i: jax.Array, table: jax.Array) -> jax.Array:
            one = lax.dynamic_index_in_dim(value, i, keepdims=True)
            at = (*row, lax.dynamic_index_in_dim(index, i, keepdims=False))
            return lax.dynamic_update_slice(table, one.reshape((1,) * table.ndim), at)

        return lax.fori_loop(0, index.shape[0], put, table)

    def write_in_order(
        self, table: jax.Array, row: tuple[jax.Array, ...], index: jax.Array, value: jax.Array
    ) -> jax.Array:
        """Like `write`; of several values for one place the last one stays. The table's last place is a spare."""
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
        """The table with the entries at these pairs of row and column replaced; see `write`."""
        if self.when is not branch:
            return table.at[rows, columns].set(value)

        def put(i: jax.Array, table: jax.Array) -> jax.Array:
            row_, column, one = (
                lax.dynamic_index_in_dim(each, i, keepdims=False) for each in (rows, columns, value)
            )
            return lax.dynamic_update_slice(table, one[None, None], (row_, column))

        return lax.fori_loop(0, rows.shape[0], put, table)

    def write_rows(
        self, table: jax.Array, lead: tuple[jax.Array, ...], index: jax.Array, rows: jax.Array
    ) -> jax.Array:
        """The table with the rows at `(*lead, index[i])` replaced by `rows[i]`; see `write`."""
        if self.when is not branch:
            return table.at[(*lead, index)].set(rows)
        zero = (jnp.int32(0),) * (rows.ndim - 1)

        def put(i: jax.Array, table: jax.Array) -> jax.Array:
            one = lax.dynamic_index_in_dim(rows, i, keepdims=False)
            at = (*lead, lax.dynamic_index_in_dim(index, i, keepdims=False), *zero)
            return lax.dynamic_update_slice(
                table, one.reshape((1,) * (len(lead) + 1) + one.shape), at
            )

        return lax.fori_loop(0, index.shape[0], put, table)

    def truncated(self, value: jax.Array) -> jax.Array:
        """A float in µs as a time: whole microseconds toward zero, but on the continuous clock as it is."""
        return value if self.shape.is_continuous else truncate(value, self.clock)

    def is_beyond(self, start: jax.Array, wait: jax.Array) -> jax.Array:
        """Whether a float64 wait from a time on ends past the clock, whose last time stands for never.

        The sum itself may wrap round, or come out as never and be forgotten.
        """
        return start.astype(jnp.float64) + wait >= self.never.astype(jnp.float64)

    def time(self, value: jax.Array) -> jax.Array:
        """A parameter in µs as a time of the clock's dtype."""
        return value.astype(self.clock)


class SlotRows(Resident):
    """The slots of one instance, each field `[slot]`; a field is read from the tables when it is asked for."""

    __slots__ = ("instance", "state")

    def __init__(self, state: State, instance: jax.Array) -> None:
        """The slots of this instance in the tables of `state`."""
        self.state, self.instance = state, instance

    def _entry(self, part: int, place: int) -> jax.Array:
        table = self.state.slot_time if part else self.state.slot
        if table is None:  # behind the whole numbers, see joined.py
            table, place = self.state.slot, len(Resident.columns) + place
        at = (jnp.int32(place), self.instance, jnp.int32(0))
        return lax.dynamic_slice(table, at, (1, 1, table.shape[2]))[0, 0]

    def view(self) -> RequestView:
        """What policies may know about the requests in the slots."""
        return RequestView(
            slo_class=self.slo_class,
            input_len=self.input_len,
            arrival_us=self.arrival,
            tenant=self.tenant,
            tie_rank=self.tie_rank,
            queue_rank=self.queue_rank,
        )

    def one(self, ctx: Context, slot: jax.Array) -> Resident:
        """The row of one slot."""
        table, times = self.state.slot, self.state.slot_time
        at = (jnp.int32(0), self.instance, slot)
        row = lax.dynamic_slice(table, at, (table.shape[0], 1, 1))[:, 0, 0]
        if times is None:
            count = len(Resident.columns)
            return Resident(ctx.vector(row[:count]), ctx.vector(row[count:]))
        time_row = lax.dynamic_slice(times, at, (times.shape[0], 1, 1))[:, 0, 0]
        return Resident(ctx.vector(row), ctx.vector(time_row))


NO_KEY = jnp.iinfo(jnp.int64).max


def least_key(mask: jax.Array, rank: jax.Array) -> jax.Array:
    """Packed (rank, slot) of the least rank where `mask[slot]`, NO_KEY if there is none; ranks ≥ 0."""
    slot = lax.iota(jnp.int64, mask.shape[0])
    packed = (rank.astype(jnp.int64) << SLOT_BITS) | slot
    return jnp.min(jnp.where(mask, packed, jnp.int64(NO_KEY)))


def slot_of(key: jax.Array) -> jax.Array:
    """Slot of a packed key."""
    return (key & jnp.int64((1 << SLOT_BITS) - 1)).astype(jnp.int32)


def row(table: jax.Array, index: jax.Array) -> jax.Array:
    """One row of a two-dimensional table."""
    return lax.dynamic_slice(table, (index, jnp.int32(0)), (1, table.shape[1]))[0]

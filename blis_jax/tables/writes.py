"""The changes of one scan step, as one row for each table; a phase first changes the row of a slot."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar

import jax
import jax.numpy as jnp
from jax import lax

from blis_jax.core.columns import selected
from blis_jax.core.pytrees import HasParts, Parts, pytree
from blis_jax.core.types import LAST, NO_REQUEST, Absent
from blis_jax.policies.contract import OverStep, PolicyStates
from blis_jax.tables.blocks import InstanceMemory, MemoryTask
from blis_jax.tables.context import Context, Work
from blis_jax.tables.journeys import (
    Availability,
    Dismissals,
    Downs,
    Journey,
    Orders,
    PaidTime,
    Reservation,
    Transfers,
)
from blis_jax.tables.router import View
from blis_jax.tables.state import Instance, Lane, Past, Resident, StepRecord

if TYPE_CHECKING:
    from jaxtyping import Array, Bool, Float, Int, Real


R = TypeVar("R")


@pytree
class SlotWrite(Generic[R]):
    """The rows of one slot and its request; at the spare instance and request if nothing is written."""

    instance: Int[Array, ""]
    slot: Int[Array, ""]
    row: Resident
    memory: R  # what the memory model changes besides
    request: Int[Array, ""]
    past: Past


def free_slot(ctx: Context) -> Resident:
    """Return the row of a free slot."""
    values = {"REQUEST": NO_REQUEST, "ORDER": LAST, "FINISH": LAST}
    numbers = jnp.array([values.get(column.name, 0) for column in Resident.columns], jnp.int32)
    times = jnp.full((len(Resident.time_columns),), ctx.never, ctx.clock)
    return Resident(numbers, times)


def no_slot(ctx: Context) -> SlotWrite[Any]:
    """Return the write of an empty slot at the spare instance, which changes nothing; it also clears a slot."""
    return SlotWrite(
        instance=ctx.spare_instance,
        slot=jnp.int32(0),
        row=free_slot(ctx),
        memory=ctx.memory.no_rows(ctx),
        request=ctx.spare_request,
        past=ctx.no_past(),
    )


@pytree
class EarlierRecords:
    """The records of earlier steps of the same batch, made in the same scan step."""

    count: Int[Array, ""]
    numbers: Int[Array, "row column"]
    times: Real[Array, "row time"]

    def with_row(self, at: jax.Array, row: StepRecord) -> EarlierRecords:
        """Return the records with one record written."""
        numbers, times = selected(row.numbers)[None], selected(row.times)[None]
        start = at, jnp.int32(0)
        return EarlierRecords(
            self.count,
            lax.dynamic_update_slice(self.numbers, numbers, start),
            lax.dynamic_update_slice(self.times, times, start),
        )


@pytree
class RecordWrite:
    """One step record, past the log's end if there is none, and the records right before it."""

    record: Int[Array, ""]
    row: StepRecord
    earlier: EarlierRecords | Absent = None


@pytree
class NewsWrite:
    """A completion to be reported later, or one that has been reported; at the spare request if there is none."""

    request: Int[Array, ""]
    due: jax.Array
    latencies: jax.Array  # float64[2]


@pytree
class Cold:
    """The instances whose caches are emptied."""

    is_it: Bool[Array, "instance"]


@pytree
class JourneyWrite:
    """One request's journey; the spare request's if no request moves."""

    request: Int[Array, ""]
    journey: Journey


@pytree
class ReservationWrite:
    """The reservation for the request of the `JourneyWrite`."""

    row: Reservation


@pytree
class FirstRouting:
    """The time of a request's first routing, if it is routed now for the first time, else never()."""

    at: Real[Array, ""]


@pytree
class Return:
    """Whether the routed request may have been on its instance before."""

    is_back: Bool[Array, ""]


@pytree
class HandedOver:
    """The value that the router hands over with the routed request."""

    value: Float[Array, ""]


OF_MOVES: tuple[type, ...] = (
    *(Availability, Downs, PaidTime, Cold, JourneyWrite, ReservationWrite, Transfers),
    *(Orders, Return, FirstRouting, Dismissals),
)
"""What is written where requests move."""


@pytree
class Writes(HasParts):
    """All changes of one scan step: the lane, one row per table, and the rows of the sub-trees."""

    lane: Lane
    stale: View
    gateway: PolicyStates[object]
    local: PolicyStates[OverStep[object]]
    own: Parts  # see writing.py
    task: MemoryTask
    pool: InstanceMemory
    turned_away: Int[Array, ""]
    routed: Int[Array, ""]
    routed_to: Int[Array, ""]
    instance: Int[Array, ""]
    inst: Instance
    slot: SlotWrite
    record: RecordWrite
    takes: Parts  # of blocks by decode members, see `Memory.takes_of`

    @property
    def work(self) -> Work:
        """Return the instance in mid-step, with the changes so far."""
        return Work(self.lane, self.inst, self.task, self.pool, self.local)

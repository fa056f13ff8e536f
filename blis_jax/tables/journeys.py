"""Requests on their way between instances, instances that are up and their cost, and requests that leave early.

A mechanism has in its program only the tables that it uses: no journeys if requests do not move, no exits if no request
is given up, and no paid time without a cluster policy, where every instance is paid from start to end. A cluster policy
says which instances are held. An instance that is released is paid until the end of its last step. Paid time is added
up whenever the policy acts, and once more at the end of the run. The functions for exits are in
phases/departures/giving_up.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from blis_jax.core.columns import Moment, Row, Whole, selected, with_entry
from blis_jax.core.groups import Groups
from blis_jax.core.pytrees import pytree
from blis_jax.core.types import EngineShape, never

if TYPE_CHECKING:
    from types import ModuleType

    from jaxtyping import Array, Bool, Int, Real

    from blis_jax.core.arrays import Number, Values


@pytree
class PaidTime:
    """The time that each instance has been paid for so far, µs in the clock's dtype."""

    is_held: Int[Array, "*lane instance"]  # 1: the cluster policy wants it, or it has been ordered
    paid_us: Array  # clock[instance]
    until: Array  # clock: up to here it is added up


def nothing_paid(num_rows: int, clock: np.dtype | type) -> PaidTime:
    """Return the paid time at the start: all instances are held from time 0 on."""
    held = jnp.ones((num_rows,), jnp.int32)
    return PaidTime(held, jnp.zeros((num_rows,), clock), jnp.zeros((), clock))


def is_paid(
    paid: PaidTime, load: Values, busy_until: Values, now: Number
) -> Bool[Array, "instance"]:
    """Return the instances that cost something at `now`: held, or still with work."""
    return (paid.is_held == 1) | (load > 0) | (busy_until > now)


def paid_until(
    paid: PaidTime, load: Values, busy_until: Values, now: Number, xp: ModuleType
) -> Any:
    """Return the time, in µs, that each instance has been paid for until `now`, `[instance]`, as arrays of `xp`: numpy
    or JAX.

    An instance that is down gets no new request, so if it is empty now, it has been empty since its last step.
    """
    is_on = (paid.is_held == 1) | (load > 0)
    last = xp.minimum(xp.maximum(busy_until, paid.until), now)
    return paid.paid_us + xp.where(is_on, now, last) - paid.until


KEPT, ORPHANED = 1, 2


@pytree
class Exits:
    """The member that is leaving early, and when others have left; tables of requests have a spare row."""

    leaving: Int[Array, ""]  # request, the spare one: nobody
    # steps of the instance when it left the batch, 0: it did not; -1: it left the queue
    step_index: Int[Array, "request"]
    record: Int[Array, "request"]  # step records of the run then
    # KEPT: the batch is there though its last member was evicted; ORPHANED: the last event was a step that found nobody
    keeps_batch: Int[Array, "instance"]


@pytree
class ExitWrite:
    """The write for early departures: the request that is leaving now, and the last request that has left."""

    leaving: Int[Array, ""]
    request: Int[Array, ""]
    step_index: Int[Array, ""]
    record: Int[Array, ""]
    instance: Int[Array, ""]
    keeps_batch: Int[Array, ""]


def no_exits(shape: EngineShape) -> Exits:
    """Return the exits of a run in which no request has left early."""
    nothing = jnp.zeros((shape.num_requests + 1,), jnp.int32)
    keeps = jnp.zeros((shape.num_instances + 1,), jnp.int32)
    return Exits(jnp.int32(shape.num_requests), nothing, nothing, keeps)


def no_exit(exits: Exits) -> ExitWrite:
    """Return the write that leaves the exits unchanged."""
    spare = jnp.int32(exits.record.shape[0] - 1)
    nowhere = jnp.int32(exits.keeps_batch.shape[0] - 1)
    return ExitWrite(exits.leaving, spare, jnp.int32(0), jnp.int32(0), nowhere, jnp.int32(0))


def exits_after(exits: Exits, change: ExitWrite) -> Exits:
    """Return the exits with the change written."""
    return Exits(
        change.leaving,
        with_entry(exits.step_index, change.step_index, change.request),
        with_entry(exits.record, change.record, change.request),
        with_entry(exits.keeps_batch, change.keeps_batch, change.instance),
    )


class Journey(Row):
    """A request's path between instances, in a mechanism whose requests move."""

    came_from: Whole  # instance that it was routed to first and has left, -1: none
    computed: Whole  # tokens whose KV moves with it
    first_record: Whole  # step record of a first token that was made elsewhere, -1: none
    scheduled_record: Whole  # step record in which it was scheduled there
    joined_record: Whole  # step record in which it joined the batch after that, -1: not yet
    joins: Whole  # times that it joined a batch with its KV
    ended: Whole  # times in a batch that a hand-over or a stop ended
    restarts: Whole  # attempts that a stop ended
    past_itl: Whole  # inter-token latencies recorded in these
    is_lost: Whole  # 1: a stop has ended it for good
    due: Moment  # when it is routed again, never() while it has a place
    delay: Moment  # from the end of the step that makes its first token to `due`; never(): it stays
    link: Moment  # the part of `delay` that it spends on its instance's link, alone there
    transfer: Moment  # how long the transfer of its KV took, or takes; 0 without one


class Reservation(Row):
    """The reservation of a split request, in a mechanism with `reserves_decode`."""

    target: Whole  # the instance that makes its tokens, -1: it is not split
    turn: Whole  # of its transfer among all transfers
    is_dropped: Whole  # 1: there was no room for its KV
    ends: Moment  # its transfer, never() before it begins


@pytree
class Availability:
    """Which instances are up, and when their queue and their running requests leave."""

    is_up: Int[Array, "instance"]
    leave_at: Real[Array, "instance+1"]  # clock: when the queue leaves, never() if it stays
    leave_delay: Array  # clock[instance+1]: from then until its requests are routed again
    stop_at: Array  # clock[instance+1]: when what it runs leaves, never() if it goes on
    stop_loses: Int[Array, "instance+1"]  # 1: what it runs is lost, not routed again
    loses_kv: Int[Array, "instance+1"]  # 1: KV that was transferred here is gone, too

    @classmethod
    def first(cls, shape: EngineShape) -> Availability:
        """Return the state before the run: all instances are up."""
        clock, rows = shape.clock_dtype, shape.num_instances
        return cls(
            is_up=jnp.ones((rows,), jnp.int32),
            leave_at=jnp.full((rows + 1,), never(clock), clock),
            leave_delay=jnp.zeros((rows + 1,), clock),
            stop_at=jnp.full((rows + 1,), never(clock), clock),
            stop_loses=jnp.zeros((rows + 1,), jnp.int32),
            loses_kv=jnp.zeros((rows + 1,), jnp.int32),
        )


@pytree
class Downs:
    """How often each instance has gone down, in total and after time 0, where a policy sets the first size."""

    count: Int[Array, "*lane instance"]
    later: Int[Array, "*lane instance"]


def _with_row(
    table: Journeys | Reservations, row_: Row, at: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Return the numbers and the times of a table with a row written."""
    start = at, jnp.int32(0)
    return (
        lax.dynamic_update_slice(table.numbers, selected(row_.numbers)[None], start),
        lax.dynamic_update_slice(table.times, selected(row_.times)[None], start),
    )


@pytree
class Journeys:
    """Requests on their way between instances: the `Journey` of each request, a spare row included."""

    numbers: Int[Array, "*lane request column"]
    times: Real[Array, "*lane request _"]
    first_due: Real[Array, "*lane group"]  # the earliest `due` of each of the Groups, never(): none

    def of(self, request: Int[Array, ""]) -> Journey:
        """Return the journey of a request."""
        return Journey(self.numbers[request], self.times[request])

    @classmethod
    def first(cls, shape: EngineShape) -> Journeys:
        """Return the journeys before the run: no request is on its way."""
        clock, size = shape.clock_dtype, shape.num_requests + 1
        numbers = jnp.zeros((size, len(Journey.columns)), jnp.int32)
        for name in ("CAME_FROM", "FIRST_RECORD", "JOINED_RECORD"):
            numbers = numbers.at[:, Journey.columns[name]].set(-1)
        times = jnp.full((size, len(Journey.time_columns)), never(clock), clock)
        nobody = jnp.full((Groups(shape.num_requests).count,), never(clock), clock)
        return cls(numbers, times.at[:, Journey.time_columns.TRANSFER].set(0), nobody)

    def put(self, groups: Groups, request: jax.Array, journey: Journey) -> Journeys:
        """Return the journeys with one request's journey replaced."""
        numbers, times = _with_row(self, journey, request)
        group = groups.of(request)
        rows, due = groups.rows(group), Journey.time_columns.DUE
        least = jnp.min(rows.take(times)[:, due], initial=never(times.dtype), where=rows.is_in)
        return Journeys(numbers, times, with_entry(self.first_due, least, group))


@pytree
class Reservations:
    """Split requests, where KV is reserved: the `Reservation` of each request, a spare row included."""

    numbers: Int[Array, "*lane request column"]
    times: Real[Array, "*lane request _"]
    # no transfer of a group of Groups ends later, -1: none has begun
    last_end: Real[Array, "*lane group"]

    def of(self, request: Int[Array, ""]) -> Reservation:
        """Return the reservation of a request."""
        return Reservation(self.numbers[request], self.times[request])

    @classmethod
    def first(cls, shape: EngineShape) -> Reservations:
        """Return the reservations before the run: nothing is reserved."""
        clock, size = shape.clock_dtype, shape.num_requests + 1
        numbers = jnp.zeros((size, len(Reservation.columns)), jnp.int32)
        numbers = numbers.at[:, Reservation.columns.TARGET].set(-1)
        none = jnp.full((Groups(shape.num_requests).count,), -1, clock)
        return cls(numbers, jnp.full((size, 1), never(clock), clock), none)

    def put(self, groups: Groups, request: jax.Array, reservation: Reservation) -> Reservations:
        """Return the reservations with one request's reservation replaced."""
        numbers, times = _with_row(self, reservation, request)
        group, ends = groups.of(request), reservation.ends
        ends = jnp.where((ends < never(ends.dtype)) & (request < groups.num_requests), ends, -1)
        latest = jnp.maximum(self.last_end[group], ends.astype(self.last_end.dtype))
        return Reservations(numbers, times, with_entry(self.last_end, latest, group))


@pytree
class Transfers:
    """The number of transfers of reserved KV that have begun."""

    num_begun: Int[Array, ""]


@pytree
class FirstRoutings:
    """The time of each request's first routing, a spare one included, where requests wait for instances."""

    at: Real[Array, "*lane request"]  # clock, never() before


@pytree
class Emptied:
    """The latest event that left each instance without work, where instances are created during the run."""

    at: Real[Array, "instance"]  # clock, -1: none


@pytree
class Orders:
    """The number of the order by which each instance was created, where instances are created during the run."""

    number: Int[Array, "*lane instance"]  # 0: none


@pytree
class Dismissals:
    """The time at which each instance was told to shut down, where KV is reserved and an autoscaler acts."""

    at: Real[Array, "instance"]  # clock, never() before

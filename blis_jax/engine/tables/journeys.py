"""Requests on their way between instances, and instances that are up: the carry of mechanisms that move requests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax.numpy as jnp

from blis_jax.core.rows import Moment, Row, Whole
from blis_jax.core.types import EngineShape, Mechanism, never, pytree
from blis_jax.engine.phases.departures.paid_time import PaidTime, nothing_paid

if TYPE_CHECKING:
    from jaxtyping import Array, Int


class Journey(Row):
    """Where a request has been, in a mechanism whose requests move."""

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
    """A request that is split, in a mechanism with `reserves_decode`."""

    target: Whole  # the instance that makes its tokens, -1: it is not split
    turn: Whole  # of its transfer among all transfers
    is_dropped: Whole  # 1: there was no room for its KV
    ends: Moment  # its transfer, never() before it begins


@pytree
class Movement:
    """Instances that are up, and requests on their way from one instance to another."""

    is_up: Int[Array, "instance"]
    leave_at: (
        Any  # clock[instance], a spare row included: when the queue leaves, never() if it stays
    )
    leave_delay: Array  # clock[instance], likewise: until its requests are routed again
    stop_at: Array  # clock[instance], likewise: when what it runs leaves, never() if it goes on
    stop_loses: Int[Array, "instance"]  # likewise, 1: what it runs is lost, not routed again
    loses_kv: Int[Array, "instance"]  # likewise, 1: KV that was transferred here is gone, too
    downs: Int[Array, "instance"]  # times that it has gone down
    paid: PaidTime | None  # only where a cluster policy takes instances down
    journey: Int[Array, "request column"]  # Journey, a spare row included
    journey_time: Array
    reserved: Any = None  # int32[request, column]: Reservation, a spare row included; likewise:
    reserved_time: Any = None
    num_transfers: Any = None  # int32: transfers begun
    # clock[request], a spare row included: when it was first routed, never() before; only where that waits for an
    # instance to come up
    routed_at: Any = None
    # only where instances are made while the run goes on, likewise the next:
    emptied: Any = None  # clock[instance]: its latest event that left it without work, -1: none
    ordered: Any = None  # int32[instance]: number of the order for it, 0: none

    def reservation(self, request: Int[Array, ""]) -> Reservation:
        """What is reserved for a request."""
        return Reservation(self.reserved[request], self.reserved_time[request])

    def of(self, request: Int[Array, ""]) -> Journey:
        """The journey of a request."""
        return Journey(self.journey[request], self.journey_time[request])


def no_movement_yet(shape: EngineShape, mechanism: Mechanism) -> Movement | None:
    """All instances up and nobody on the way; None where nothing moves."""
    if not mechanism.moves_requests:
        return None
    clock, rows, size = shape.clock_dtype, shape.num_instances, shape.num_requests + 1
    numbers = jnp.zeros((size, len(Journey.columns)), jnp.int32)
    for name in ("CAME_FROM", "FIRST_RECORD", "JOINED_RECORD"):
        numbers = numbers.at[:, Journey.columns[name]].set(-1)
    times = jnp.full((size, len(Journey.time_columns)), never(clock), clock)
    times = times.at[:, Journey.time_columns.TRANSFER].set(0)
    reserved: dict[str, Any] = {}
    if mechanism.reserves_decode:
        columns = jnp.zeros((size, len(Reservation.columns)), jnp.int32)
        reserved["reserved"] = columns.at[:, Reservation.columns.TARGET].set(-1)
        reserved["reserved_time"] = jnp.full((size, 1), never(clock), clock)
        reserved["num_transfers"] = jnp.int32(0)
    if mechanism.cluster is not None and not mechanism.rules.turns_away:
        reserved["routed_at"] = jnp.full((size,), never(clock), clock)
    if mechanism.places_instances:
        reserved["emptied"] = jnp.full((rows,), -1, clock)
        reserved["ordered"] = jnp.zeros((rows,), jnp.int32)
    return Movement(
        is_up=jnp.ones((rows,), jnp.int32),
        leave_at=jnp.full((rows + 1,), never(clock), clock),
        leave_delay=jnp.zeros((rows + 1,), clock),
        stop_at=jnp.full((rows + 1,), never(clock), clock),
        stop_loses=jnp.zeros((rows + 1,), jnp.int32),
        loses_kv=jnp.zeros((rows + 1,), jnp.int32),
        downs=jnp.zeros((rows,), jnp.int32),
        paid=None if mechanism.cluster is None else nothing_paid(rows, clock),
        journey=numbers,
        journey_time=times,
        **reserved,
    )

"""Events of the cluster: instances go down and come up, requests leave them and are routed again."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp

from blis_jax.core.columns import Vector
from blis_jax.core.types import LAST
from blis_jax.engine.calendar import (
    ClusterSource,
    Due,
    EventKind,
    EventSource,
    InstanceSource,
    NextEvent,
    Offer,
    Outlook,
)
from blis_jax.engine.phases.decisions import decided
from blis_jax.engine.phases.departures.giving_up import drop_kv, next_drop
from blis_jax.engine.phases.departures.movement import (
    arrived,
    change_cluster,
    is_leaving,
    leave,
    may_be_back,
    stop,
    with_emptied,
)
from blis_jax.engine.phases.departures.stops import (
    cooled,
    has_queue,
    is_due,
    stopped,
    strange,
    torn_off,
)
from blis_jax.engine.phases.flow_control import route_again
from blis_jax.engine.phases.snapshot import active_instances
from blis_jax.engine.writing import no_writes
from blis_jax.memory.memory import Left, Subject
from blis_jax.tables.context import Context, SlotRows, Work
from blis_jax.tables.joined import lane_of
from blis_jax.tables.journeys import (
    Availability,
    Dismissals,
    Downs,
    Emptied,
    FirstRoutings,
    Journeys,
    Orders,
    nothing_paid,
)
from blis_jax.tables.state import Mode, Past, State
from blis_jax.tables.writes import Cold, JourneyWrite, ReservationWrite, Return, SlotWrite, Writes

if TYPE_CHECKING:
    from jaxtyping import Array, Bool, Shaped


class Opening(NamedTuple):
    """Whether requests can be routed, or must wait until some instance comes up."""

    is_closed: jax.Array
    opens: jax.Array  # when the cluster changes next
    is_beyond: jax.Array  # closed, until a time beyond the clock


def opening(look: Outlook) -> Opening | None:
    """Return whether requests can be routed; None where requests do not wait for instances to come up."""
    mechanism = look.ctx.mechanism
    if mechanism.cluster is None or mechanism.rules.turns_away:
        return None
    opens, is_late = look.once(_next_change)
    is_closed = ~jnp.any(active_instances(look.ctx, look.state))
    return Opening(is_closed, opens, is_late & is_closed)


def gated(look: Outlook, kind: EventKind, routing: jax.Array, *others: jax.Array) -> Offer:
    """Return the offer of a routing, delayed until an instance is up, and of other events."""
    door = look.once(opening)
    if door is None:
        return Offer(kind, (*others, routing))
    earliest = jnp.where(door.is_closed, door.opens, look.lane.last_event)
    waits = door.is_beyond & (routing < look.ctx.never)
    return Offer(kind, (*others, jnp.maximum(routing, earliest)), beyond=waits)


def _next_change(look: Outlook) -> tuple[jax.Array, jax.Array]:
    """Return when the cluster policy acts next, and whether that lies beyond the clock."""
    ctx = look.ctx
    policy, place = ctx.mechanism.at_gateway("cluster")
    assert policy.next_time is not None  # a cluster policy has one
    time = jnp.asarray(policy.next_time(ctx.params.policy.cluster, look.state.gateway[place]))
    is_beyond = time.astype(jnp.float64) >= ctx.never.astype(jnp.float64)
    on_clock = jnp.where(is_beyond, ctx.never, time.astype(ctx.clock))
    return on_clock, is_beyond & jnp.isfinite(time.astype(jnp.float64))


class ChangeSource(ClusterSource):
    """The cluster policy acts, before all other events of the cluster at that time, or after them."""

    kinds = (EventKind.CHANGE, EventKind.SCALE)
    carries = (Availability, Cold)

    def first_tables(self, ctx: Context) -> tuple[object, ...]:
        """Return the tables with all instances up and held, and with no request routed where requests wait."""
        rows, size, clock = ctx.shape.num_instances, ctx.shape.num_requests + 1, ctx.clock
        downs, paid = Downs(*jnp.zeros((2, rows), jnp.int32)), nothing_paid(rows, clock)
        waits = FirstRoutings(jnp.full((size,), ctx.never, clock))
        routed = () if ctx.mechanism.rules.turns_away else (waits,)
        return Availability.first(ctx.shape), downs, paid, *routed

    def offers(self, look: Outlook) -> tuple[Offer, ...]:
        """Return when the policy acts next; the offer is endless."""
        ctx, (change, _) = look.ctx, look.once(_next_change)
        policy, place = ctx.mechanism.at_gateway("cluster")
        if policy.comes_last is None:
            return (Offer(EventKind.CHANGE, (change,), is_endless=True),)
        is_last = policy.comes_last(ctx.params.policy.cluster, look.state.gateway[place])
        early, late = jnp.where(is_last, ctx.never, change), jnp.where(is_last, change, ctx.never)
        return (
            Offer(EventKind.CHANGE, (early,), is_endless=True),
            Offer(EventKind.SCALE, (late,), is_endless=True),
        )

    def act(self, ctx: Context, state: State, due: Due) -> Writes:
        """Return the changes that the policy makes."""
        return change_cluster(ctx, state, due.cluster)

    def settle(self, ctx: Context, state: State, event: NextEvent, done: Writes) -> State:
        """Return the state with empty caches on instances that come up, and no old blocks of their requests there."""
        return strange(ctx, cooled(ctx, state, done[Cold].is_it), done)


class Placements(EventSource):
    """Instances that are created during the run: their orders, and when events leave them without work."""

    def first_tables(self, ctx: Context) -> tuple[object, ...]:
        """Return the tables with no instance ordered or emptied."""
        rows = ctx.shape.num_instances
        return Emptied(jnp.full((rows,), -1, ctx.clock)), Orders(jnp.zeros((rows,), jnp.int32))

    def settle(self, ctx: Context, state: State, event: NextEvent, done: Writes) -> State:
        """Return the state that notes when an event has left its instance without work."""
        due = event.due
        is_out = event.is_cluster & (due.kind == EventKind.DEADLINE)
        at = jnp.where(is_out, due.cluster, event.now)
        return with_emptied(ctx, state, done.instance, at, event.is_instance | is_out)


class MoveSource(ClusterSource):
    """Requests whose transfer has ended are routed again, or their transfer begins."""

    kinds = (EventKind.MOVE,)
    carries = (JourneyWrite, ReservationWrite)

    def first_tables(self, ctx: Context) -> tuple[object, ...]:
        """Return the tables with no request on its way."""
        return (Journeys.first(ctx.shape),)

    def offers(self, look: Outlook) -> tuple[Offer, ...]:
        """Return the next routing; all requests of a leaving queue leave before any of them is routed again."""
        ctx = look.ctx
        move = jnp.min(look.state[Journeys].first_due)
        if ctx.mechanism.cluster is not None:
            move = jnp.where(jnp.min(look.state[Availability].leave_at) <= move, ctx.never, move)
        return (gated(look, EventKind.MOVE, move),)

    def act(self, ctx: Context, state: State, due: Due) -> Writes:
        """Return the changes of the request's next routing."""
        request = ctx.pools.next_to_move(ctx, state)

        def routed() -> Writes:
            writes = decided(ctx, state, route_again(ctx, state, request, due.cluster))
            writes = arrived(ctx, state, writes, request)
            if Return not in writes:
                return writes
            return writes.having(Return(may_be_back(state, request, writes.instance)))

        return ctx.pools.moved(ctx, state, request, due.cluster, routed)

    def completed(
        self, ctx: Context, state: State, written: SlotWrite, leaves: jax.Array
    ) -> jax.Array:
        """Return whether a request that leaves its slot has completed, instead of moving on."""
        return leaves & (written.past.finish_record > 0)


class Drops(ClusterSource):
    """KV that arrives at instances which were told to shut down, and is freed."""

    kinds = (EventKind.DROP,)

    def first_tables(self, ctx: Context) -> tuple[object, ...]:
        """Return the table with no instance told to shut down."""
        return (Dismissals(jnp.full((ctx.shape.num_instances,), ctx.never, ctx.clock)),)

    def offers(self, look: Outlook) -> tuple[Offer, ...]:
        """Return when KV next arrives at such an instance."""
        return (Offer(EventKind.DROP, (next_drop(look.ctx, look.state)[0],)),)

    def act(self, ctx: Context, state: State, due: Due) -> Writes:
        """Return the changes when the KV's request is dropped."""
        return drop_kv(ctx, state, due.cluster)


class Leaving(InstanceSource):
    """Requests leave the queue of an instance, one after the other."""

    def times(self, look: Outlook, start: int, stop: int) -> tuple[Shaped[Array, "_"], ...]:
        """Return when the queue of each of these instances leaves."""
        return (look.state[Availability].leave_at[start:stop],)

    def until(self, ctx: Context, state: State, due: Due) -> tuple[jax.Array, ...]:
        """Return when the next queue leaves: its requests may come to any instance."""
        return (jnp.min(state[Availability].leave_at),)

    def takes(self, ctx: Context, state: State, due: Due) -> jax.Array:
        """Return whether the instance's queue leaves now, between steps."""
        is_between = lane_of(ctx, state).mode == Mode.BETWEEN
        return is_between & is_leaving(state, due.instance, due.event)

    def act(self, ctx: Context, state: State, due: Due) -> Writes:
        """Return the changes when one request leaves the queue."""
        nothing = no_writes(ctx, state, due.instance)
        work, slot, changes = leave(ctx, state, nothing.work, due.instance)
        return dataclasses.replace(
            nothing.having(*changes), instance=due.instance, inst=work.inst, slot=slot
        )


class Stopping(InstanceSource):
    """An instance stops: its running requests leave it."""

    takes_all = True

    def times(self, look: Outlook, start: int, stop: int) -> tuple[Shaped[Array, "_"], ...]:
        """Return when each of these instances stops."""
        return (look.state[Availability].stop_at[start:stop],)

    def until(self, ctx: Context, state: State, due: Due) -> tuple[jax.Array, ...]:
        """Return when the next instance stops: its requests may come to any other instance."""
        return (jnp.min(state[Availability].stop_at),)

    def takes(self, ctx: Context, state: State, due: Due) -> jax.Array:
        """Return whether the instance stops now, between steps."""
        is_between = lane_of(ctx, state).mode == Mode.BETWEEN
        return is_between & is_due(state, due.instance, due.event)

    def act(self, ctx: Context, state: State, due: Due) -> Writes:
        """Return the changes that begin the departure of the instance's members."""
        return stop(ctx, state, due.instance, due.event)

    def ends_early(
        self, ctx: Context, state: State, work: Work, instance: jax.Array
    ) -> tuple[jax.Array, ...]:
        """Return whether the members leave because the instance stops."""
        return (is_due(state, instance, work.lane.now),)

    def leavers(
        self,
        state: State,
        slots: SlotRows,
        ends: jax.Array,
        may_leave: Bool[Array, "slot"],
    ) -> Bool[Array, "slot"]:
        """Return all members if the instance stops, else those that may leave."""
        return jnp.where(ends, slots.order != LAST, may_leave)

    def torn_off(
        self, ctx: Context, state: State, subject: Subject, left: Left, past: Past, ends: jax.Array
    ) -> tuple[Left, Past]:
        """Return the member's rows: it is lost, or starts again elsewhere."""
        work, past = torn_off(ctx, state, left.work, subject, past, ends)
        return Left(work, ctx.memory.rows_of_stopped(left.rows, ends)), past

    def closing(
        self,
        ctx: Context,
        state: State,
        work: Work,
        instance: jax.Array,
        goes_on: jax.Array,
        chains: Vector,
    ) -> tuple[Work, jax.Array, Vector]:
        """Return the instance without step events if it stops: it may come up again with requests in its queue."""
        now = work.lane.now
        stops, slots = is_due(state, instance, now), SlotRows(state, instance)
        goes_on = jnp.where(stops, has_queue(slots, now), goes_on)
        chains = jax.tree.map(lambda time: jnp.where(stops, ctx.never, time), chains)
        return stopped(work, instance, stops, ctx.never), goes_on, chains

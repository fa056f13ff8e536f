"""The calendar: what is due next in the cluster and in its instances.

Each source of events offers its earliest one. Of several at one time the order is that of `Kind`, and every event of
the cluster comes before those of the instances, of which the one with the least index is first, as in the reference.
Arrivals and decisions about them come in order of arrival, so their heads are two pointers into the request table.
A source that a mechanism has no use for is not in its compiled program.
"""

from __future__ import annotations

import enum
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from blis_jax.core.branching import branch
from blis_jax.core.clock import least
from blis_jax.core.types import LAST
from blis_jax.engine.context import Context
from blis_jax.engine.gateway.gateway_queue import GatewayQueue
from blis_jax.engine.phases.router_view.snapshot import active_instances
from blis_jax.engine.state import Lane, Slot, State
from blis_jax.engine.tables.joined import event_times, queued_times
from blis_jax.policies.routing.pickers import first_where


class Kind(enum.IntEnum):
    """Events of the cluster in the order in which they happen at one time."""

    CHANGE = 0  # instances go down or come up
    GATEWAY = 1  # a request is admitted, or routed for the first time
    MOVE = 2  # a request that has left an instance is routed again
    EVICTION = 3  # an instance gives up a request for one at the gateway
    EXPIRY = 4  # a request has waited too long at the gateway
    TICK = 5  # the gateway's queue is looked at again
    SCALE = 6  # a cluster policy that comes last acts
    DEADLINE = 7  # a request's time is up: behind all that instances do at that time


class Due(NamedTuple):
    """The next events; times are never() where there is none."""

    admit: jax.Array  # time of the next admission
    route: jax.Array  # time of the next first routing
    change: jax.Array
    move: jax.Array
    cluster: jax.Array  # time of the cluster's next event of any kind
    kind: jax.Array  # Kind of that event
    event: jax.Array  # time of the instances' next event
    instance: jax.Array  # and whose it is
    events: jax.Array  # clock[instance]
    deadline: jax.Array | None  # when the next request is given up; None where none is
    is_beyond: jax.Array  # requests wait for a change of the cluster that lies beyond the clock


def later(ctx: Context, time: jax.Array, latency: jax.Array) -> jax.Array:
    """`time + latency`, or never if there is no such time."""
    return jnp.where(time >= ctx.never, ctx.never, time + ctx.time(latency))


def decision_times(
    ctx: Context, lane: Lane, queue: GatewayQueue | None = None
) -> tuple[jax.Array, jax.Array]:
    """Times of the next admission and of the next first routing."""
    cluster, arrival = ctx.params.cluster, ctx.requests.arrival
    admit = later(ctx, arrival[lane.next_admit], cluster.admission_latency_us)
    if queue is not None:
        dispatched = queue.dispatched[queue.order[lane.next_route]]
        return admit, later(ctx, dispatched, cluster.routing_latency_us)
    both = cluster.admission_latency_us + cluster.routing_latency_us
    return admit, later(ctx, arrival[lane.next_route], both)


def change_time(ctx: Context, state: State) -> tuple[jax.Array, jax.Array]:
    """When the cluster policy acts next, and whether that lies beyond the clock."""
    policy = ctx.mechanism.cluster
    if policy is None or policy.next_time is None:
        return ctx.never, jnp.array(False)
    place = ctx.mechanism.of_gateway.index(policy)
    time = jnp.asarray(policy.next_time(ctx.params.policy.cluster, state.gateway[place]))
    is_beyond = time.astype(jnp.float64) >= ctx.never.astype(jnp.float64)
    on_clock = jnp.where(is_beyond, ctx.never, time.astype(ctx.clock))
    return on_clock, is_beyond & jnp.isfinite(time.astype(jnp.float64))


def next_due(ctx: Context, state: State, lane: Lane) -> Due:
    """The next event of every source."""
    admit, route = decision_times(ctx, lane, state.queue)
    change = move = ctx.never
    events = event_times(state, ctx.shape.num_instances)
    movement, kind, of_queue = state.movement, jnp.int32(Kind.GATEWAY), _of_queue(ctx, state.queue)
    is_beyond = jnp.array(False)
    if movement is not None:
        change, is_late = change_time(ctx, state)
        # there is nowhere to route to before some instance comes up; then what has waited for it is late
        waits = ctx.mechanism.cluster is not None and not ctx.mechanism.rules.turns_away
        is_blocked = waits & ~jnp.any(active_instances(ctx, state))
        earliest = jnp.where(is_blocked, change, lane.last_event)
        move = jnp.min(movement.journey_time[:-1, 0])
        if (
            ctx.mechanism.cluster is not None
        ):  # a queue leaves whole before any of it is routed again
            move = jnp.where(jnp.min(movement.leave_at) <= move, ctx.never, move)
        is_beyond = is_late & is_blocked & (jnp.minimum(route, move) < ctx.never)
        if state.queue is not None and waits:  # nor is there anything to look at for the queue
            is_beyond = is_beyond | (is_late & is_blocked & _has_waiting(ctx, state.queue))
            is_over = is_blocked & (change >= ctx.never)
            of_queue = [(jnp.where(is_over, ctx.never, time), one) for time, one in of_queue]
        route, move = jnp.maximum(route, earliest), jnp.maximum(move, earliest)
        events = jnp.minimum(events, movement.leave_at[:-1])
        if ctx.mechanism.cluster is not None:
            events = jnp.minimum(events, movement.stop_at[:-1])
        # a cluster policy may go on for ever; the run ends with the last request
        next_work = jnp.minimum(jnp.minimum(admit, route), jnp.minimum(move, jnp.min(events)))
        for time, _ in of_queue:
            next_work = jnp.minimum(next_work, time)
        change = jnp.where(next_work >= ctx.never, ctx.never, change)
    cluster = jnp.minimum(admit, route)
    if movement is not None:
        kind = jnp.where(move < cluster, jnp.int32(Kind.MOVE), kind)
        cluster = jnp.minimum(cluster, move)
        early, late = _by_turn(ctx, state, change)
        kind = jnp.where(early <= cluster, jnp.int32(Kind.CHANGE), kind)
        cluster = jnp.minimum(cluster, early)
    for time, one in of_queue:
        kind = jnp.where(time < cluster, jnp.int32(one), kind)
        cluster = jnp.minimum(cluster, time)
    if movement is not None:
        kind = jnp.where(late < cluster, jnp.int32(Kind.SCALE), kind)
        cluster = jnp.minimum(cluster, late)
    event, instance = first_of(ctx, events)
    deadline = None
    if ctx.requests.deadline is not None:
        deadline, _, is_overdue = next_deadline(ctx, state)
        is_next = (deadline < cluster) & (deadline < event)
        if is_overdue is not None:  # as soon as its KV is there, which is before a tick
            is_free = (deadline < cluster) | ((deadline == cluster) & (kind >= Kind.TICK))
            is_next = is_next | (is_overdue & is_free & (deadline <= event))
        kind = jnp.where(is_next, jnp.int32(Kind.DEADLINE), kind)
        cluster = jnp.where(is_next, deadline, cluster)
    found = admit, route, change, move, cluster, kind, event, instance, events, deadline
    return Due(*found, is_beyond)


def _by_turn(ctx: Context, state: State, change: jax.Array) -> tuple[jax.Array, jax.Array]:
    """When the cluster policy acts before all else that the cluster does then, and when behind it."""
    policy = ctx.mechanism.cluster
    if policy is None or policy.comes_last is None:
        return change, ctx.never
    place = ctx.mechanism.of_gateway.index(policy)
    is_last = policy.comes_last(ctx.params.policy.cluster, state.gateway[place])
    return jnp.where(is_last, ctx.never, change), jnp.where(is_last, change, ctx.never)


def _has_waiting(ctx: Context, queue: GatewayQueue) -> jax.Array:
    has_waiting = queue.num_queued > 0
    return has_waiting if ctx.mechanism.num_gateways == 1 else jnp.any(has_waiting)


def _of_queue(ctx: Context, queue: GatewayQueue | None) -> list[tuple[jax.Array, Kind]]:
    """What the queue has due, of several gateways the first, in the order in which it happens at one time."""
    if queue is None:
        return []
    expiry, tick = queue.expiry, queue.tick
    if ctx.mechanism.num_gateways > 1:
        expiry, tick = jnp.min(expiry), jnp.min(tick)
    due = [(expiry, Kind.EXPIRY), (tick, Kind.TICK)]
    return due if queue.victims is None else [(queue.victims.due, Kind.EVICTION), *due]


def next_deadline(ctx: Context, state: State) -> tuple[jax.Array, jax.Array, jax.Array | None]:
    """When the next request is given up whose time is up, and which; of one microsecond, the one routed first.

    And whether its time was up before its KV came, as in BLIS: then it is given up before the instance does anything.
    None where no KV is reserved.
    """
    rows, spare = ctx.shape.num_instances, jnp.int32(ctx.shape.num_requests)
    request, rank = state.slot[Slot.REQUEST, :rows], state.slot[Slot.QUEUE_RANK, :rows]
    is_there = (request >= 0) & (state.slot[Slot.OVERSIZED, :rows] == 0)
    time = ctx.requests.deadline[jnp.where(is_there, request, spare)]
    if (
        ctx.mechanism.reserves_decode
    ):  # nobody asks while KV is on its way; such ranks are below all others
        queued = queued_times(state, rows)
        is_coming = (rank < spare) & (queued < ctx.never) & is_there
        is_late = is_coming & (time < queued)
        time = jnp.where(is_coming & (time < ctx.never), jnp.maximum(time, queued), time)
        least = jnp.min(time)
        is_overdue = jnp.any(is_late & (time == least))
        is_next = (time == least) & (is_late | ~is_overdue)
        first = jnp.min(jnp.where(is_next, rank, jnp.int32(LAST)))
        return least, jnp.min(jnp.where(is_next & (rank == first), request, spare)), is_overdue
    least = jnp.min(time)
    first = jnp.min(jnp.where(time == least, rank, jnp.int32(LAST)))
    return least, jnp.min(jnp.where((time == least) & (rank == first), request, spare)), None


def first_of(ctx: Context, events: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The time of the next event, and the first instance that has one then."""
    if ctx.when is branch or events.dtype != jnp.int32:
        event_time = least(events)
        return event_time, first_where(events == event_time)
    # one minimum instead of two: time and instance packed
    instance = lax.iota(jnp.int64, events.shape[0])
    packed = jnp.min((events.astype(jnp.int64) << 32) | instance)
    return (packed >> 32).astype(jnp.int32), packed.astype(jnp.int32)


def undisturbed_until(ctx: Context, state: State, due: Due, instance: jax.Array) -> jax.Array:
    """Before this time nothing from outside reaches the instance: its equal steps may be made at once."""
    until, movement = due.cluster, state.movement
    if due.deadline is not None:
        until = jnp.minimum(until, due.deadline)
    if movement is not None and ctx.mechanism.cluster is not None:
        # what leaves another instance may come to this one
        until = jnp.minimum(until, jnp.min(jnp.minimum(movement.stop_at, movement.leave_at)))
    if ctx.mechanism.hand_over is None:
        return until
    # another instance's next step may hand a request over
    others = jnp.where(lax.iota(jnp.int32, due.events.shape[0]) == instance, ctx.never, due.events)
    return jnp.minimum(until, jnp.min(others))

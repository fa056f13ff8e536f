"""Events at the gateway, and reports to it: requests are admitted and routed, at once or through its queue.

Completions are reported to its policies, allocations to its prefix index; requests whose deadline has passed leave.
"""

from __future__ import annotations

from typing import ClassVar

import jax
import jax.numpy as jnp

from blis_jax.engine.calendar import (
    ClusterSource,
    Due,
    EventKind,
    EventSource,
    NextEvent,
    Offer,
    Outlook,
    later,
)
from blis_jax.engine.phases.completions import next_news, tell_gateway
from blis_jax.engine.phases.decisions import decided
from blis_jax.engine.phases.departures.giving_up import evict, next_deadline, time_out
from blis_jax.engine.phases.flow_control import attend, route_dispatched
from blis_jax.engine.phases.gateway import decide
from blis_jax.engine.sources.cluster import gated, opening
from blis_jax.memory.index_events import heard, settled, told_later, touched_at_once
from blis_jax.memory.memory import Subject, Visit
from blis_jax.tables.context import Context, Work
from blis_jax.tables.gateways import (
    Dispatches,
    GatewayQueue,
    QueueVictims,
    Rejections,
    empty_queue,
    no_victims,
)
from blis_jax.tables.router import LateWrite, RouterWrite, no_index, no_late_news
from blis_jax.tables.state import Handed, Lane, News, State
from blis_jax.tables.writes import Writes


def _admission(look: Outlook) -> jax.Array:
    ctx = look.ctx
    arrival = ctx.requests.arrival[look.lane.next_admit]
    return later(ctx, arrival, ctx.params.cluster.admission_latency_us)


class Gateway(ClusterSource):
    """Arrivals and decisions on them, in order of arrival; two pointers into the request table mark the next."""

    kinds: ClassVar[tuple[EventKind, ...]] = (EventKind.GATEWAY,)

    def first_tables(self, ctx: Context) -> tuple[object, ...]:
        """Return the router's index, the counts of rejections, and the values handed over, as far as they are used."""
        has, nothing = ctx.mechanism, jnp.zeros((ctx.shape.num_requests + 1,), jnp.float64)
        index = (no_index(ctx.shape, has),) if has.uses_prefix_index else ()
        nobody = jnp.zeros((has.num_gateways,), jnp.int32)
        counts = (Rejections(nobody),) if has.num_gateways > 1 else ()
        return (*index, *counts, *((Handed(nothing),) if has.hands_over_intent else ()))

    def offers(self, look: Outlook) -> tuple[Offer, ...]:
        """Return the next admission and the next first routing."""
        ctx, cluster = look.ctx, look.ctx.params.cluster
        admit = _admission(look)
        both = cluster.admission_latency_us + cluster.routing_latency_us
        route = later(ctx, ctx.requests.arrival[look.lane.next_route], both)
        return (gated(look, EventKind.GATEWAY, route, admit),)

    def act(self, ctx: Context, state: State, due: Due) -> Writes:
        """Return the changes of a decision on a request."""
        admit, route = due.of(EventKind.GATEWAY).times
        return decided(ctx, state, decide(ctx, state, admit, route))

    def settle(self, ctx: Context, state: State, event: NextEvent, done: Writes) -> State:
        """Return the state with rejected requests counted for each gateway, if there are several."""
        if Rejections not in state:
            return state
        return state.having(state[Rejections].after(ctx, done.turned_away))


class QueuedGateway(Gateway):
    """A gateway with a queue, in which requests wait; each dispatched request is routed by itself."""

    kinds = (EventKind.GATEWAY, EventKind.EXPIRY, EventKind.TICK)

    def first_tables(self, ctx: Context) -> tuple[object, ...]:
        """Return the tables of a gateway, and an empty queue."""
        queue = empty_queue(ctx.shape, ctx.gateways)
        return (*super().first_tables(ctx), *queue)

    def offers(self, look: Outlook) -> tuple[Offer, ...]:
        """Return the next admission, first routing, expiry and tick; of several gateways, the earliest."""
        ctx, queue = look.ctx, look.state[GatewayQueue]
        admit = _admission(look)
        dispatched = look.state[Dispatches].at[queue.order[look.lane.next_route]]
        route = later(ctx, dispatched, ctx.params.cluster.routing_latency_us)
        expiry, tick = (ctx.gateways.first(one) for one in (queue.each.expiry, queue.each.tick))
        return (
            gated(look, EventKind.GATEWAY, route, admit),
            _while_open(look, EventKind.EXPIRY, expiry),
            _while_open(look, EventKind.TICK, tick),
        )

    def act(self, ctx: Context, state: State, due: Due) -> Writes:
        """Return the changes of an arrival, a first routing, an expiry or a tick."""
        admit, route = due.of(EventKind.GATEWAY).times
        done = ctx.when(
            (due.kind == EventKind.GATEWAY) & (route < admit),
            lambda: route_dispatched(ctx, state, due.cluster),
            lambda: attend(ctx, state, due.cluster, due.kind),
        )
        return decided(ctx, state, done)


class Evictions(ClusterSource):
    """Requests at instances that are evicted for a request in the queue."""

    kinds = (EventKind.EVICTION,)

    def first_tables(self, ctx: Context) -> tuple[object, ...]:
        """Return the table with no request to evict."""
        return (no_victims(ctx.shape),)

    def offers(self, look: Outlook) -> tuple[Offer, ...]:
        """Return when the next request is evicted."""
        return (_while_open(look, EventKind.EVICTION, look.state[QueueVictims].due),)

    def act(self, ctx: Context, state: State, due: Due) -> Writes:
        """Return the changes when the request is evicted."""
        return evict(ctx, state, due.cluster)


def _while_open(look: Outlook, kind: EventKind, time: jax.Array) -> Offer:
    """Return the offer of an event of the queue; never() if no instance will ever come up again."""
    door = look.once(opening)
    if door is None:
        return Offer(kind, (time,))
    never = look.ctx.never
    waiting = jnp.any(look.state[GatewayQueue].each.num_queued > 0)
    is_over = door.is_closed & (door.opens >= never)
    return Offer(kind, (jnp.where(is_over, never, time),), beyond=door.is_beyond & waiting)


class Completions(ClusterSource):
    """Completions, reported to the gateway's policies before the first event of the cluster that follows them."""

    def first_tables(self, ctx: Context) -> tuple[object, ...]:
        """Return the table with no completion to report."""
        return (News.first(ctx.shape),)

    def takes(self, ctx: Context, state: State, due: Due) -> jax.Array:
        """Return whether a completion comes before the cluster's next event."""
        return next_news(state) < due.cluster

    def act(self, ctx: Context, state: State, due: Due) -> Writes:
        """Return the changed states of the policies that observe the completion."""
        return tell_gateway(ctx, state)


class AllCompletions(Completions):
    """Completions, reported even if no event of the cluster follows: a user's source counts to the end."""

    def offers(self, look: Outlook) -> tuple[Offer, ...]:
        """Return the earliest completion that is still to be reported."""
        return (Offer(EventKind.NEWS, (next_news(look.state),)),)

    def takes(self, ctx: Context, state: State, due: Due) -> jax.Array:
        """Return whether a completion comes before the cluster's next event, or is the next event."""
        return super().takes(ctx, state, due) | (due.kind == EventKind.NEWS)


class IndexNews(EventSource):
    """The router's index is fed by the KV caches' allocations."""

    carries = (RouterWrite,)

    def prepare(self, ctx: Context, state: State) -> State:
        """Return the state without the contents that the latest allocation has removed from the index."""
        return settled(ctx, state)

    def visited(
        self, ctx: Context, state: State, work: Work, subject: Subject, visit: Visit
    ) -> Work:
        """Return the work with the request's prompt touched in the index."""
        return touched_at_once(ctx, state, work, subject, visit)


class LateIndexNews(EventSource):
    """Messages to the router's index, each received before the gateway next reads the index."""

    carries = (LateWrite,)

    def first_tables(self, ctx: Context) -> tuple[object, ...]:
        """Return the table with no message on its way."""
        return (no_late_news(ctx.shape, ctx.mechanism),)

    def visited(
        self, ctx: Context, state: State, work: Work, subject: Subject, visit: Visit
    ) -> Work:
        """Return the work with the message that the index receives later."""
        return told_later(ctx, state, work, subject, visit)

    def reach(self, ctx: Context, state: State, lane: Lane, event: NextEvent) -> tuple[State, Lane]:
        """Return the state whose index has received all messages that are old enough."""
        now = jnp.where(event.is_cluster, event.due.cluster, event.now)
        state, outcome = heard(ctx, state, lane.outcome, now, ~event.in_step)
        return state, lane.replace(outcome=outcome)


class DeadlineSource(ClusterSource):
    """Deadlines of requests: after all that instances do at that time, unless the deadline came before the KV."""

    kinds = (EventKind.DEADLINE,)
    is_behind_steps = True

    def offers(self, look: Outlook) -> tuple[Offer, ...]:
        """Return when the next request is given up."""
        ctx = look.ctx
        deadline, _, overdue = next_deadline(ctx, look.state)
        if not overdue:
            return (Offer(EventKind.DEADLINE, (deadline,)),)
        (is_overdue,) = overdue
        early = jnp.where(is_overdue, deadline, ctx.never)
        late = jnp.where(is_overdue, ctx.never, deadline)
        # as soon as its KV is there, which is before a tick
        return (
            Offer(EventKind.DEADLINE, (early,), follows=EventKind.EXPIRY),
            Offer(EventKind.DEADLINE, (late,)),
        )

    def until(self, ctx: Context, state: State, due: Due) -> tuple[jax.Array, ...]:
        """Return when the next request is given up."""
        return tuple(offer.time for offer in due.offers if offer.kind == EventKind.DEADLINE)

    def act(self, ctx: Context, state: State, due: Due) -> Writes:
        """Return the changes that begin the request's departure."""
        return time_out(ctx, state, due.cluster)

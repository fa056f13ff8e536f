"""What happens at the gateway, and what becomes known: requests are admitted and routed, at once or through its queue.

Completions are told to its policies, allocations to its index; requests whose time is up leave.
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
    """Arrivals and decisions about them, in order of arrival: their heads are two pointers into the request table."""

    kinds: ClassVar[tuple[EventKind, ...]] = (EventKind.GATEWAY,)

    def first_tables(self, ctx: Context) -> tuple[object, ...]:
        """Return the router's index, and what it has handed over, where somebody looks."""
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
        """Return what a decision about a request changes."""
        admit, route = due.of(EventKind.GATEWAY).times
        return decided(ctx, state, decide(ctx, state, admit, route))

    def settle(self, ctx: Context, state: State, event: NextEvent, done: Writes) -> State:
        """Return the state in which each of several gateways has counted whom it has turned away."""
        if Rejections not in state:
            return state
        return state.having(state[Rejections].after(ctx, done.turned_away))


class QueuedGateway(Gateway):
    """Likewise where requests wait in the gateway's queue: one that has been dispatched is routed for itself."""

    kinds = (EventKind.GATEWAY, EventKind.EXPIRY, EventKind.TICK)

    def first_tables(self, ctx: Context) -> tuple[object, ...]:
        """Return the first tables, and the empty queue."""
        queue = empty_queue(ctx.shape, ctx.gateways)
        return (*super().first_tables(ctx), *queue)

    def offers(self, look: Outlook) -> tuple[Offer, ...]:
        """Return the next admission and first routing, and what the queue has due; of several gateways the first."""
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
        """Return what an arrival, a first routing, an expiry or a tick changes."""
        admit, route = due.of(EventKind.GATEWAY).times
        done = ctx.when(
            (due.kind == EventKind.GATEWAY) & (route < admit),
            lambda: route_dispatched(ctx, state, due.cluster),
            lambda: attend(ctx, state, due.cluster, due.kind),
        )
        return decided(ctx, state, done)


class Evictions(ClusterSource):
    """Requests that instances give up for one in the queue."""

    kinds = (EventKind.EVICTION,)

    def first_tables(self, ctx: Context) -> tuple[object, ...]:
        """Return that nobody is to be given up."""
        return (no_victims(ctx.shape),)

    def offers(self, look: Outlook) -> tuple[Offer, ...]:
        """Return when the next of them goes."""
        return (_while_open(look, EventKind.EVICTION, look.state[QueueVictims].due),)

    def act(self, ctx: Context, state: State, due: Due) -> Writes:
        """Return what its leaving changes."""
        return evict(ctx, state, due.cluster)


def _while_open(look: Outlook, kind: EventKind, time: jax.Array) -> Offer:
    """What the queue has due, unless no instance will ever come up again: there is nothing to look at for it."""
    door = look.once(opening)
    if door is None:
        return Offer(kind, (time,))
    never = look.ctx.never
    waiting = jnp.any(look.state[GatewayQueue].each.num_queued > 0)
    is_over = door.is_closed & (door.opens >= never)
    return Offer(kind, (jnp.where(is_over, never, time),), beyond=door.is_beyond & waiting)


class Completions(ClusterSource):
    """The gateway's policies are told of completions before the first event of the cluster that lies after them."""

    def first_tables(self, ctx: Context) -> tuple[object, ...]:
        """Return that there is nothing to tell."""
        return (News.first(ctx.shape),)

    def takes(self, ctx: Context, state: State, due: Due) -> jax.Array:
        """Return whether there is one to tell first."""
        return next_news(state) < due.cluster

    def act(self, ctx: Context, state: State, due: Due) -> Writes:
        """Return what the policies remember of it."""
        return tell_gateway(ctx, state)


class AllCompletions(Completions):
    """Likewise, and of those behind which nothing of the cluster comes: a user's source counts to the end."""

    def offers(self, look: Outlook) -> tuple[Offer, ...]:
        """Return the earliest completion that is still to be told."""
        return (Offer(EventKind.NEWS, (next_news(look.state),)),)

    def takes(self, ctx: Context, state: State, due: Due) -> jax.Array:
        """Return whether there is one to tell first, or now."""
        return super().takes(ctx, state, due) | (due.kind == EventKind.NEWS)


class IndexNews(EventSource):
    """The KV caches feed the router's index, by the allocations."""

    carries = (RouterWrite,)

    def prepare(self, ctx: Context, state: State) -> State:
        """Return the state without what the latest allocation has pushed out of the index."""
        return settled(ctx, state)

    def visited(
        self, ctx: Context, state: State, work: Work, subject: Subject, visit: Visit
    ) -> Work:
        """Return the work with the touch of its prompt."""
        return touched_at_once(ctx, state, work, subject, visit)


class LateIndexNews(EventSource):
    """The messages to the router's index; each is heard before the gateway next looks at the index."""

    carries = (LateWrite,)

    def first_tables(self, ctx: Context) -> tuple[object, ...]:
        """Return that no message is on its way."""
        return (no_late_news(ctx.shape, ctx.mechanism),)

    def visited(
        self, ctx: Context, state: State, work: Work, subject: Subject, visit: Visit
    ) -> Work:
        """Return the work with the message that the index hears later."""
        return told_later(ctx, state, work, subject, visit)

    def reach(self, ctx: Context, state: State, lane: Lane, event: NextEvent) -> tuple[State, Lane]:
        """Return the state whose index has heard of everything that is old enough."""
        now = jnp.where(event.is_cluster, event.due.cluster, event.now)
        state, outcome = heard(ctx, state, lane.outcome, now, ~event.in_step)
        return state, lane.replace(outcome=outcome)


class DeadlineSource(ClusterSource):
    """Requests whose time is up: behind all that instances do at that time, unless it was up before their KV came."""

    kinds = (EventKind.DEADLINE,)
    is_behind_steps = True

    def offers(self, look: Outlook) -> tuple[Offer, ...]:
        """Return when the next one is given up."""
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
        """Return when the next one is given up."""
        return tuple(offer.time for offer in due.offers if offer.kind == EventKind.DEADLINE)

    def act(self, ctx: Context, state: State, due: Due) -> Writes:
        """Return the beginning of its leaving."""
        return time_out(ctx, state, due.cluster)

"""Flow control: admitted requests wait at the gateway until the instances have room for them.

Bands go by the priority of the class, flows inside a band by tenant. One request at most is dispatched on an arrival,
and one on each tick while some wait; completions dispatch none. Of several gateways each has a queue of its own, and
acts for itself: of those that have something due at one time, the one with the least number first.
Source: BLIS as of August 2026, `sim/cluster/gateway_queue.go` and `cluster_event.go`.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from blis_jax.core.columns import as_int, choose
from blis_jax.core.exact import exact_product, exact_quotient
from blis_jax.core.outcome import Outcome
from blis_jax.core.types import LAST, SLO_CLASSES, Snapshots
from blis_jax.engine.calendar import EventKind
from blis_jax.engine.phases.decisions import Decisions, no_decisions
from blis_jax.engine.phases.departures.giving_up import victim_of, with_victim
from blis_jax.engine.phases.departures.pools import with_tick
from blis_jax.engine.phases.gateway import Asking, admission, decide_again
from blis_jax.engine.phases.snapshot import refreshed, snapshots, unless_elsewhere
from blis_jax.policies.classes import mean_saturation
from blis_jax.policies.routing.pickers import first_where
from blis_jax.tables.context import Context, count_of, failing
from blis_jax.tables.gateways import (
    Detector,
    Dispatches,
    GatewayQueue,
    LatestTick,
    Place,
    QueueParams,
    QueueVictims,
    QueueWrite,
)
from blis_jax.tables.joined import lane_of
from blis_jax.tables.requests import Req, RequestTargets
from blis_jax.tables.router import View
from blis_jax.tables.state import State

if TYPE_CHECKING:
    from jaxtyping import Array, Bool, Int

NO_DEADLINE = jnp.iinfo(jnp.int64).max


class QueuedRequests(NamedTuple):
    """The requests as the queue tells them apart, the spare one included."""

    is_queued: Bool[Array, "request"]
    band: Int[Array, "request"]  # priority
    tenant: Int[Array, "request"]
    slo_class: Int[Array, "request"]


class QueueEntry(NamedTuple):
    """The effect of an arrival on the queue: it enters or not, and may shed a request."""

    enters: jax.Array
    sheds: jax.Array
    victim: jax.Array


def _params(ctx: Context) -> QueueParams:
    return ctx.params.cluster[QueueParams]


def route_dispatched(ctx: Context, state: State, now: jax.Array) -> Decisions:
    """Route the request that was dispatched first of those not yet routed."""
    number = lane_of(ctx, state).next_route
    done = decide_again(ctx, state, state[GatewayQueue].order[number], now)
    # requests that enter an instance's queue in one microsecond do so in the order in which they were routed
    rank = ctx.pools.rank_of_dispatched(ctx, state, number)
    return dataclasses.replace(
        done,
        lane=done.lane.replace(next_route=number + 1),
        slot=done.slot.replace(queue_rank=rank),
    )


def route_again(ctx: Context, state: State, request: jax.Array, now: jax.Array) -> Decisions:
    """Route a request that has left an instance: it does not wait in the queue again, and keeps its rank."""
    done = decide_again(ctx, state, request, now)
    if GatewayQueue not in state:
        return done
    rank = ctx.pools.rank_again(ctx, state, request)
    return dataclasses.replace(done, slot=done.slot.replace(queue_rank=rank))


def attend(ctx: Context, state: State, now: jax.Array, kind: jax.Array) -> Decisions:
    """Handle an event of the queue (an arrival, a request that has waited too long, a tick), then
    perhaps dispatch one request.
    """
    state = with_tick(state, now, kind)
    lane, spare = lane_of(ctx, state), jnp.int32(ctx.shape.num_requests)
    comes, newcomer = kind == EventKind.GATEWAY, lane.next_admit
    seen, last_refresh = refreshed(ctx, state, now, lane.last_refresh)
    is_admitted, gateway = admission(ctx, state, Asking(newcomer, now, seen), lane.num_rejected)
    gateway_at = _acting(ctx, state[GatewayQueue], kind, newcomer)
    changes, attempts = _turn(ctx, state, now, kind, comes & is_admitted, seen, gateway_at)
    base, is_seen = no_decisions(ctx, state), comes | attempts
    is_beyond = attempts & (
        ctx.is_beyond(now, _params(ctx).tick_us.astype(jnp.float64))
        | ctx.is_beyond(now, ctx.params.cluster.routing_latency_us.astype(jnp.float64))
    )
    turned_away = comes & ~is_admitted
    asked = (attempts,), (comes, newcomer)
    return dataclasses.replace(
        base,
        lane=lane.replace(
            next_admit=newcomer + as_int(comes),
            num_rejected=lane.num_rejected + as_int(turned_away),
            invariant_failures=lane.invariant_failures + as_int(now < lane.last_event),
            outcome=failing(lane.outcome, is_beyond, Outcome.CLOCK_OVERFLOW),
            last_event=now,
            last_refresh=jnp.where(is_seen, last_refresh, lane.last_refresh),
        ),
        stale=choose(is_seen, unless_elsewhere(ctx, state, seen, *asked), state.stale),
        gateway=jax.tree.map(lambda a, b: jnp.where(comes, a, b), gateway, state.gateway),
        where=base.where.replace(turned_away=jnp.where(turned_away, newcomer, spare)),
        own=base.own.having(*changes),
    )


def _acting(ctx: Context, queue: GatewayQueue, kind: jax.Array, newcomer: jax.Array) -> jax.Array:
    """The gateway whose turn it is: the newcomer's, or the first one for which the event is due."""

    def whose() -> jax.Array:
        times = jnp.where(kind == EventKind.EXPIRY, queue.expiry, queue.tick)
        first = jnp.argmin(times).astype(jnp.int32)
        return jnp.where(kind == EventKind.GATEWAY, ctx.gateways.of(newcomer), first)

    return ctx.gateways.acting(whose)


def _turn(
    ctx: Context,
    state: State,
    now: jax.Array,
    kind: jax.Array,
    asks: jax.Array,
    seen: View,
    gateway: jax.Array,
) -> tuple[list[object], jax.Array]:
    """What changes in the gateway's queue, and whether it tries to dispatch; `asks`: the next request comes to it."""
    queue, newcomer = (
        ctx.gateways.own_queue(state[GatewayQueue], gateway),
        lane_of(ctx, state).next_admit,
    )
    spare, expires = jnp.int32(ctx.shape.num_requests), kind == EventKind.EXPIRY
    waiting, changes = _waiting(ctx, state[Dispatches], gateway), list[object]()
    entry = entry_of(ctx, waiting, queue.num_queued, newcomer, asks)
    has_band = queue.has_band | ((_classes() == waiting.slo_class[newcomer]) & asks)
    oldest = jnp.minimum(first_where(waiting.is_queued), spare)
    number = lax.iota(jnp.int32, waiting.band.shape[0])
    stays = waiting.is_queued & ~((number == entry.victim) & entry.sheds)
    stays = stays & ~((number == oldest) & expires)
    waiting = waiting._replace(is_queued=stays | ((number == newcomer) & entry.enters))
    attempts = entry.enters | ((kind == EventKind.TICK) & (queue.num_queued > 0))
    saturation = _saturation(ctx, _seen(ctx, state, now, seen, gateway))
    chosen, is_due, last_tenant = pick(ctx, queue, waiting, has_band, saturation)
    leaves = attempts & is_due
    is_queued = waiting.is_queued & ~((number == chosen) & leaves)
    num_queued = count_of(is_queued)
    gone = jnp.where(leaves, chosen, jnp.where(expires, oldest, spare))
    gone_to = jnp.where(leaves, jnp.int32(Place.DISPATCHED), jnp.int32(Place.EXPIRED))
    if LatestTick in state:
        changes.append(state[LatestTick])
    if QueueVictims in state:  # such an attempt dispatches nothing: the instances are saturated
        victim = victim_of(ctx, state, now, waiting.band, gateway)
        evicts = attempts & (saturation >= 1.0) & (victim < spare)
        evicts = evicts & jnp.any(waiting.is_queued & (waiting.band >= 0))
        gone = jnp.where(evicts, victim, gone)
        gone_to = jnp.where(evicts, jnp.int32(Place.CHOSEN), gone_to)
        changes.append(with_victim(state[QueueVictims], jnp.where(evicts, victim, spare), now))
    came = jnp.where(entry.enters, jnp.int32(Place.QUEUED), jnp.int32(Place.REJECTED))
    shed = jnp.where(entry.sheds, entry.victim, spare)
    change = QueueWrite(
        request=jnp.stack([jnp.where(asks, newcomer, spare), shed, gone]),
        place=jnp.stack([came, jnp.int32(Place.SHED), gone_to]),
        dispatched=jnp.where(leaves, now, state[Dispatches].at[gone]),
        order_at=jnp.where(leaves, queue.num_dispatched, spare),
        num_dispatched=queue.num_dispatched + as_int(leaves),
        num_queued=num_queued,
        tick=_tick(ctx, queue, kind, now, attempts, num_queued),
        expiry=_expiry(ctx, is_queued),
        has_band=has_band,
        last_tenant=jnp.where(leaves, last_tenant, queue.last_tenant),
    )
    changes.append(ctx.gateways.with_own_queue(state[GatewayQueue], change, gateway))
    return changes, attempts


def _classes() -> jax.Array:
    return lax.iota(jnp.int32, len(SLO_CLASSES))


def _waiting(ctx: Context, dispatches: Dispatches, gateway: jax.Array) -> QueuedRequests:
    table = ctx.requests.table
    slo_class = table[:, Req.SLO_CLASS]
    is_queued = ctx.gateways.of_own(dispatches.place == Place.QUEUED, gateway)
    return QueuedRequests(
        is_queued, _params(ctx).priority[slo_class], table[:, Req.TENANT], slo_class
    )


def entry_of(
    ctx: Context,
    waiting: QueuedRequests,
    num_queued: jax.Array,
    newcomer: jax.Array,
    asks: jax.Array,
) -> QueueEntry:
    """Decide whether an arrival finds room in its band and in the queue, or which less urgent request
    makes room for it.
    """
    params, band = _params(ctx), waiting.band[newcomer]
    in_band = count_of(waiting.is_queued & (waiting.band == band))
    is_band_full = (params.band_capacity > 0) & (in_band >= params.band_capacity)
    is_full = (params.max_depth > 0) & (num_queued >= params.max_depth)
    may_go = waiting.is_queued & (waiting.band < 0)
    lowest = jnp.min(jnp.where(may_go, waiting.band, jnp.int32(LAST)))
    is_lowest = may_go & (waiting.band == lowest)
    youngest = is_lowest.shape[0] - 1 - jnp.argmax(is_lowest[::-1]).astype(jnp.int32)
    makes_room = params.sheds & (band > lowest)
    enters = asks & ~is_band_full & (~is_full | makes_room)
    return QueueEntry(enters, enters & is_full, youngest)


def _seen(ctx: Context, state: State, now: jax.Array, seen: View, gateway: jax.Array) -> Snapshots:
    no_match = jnp.zeros((ctx.shape.num_instances,), jnp.int32)
    # the first request of each gateway has its number
    return snapshots(ctx, state, now, seen, no_match, lane_of(ctx, state).num_rejected, gateway)


def _saturation(ctx: Context, seen: Snapshots) -> jax.Array:
    """How full the instances are, 1: full; as the detector has it, with signals as old as the router's."""
    params = _params(ctx)
    count = jnp.sum(seen.is_active, dtype=jnp.int32)
    in_flight = ctx.mechanism.rules.in_flight(seen.num_pending, seen.effective_load)
    sent = jnp.sum(jnp.where(seen.is_active, in_flight, 0), dtype=jnp.int32).astype(jnp.float64)
    room = (jnp.maximum(count, 1) * params.max_concurrency).astype(jnp.float64)
    utilization = mean_saturation(seen, params.queue_depth_threshold, params.kv_threshold)
    by_count = params.detector == Detector.CONCURRENCY
    full = jnp.where(by_count, exact_quotient(sent, room), utilization)
    full = jnp.where(count == 0, 1.0, full)
    return jnp.where(params.detector == Detector.NEVER, 0.0, full)


def _ceiling(ctx: Context, has_band: Bool[Array, "slo_class"], band: jax.Array) -> jax.Array:
    """The saturation below which a band is served; the more urgent the band, the higher."""
    priority, limit = _params(ctx).priority, _params(ctx).usage_limit
    same = has_band[None, :] & (priority[None, :] == priority[:, None])
    # one class for each band
    is_first = has_band & (jnp.argmax(same, axis=1).astype(jnp.int32) == _classes())
    before = count_of(is_first & (priority > band)).astype(jnp.float64)
    others = (count_of(is_first) - 1).astype(jnp.float64)
    share = exact_quotient(exact_product(before, 1.0 - limit), jnp.maximum(others, 1.0))
    return jnp.where(others > 0, 1.0 - share, 1.0)


def pick(
    ctx: Context,
    queue: GatewayQueue,
    waiting: QueuedRequests,
    has_band: Bool[Array, "slo_class"],
    saturation: jax.Array,
) -> tuple[jax.Array, jax.Array, Int[Array, "slo_class"]]:
    """Return the request that would be dispatched, whether it is, and the tenants served last in each band then.

    Ceilings fall with the bands, so the first band with a request decides.
    """
    params, is_queued = _params(ctx), waiting.is_queued
    spare = jnp.int32(ctx.shape.num_requests)
    band = jnp.max(jnp.where(is_queued, waiting.band, -jnp.int32(LAST)))
    in_band = is_queued & (waiting.band == band)
    oldest = jnp.minimum(first_where(in_band), spare)
    of_band = params.priority == band
    last = jnp.max(jnp.where(of_band, queue.last_tenant, -1))
    tenant = jnp.where(
        params.round_robin, _next_tenant(waiting.tenant, in_band, last), waiting.tenant[oldest]
    )
    in_flow = in_band & (waiting.tenant == tenant)
    chosen = jnp.minimum(first_where(in_flow), spare)
    deadline = _deadlines(ctx, waiting)
    least = jnp.min(jnp.where(in_flow, deadline, NO_DEADLINE))
    soonest = jnp.minimum(first_where(in_flow & (deadline == least)), spare)
    chosen = jnp.where(params.by_deadline, soonest, chosen)
    is_due = jnp.any(is_queued) & (saturation < _ceiling(ctx, has_band, band))
    return chosen, is_due, jnp.where(of_band, tenant, queue.last_tenant)


def _next_tenant(
    tenant: Int[Array, "request"], in_band: Bool[Array, "request"], last: jax.Array
) -> jax.Array:
    """The tenant in turn: the next one after the last served, the first one if that has nothing in the band."""
    most = jnp.int32(LAST)
    first = jnp.min(jnp.where(in_band, tenant, most))
    after = jnp.min(jnp.where(in_band & (tenant > last), tenant, most))
    is_there = jnp.any(in_band & (tenant == last))
    return jnp.where(is_there & (after < most), after, first)


def _deadlines(ctx: Context, waiting: QueuedRequests) -> Int[Array, "request"]:
    target = _params(ctx).target_us[waiting.slo_class]
    if RequestTargets in ctx.requests:
        targets_us = ctx.requests[RequestTargets].us
        target = jnp.where(targets_us > 0, targets_us, target)
    entered = ctx.requests.arrival.astype(jnp.int64) + ctx.params.cluster.admission_latency_us
    return jnp.where(target == NO_DEADLINE, NO_DEADLINE, entered + target)


def _tick(
    ctx: Context,
    queue: GatewayQueue,
    kind: jax.Array,
    now: jax.Array,
    attempts: jax.Array,
    num_queued: jax.Array,
) -> jax.Array:
    """When the next tick is due: an attempt asks for one, and a tick goes on while requests wait."""
    following = now + ctx.time(_params(ctx).tick_us)
    next_tick = jnp.where(attempts & (queue.tick >= ctx.never), following, queue.tick)
    goes_on = jnp.where(num_queued > 0, following, ctx.never)
    return jnp.where(kind == EventKind.TICK, goes_on, next_tick)


def _expiry(ctx: Context, is_queued: Bool[Array, "request"]) -> jax.Array:
    """When the request that entered first has waited too long; all wait equally long."""
    oldest = jnp.minimum(first_where(is_queued), jnp.int32(ctx.shape.num_requests))
    arrival, ttl = ctx.requests.arrival[oldest], _params(ctx).ttl_us
    wait = ctx.params.cluster.admission_latency_us + ttl
    is_beyond = (ttl == 0) | ctx.is_beyond(arrival, wait.astype(jnp.float64))
    return jnp.where(is_beyond, ctx.never, arrival + ctx.time(wait))

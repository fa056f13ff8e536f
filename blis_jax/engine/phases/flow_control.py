"""Flow control: admitted requests wait at the gateway until the instances have room for them.

Requests are ordered by bands of class priority, and inside a band by flows, one for each tenant. At most one request is
dispatched on an arrival and on each tick while some wait; completions dispatch none. Each of several gateways has a
queue of its own and acts for itself; if several have an event due at one time, the lowest number goes first.

Source: BLIS as of August 2026, `sim/cluster/gateway_queue.go` and `cluster_event.go`.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp

from blis_jax.core.columns import as_int, choose
from blis_jax.core.exact import exact_quotient
from blis_jax.core.outcome import Outcome
from blis_jax.core.types import SLO_CLASSES, Snapshots
from blis_jax.engine.calendar import EventKind
from blis_jax.engine.phases.decisions import Decisions, no_decisions
from blis_jax.engine.phases.departures.giving_up import victim_of, with_victim
from blis_jax.engine.phases.departures.pools import with_tick
from blis_jax.engine.phases.gateway import Asking, admission, decide_again
from blis_jax.engine.phases.snapshot import refreshed, snapshots, unless_elsewhere
from blis_jax.engine.phases.waiting import (
    Waiting,
    classes,
    entry_of,
    pick,
    queue_params,
)
from blis_jax.policies.classes import mean_saturation
from blis_jax.tables.context import Context, failing
from blis_jax.tables.gateways import (
    BeforePools,
    Detector,
    Dispatches,
    GatewayQueue,
    Place,
    Queue,
    QueueVictims,
    QueueWrite,
)
from blis_jax.tables.joined import lane_of
from blis_jax.tables.router import View
from blis_jax.tables.state import State

if TYPE_CHECKING:
    from jaxtyping import Array, Int


def route_dispatched(ctx: Context, state: State, now: jax.Array) -> Decisions:
    """Route the first dispatched request that has not been routed yet."""
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
    """Route a request that has left an instance, without a second wait in the queue; it keeps its rank."""
    done = decide_again(ctx, state, request, now)
    if GatewayQueue not in state:
        return done
    rank = ctx.pools.rank_again(ctx, state, request)
    done = dataclasses.replace(done, slot=done.slot.replace(queue_rank=rank))
    if BeforePools not in state:
        return done
    before = state[BeforePools]
    return done.having(dataclasses.replace(before, num_again=before.num_again + 1))


def attend(ctx: Context, state: State, now: jax.Array, kind: jax.Array) -> Decisions:
    """Handle an event of the queue (an arrival, an expiry or a tick), then dispatch at most one request."""
    state = with_tick(state, now, kind)
    lane, spare = lane_of(ctx, state), ctx.spare_request
    comes, newcomer = kind == EventKind.GATEWAY, lane.next_admit
    seen, last_refresh = refreshed(ctx, state, now, lane.last_refresh)
    is_admitted, gateway = admission(ctx, state, Asking(newcomer, now, seen), lane.num_rejected)
    gateway_at = _acting(ctx, state[GatewayQueue].each, kind, newcomer)
    changes, attempts = _turn(ctx, state, now, kind, comes & is_admitted, seen, gateway_at)
    base, is_seen = no_decisions(ctx, state), comes | attempts
    is_beyond = attempts & (
        ctx.is_beyond(now, queue_params(ctx).tick_us.astype(jnp.float64))
        | ctx.is_beyond(now, ctx.params.cluster.routing_latency_us.astype(jnp.float64))
    )
    turned_away = comes & ~is_admitted
    looks = (attempts,), (comes, newcomer)
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
        stale=choose(is_seen, unless_elsewhere(ctx, state, seen, *looks), state.stale),
        gateway=choose(comes, gateway, state.gateway),
        where=base.where.replace(turned_away=jnp.where(turned_away, newcomer, spare)),
        own=base.own.having(*changes),
    )


def _acting(ctx: Context, queue: Queue, kind: jax.Array, newcomer: jax.Array) -> jax.Array:
    """Return the gateway that acts: that of the arrival, or the first one with the event due."""

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
    """Return the changes of the gateway's queue, and whether it tries to dispatch; `asks`: a request arrives."""
    tables = state[GatewayQueue]
    queue = ctx.gateways.own_queue(tables.each, gateway)
    newcomer, spare = lane_of(ctx, state).next_admit, ctx.spare_request
    waiting = Waiting.before(ctx, state[Dispatches], tables, gateway)
    slo_class = ctx.request(newcomer).slo_class
    entry = entry_of(ctx, waiting, slo_class, asks)
    has_band = queue.has_band | ((classes() == slo_class) & asks)
    everybody = jnp.ones((len(SLO_CLASSES),), bool)
    expired = jnp.where(kind == EventKind.EXPIRY, waiting.oldest(everybody), spare)
    shed = jnp.where(entry.sheds, entry.victim, spare)  # on an arrival, so that none expires
    waiting = waiting.without(jnp.minimum(expired, shed))
    waiting = waiting.having(jnp.where(entry.enters, newcomer, spare))
    attempts = entry.enters | ((kind == EventKind.TICK) & jnp.any(queue.num_queued > 0))
    saturation = _saturation(ctx, _seen(ctx, state, now, seen, gateway))
    chosen = pick(ctx, queue, waiting, has_band, saturation)
    leaves = attempts & chosen.is_due
    waiting = waiting.without(jnp.where(leaves, chosen.request, spare))
    gone = jnp.where(leaves, chosen.request, expired)
    gone_to = jnp.where(leaves, jnp.int32(Place.DISPATCHED), jnp.int32(Place.EXPIRED))
    changes: list[object] = [state[BeforePools]] if BeforePools in state else []
    if QueueVictims in state:  # such an attempt dispatches nothing: the instances are saturated
        evicts = attempts & (saturation >= 1.0) & chosen.has_urgent
        victim = ctx.when(evicts, lambda: victim_of(ctx, state, now, gateway), lambda: spare)
        evicts = evicts & (victim < spare)
        gone = jnp.where(evicts, victim, gone)
        gone_to = jnp.where(evicts, jnp.int32(Place.CHOSEN), gone_to)
        changes.append(with_victim(state[QueueVictims], jnp.where(evicts, victim, spare), now))
    came = jnp.where(entry.enters, jnp.int32(Place.QUEUED), jnp.int32(Place.REJECTED))
    after = Queue(
        num_queued=waiting.num_queued,
        first=waiting.oldest_of,
        last=waiting.youngest_of,
        tick=_tick(ctx, queue, kind, now, attempts, waiting.num_queued),
        expiry=_expiry(ctx, waiting.oldest(everybody)),
        has_band=has_band,
        last_tenant=jnp.where(leaves, chosen.last_tenant, queue.last_tenant),
    )
    change = QueueWrite(
        request=jnp.stack([jnp.where(asks, newcomer, spare), shed, gone]),
        place=jnp.stack([came, jnp.int32(Place.SHED), gone_to]),
        before=jnp.stack([link.before for link in waiting.links]),
        behind=jnp.stack([link.behind for link in waiting.links]),
        dispatched=jnp.where(leaves, now, state[Dispatches].at[gone]),
        order_at=jnp.where(leaves, tables.num_dispatched, spare),
        num_dispatched=tables.num_dispatched + as_int(leaves),
        each=ctx.gateways.with_own_queue(tables.each, after, gateway),
    )
    return [*changes, change], attempts


def _seen(ctx: Context, state: State, now: jax.Array, seen: View, gateway: jax.Array) -> Snapshots:
    no_match = jnp.zeros((ctx.shape.num_instances,), jnp.int32)
    # the first request of each gateway has its number
    return snapshots(ctx, state, now, seen, no_match, lane_of(ctx, state).num_rejected, gateway)


def _saturation(ctx: Context, seen: Snapshots) -> jax.Array:
    """Return the saturation that the detector measures, 1 if full, from signals as old as the router's."""
    params = queue_params(ctx)
    count = jnp.sum(seen.is_active, dtype=jnp.int32)
    in_flight = ctx.mechanism.rules.in_flight(seen.num_pending, seen.effective_load)
    sent = jnp.sum(jnp.where(seen.is_active, in_flight, 0), dtype=jnp.int32).astype(jnp.float64)
    room = (jnp.maximum(count, 1) * params.max_concurrency).astype(jnp.float64)
    utilization = mean_saturation(seen, params.queue_depth_threshold, params.kv_threshold)
    by_count = params.detector == Detector.CONCURRENCY
    full = jnp.where(by_count, exact_quotient(sent, room), utilization)
    full = jnp.where(count == 0, 1.0, full)
    return jnp.where(params.detector == Detector.NEVER, 0.0, full)


def _tick(
    ctx: Context,
    queue: Queue,
    kind: jax.Array,
    now: jax.Array,
    attempts: jax.Array,
    num_queued: Int[Array, "slo_class"],
) -> jax.Array:
    """Return when the next tick is due: an attempt starts the ticks, which go on while requests wait."""
    following = now + ctx.time(queue_params(ctx).tick_us)
    next_tick = jnp.where(attempts & (queue.tick >= ctx.never), following, queue.tick)
    goes_on = jnp.where(jnp.any(num_queued > 0), following, ctx.never)
    return jnp.where(kind == EventKind.TICK, goes_on, next_tick)


def _expiry(ctx: Context, oldest: jax.Array) -> jax.Array:
    """Return when the oldest request has waited too long; the limit is the same for all."""
    arrival, ttl = ctx.requests.arrival[oldest], queue_params(ctx).ttl_us
    wait = ctx.params.cluster.admission_latency_us + ttl
    is_beyond = (ttl == 0) | ctx.is_beyond(arrival, wait.astype(jnp.float64))
    return jnp.where(is_beyond, ctx.never, arrival + ctx.time(wait))

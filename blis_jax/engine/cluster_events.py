"""What an event of the cluster changes: a decision about a request, one that moves, instances that go or come."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from blis_jax.core.columns import apart, put
from blis_jax.core.types import UNROUTED
from blis_jax.engine.calendar import Due, Kind
from blis_jax.engine.context import Context
from blis_jax.engine.phases.completions import next_news, tell_gateway
from blis_jax.engine.phases.decisions import Decisions
from blis_jax.engine.phases.departures.giving_up import time_out
from blis_jax.engine.phases.departures.movement import (
    arrived,
    change_cluster,
    may_be_back,
    movement_of,
    next_to_move,
)
from blis_jax.engine.phases.departures.reservation import begin_transfer
from blis_jax.engine.phases.evictions import evict
from blis_jax.engine.phases.flow_control import attend, route_again, route_dispatched
from blis_jax.engine.phases.gateway import decide
from blis_jax.engine.phases.router_view.snapshot import may_be_unrouted
from blis_jax.engine.state import Past, State
from blis_jax.engine.tables.joined import INSTANCE_OF
from blis_jax.engine.tables.writes import Writes, no_writes
from blis_jax.memory.kept_output import moves_tokens, of_one_that_comes


def cluster_writes(ctx: Context, state: State, due: Due) -> Writes:
    """What the cluster's next event changes."""

    def by_gateway() -> Writes:
        if state.queue is not None:
            return _through_queue(ctx, state, due)
        return _decided(ctx, state, decide(ctx, state, due.admit, due.route))

    def or_moves() -> Writes:
        if state.movement is None:
            return by_gateway()
        return ctx.when(due.kind == Kind.MOVE, lambda: _moved(ctx, state, due.cluster), by_gateway)

    def or_changes() -> Writes:
        if ctx.mechanism.cluster is None:
            return or_moves()
        is_change = (due.kind == Kind.CHANGE) | (due.kind == Kind.SCALE)
        return ctx.when(is_change, lambda: change_cluster(ctx, state, due.cluster), or_moves)

    def or_times_out() -> Writes:
        if ctx.requests.deadline is None:
            return or_changes()
        is_late = due.kind == Kind.DEADLINE
        return ctx.when(is_late, lambda: time_out(ctx, state, due.cluster), or_changes)

    if state.news is None:
        return or_times_out()
    # completions are told before the first event of the cluster that lies after them
    is_news = next_news(ctx, state) < due.cluster
    return ctx.when(is_news, lambda: tell_gateway(ctx, state), or_times_out)


def _through_queue(ctx: Context, state: State, due: Due) -> Writes:
    """Where requests wait at the gateway, one that has been dispatched is routed in a scan step of its own."""
    is_routed = (due.kind == Kind.GATEWAY) & (due.route < due.admit)

    def decided() -> Writes:
        done = ctx.when(
            is_routed,
            lambda: route_dispatched(ctx, state, due.cluster),
            lambda: attend(ctx, state, due.cluster, due.kind),
        )
        return _decided(ctx, state, done)

    if not ctx.mechanism.evicts_in_flight:
        return decided()
    return ctx.when(due.kind == Kind.EVICTION, lambda: evict(ctx, state, due.cluster), decided)


def _moved(ctx: Context, state: State, now: jax.Array) -> Writes:
    """A request whose transfer has ended is routed again."""
    request = next_to_move(ctx, state)

    def routed() -> Writes:
        writes = _decided(ctx, state, route_again(ctx, state, request, now))
        movement = arrived(ctx, state, request)
        if ctx.mechanism.cluster is not None:
            is_back = may_be_back(state, request, writes.instance)
            movement = dataclasses.replace(movement, is_back=is_back)
        return dataclasses.replace(writes, movement=movement)

    if not ctx.mechanism.reserves_decode:
        return routed()
    has_kv = movement_of(state).of(request).computed > 0
    return ctx.when(has_kv, lambda: begin_transfer(ctx, state, request, now), routed)


def _decided(ctx: Context, state: State, done: Decisions) -> Writes:
    routed, instance = done.where.routed, done.where.instance
    nothing, joins = no_writes(ctx, state, instance), state.instance_of is None
    routed_to = _routed_to(ctx, instance)
    if ctx.mechanism.reserves_decode and done.split is not None:
        nothing = dataclasses.replace(nothing, movement=done.split)
    if nothing.movement is not None and nothing.movement.routed_at is not None:
        movement = dataclasses.replace(nothing.movement, routed_at=done.lane.last_event)
        nothing = dataclasses.replace(nothing, movement=movement)
    past = nothing.slot.past if state.movement is None else ctx.past(state, routed)
    memory = nothing.slot.memory
    if joins and moves_tokens(ctx, state):
        memory = of_one_that_comes(ctx, state, routed, memory)
    return dataclasses.replace(
        nothing,
        lane=done.lane,
        stale=done.stale,
        gateway=done.gateway,
        router=done.router,
        queue=done.queue,
        handed=done.handed,
        turned_away=done.where.turned_away,
        routed=routed,
        routed_to=routed_to,
        instance=instance,
        inst=done.inst,
        slot=dataclasses.replace(
            nothing.slot,
            request=routed if joins else nothing.slot.request,
            past=_past_of_routed(past, done, routed_to) if joins else nothing.slot.past,
            memory=memory,
            instance=instance,
            slot=done.where.slot,
            row=done.slot,
        ),
    )


def _routed_to(ctx: Context, instance: jax.Array) -> jax.Array:
    """The place of a request that has been decided about: its instance, or that there was none."""
    if not may_be_unrouted(ctx):
        return instance
    return jnp.where(instance < ctx.shape.num_instances, instance, jnp.int32(UNROUTED))


def _past_of_routed(past: Past, done: Decisions, routed_to: jax.Array) -> Past:
    """A request's row once it is routed: it has a place."""
    beside = {INSTANCE_OF: routed_to, INSTANCE_OF + 1: done.slot.expected_blocks}
    return Past(put(apart(past.numbers), beside))

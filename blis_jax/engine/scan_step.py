"""One scan step: the next small thing that happens in the cluster.

Either the gateway admits or routes one request, or the instance whose event is next begins a step, serves one request,
ends the step, or completes one request. Phases compute a few small rows, which are written at the end.
"""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp

from blis_jax.core.exact import runtime_infinity
from blis_jax.core.outcome import Outcome
from blis_jax.engine.calendar import Due, NextEvent, act, next_due
from blis_jax.engine.writing import all_read, no_writes, write
from blis_jax.tables.context import Context, failing
from blis_jax.tables.joined import lane_of
from blis_jax.tables.state import Lane, LaneRow, Mode, State


def scan_step(ctx: Context, state: State) -> State:
    """Return the state after the next small thing that happens; unchanged if the run is over."""
    with runtime_infinity(ctx.params.cluster.infinity):
        return _next_thing(ctx, state)


def _next_thing(ctx: Context, state: State) -> State:
    sources = ctx.sources
    for source in sources.all:
        state = source.prepare(ctx, state)
    lane = lane_of(ctx, state)
    event, lane = _event(ctx, lane, next_due(ctx, state, lane))
    for source in sources.all:
        state, lane = source.reach(ctx, state, lane, event)
    for is_beyond in event.due.beyond:
        is_late = event.is_over & (lane.outcome == 0) & is_beyond
        lane = lane.replace(outcome=failing(lane.outcome, is_late, Outcome.CLOCK_OVERFLOW))
    now = dataclasses.replace(state, lane=LaneRow((lane.numbers, lane.times)))
    done = ctx.when(
        event.is_cluster,
        lambda: act(ctx, now, event.due, sources.of_cluster),
        lambda: ctx.when(
            event.is_instance,
            lambda: act(ctx, now, event.due, sources.of_instances),
            lambda: no_writes(ctx, now, event.due.instance),
        ),
    )
    # every read before any write: otherwise a vectorised loop copies whole tables
    written, done = all_read(state, done)
    state = write(ctx, state, written, done)
    for source in sources.all:
        state = source.settle(ctx, state, event, done)
    return state


def _event(ctx: Context, lane: Lane, due: Due) -> tuple[NextEvent, Lane]:
    """Return the next event, and the lane advanced to it; in mid-step the event is the step's next phase."""
    in_step = lane.mode != Mode.BETWEEN
    horizon, last = ctx.params.cluster.horizon_us, ctx.never.astype(jnp.int64)
    end = jnp.where(horizon < last, horizon, last).astype(ctx.clock)
    is_sound = lane.outcome == 0
    is_cluster = (due.cluster <= due.event) & (due.cluster <= end) & (due.cluster < ctx.never)
    is_cluster = is_cluster & is_sound & ~in_step
    is_due = (due.event <= end) & (due.event < due.cluster)
    is_instance = is_sound & (in_step | is_due)
    instance = jnp.where(in_step, lane.active, due.instance)
    instance = jnp.where(is_instance, instance, ctx.spare_instance)
    now = jnp.where(in_step, lane.now, due.event)
    is_new = is_instance & ~in_step
    last_event = jnp.where(is_new, due.event, lane.last_event)
    is_done = ~is_cluster & ~is_instance
    lane = lane.replace(is_done=is_done, now=now, last_event=last_event)
    due = due._replace(instance=instance)
    return NextEvent(due, is_cluster, is_instance, is_done, in_step, now), lane

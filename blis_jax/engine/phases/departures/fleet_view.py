"""What an autoscaler that places instances knows of them: who has work, and whose machine will be free when.

In BLIS an instance that was told to go ends with the first event of its own that leaves it without work. Most such
events complete, drop or give up a request, and `with_emptied` notes them. Three change nothing: a request arrives,
ahead of its queueing time; a last step ends; the time of a request is up that has completed.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
from jax import lax

from blis_jax.core.fleet import FleetView
from blis_jax.engine.context import Context, row
from blis_jax.engine.state import Dyn, Instance, Mode, Slot, State
from blis_jax.engine.tables.joined import busy_times, instance_of, lane_of, places_of, queued_times
from blis_jax.latency.blackbox import queueing_time


def fleet_view(ctx: Context, state: State, now: jax.Array) -> FleetView:
    """The instances at `now`, before every event of theirs at that time."""
    movement, rows, cluster = state.movement, ctx.shape.num_instances, ctx.params.cluster
    assert movement is not None and movement.emptied is not None  # such a policy is asked
    inst, queued = Instance(state.inst[:rows]), queued_times(state, rows)
    waits = jnp.any(queued < now, axis=1)
    is_coming = (queued >= now) & (queued < ctx.never)
    delay = queueing_time(cluster.alpha[:rows, None, :], state.slot[Slot.INPUT_LEN, :rows])
    is_sent = is_coming & (queued - ctx.truncated(delay) == now)
    is_there = state.slot[Slot.OVERSIZED, :rows] == 0  # others never enter the queue
    following = jnp.min(jnp.where(is_coming & is_there, queued, ctx.never), axis=1)
    return FleetView(
        params=cluster.fleet,
        total_kv_blocks=cluster.total_kv_blocks[:rows],
        block_size=jnp.int32(ctx.shape.block_size),
        has_more=jnp.any((ctx.requests.arrival > now) & (ctx.requests.arrival < ctx.never)),
        has_work=waits | (inst.num_prefill + inst.num_decode > 0),
        emptied_us=movement.emptied,
        is_sent=jnp.any(is_sent, axis=1),
        queued_us=following,
        idle_event_us=_idle_events(ctx, state, now),
    )


def _idle_events(ctx: Context, state: State, now: jax.Array) -> jax.Array:
    """Of every instance the end of its last step, or the time-out of a completed request, from `now` on."""
    rows = ctx.shape.num_instances
    ends = busy_times(state, rows)
    events = jnp.where(ends >= now, ends, ctx.never)
    if ctx.requests.deadline is None:
        return events
    is_late = (state.dyn[:, Dyn.FINISH_RECORD] > 0) & (ctx.requests.deadline >= now)
    time = jnp.where(is_late, ctx.requests.deadline, ctx.never)
    is_mine = places_of(state)[None, :] == lax.iota(jnp.int32, rows)[:, None]
    return jnp.minimum(events, jnp.min(jnp.where(is_mine, time[None, :], ctx.never), axis=1))


def with_emptied(
    ctx: Context, state: State, instance: jax.Array, now: jax.Array, has_acted: jax.Array
) -> State:
    """The state after an event of an instance, at which it may have been left without work."""
    movement, rows = state.movement, ctx.shape.num_instances
    assert movement is not None and movement.emptied is not None  # instances are placed
    inst = instance_of(ctx, state, instance)
    waits = jnp.any(row(queued_times(state, rows + 1), instance) <= now)
    is_empty = ~waits & (inst.num_prefill + inst.num_decode == 0)
    is_over = has_acted & (lane_of(ctx, state).mode == Mode.BETWEEN) & is_empty
    is_it = (lax.iota(jnp.int32, rows) == instance) & is_over
    emptied = jnp.where(is_it, now, movement.emptied)
    return dataclasses.replace(state, movement=dataclasses.replace(movement, emptied=emptied))

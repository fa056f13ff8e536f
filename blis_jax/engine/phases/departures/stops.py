"""Instances that stop: their running requests leave when the step in progress ends, and they come back cold.

The members of the batch leave one after the other, in batch order, as if they completed without a token. Each is lost,
or is routed again and recomputed from its start. A mechanism without a cluster policy has none of this in its program.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp

from blis_jax.core.columns import as_int, choose
from blis_jax.memory.memory import Subject
from blis_jax.prefix_index.news import cleared, forget
from blis_jax.tables.context import Context, SlotRows, Work
from blis_jax.tables.joined import Instances, chain_times, last_event
from blis_jax.tables.journeys import Availability, Journey, Journeys
from blis_jax.tables.router import RouterIndex
from blis_jax.tables.state import Inst, Lane, Mode, Past, State
from blis_jax.tables.writes import Cold, JourneyWrite, Return

if TYPE_CHECKING:
    from jaxtyping import Array, Bool

    from blis_jax.policies.contexts import ClusterChange
    from blis_jax.tables.writes import Writes


def stop_times(ctx: Context, state: State, change: ClusterChange, now: jax.Array) -> jax.Array:
    """Return when each instance (and a spare row) loses its running requests: if it stops, at the end of its step."""
    before, rows = state[Availability].stop_at, ctx.shape.num_instances
    inst = Instances(state, rows)
    next_step = jnp.min(chain_times(state, rows), axis=0)
    runs = (inst.num_prefill + inst.num_decode > 0) | (next_step < ctx.never)
    at = jnp.where(next_step < ctx.never, jnp.maximum(next_step, now), now)
    stops = jnp.append(change.stops & runs, jnp.array(False))
    return jnp.where(stops, jnp.append(at, ctx.never), before)


def returning(ctx: Context, state: State, is_up: Bool[Array, "instance"]) -> jax.Array:
    """Return the instances that come up empty, and so with empty caches."""
    load = Instances(state, ctx.shape.num_instances).load
    return is_up & (state[Availability].is_up == 0) & (load == 0)


def is_due(state: State, instance: jax.Array, now: jax.Array) -> jax.Array:
    """Return whether the running requests of the instance leave now, before its next step."""
    return state[Availability].stop_at[instance] <= now


def begun(lane: Lane, instance: jax.Array, num_leaving: jax.Array, now: jax.Array) -> Lane:
    """Return the lane set to complete members of the instance, as at the end of a step that takes no time."""
    return lane.replace(
        active=instance,
        mode=jnp.int32(Mode.COMPLETING),
        num_to_complete=num_leaving,
        now=now,
        duration=jnp.zeros((), now.dtype),
    )


def restarted(journey: Journey) -> Journey:
    """Return the journey of a request that has lost its KV and its tokens."""
    return journey.replace(
        computed=jnp.int32(0),
        first_record=jnp.int32(-1),
        joined_record=jnp.int32(-1),
        restarts=journey.restarts + 1,
        transfer=jnp.zeros_like(journey.due),
    )


def forgotten(past: Past) -> Past:
    """Return a request's history without the progress of its last attempt."""
    names = ("progress", "lag", "token_record", "token_index", "step_progress", "finish_record")
    return past.replace(**dict.fromkeys(names, jnp.int32(0)))


def torn_off(
    ctx: Context, state: State, work: Work, subject: Subject, past: Past, stops: jax.Array
) -> tuple[Work, Past]:
    """Return the work and the row of a member that leaves if its instance `stops`; else both unchanged."""
    before, written = state[Availability], work[JourneyWrite]
    has_moved = ctx.mechanism.hand_over is not None
    journey = written.journey if has_moved else state[Journeys].of(subject.request)
    is_lost = stops & (before.stop_loses[subject.instance] == 1)
    made = subject.step - 1 - subject.past.token_index
    # the step in which it joined with its KV made a token, also if it was preempted since
    has_joined = journey.joined_record >= 0
    after = restarted(journey).replace(
        came_from=jnp.where(journey.came_from < 0, subject.instance, journey.came_from),
        ended=journey.ended + 1,
        past_itl=journey.past_itl + jnp.where(subject.in_decode, made, 0) + as_int(has_joined),
        is_lost=as_int(is_lost),
        due=jnp.where(is_lost, ctx.never, work.lane.now + before.leave_delay[subject.instance]),
    )
    kept = choose(stops, after, journey)
    row = choose(stops, forgotten(past), past)
    request = jnp.where(stops, subject.request, written.request)
    return work.having(JourneyWrite(request, kept)), row


def has_queue(slots: SlotRows, now: jax.Array) -> jax.Array:
    """Return whether a request that fits was queued in a slot before `now`."""
    return jnp.any((slots.queued < now) & (slots.oversized == 0))


def stopped(work: Work, instance: jax.Array, stops: jax.Array, never: jax.Array) -> Work:
    """Return the work after the last member has left a stopping instance, which is now marked as cold."""
    before = work[Availability]
    at = jnp.arange(before.stop_at.shape[0], dtype=jnp.int32) == instance
    stop_at = jnp.where(at & stops, never, before.stop_at)
    cold = Cold(work[Cold].is_it | (at[:-1] & stops))
    return work.having(dataclasses.replace(before, stop_at=stop_at), cold)


def cooled(ctx: Context, state: State, cold: Bool[Array, "instance"]) -> State:
    """Return the state with the cold instances emptied, and their contents removed from the router's index."""

    def change(state: State, is_on: jax.Array) -> State:
        """Free all blocks of the cold instances if `is_on`."""
        is_it = cold & is_on
        used = state.inst.numbers[Inst.USED_BLOCKS, :-1]
        inst = state.inst.numbers.at[Inst.USED_BLOCKS, :-1].set(jnp.where(is_it, 0, used))
        if RouterIndex in state:
            state = cleared(ctx, state, is_it)
        rows = jnp.append(is_it, jnp.array(False))
        return ctx.memory.emptied(
            ctx, dataclasses.replace(state, inst=state.inst.with_numbers(inst)), rows
        )

    return ctx.in_place(jnp.any(cold), change, state)


def strange(ctx: Context, state: State, done: Writes) -> State:
    """Return the state in which the routed request has no contents of its own left on its instance."""

    def change(state: State, is_on: jax.Array) -> State:
        instance = jnp.where(is_on, done.instance, ctx.spare_instance)
        if RouterIndex in state:
            at = done.routed, jnp.where(is_on, done.instance, 0), is_on, last_event(state)
            state = forget(ctx, state, *at)
        return ctx.memory.without_own(ctx, state, done.routed, instance, done.slot.slot)

    return ctx.in_place(done[Return].is_back, change, state)

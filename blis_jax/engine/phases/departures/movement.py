"""Requests that move: instances go down, their queues leave, and requests are routed again.

A request that has no place is in transfer until its journey's `due`; then the gateway routes it like a new one.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
from jax import lax

from blis_jax.core.columns import as_int, choose
from blis_jax.core.types import LAST
from blis_jax.engine.context import Context, SlotRows
from blis_jax.engine.phases.departures.fleet_view import fleet_view
from blis_jax.engine.phases.departures.paid_time import PaidTime, is_paid, paid_until
from blis_jax.engine.phases.departures.queued_parts import next_part
from blis_jax.engine.phases.departures.stops import (
    begun,
    forgotten,
    restarted,
    returning,
    stop_times,
)
from blis_jax.engine.phases.policy_calls import decision_key
from blis_jax.engine.phases.router_view.snapshot import refreshed, snapshots
from blis_jax.engine.phases.steps.mid_step import Work, chains_of, count_of
from blis_jax.engine.phases.steps.step_end import next_event
from blis_jax.engine.state import Instance, PartRank, State
from blis_jax.engine.tables.joined import busy_times, lane_of, place_of, queued_times
from blis_jax.engine.tables.journeys import Journey, Movement
from blis_jax.engine.tables.slot_write import SlotWrite, no_slot
from blis_jax.engine.tables.writes import MovementWrite, Writes, no_movement, no_writes
from blis_jax.memory.kept_output import moves_tokens, of_one_that_waits
from blis_jax.policies.contract import ClusterChange, ClusterContext
from blis_jax.policies.routing.pickers import first_where
from blis_jax.policies.seeds import RandomSource


def movement_of(state: State) -> Movement:
    """The movement of a mechanism whose requests move."""
    assert state.movement is not None
    return state.movement


def change_cluster(ctx: Context, state: State, now: jax.Array) -> Writes:
    """Ask the cluster policy; queues that leave do so before anything else happens at this time."""
    policy, movement = ctx.mechanism.cluster, movement_of(state)
    nothing = no_writes(ctx, state, jnp.int32(ctx.shape.num_instances))
    if policy is None:
        return nothing
    lane, rows = lane_of(ctx, state), ctx.shape.num_instances
    view, last_refresh = refreshed(ctx, state, now, lane.last_refresh)
    no_match = jnp.zeros((rows,), jnp.int32)
    context = ClusterContext(
        snapshots=snapshots(ctx, state, now, view, no_match, lane.num_rejected),
        is_up=movement.is_up == 1,
        now_us=now,
        key=decision_key(ctx, RandomSource.CLUSTER, now.astype(jnp.int32)),
        num_arrived=lane.next_admit,
        is_paid=is_paid(*_paid(state), now),
        fleet=fleet_view(ctx, state, now) if policy.reads_fleet else None,
    )
    place = ctx.mechanism.of_gateway.index(policy)
    change: ClusterChange
    change, after = policy.ask(ctx.params.policy.cluster, state.gateway[place], context)
    states = (*state.gateway[:place], after, *state.gateway[place + 1 :])
    has_queue = jnp.any(queued_times(state, rows) < ctx.never, axis=1)
    stops, loses = (
        jnp.zeros((rows,), bool) if one is None else one for one in (change.stops, change.loses)
    )
    leaves = jnp.append((change.queue_leaves | stops) & has_queue, jnp.array(False))
    is_off = jnp.append(change.queue_leaves | stops, jnp.array(False))
    delay = jnp.asarray(change.delay_us).astype(ctx.clock)
    unchanged = no_movement(ctx, movement)
    assert unchanged is not None
    lane = lane.replace(last_event=now)
    if change.outcome is not None:
        lane = lane.replace(outcome=jnp.where(lane.outcome == 0, change.outcome, lane.outcome))
    if change.looked is not None:
        looked = jnp.where(change.looked, last_refresh, lane.last_refresh)
        lane = lane.replace(last_refresh=looked)
    ordered = movement.ordered if change.ordered is None else change.ordered
    return dataclasses.replace(
        nothing,
        lane=lane,
        stale=nothing.stale if change.looked is None else choose(change.looked, view, state.stale),
        gateway=states,
        movement=dataclasses.replace(
            unchanged,
            is_up=change.is_up.astype(jnp.int32),
            leave_at=jnp.where(leaves, now, movement.leave_at),
            leave_delay=jnp.where(is_off, delay, movement.leave_delay),
            stop_at=stop_times(ctx, state, change, now),
            stop_loses=jnp.where(is_off, as_int(jnp.append(loses, False)), movement.stop_loses),
            loses_kv=jnp.where(is_off, as_int(jnp.append(stops, False)), movement.loses_kv),
            downs=movement.downs + as_int((movement.is_up == 1) & ~change.is_up),
            paid=_paid_by(state, change, now),
            cold=returning(ctx, state, change.is_up),
            ordered=ordered,
        ),
    )


def _paid(state: State) -> tuple[PaidTime, jax.Array, jax.Array]:
    """What has been paid, and the load and end of the last step of every instance."""
    movement = movement_of(state)
    paid, rows = movement.paid, movement.is_up.shape[0]
    assert paid is not None  # there is one where a cluster policy acts
    return paid, Instance(state.inst[:rows]).load, busy_times(state, rows)


def _paid_by(state: State, change: ClusterChange, now: jax.Array) -> PaidTime:
    """What has been paid until now, and which instances are held from here on."""
    so_far = paid_until(*_paid(state), now, jnp)
    held = change.is_up if change.holds is None else change.is_up | change.holds
    return PaidTime(as_int(held), so_far, now)


def is_leaving(ctx: Context, state: State, instance: jax.Array, now: jax.Array) -> jax.Array:
    """Whether requests leave the instance's queue now."""
    return movement_of(state).leave_at[instance] <= now


def leave(
    ctx: Context, state: State, work: Work, instance: jax.Array
) -> tuple[Work, SlotWrite, MovementWrite]:
    """One request leaves the queue; the instance's next event is as if it had never come."""
    movement, slots, inst = movement_of(state), SlotRows(state, instance), work.inst
    is_queued = slots.queued < ctx.never
    slot = jnp.minimum(first_where(is_queued), jnp.int32(ctx.shape.num_slots - 1))
    row, now = slots.one(ctx, slot), work.lane.now
    is_idle, busy = inst.is_idle == 1, inst.busy_until
    inst = inst.replace(
        load=inst.load - 1,
        num_oversized=inst.num_oversized - row.oversized,
        event=next_event(ctx, slots, is_idle, chains_of(inst), slot, busy),
    )
    journey = movement.of(row.request)
    is_gone = (movement.loses_kv[instance] == 1) & (journey.computed > 0)
    # it came with its KV and was preempted: the step that it joined in made a token, too
    was_preempted = (journey.first_record >= 0) & (journey.computed == 0)
    after = restarted(journey).replace(past_itl=journey.past_itl + as_int(was_preempted))
    is_gone = is_gone | was_preempted
    journey = jax.tree.map(lambda new, old: jnp.where(is_gone, new, old), after, journey)
    journey = journey.replace(
        came_from=jnp.where(journey.came_from < 0, instance, journey.came_from),
        due=now + movement.leave_delay[instance],
    )
    change = no_movement(ctx, movement)
    assert change is not None
    is_last = count_of(is_queued) <= 1
    at = jnp.arange(movement.leave_at.shape[0], dtype=jnp.int32) == instance
    change = dataclasses.replace(
        change,
        leave_at=jnp.where(at & is_last, ctx.never, movement.leave_at),
        request=row.request,
        journey=journey,
    )
    rows = ctx.memory.rows_of_leaver(ctx, row.request)
    if moves_tokens(ctx, state):
        has_kv = (movement.of(row.request).computed > 0) & ~is_gone
        work, rows = of_one_that_waits(ctx, state, work, row.request, rows, has_kv)
    # numbers of steps of this instance mean nothing on another
    past = forgotten(ctx.past(state, row.request))
    written = dataclasses.replace(
        no_slot(ctx), instance=instance, slot=slot, memory=rows, request=row.request, past=past
    )
    return dataclasses.replace(work, inst=inst), written, change


def stop(ctx: Context, state: State, instance: jax.Array, now: jax.Array) -> Writes:
    """What the instance runs begins to leave it."""
    nothing = no_writes(ctx, state, instance)
    lane = begun(nothing.lane, instance, nothing.inst, now)
    return dataclasses.replace(nothing, lane=lane)


def next_to_move(ctx: Context, state: State) -> jax.Array:
    """The request whose transfer ends first; of several, the one that arrived first.

    Where KV is reserved, these wait to be routed in the prefill pool, or for the start of a transfer, of which the
    first one's id is least as a text.
    """
    movement = movement_of(state)
    due = movement.journey_time[:-1, 0]
    if not ctx.mechanism.reserves_decode:
        return jnp.argmin(due).astype(jnp.int32)
    has_kv = movement.journey[:-1, Journey.columns.COMPUTED] > 0
    text = ctx.requests.part_ranks[:-1, PartRank.PREFILL_TEXT]
    if state.queue is not None:
        return next_part(state.queue, due == jnp.min(due), has_kv, text)
    number = lax.iota(jnp.int32, due.shape[0])
    rank = jnp.where(has_kv, text + jnp.int32(due.shape[0]), number)
    return jnp.argmin(jnp.where(due == jnp.min(due), rank, LAST)).astype(jnp.int32)


def may_be_back(state: State, request: jax.Array, instance: jax.Array) -> jax.Array:
    """Whether a request that is routed again may have left blocks of its own on that instance."""
    journey, place = movement_of(state).of(request), place_of(state, request)
    is_other = (journey.restarts > 0) | (journey.computed == 0) | (journey.came_from != place)
    return is_other | (place == instance)


def arrived(ctx: Context, state: State, request: jax.Array) -> MovementWrite:
    """The movement once the request has been routed again."""
    movement = movement_of(state)
    change = no_movement(ctx, movement)
    assert change is not None
    journey = movement.of(request).replace(due=ctx.never)
    change = dataclasses.replace(change, request=request, journey=journey)
    if not ctx.mechanism.reserves_decode:
        return change
    return dataclasses.replace(change, reservation=movement.reservation(request))

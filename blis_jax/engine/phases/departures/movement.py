"""Requests that move: instances go down, their queues leave, and requests are routed again.

A request that has left an instance is in transfer until its journey's `due`; then the gateway routes it like a new one.

The functions at the end compute what an autoscaler that places instances reads of them: which have work, and whose
machine will be free when. In BLIS an instance that was told to shut down ends with the first event of its own that
leaves it without work. Most such events complete, drop or give up a request, and `with_emptied` notes them. Three
change nothing: a request arrives, ahead of its queueing time; a last step ends; the deadline of a completed request
passes.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
from jax import lax

from blis_jax.core.columns import as_int, choose
from blis_jax.core.views import FleetParams, FleetView
from blis_jax.engine.phases.departures.stops import (
    begun,
    forgotten,
    restarted,
    returning,
    stop_times,
)
from blis_jax.engine.phases.snapshot import (
    refreshed,
    snapshots,
)
from blis_jax.engine.phases.steps.step_end import next_event
from blis_jax.engine.writing import no_changes, no_writes
from blis_jax.latency.blackbox import queueing_time
from blis_jax.memory.memory import Left
from blis_jax.policies.contexts import ClusterChange, ClusterContext
from blis_jax.policies.routing.pickers import first_where
from blis_jax.policies.seeds import RandomSource
from blis_jax.tables.context import Context, SlotRows, Work, count_of, decision_key, row
from blis_jax.tables.joined import (
    Instances,
    chains_of,
    instance_of,
    lane_of,
    place_of,
    places_of,
    queued_times,
)
from blis_jax.tables.journeys import (
    Availability,
    Dismissals,
    Downs,
    Emptied,
    Journeys,
    Orders,
    PaidTime,
    Reservations,
    is_paid,
    paid_until,
)
from blis_jax.tables.requests import RequestDeadlines
from blis_jax.tables.state import Dyn, Lane, Mode, Slot, State
from blis_jax.tables.writes import (
    OF_MOVES,
    Cold,
    JourneyWrite,
    ReservationWrite,
    SlotWrite,
    Writes,
    no_slot,
)


def change_cluster(ctx: Context, state: State, now: jax.Array) -> Writes:
    """Call the cluster policy; queues that leave do so before anything else happens at this time."""
    (policy, place), before = ctx.mechanism.at_gateway("cluster"), state[Availability]
    nothing = no_writes(ctx, state, ctx.spare_instance)
    state = ctx.pools.at_change(ctx, state, now, policy, place)
    lane, rows = lane_of(ctx, state), ctx.shape.num_instances
    view, last_refresh = refreshed(ctx, state, now, lane.last_refresh)
    no_match = jnp.zeros((rows,), jnp.int32)
    context = ClusterContext(
        snapshots=snapshots(ctx, state, now, view, no_match, lane.num_rejected),
        is_up=before.is_up == 1,
        now_us=now,
        key=decision_key(ctx, RandomSource.CLUSTER, now.astype(jnp.int32)),
        num_arrived=lane.next_admit,
        is_paid=is_paid(*_paid(state), now),
        fleet=fleet_view(ctx, state, now) if policy.reads("fleet") else None,
    )
    change: ClusterChange
    change, after = policy.ask(ctx.params.policy.cluster, state.gateway[place], context)
    has_queue = jnp.any(queued_times(state, rows) < ctx.never, axis=1)
    stops, loses = (jnp.broadcast_to(each, (rows,)) for each in (change.stops, change.loses))
    leaves = jnp.append((change.queue_leaves | stops) & has_queue, jnp.array(False))
    is_off = jnp.append(change.queue_leaves | stops, jnp.array(False))
    delay = jnp.asarray(change.delay_us).astype(ctx.clock)
    lane = _after_change(lane, change, now, last_refresh)
    available = Availability(
        is_up=change.is_up.astype(jnp.int32),
        leave_at=jnp.where(leaves, now, before.leave_at),
        leave_delay=jnp.where(is_off, delay, before.leave_delay),
        stop_at=stop_times(ctx, state, change, now),
        stop_loses=jnp.where(is_off, as_int(jnp.append(loses, False)), before.stop_loses),
        loses_kv=jnp.where(is_off, as_int(jnp.append(stops, False)), before.loses_kv),
    )
    goes = as_int((before.is_up == 1) & ~change.is_up)
    downs = Downs(state[Downs].count + goes, state[Downs].later + goes * as_int(now > 0))
    nothing = nothing.having(available, downs, _paid_by(state, change, now))
    nothing = nothing.having(Cold(returning(ctx, state, change.is_up)))
    if Orders in state:
        nothing = nothing.having(Orders(jnp.broadcast_to(change.ordered, (rows,))))
    if Dismissals in state:
        nothing = nothing.having(_dismissed(ctx, state, change, now))
    return dataclasses.replace(
        nothing,
        lane=lane,
        stale=choose(jnp.asarray(change.looked), view, state.stale),
        gateway=state.gateway.having(place, after),
    )


def _after_change(
    lane: Lane, change: ClusterChange, now: jax.Array, last_refresh: jax.Array
) -> Lane:
    """Return the lane after the cluster policy has acted, with its outcome and the time of its last look."""
    return lane.replace(
        last_event=now,
        last_refresh=jnp.where(change.looked, last_refresh, lane.last_refresh),
        outcome=jnp.where(lane.outcome == 0, change.outcome, lane.outcome),
    )


def _dismissed(ctx: Context, state: State, change: ClusterChange, now: jax.Array) -> Dismissals:
    """Return the time at which each instance was told to shut down."""
    goes = (state[Availability].is_up == 1) & ~change.is_up
    gone_at = jnp.where(goes, now, state[Dismissals].at)
    return Dismissals(jnp.where(change.is_up, ctx.never, gone_at))  # one that loads comes up


def _paid(state: State) -> tuple[PaidTime, jax.Array, jax.Array]:
    """Return the paid time, and the load and the end of the last step of every instance."""
    inst = Instances(state, state[Availability].is_up.shape[0])
    return state[PaidTime], inst.load, inst.busy_until


def _paid_by(state: State, change: ClusterChange, now: jax.Array) -> PaidTime:
    """Return the paid time up to `now`, with the instances that are held from here on."""
    so_far = paid_until(*_paid(state), now, jnp)
    return PaidTime(as_int(change.is_up | change.holds), so_far, now)


def is_leaving(state: State, instance: jax.Array, now: jax.Array) -> jax.Array:
    """Return whether requests leave the instance's queue now."""
    return state[Availability].leave_at[instance] <= now


def leave(
    ctx: Context, state: State, work: Work, instance: jax.Array
) -> tuple[Work, SlotWrite, tuple[Availability, JourneyWrite]]:
    """Remove one request from the queue; the instance's next event is as if the request had never come."""
    before, slots, inst = state[Availability], SlotRows(state, instance), work.inst
    is_queued = slots.queued < ctx.never
    slot = ctx.existing_slot(first_where(is_queued))
    row, now = slots.one(ctx, slot), work.lane.now
    is_idle, busy = inst.is_idle == 1, inst.busy_until
    inst = inst.replace(
        load=inst.load - 1,
        num_oversized=inst.num_oversized - row.oversized,
        event=next_event(ctx, slots, is_idle, chains_of(inst), slot, busy),
    )
    journey = state[Journeys].of(row.request)
    is_gone = (before.loses_kv[instance] == 1) & (journey.computed > 0)
    # it came with its KV and was preempted: the step that it joined in made a token, too
    was_preempted = (journey.first_record >= 0) & (journey.computed == 0)
    after = restarted(journey).replace(past_itl=journey.past_itl + as_int(was_preempted))
    is_gone = is_gone | was_preempted
    journey = choose(is_gone, after, journey)
    journey = journey.replace(
        came_from=jnp.where(journey.came_from < 0, instance, journey.came_from),
        due=now + before.leave_delay[instance],
    )
    is_last = count_of(is_queued) <= 1
    at = jnp.arange(before.leave_at.shape[0], dtype=jnp.int32) == instance
    leave_at = jnp.where(at & is_last, ctx.never, before.leave_at)
    change = dataclasses.replace(before, leave_at=leave_at), JourneyWrite(row.request, journey)
    left = Left(work, ctx.memory.rows_of_leaver(ctx, row.request))
    left = ctx.memory.preempted.cut_off(ctx, state, row.request, left, is_gone)
    # numbers of steps of this instance mean nothing on another
    past = forgotten(ctx.past(state, row.request))
    written = dataclasses.replace(
        no_slot(ctx), instance=instance, slot=slot, memory=left.rows, request=row.request, past=past
    )
    return dataclasses.replace(left.work, inst=inst), written, change


def stop(ctx: Context, state: State, instance: jax.Array, now: jax.Array) -> Writes:
    """Begin the departure of the requests that the instance runs."""
    nothing = no_writes(ctx, state, instance)
    num_members = nothing.inst.num_prefill + nothing.inst.num_decode
    lane = begun(nothing.lane, instance, num_members, now)
    return dataclasses.replace(nothing, lane=lane)


def may_be_back(state: State, request: jax.Array, instance: jax.Array) -> jax.Array:
    """Return whether a request may have left blocks of its own on the instance to which it is routed again."""
    journey, place = state[Journeys].of(request), place_of(state, request)
    is_other = (journey.restarts > 0) | (journey.computed == 0) | (journey.came_from != place)
    return is_other | (place == instance)


def arrived(ctx: Context, state: State, writes: Writes, request: jax.Array) -> Writes:
    """Return the writes of the scan step that has routed a request again, with its journey ended."""
    nothing = no_changes(ctx, state).only(*OF_MOVES)
    journey = JourneyWrite(request, state[Journeys].of(request).replace(due=ctx.never))
    writes = writes.having(*nothing, journey)
    if Reservations not in state:
        return writes
    return writes.having(ReservationWrite(state[Reservations].of(request)))


def fleet_view(ctx: Context, state: State, now: jax.Array) -> FleetView:
    """Return what an autoscaler sees of the instances at `now`, before every event of an instance at that time."""
    rows, cluster = ctx.shape.num_instances, ctx.params.cluster
    inst, queued = Instances(state, rows), queued_times(state, rows)
    waits = jnp.any(queued < now, axis=1)
    is_coming = (queued >= now) & (queued < ctx.never)
    is_coming = ctx.pools.is_coming(ctx, state, is_coming)
    delay = queueing_time(cluster.alpha[:rows, None, :], state.slot.numbers[Slot.INPUT_LEN, :rows])
    is_sent = is_coming & (queued - ctx.truncated(delay) == now)
    is_there = state.slot.numbers[Slot.OVERSIZED, :rows] == 0  # others never enter the queue
    following = jnp.min(jnp.where(is_coming & is_there, queued, ctx.never), axis=1)
    return FleetView(
        params=cluster[FleetParams],
        total_kv_blocks=cluster.total_kv_blocks[:rows],
        block_size=jnp.int32(ctx.shape.block_size),
        has_more=jnp.any((ctx.requests.arrival > now) & (ctx.requests.arrival < ctx.never)),
        has_work=waits | (inst.num_prefill + inst.num_decode > 0),
        emptied_us=state[Emptied].at,
        is_sent=jnp.any(is_sent, axis=1),
        queued_us=following,
        idle_event_us=_idle_events(ctx, state, now),
    )


def _idle_events(ctx: Context, state: State, now: jax.Array) -> jax.Array:
    """Return for each instance the next end of a last step, or deadline of a completed request, from `now` on."""
    rows = ctx.shape.num_instances
    ends = Instances(state, rows).busy_until
    events = jnp.where(ends >= now, ends, ctx.never)
    if RequestDeadlines not in ctx.requests:
        return events
    deadline = ctx.requests[RequestDeadlines].at
    is_late = (state.past.rows[:, Dyn.FINISH_RECORD] > 0) & (deadline >= now)
    time = jnp.where(is_late, deadline, ctx.never)
    is_mine = places_of(state)[None, :] == lax.iota(jnp.int32, rows)[:, None]
    return jnp.minimum(events, jnp.min(jnp.where(is_mine, time[None, :], ctx.never), axis=1))


def with_emptied(
    ctx: Context, state: State, instance: jax.Array, now: jax.Array, has_acted: jax.Array
) -> State:
    """Return the state after an event of an instance, with the time noted if the event left it without work."""
    rows = ctx.shape.num_instances
    inst = instance_of(ctx, state, instance)
    waits = jnp.any(row(queued_times(state, rows + 1), instance) <= now)
    is_empty = ~waits & (inst.num_prefill + inst.num_decode == 0)
    is_over = has_acted & (lane_of(ctx, state).mode == Mode.BETWEEN) & is_empty
    is_it = (lax.iota(jnp.int32, rows) == instance) & is_over
    return state.having(Emptied(jnp.where(is_it, now, state[Emptied].at)))

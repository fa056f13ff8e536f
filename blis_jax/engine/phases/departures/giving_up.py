"""Requests that leave an instance before their last token: the gateway evicts them, or their deadline passes.

A waiting request leaves at once. A member of the batch leaves as at its completion, but without a last token and a
record, and the step in progress goes on without it. A mechanism in which no request can be given up has none of this
code in its program.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp

from blis_jax.core.columns import as_int, choose, with_entry
from blis_jax.core.exact import ceil_div
from blis_jax.core.outcome import Outcome
from blis_jax.core.pytrees import HasParts
from blis_jax.core.types import LAST, NO_REQUEST
from blis_jax.engine.phases.departures.stops import begun
from blis_jax.engine.phases.snapshot import active_instances
from blis_jax.engine.phases.steps.step_end import next_event
from blis_jax.engine.writing import no_writes
from blis_jax.policies.routing.pickers import first_where
from blis_jax.tables.blocks import Do, MemoryTask
from blis_jax.tables.context import Context, SlotRows, Work, failing, steps_at, waiting_mask
from blis_jax.tables.gateways import (
    Dispatches,
    GatewayQueue,
    Place,
    QueueParams,
    QueueVictims,
    QueueWrite,
)
from blis_jax.tables.joined import (
    chains_of,
    place_of,
    queued_times,
    take_chain,
    with_chains,
)
from blis_jax.tables.journeys import (
    KEPT,
    ORPHANED,
    Availability,
    Dismissals,
    Exits,
    ExitWrite,
    Journeys,
    Reservation,
    Reservations,
)
from blis_jax.tables.requests import RequestDeadlines
from blis_jax.tables.state import Instance, Lane, Mode, Resident, Slot, State
from blis_jax.tables.writes import JourneyWrite, ReservationWrite, Writes, no_slot

if TYPE_CHECKING:
    from jaxtyping import Array, Bool


def next_deadline(ctx: Context, state: State) -> tuple[jax.Array, jax.Array, tuple[jax.Array, ...]]:
    """Return the next deadline of a request at an instance, and the request; of equal ones, the one routed first.

    Where KV is reserved, also return whether the deadline came before the request's KV; if so, the request is given up
    before the instance does anything, as in BLIS.
    """
    rows, spare = ctx.shape.num_instances, ctx.spare_request
    request = state.slot.numbers[Slot.REQUEST, :rows]
    is_there = (request >= 0) & (state.slot.numbers[Slot.OVERSIZED, :rows] == 0)
    time = ctx.requests[RequestDeadlines].at[jnp.where(is_there, request, spare)]
    return ctx.pools.deadline(ctx, state, time, request, is_there)


def time_out(ctx: Context, state: State, now: jax.Array) -> Writes:
    """Begin the departure of the request whose deadline has come."""
    request = next_deadline(ctx, state)[1]
    writes, _ = give_up(ctx, state, request, now, keeps_batch=False)
    change = writes[ExitWrite]
    runs = change.leaving < ctx.shape.num_requests
    left = jnp.where(runs, ctx.spare_request, request)
    change = dataclasses.replace(change, request=left, step_index=jnp.int32(-1))
    return writes.having(change)


def next_drop(ctx: Context, state: HasParts) -> tuple[jax.Array, jax.Array]:
    """Return when KV next arrives at an instance that was told to shut down, and for which request.

    Of several arrivals in one microsecond, the one whose transfer began first is returned.
    """
    columns, ends = Reservation.columns, state[Reservations].times[:-1, 0]
    target, turn, is_dropped = (
        state[Reservations].numbers[:-1, column]
        for column in (columns.TARGET, columns.TURN, columns.IS_DROPPED)
    )
    is_it = (ends > state[Dismissals].at[jnp.maximum(target, 0)]) & (is_dropped == 0)
    time = jnp.where(is_it, ends, ctx.never)
    first = jnp.min(time)
    return first, jnp.argmin(jnp.where(time == first, turn, LAST)).astype(jnp.int32)


def drop_kv(ctx: Context, state: State, now: jax.Array) -> Writes:
    """Free the KV that has arrived at an instance which was told to shut down, and drop its request."""
    request = next_drop(ctx, state)[1]
    writes, _ = give_up(ctx, state, request, now, keeps_batch=False)
    reservation = state[Reservations].of(request).replace(is_dropped=jnp.int32(1))
    journey = JourneyWrite(request, state[Journeys].of(request))
    return writes.having(journey, ReservationWrite(reservation))


def by_standing(ctx: Context) -> bool:
    """Return whether requests may be evicted after they have moved between instances, for which BLIS has no rule."""
    mechanism = ctx.mechanism
    has_rule = mechanism.rules.turns_away  # its own autoscaler
    return mechanism.evicts_in_flight and mechanism.moves_requests and not has_rule


def standing(ctx: Context, state: State, now: jax.Array) -> Bool[Array, "instance slot"]:
    """Return the slots whose requests wait or run on an instance that is up and that no request is about to leave."""
    stays, rows = active_instances(ctx, state), ctx.shape.num_instances
    if Availability in state:
        available = state[Availability]
        leaves = jnp.minimum(available.leave_at[:rows], available.stop_at[:rows])
        stays = stays & (leaves >= ctx.never)
    is_there = state.slot.numbers[Slot.REQUEST, :rows] != NO_REQUEST
    runs = state.slot.numbers[Slot.ORDER, :rows] != LAST
    return is_there & (runs | (queued_times(state, rows) < now)) & stays[:, None]


def is_orphan(state: State, work: Work, instance: jax.Array) -> jax.Array:
    """Return whether the step that begins finds no request because all requests have been given up.

    A batch whose last member was evicted still makes an empty step, except in `blis-2026-08`. Where evicted requests
    may have moved, a step that finds no request for another reason, such as an outage, counts as well.
    """
    inst, now = work.inst, work.lane.now
    slots = SlotRows(state, instance)
    waits = jnp.any(waiting_mask(slots, now, steps_at(inst, now)))
    is_empty = (inst.num_prefill + inst.num_decode == 0) & ~waits & (inst.is_idle == 0)
    return is_empty & (state[Exits].keeps_batch[instance] != KEPT)


def idle(ctx: Context, state: State, work: Work, instance: jax.Array) -> Work:
    """Cancel the scheduled step; the instance goes idle until a request comes."""
    slots, inst = SlotRows(state, instance), work.inst
    chains, _ = take_chain(chains_of(inst), work.lane.now, jnp.int32(0), ctx.never)
    event = next_event(ctx, slots, jnp.array(True), chains, jnp.int32(-1), inst.busy_until)
    inst = with_chains(inst, chains).replace(is_idle=jnp.int32(1), event=event)
    return dataclasses.replace(work, inst=inst)


def give_up(
    ctx: Context,
    state: State,
    request: jax.Array,
    now: jax.Array,
    *,
    keeps_batch: bool,
    takes_pending: bool = False,
) -> tuple[Writes, jax.Array]:
    """Begin the departure of a request from its instance; return the changes, and whether the request was there.

    A request still on its way to the queue counts as there only if `takes_pending`.
    """
    instance = place_of(state, request)
    slots, nothing = SlotRows(state, instance), no_writes(ctx, state, instance)
    is_it = slots.request == request
    slot = ctx.existing_slot(first_where(is_it))
    row, inst = slots.one(ctx, slot), nothing.inst
    runs = jnp.any(is_it) & (row.order != LAST)
    waits = jnp.any(is_it) & ~runs & (takes_pending or ctx.pools.has_come(ctx, row, now))
    is_idle, chains = inst.is_idle == 1, chains_of(inst)
    event = next_event(ctx, slots, is_idle, chains, slot, inst.busy_until)
    lane, spare = nothing.lane, ctx.spare_instance
    lane = choose(runs, begun(lane, instance, jnp.int32(1), now), lane)
    leaver = jnp.where(waits, request, ctx.spare_request)
    written = dataclasses.replace(
        no_slot(ctx),
        instance=jnp.where(waits, instance, spare),
        slot=slot,
        memory=ctx.memory.rows_of_quitter(ctx, state, leaver),
        request=leaver,
        past=ctx.past(state, request),
    )
    task = nothing.task
    if (
        ctx.shape.has_mirror or ctx.pools.holds_waiting
    ):  # what an allocation that failed has left, or KV that came
        lane, task = _freeing(ctx, lane, task, row, slot, instance, now, waits)
    is_last = runs & (inst.num_prefill + inst.num_decode == 1)
    if keeps_batch and by_standing(ctx):
        is_last = is_last | waits
    if ExitWrite in nothing:
        change = dataclasses.replace(
            nothing[ExitWrite],
            leaving=jnp.where(runs, request, ctx.spare_request),
            instance=jnp.where(is_last, instance, spare),
            keeps_batch=jnp.int32(KEPT if keeps_batch else 0),
        )
        nothing = nothing.having(change)
    return dataclasses.replace(
        nothing,
        lane=lane.replace(last_event=now),
        task=task,
        instance=jnp.where(waits, instance, spare),
        inst=_without_one(inst, row, waits, takes_pending).replace(event=event),
        slot=written,
    ), runs | waits


def _without_one(inst: Instance, row: Resident, waits: jax.Array, takes_pending: bool) -> Instance:
    """Return the instance row without a waiting request; with `takes_pending`, the request may be an oversized one."""
    inst = inst.replace(load=inst.load - as_int(waits))
    if not takes_pending:
        return inst
    return inst.replace(num_oversized=inst.num_oversized - as_int(waits) * row.oversized)


def _freeing(
    ctx: Context,
    lane: Lane,
    task: MemoryTask,
    row: Resident,
    slot: jax.Array,
    instance: jax.Array,
    now: jax.Array,
    waits: jax.Array,
) -> tuple[Lane, MemoryTask]:
    """Return the lane and the memory task that free the blocks of a waiting request, if it holds any."""
    holds = waits & (row.alloc_offset > 0)
    if not ctx.shape.num_blocks:
        tripped = failing(lane.outcome, holds, Outcome.KV_CHECK_TRIPPED)
        return lane.replace(outcome=tripped), task
    release = jax.tree.map(jnp.zeros_like, task).replace(
        do=jnp.int32(Do.RELEASE),
        freed_slot=slot,
        freed_blocks=ceil_div(row.alloc_offset, ctx.shape.block_size),
    )
    storing = lane.replace(active=instance, mode=jnp.int32(Mode.STORED), now=now)
    return choose(holds, storing, lane), choose(holds, release, task)


def leaves_early(ctx: Context, state: State) -> jax.Array:
    """Return whether the member that leaves now leaves before its last token."""
    return state[Exits].leaving < ctx.shape.num_requests


def closed_early(ctx: Context, state: State, work: Work, closed: Work, is_over: jax.Array) -> Work:
    """Return the work after an early departure: the instance as it was before, which goes on with its step."""
    early = leaves_early(ctx, state)
    as_before = dataclasses.replace(work, lane=work.lane.replace(mode=jnp.int32(Mode.BETWEEN)))
    return choose(early & is_over, as_before, closed)


def after_leaving(
    ctx: Context, state: State, work: Work, instance: jax.Array, before: Instance
) -> ExitWrite:
    """Return who leaves early after this scan step, and who has left, once the instance is between steps again.

    `before` is the instance row at the start of the scan step.
    """
    exits = state[Exits]
    is_over, spare = work.lane.mode == Mode.BETWEEN, ctx.spare_request
    has_stepped = work.inst.step_index > before.step_index
    is_orphaned = ~has_stepped & (work.inst.is_idle > before.is_idle)
    return ExitWrite(
        leaving=jnp.where(is_over, spare, exits.leaving),
        request=jnp.where(is_over, exits.leaving, spare),
        step_index=work.inst.step_index,
        record=work.lane.num_records,
        instance=jnp.where(has_stepped | is_orphaned, instance, ctx.spare_instance),
        keeps_batch=jnp.where(is_orphaned, jnp.int32(ORPHANED), 0),
    )


# --- evicted for a request in the gateway's queue -------------------------------------------------


def victim_of(ctx: Context, state: State, now: jax.Array, gateway: jax.Array) -> jax.Array:
    """Return the least urgent sheddable request at the instances; of several, the one dispatched last; the spare
    request if there is none.

    Requests dispatched in one microsecond are ordered by number, in BLIS by its heap. Only requests that this gateway
    dispatched and that hold a slot count; where requests move, only those that wait or run on an instance now.
    """
    queue, rows, spare = state[GatewayQueue], ctx.shape.num_instances, ctx.spare_request
    band = ctx.params.cluster[QueueParams].priority[state.slot.numbers[Slot.SLO_CLASS, :rows]]
    request = state.slot.numbers[Slot.REQUEST, :rows]
    is_there = standing(ctx, state, now) if by_standing(ctx) else request != NO_REQUEST
    request = jnp.where(is_there, request, spare)
    is_there = is_there & (band < 0) & (state[Dispatches].place[request] == Place.DISPATCHED)
    is_there = ctx.gateways.of_own(is_there, gateway, request)
    is_there = is_there & ctx.pools.may_be_evicted(state, request)
    least = jnp.min(jnp.where(is_there, band, jnp.int32(LAST)))
    latest = jnp.max(jnp.where(is_there & (band == least), queue.turn[request], -1))
    return jnp.where(latest < 0, spare, queue.order[latest])


def with_victim(victims: QueueVictims, victim: jax.Array, now: jax.Array) -> QueueVictims:
    """Append a request to those to be given up at the end of this microsecond; the spare request changes nothing."""
    spare = jnp.int32(victims.order.shape[0] - 1)
    at = jnp.where(victim < spare, victims.num_chosen, spare)
    return QueueVictims(
        order=with_entry(victims.order, victim, at),
        num_chosen=victims.num_chosen + as_int(victim < spare),
        num_gone=victims.num_gone,
        due=jnp.where(victim < spare, now, victims.due),
    )


def evict(ctx: Context, state: State, now: jax.Array) -> Writes:
    """Evict the next chosen request from its instance; a request that is still on its way to the queue stays."""
    victims = state[QueueVictims]
    request = victims.order[victims.num_gone]
    is_kept = not ctx.mechanism.rules.has_order  # BLIS forgets a batch whose last member it evicts
    writes, is_there = give_up(ctx, state, request, now, keeps_batch=is_kept)
    left = victims.num_gone + 1
    spare = ctx.spare_request
    change = dataclasses.replace(
        writes[QueueWrite],
        request=jnp.stack([jnp.where(is_there, request, spare), spare, spare]),
        place=jnp.full((3,), Place.EVICTED, jnp.int32),
    )
    due = jnp.where(left < victims.num_chosen, victims.due, ctx.never)
    return writes.having(change, dataclasses.replace(victims, num_gone=left, due=due))

"""Requests that leave an instance before their end: the gateway evicts them, or their time is up.

One that waits leaves at once. One in the batch leaves like one that completes, but for its last token and its record,
and the step in progress goes on without it. A mechanism in which nobody gives up has nothing of this in its program.
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
    """Return when the next request is given up whose time is up, and which; of one microsecond, the one routed first.

    And where KV is reserved, whether its time was up before its KV came: then, as in BLIS, it is given up before the
    instance does anything.
    """
    rows, spare = ctx.shape.num_instances, ctx.spare_request
    request = state.slot.numbers[Slot.REQUEST, :rows]
    is_there = (request >= 0) & (state.slot.numbers[Slot.OVERSIZED, :rows] == 0)
    time = ctx.requests[RequestDeadlines].at[jnp.where(is_there, request, spare)]
    return ctx.pools.deadline(ctx, state, time, request, is_there)


def time_out(ctx: Context, state: State, now: jax.Array) -> Writes:
    """Let the request whose time is up begin to leave its instance."""
    request = next_deadline(ctx, state)[1]
    writes, _ = give_up(ctx, state, request, now, keeps_batch=False)
    change = writes[ExitWrite]
    runs = change.leaving < ctx.shape.num_requests
    left = jnp.where(runs, ctx.spare_request, request)
    change = dataclasses.replace(change, request=left, step_index=jnp.int32(-1))
    return writes.having(change)


def next_drop(ctx: Context, state: HasParts) -> tuple[jax.Array, jax.Array]:
    """Return when KV comes next to an instance that was told to go, and whose.

    Of one microsecond it is that whose transfer began first.
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
    """Give back KV that has come to an instance which was told to go, and drop its request."""
    request = next_drop(ctx, state)[1]
    writes, _ = give_up(ctx, state, request, now, keeps_batch=False)
    reservation = state[Reservations].of(request).replace(is_dropped=jnp.int32(1))
    journey = JourneyWrite(request, state[Journeys].of(request))
    return writes.having(journey, ReservationWrite(reservation))


def by_standing(ctx: Context) -> bool:
    """Return whether requests that are evicted may have moved before, which BLIS has no rule for."""
    mechanism = ctx.mechanism
    has_rule = mechanism.rules.turns_away  # its own autoscaler
    return mechanism.evicts_in_flight and mechanism.moves_requests and not has_rule


def standing(ctx: Context, state: State, now: jax.Array) -> Bool[Array, "instance slot"]:
    """Return the slots whose requests wait or run on an instance that is up and that none of them is about to leave."""
    stays, rows = active_instances(ctx, state), ctx.shape.num_instances
    if Availability in state:
        available = state[Availability]
        leaves = jnp.minimum(available.leave_at[:rows], available.stop_at[:rows])
        stays = stays & (leaves >= ctx.never)
    is_there = state.slot.numbers[Slot.REQUEST, :rows] != NO_REQUEST
    runs = state.slot.numbers[Slot.ORDER, :rows] != LAST
    return is_there & (runs | (queued_times(state, rows) < now)) & stays[:, None]


def is_orphan(state: State, work: Work, instance: jax.Array) -> jax.Array:
    """Return whether the step that begins finds no request, all having given up since.

    A batch whose last member was evicted is still there and makes an empty step, but in
    `blis-2026-08`. Where evicted requests may have moved, a step also counts that finds no request
    for another reason, as after an outage.
    """
    inst, now = work.inst, work.lane.now
    slots = SlotRows(state, instance)
    waits = jnp.any(waiting_mask(slots, now, steps_at(inst, now)))
    is_empty = (inst.num_prefill + inst.num_decode == 0) & ~waits & (inst.is_idle == 0)
    return is_empty & (state[Exits].keeps_batch[instance] != KEPT)


def idle(ctx: Context, state: State, work: Work, instance: jax.Array) -> Work:
    """Leave the scheduled step out; the instance waits for a request."""
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
    """Let the request begin to leave its instance; return the changes, and whether the request was there.

    A request on its way to the queue is not there, unless `takes_pending`.
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
    """The instance without a request that waits; one on its way may be too long for it."""
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
    """The lane in which the blocks of a request that waits are released, if it has any, and the task for that."""
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
    """Return whether the member that leaves now gives up before its end."""
    return state[Exits].leaving < ctx.shape.num_requests


def closed_early(ctx: Context, state: State, work: Work, closed: Work, is_over: jax.Array) -> Work:
    """Return the work after a member has left early: the instance as it was before, which goes on with its step."""
    early = leaves_early(ctx, state)
    as_before = dataclasses.replace(work, lane=work.lane.replace(mode=jnp.int32(Mode.BETWEEN)))
    return choose(early & is_over, as_before, closed)


def after_leaving(
    ctx: Context, state: State, work: Work, instance: jax.Array, before: Instance
) -> ExitWrite:
    """Return who leaves early after this scan step, and who has left, once its instance is between steps again.

    `before` is the instance before.
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
    """Return the least urgent sheddable request at the instances, of several the one dispatched last;
    the spare if none.

    Those dispatched in one microsecond come by their number; in BLIS, as its heap has them. Only the gateway's own are
    looked at, by their slots; where requests move, only those that stand somewhere now.
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
    """Add a request to those that are to be given up at the end of this microsecond; the spare one changes nothing."""
    spare = jnp.int32(victims.order.shape[0] - 1)
    at = jnp.where(victim < spare, victims.num_chosen, spare)
    return QueueVictims(
        order=with_entry(victims.order, victim, at),
        num_chosen=victims.num_chosen + as_int(victim < spare),
        num_gone=victims.num_gone,
        due=jnp.where(victim < spare, now, victims.due),
    )


def evict(ctx: Context, state: State, now: jax.Array) -> Writes:
    """Let an instance give up the next request that was chosen; a request on its way to the queue stays."""
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

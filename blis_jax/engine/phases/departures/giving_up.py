"""Requests that leave an instance before their end: the gateway evicts them, or their time is up.

One that waits leaves at once. One in the batch leaves like one that completes, but for its last token and its record,
and the step in progress goes on without it. A mechanism in which nobody gives up has nothing of this in its program.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp

from blis_jax.core.block_counts import ceil_div
from blis_jax.core.columns import as_int, choose
from blis_jax.core.outcome import Outcome
from blis_jax.core.types import LAST, NO_REQUEST
from blis_jax.engine.calendar import next_deadline
from blis_jax.engine.context import Context, SlotRows
from blis_jax.engine.gateway.exits import KEPT, ORPHANED, ExitWrite, no_exit
from blis_jax.engine.phases.departures.stops import leaves_early
from blis_jax.engine.phases.router_view.snapshot import active_instances
from blis_jax.engine.phases.steps.mid_step import (
    Work,
    chains_of,
    failing,
    steps_at,
    take_chain,
    waiting_mask,
    with_chains,
)
from blis_jax.engine.phases.steps.step_end import next_event
from blis_jax.engine.state import Instance, Lane, Mode, Resident, Slot, State
from blis_jax.engine.tables.joined import place_of, queued_times
from blis_jax.engine.tables.slot_write import no_slot
from blis_jax.engine.tables.writes import Writes, no_writes
from blis_jax.memory.block_tables.blocks import Do, MemoryTask
from blis_jax.policies.routing.pickers import first_where

if TYPE_CHECKING:
    from jaxtyping import Array, Bool


def time_out(ctx: Context, state: State, now: jax.Array) -> Writes:
    """The request whose time is up begins to leave its instance."""
    request = next_deadline(ctx, state)[1]
    writes, _ = give_up(ctx, state, request, now, keeps_batch=False)
    change = writes.exits
    assert change is not None
    runs = change.leaving < ctx.shape.num_requests
    left = jnp.where(runs, jnp.int32(ctx.shape.num_requests), request)
    change = dataclasses.replace(change, request=left, step_index=jnp.int32(-1))
    return dataclasses.replace(writes, exits=change)


def by_standing(ctx: Context) -> bool:
    """Whether those that are evicted may have moved, which BLIS has no rule for."""
    mechanism = ctx.mechanism
    has_rule = mechanism.rules.turns_away  # its own autoscaler
    return mechanism.evicts_in_flight and mechanism.moves_requests and not has_rule


def standing(ctx: Context, state: State, now: jax.Array) -> Bool[Array, "instance slot"]:
    """Slots whose requests wait or run on an instance that is up and that none of them is about to leave."""
    movement, rows = state.movement, ctx.shape.num_instances
    assert movement is not None  # there is one where requests move
    leaves = jnp.minimum(movement.leave_at[:rows], movement.stop_at[:rows])
    stays = active_instances(ctx, state) & (leaves >= ctx.never)
    is_there = state.slot[Slot.REQUEST, :rows] != NO_REQUEST
    runs = state.slot[Slot.ORDER, :rows] != LAST
    return is_there & (runs | (queued_times(state, rows) < now)) & stays[:, None]


def is_orphan(ctx: Context, state: State, work: Work, instance: jax.Array) -> jax.Array | None:
    """Whether the step that begins finds nobody: all have given up since it was scheduled. None where nobody does.

    A batch whose last member was evicted is still there and makes an empty step, but in `blis-2026-08`. Where evicted
    requests may have moved, so does one that finds nobody for another reason, as after an outage.
    """
    if state.exits is None or (by_standing(ctx) and ctx.requests.deadline is None):
        return None
    inst, now = work.inst, work.lane.now
    slots = SlotRows(state, instance)
    waits = jnp.any(waiting_mask(slots, now, steps_at(inst, now)))
    is_empty = (inst.num_prefill + inst.num_decode == 0) & ~waits & (inst.is_idle == 0)
    return is_empty & (state.exits.keeps_batch[instance] != KEPT)


def idle(ctx: Context, state: State, work: Work, instance: jax.Array) -> Work:
    """The scheduled step is left out, and the instance waits for a request."""
    slots, inst = SlotRows(state, instance), work.inst
    chains, _ = take_chain(chains_of(inst), work.lane.now, jnp.int32(0), ctx.never)
    event = next_event(ctx, slots, jnp.array(True), chains, jnp.int32(-1), inst.busy_until)
    inst = with_chains(inst, chains).replace(is_idle=jnp.int32(1), event=event)
    return dataclasses.replace(work, inst=inst)


def give_up(
    ctx: Context, state: State, request: jax.Array, now: jax.Array, *, keeps_batch: bool
) -> tuple[Writes, jax.Array]:
    """The request begins to leave its instance, and whether it was there: one on its way to the queue is not."""
    instance = place_of(state, request)
    slots, nothing = SlotRows(state, instance), no_writes(ctx, state, instance)
    is_it = slots.request == request
    slot = jnp.minimum(first_where(is_it), jnp.int32(ctx.shape.num_slots - 1))
    row, inst = slots.one(ctx, slot), nothing.inst
    runs = jnp.any(is_it) & (row.order != LAST)
    waits = jnp.any(is_it) & ~runs & _has_come(ctx, row, now)
    is_idle, chains = inst.is_idle == 1, chains_of(inst)
    event = next_event(ctx, slots, is_idle, chains, slot, inst.busy_until)
    lane, spare = nothing.lane, jnp.int32(ctx.shape.num_instances)
    began = lane.replace(
        active=instance,
        mode=jnp.int32(Mode.COMPLETING),
        num_to_complete=jnp.int32(1),
        now=now,
        duration=jnp.zeros((), now.dtype),
    )
    lane = choose(runs, began, lane)
    no_one = jnp.int32(ctx.shape.num_requests)
    leaver = jnp.where(waits, request, no_one)
    written = dataclasses.replace(
        no_slot(ctx),
        instance=jnp.where(waits, instance, spare),
        slot=slot,
        memory=ctx.memory.rows_of_quitter(ctx, state, leaver),
        request=leaver,
        past=ctx.past(state, request),
    )
    task = nothing.task
    if _may_hold(ctx):
        lane, task = _freeing(ctx, lane, task, row, slot, instance, now, waits)
    change = no_exit(state.exits)
    is_last = runs & (inst.num_prefill + inst.num_decode == 1)
    if keeps_batch and by_standing(ctx):
        is_last = is_last | waits
    change = dataclasses.replace(
        change,
        leaving=jnp.where(runs, request, no_one),
        instance=jnp.where(is_last, instance, spare),
        keeps_batch=jnp.int32(KEPT if keeps_batch else 0),
    )
    return dataclasses.replace(
        nothing,
        lane=lane.replace(last_event=now),
        task=task,
        instance=jnp.where(waits, instance, spare),
        inst=inst.replace(load=inst.load - as_int(waits), event=event),
        slot=written,
        exits=change,
    ), runs | waits


def _has_come(ctx: Context, row: Resident, now: jax.Array) -> jax.Array:
    """Whether a request has come to the queue; one whose KV comes in this microsecond has."""
    has_come = row.queued < now
    if not ctx.mechanism.reserves_decode:
        return has_come
    # ranks of those that come with their KV are below all others
    return has_come | ((row.queued == now) & (row.queue_rank < ctx.shape.num_requests))


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


def _may_hold(ctx: Context) -> bool:
    """Whether a request that waits may hold blocks: KV that came, or what an allocation that failed has left."""
    return ctx.shape.has_mirror or ctx.mechanism.reserves_decode


def closed_early(ctx: Context, state: State, work: Work, closed: Work, is_over: jax.Array) -> Work:
    """The work once a member has left early: the instance is as it was, and goes on with its step."""
    early = leaves_early(ctx, state)
    if early is None:
        return closed
    as_before = dataclasses.replace(work, lane=work.lane.replace(mode=jnp.int32(Mode.BETWEEN)))
    return choose(early & is_over, as_before, closed)


def after_leaving(
    ctx: Context, state: State, work: Work, instance: jax.Array, before: Instance
) -> ExitWrite | None:
    """Who leaves early after this scan step; and one that has left, once its instance is between steps again.

    `before` is the instance before.
    """
    exits = state.exits
    if exits is None:
        return None
    is_over, spare = work.lane.mode == Mode.BETWEEN, jnp.int32(ctx.shape.num_requests)
    has_stepped = work.inst.step_index > before.step_index
    is_orphaned = ~has_stepped & (work.inst.is_idle > before.is_idle)
    return ExitWrite(
        leaving=jnp.where(is_over, spare, exits.leaving),
        request=jnp.where(is_over, exits.leaving, spare),
        step_index=work.inst.step_index,
        record=work.lane.num_records,
        instance=jnp.where(has_stepped | is_orphaned, instance, jnp.int32(ctx.shape.num_instances)),
        keeps_batch=jnp.where(is_orphaned, jnp.int32(ORPHANED), 0),
    )

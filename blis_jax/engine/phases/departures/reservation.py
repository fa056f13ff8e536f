"""Prefill and decode parts as in BLIS's revision of August 2026: KV is reserved where the tokens will be made.

At its routing a request gets the instance that makes its tokens. If its prompt is computed elsewhere, a second routing
in the same microsecond finds the prefill instance. The transfer begins when the last step of the prompt begins; from
then on the decode instance holds blocks for the whole prompt, and if it has no room, the request is dropped. When the
transfer has ended, the request waits in the queue of the decode instance; if that was told to shut down before, the
request is dropped. A mechanism without `reserves_decode` has none of this in its program.
"""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from blis_jax.core.columns import apart, as_int, choose, put
from blis_jax.core.exact import ceil_div
from blis_jax.core.outcome import Outcome
from blis_jax.core.types import ENCODE, LAST, NO_REQUEST
from blis_jax.engine.phases.policy_calls import request_view, route_by_cluster
from blis_jax.engine.phases.snapshot import active_instances, in_pool
from blis_jax.engine.writing import no_writes
from blis_jax.memory.block_tables.contents import nothing_found
from blis_jax.memory.memory import Choice, Demand, Subject, Visit
from blis_jax.policies.contexts import GatewayContext, HandOver, HandOverContext
from blis_jax.policies.reading import seen_by
from blis_jax.policies.routing.pickers import first_where
from blis_jax.policies.seeds import RandomSource
from blis_jax.tables.blocks import Asker, Do
from blis_jax.tables.context import (
    Context,
    SlotRows,
    count_of,
    decision_key,
    failing,
    waking_time,
)
from blis_jax.tables.gateways import States
from blis_jax.tables.joined import EXPECTED, INSTANCE_OF, instance_of
from blis_jax.tables.journeys import Availability, Dismissals, Journeys, Reservations, Transfers
from blis_jax.tables.requests import Media, PartRank, PartRanks, Request
from blis_jax.tables.state import Instance, Mode, Past, Resident, State
from blis_jax.tables.writes import JourneyWrite, ReservationWrite, SlotWrite, Writes, free_slot

if TYPE_CHECKING:
    from blis_jax.core.groups import Rows
    from blis_jax.engine.phases.decisions import Decisions, Routed


# --- routing --------------------------------------------------------------------------------------


def in_role(context: GatewayContext, is_decode: jax.Array) -> GatewayContext:
    """Return the context in which only the instances of one pool are active: the decode pool if
    `is_decode`, else prefill.
    """
    seen = context.snapshots
    is_mine = in_pool(seen.is_active, seen.role, is_decode)
    snapshots = dataclasses.replace(seen, is_active=is_mine)
    return dataclasses.replace(context, snapshots=snapshots, is_decode=is_decode)


def encoded(
    ctx: Context, state: State, gateway: States, request: jax.Array, context: GatewayContext
) -> States:
    """Return the policies' states after a request with media has been routed in the encode pool.

    The routing takes no time and changes nothing but the state of the cluster's router.
    """
    decider = ctx.params.policy.hand_over.encodes
    has_media = ctx.requests[Media].has_some[request] == 1
    wants = (decider > 1) | ((decider > 0) & has_media)
    seen, target = context.snapshots, state[Reservations].of(request).target
    is_there = active_instances(ctx, state) & (seen.role == ENCODE)
    among = dataclasses.replace(context, snapshots=dataclasses.replace(seen, is_active=is_there))
    _, after = route_by_cluster(ctx, gateway, among, request)
    is_asked = wants & (target < 0)
    states: States = choose(is_asked, after, gateway)
    return states


def or_split(
    ctx: Context,
    state: State,
    base: Decisions,
    placed: Decisions,
    routed: Routed,
) -> Decisions:
    """Place the request on the chosen instance, or mark it for a second routing if its prompt is computed elsewhere."""
    request, chosen, now, context = routed
    policy, _ = ctx.mechanism.at_gateway("hand_over")
    assert policy.splits is not None  # the profile's policy has it
    wants = policy.splits(ctx.params.policy.hand_over, seen_by(policy, context), chosen)
    is_split = context.is_decode & wants
    reservation = state[Reservations].of(request).replace(target=chosen)
    journey = state[Journeys].of(request).replace(due=now)
    done = choose(is_split, base, placed)
    written = JourneyWrite(jnp.where(is_split, request, ctx.spare_request), journey)
    return done.having(written, ReservationWrite(reservation))


def ranks_in_queue(
    ctx: Context, request: jax.Array, is_whole: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Return a request's rank among those of one arrival, and its rank among those queued in one microsecond.

    In one microsecond, requests that come with their KV are first, in the order of their transfers; then whole
    requests, then prefill parts.
    """
    row = ctx.requests[PartRanks].table[request]
    tie = jnp.where(is_whole, row[PartRank.WHOLE], row[PartRank.PREFILL])
    count = jnp.int32(ctx.shape.num_requests)
    return tie, request + count + count * (1 - as_int(is_whole))


# --- the transfer ---------------------------------------------------------------------------------


def _transfer_time(
    ctx: Context, state: State, request: jax.Array, instance: jax.Array, now: jax.Array
) -> jax.Array:
    (policy, place), reserved = ctx.mechanism.at_gateway("hand_over"), state[Reservations]

    def count(so_far: jax.Array, rows: Rows) -> jax.Array:
        ends = rows.take(reserved.times)[:, 0]
        return so_far + count_of((ends > now) & (ends < ctx.never) & rows.is_in)

    others = ctx.over(reserved.last_end > now, count, jnp.int32(0))
    context = HandOverContext(
        request=request_view(ctx, request),
        instance=instance,
        is_up=active_instances(ctx, state),
        role=ctx.params.cluster.roles,
        now_us=now,
        key=decision_key(ctx, RandomSource.HAND_OVER, request),
        num_transfers=others + 1,
    )
    decision: HandOver
    decision, _ = policy.ask(ctx.params.policy.hand_over, state.gateway[place], context)
    return decision.delay_us


def _reserved_row(
    ctx: Context, request: jax.Array, fixed: Request, turn: jax.Array, ends: jax.Array
) -> Resident:
    """Return the slot row of a request whose KV arrives at `ends`, as the `turn`-th transfer."""
    return Resident.make(
        ctx.clock,
        request=request,
        order=LAST,
        finish=LAST,
        alloc_offset=0,
        slo_class=fixed.slo_class,
        input_len=fixed.input_len,
        tenant=fixed.tenant,
        tie_rank=ctx.requests[PartRanks].table[request, PartRank.DECODE],
        queue_rank=turn,
        after_steps=-1,
        oversized=0,
        expected_blocks=0,
        queued=ends,
        arrival=ctx.requests.arrival[request],
    )


def begin_transfer(ctx: Context, state: State, request: jax.Array, now: jax.Array) -> Writes:
    """Give a request whose prompt is computed a slot on its decode instance, or drop it if its KV does not fit."""
    cluster, fixed = ctx.params.cluster, ctx.request(request)
    reservation = state[Reservations].of(request)
    instance = reservation.target
    inst, slots = instance_of(ctx, state, instance), SlotRows(state, instance)
    needed = ceil_div(fixed.input_len, ctx.shape.block_size)
    fits = needed <= cluster.total_kv_blocks[instance] - inst.used_blocks
    if ctx.shape.has_mirror:  # what comes back from the CPU may be shared; `store` decides
        fits = jnp.ones_like(fits)
    if Dismissals in state:
        fits = fits & (state[Availability].is_up[instance] == 1)
    delay = _transfer_time(ctx, state, request, instance, now)
    duration = ctx.truncated(jnp.asarray(delay, jnp.float64))
    ends, turn = now + duration, state[Transfers].num_begun
    free = first_where(slots.request == NO_REQUEST)
    row = _reserved_row(ctx, request, fixed, turn, ends)
    nothing = no_writes(ctx, state, instance)
    lane = nothing.lane
    outcome = failing(lane.outcome, fits & (free >= LAST), Outcome.SLOTS_FULL)
    is_beyond = ctx.is_beyond(now, delay)
    slot = ctx.existing_slot(free)
    storing = lane.replace(
        outcome=failing(outcome, fits & is_beyond, Outcome.CLOCK_OVERFLOW),
        mode=jnp.int32(Mode.STORING),
        active=instance,
        cursor=slot,
        now=now,
        last_event=now,
    )
    where = jnp.where(fits, instance, ctx.spare_instance)
    journey = (
        state[Journeys]
        .of(request)
        .replace(due=ctx.never, transfer=jnp.where(fits, duration, jnp.zeros_like(duration)))
    )
    reservation = reservation.replace(
        turn=turn, is_dropped=as_int(~fits), ends=jnp.where(fits, ends, ctx.never)
    )
    changes = JourneyWrite(request, journey), ReservationWrite(reservation), Transfers(turn + 1)
    routed = jnp.where(fits, request, ctx.spare_request)
    slot_write = dataclasses.replace(nothing.slot, instance=where, slot=slot, row=row)
    if state.past.is_joined:  # the request's row has its place in it
        before = apart(ctx.past(state, request).numbers)
        past = Past(put(before, {INSTANCE_OF: instance, EXPECTED: jnp.int32(0)}))
        slot_write = dataclasses.replace(slot_write, request=routed, past=past)
    return dataclasses.replace(
        nothing.having(*changes),
        lane=choose(fits, storing, lane.replace(last_event=now)),
        routed=routed,
        routed_to=jnp.where(fits, instance, ctx.spare_instance),
        instance=where,
        inst=inst if ctx.shape.has_mirror else inst.replace(**_awaiting(ctx, inst, ends)),
        slot=slot_write,
    )


def _awaiting(ctx: Context, inst: Instance, ends: jax.Array) -> dict[str, jax.Array]:
    """Return the fields of an instance that change when it awaits one more request, whose KV arrives at `ends`."""
    event = jnp.minimum(inst.event, waking_time(ctx, ends, inst.busy_until))
    return {"load": inst.load + 1, "event": jnp.where(inst.is_idle == 1, event, inst.event)}


def store(ctx: Context, state: State, instance: jax.Array) -> Writes:
    """Allocate blocks for the whole prompt, without a prefix look-up; the lane goes on when they are allocated.

    With August's CPU tier, the blocks of the prompt that it holds come back first and are shared; if there is no room
    after that, the request is dropped.
    """
    nothing = no_writes(ctx, state, instance)
    work = nothing.work
    asks = nothing.lane.mode == Mode.STORING
    if ctx.shape.has_mirror:
        asks = asks | ctx.memory.does(work, Do.ATTEMPT)
    return ctx.when(
        asks,
        lambda: _stored(ctx, state, nothing, instance),
        lambda: _after_storing(ctx, nothing),
    )


def released(ctx: Context, state: State, instance: jax.Array) -> Writes:
    """Return the writes in which the lane goes on once a departed request's blocks are free."""
    return _after_storing(ctx, no_writes(ctx, state, instance))


def _after_storing(ctx: Context, nothing: Writes) -> Writes:
    work = nothing.work
    is_over = ctx.memory.does(work, Do.NOTHING)
    changes: dict[str, Any] = {}
    if ctx.shape.has_mirror:  # the request that had no room is dropped already
        fails = ctx.memory.does(work, Do.FAILED)
        task, pool = work.task, work.pool
        missed = as_int(fails & (task.has_reloaded == 0))
        missed = jnp.where(ctx.params.cluster.kv_cpu_blocks[work.lane.active] > 0, missed, 0)
        changes = {
            "instance": jnp.where(fails, work.lane.active, nothing.instance),
            "task": task.replace(do=jnp.where(fails, jnp.int32(Do.NOTHING), task.do)),
            "pool": pool.replace(cpu_misses=pool.cpu_misses + missed),
        }
        is_over = is_over | fails
    mode = jnp.where(is_over, jnp.int32(Mode.BETWEEN), nothing.lane.mode)
    return dataclasses.replace(nothing, lane=nothing.lane.replace(mode=mode), **changes)


def _stored(ctx: Context, state: State, nothing: Writes, instance: jax.Array) -> Writes:
    memory, work, yes = ctx.memory, nothing.work, jnp.array(True)
    emptied = jax.tree.map(jnp.zeros_like, work.task)
    if ctx.shape.has_mirror:
        emptied = choose(memory.does(work, Do.ATTEMPT), work.task, emptied)
    work = dataclasses.replace(work, task=emptied)
    subject = memory.subject(
        ctx, state, work, Choice(instance, work.lane.cursor, jnp.int32(Asker.QUEUE), _priority(ctx))
    )
    tokens, hits = subject.fixed.input_len, nothing_found()
    if ctx.shape.has_mirror:  # something has come back
        look = partial(memory.look_up, ctx, state, work, subject)
        hits = ctx.when(subject.is_forced, look, nothing_found)
    demand = Demand(yes, jnp.int32(0), tokens, jnp.int32(0), hits)
    grant = memory.allocate(ctx, state, work, subject, demand)
    has_room = grant.is_granted if ctx.shape.has_mirror else yes
    visit = Visit(yes, has_room, tokens, jnp.int32(0), jnp.array(False), tokens, jnp.array(False))
    rows = memory.rows_of_stored(memory.rows_of_visit(ctx, state, work, subject, grant, visit))
    done = grant.on(work, lane={"mode": jnp.int32(Mode.STORED)}, inst={})
    row = subject.row.replace(alloc_offset=grant.held)
    stored = dataclasses.replace(
        nothing,
        lane=done.lane,
        instance=instance,
        inst=done.inst,
        task=done.task,
        pool=done.pool,
        slot=SlotWrite(instance, subject.slot, row, rows, subject.request, subject.past),
    )
    return _or_dropped(ctx, state, stored, subject, has_room) if ctx.shape.has_mirror else stored


def _or_dropped(
    ctx: Context, state: State, stored: Writes, subject: Subject, has_room: jax.Array
) -> Writes:
    """Return the writes in which the instance awaits the request, or the request is dropped for want of room.

    Blocks that a dropped request shares by then stay held for ever, as in BLIS.
    """
    is_dropped = ~has_room & (stored.task.do != Do.RELOAD)
    reservation, journey = (
        state[Reservations].of(subject.request),
        state[Journeys].of(subject.request),
    )
    inst = stored.inst
    none, spare = jnp.zeros_like(journey.transfer), ctx.spare_request
    request = jnp.where(is_dropped, subject.request, spare)
    dropped = reservation.replace(is_dropped=jnp.int32(1), ends=ctx.never)
    changes = JourneyWrite(request, journey.replace(transfer=none)), ReservationWrite(dropped)
    awaiting = _awaiting(ctx, inst, subject.row.queued)
    waits = {
        name: jnp.where(has_room, value, getattr(inst, name)) for name, value in awaiting.items()
    }
    rows = ctx.memory.rows_of_leaver(ctx, subject.request)
    left = dataclasses.replace(stored.slot, row=free_slot(ctx), memory=rows)
    return dataclasses.replace(
        stored.having(*changes),
        inst=inst.replace(**waits),
        slot=choose(is_dropped, left, stored.slot),
    )


def _priority(ctx: Context) -> jax.Array | None:
    """Return a placeholder for the priority, which is set when the request joins the batch."""
    return jnp.float64(0.0) if ctx.memory.keeps_priority else None

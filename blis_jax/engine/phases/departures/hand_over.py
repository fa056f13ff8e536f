"""Hand-overs: a request whose prompt is computed moves on with its KV, and goes on elsewhere after a transfer.

The hand-over policy is asked in the step that makes a request's first token. If the request moves, that step is its
last one on the instance, and its blocks are free again when the step has ended. Transfers that share an instance's link
are slower by their number at the start. When the transfer has ended, the gateway routes the request again. The step in
which it joins the new batch costs one decode token, stores its whole prompt, and makes its next token. A mechanism
without hand-overs has nothing of this in its compiled program.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from blis_jax.core.columns import as_int
from blis_jax.engine.context import Context, SlotRows
from blis_jax.engine.phases.policy_calls import decision_key, request_view
from blis_jax.engine.phases.router_view.snapshot import active_instances
from blis_jax.engine.phases.steps.mid_step import Work
from blis_jax.engine.state import Past, State
from blis_jax.engine.tables.joined import places_of
from blis_jax.engine.tables.journeys import Journey, Movement
from blis_jax.engine.tables.slot_write import SlotWrite
from blis_jax.memory.kept_output import num_kept, with_kept
from blis_jax.memory.memory import Subject, Visit
from blis_jax.policies.contract import HandOver, HandOverContext
from blis_jax.policies.seeds import RandomSource


def _movement(state: State) -> Movement:
    assert state.movement is not None  # there is one where requests move
    return state.movement


def _with_journey(state: State, work: Work, request: jax.Array, journey: Journey) -> Work:
    assert work.movement is not None
    change = dataclasses.replace(work.movement, request=request, journey=journey)
    if change.reservation is not None:
        kept = _movement(state).reservation(request)
        change = dataclasses.replace(change, reservation=kept)
    return dataclasses.replace(work, movement=change)


def comes_with_kv(ctx: Context, state: State, one: Subject) -> jax.Array:
    """Whether the request heads the queue and its KV has been transferred here."""
    if ctx.mechanism.hand_over is None:
        return jnp.array(False)
    return one.is_queued & (_movement(state).of(one.request).computed > 0)


def ask(
    ctx: Context, state: State, work: Work, one: Subject, visit: Visit
) -> tuple[jax.Array, Work]:
    """Whether the visited request moves on after this step; and the work with what is remembered of that."""
    policy = ctx.mechanism.hand_over
    if policy is None:
        return jnp.array(False), work
    journey = _movement(state).of(one.request)
    if ctx.mechanism.reserves_decode:
        return _prefill_done(ctx, state, work, one, visit, journey)
    view = request_view(ctx, one.request)
    context = HandOverContext(
        request=with_kept(view, num_kept(ctx, state, one.request)),
        instance=one.instance,
        is_up=active_instances(ctx, state),
        role=ctx.params.cluster.roles,
        now_us=work.lane.now,
        key=decision_key(ctx, RandomSource.HAND_OVER, one.request),
    )
    place = ctx.mechanism.of_gateway.index(policy)
    decision: HandOver
    decision, after = policy.ask(ctx.params.policy.hand_over, work.gateway[place], context)
    is_asked = visit.gains & ~one.has_token & ~visit.comes & (journey.first_record < 0)
    is_asked = is_asked & (one.fixed.output_len > 1)
    moves = is_asked & decision.moves
    states = jax.tree.map(
        lambda new, old: jnp.where(is_asked, new, old), after, work.gateway[place]
    )
    gateway = (*work.gateway[:place], states, *work.gateway[place + 1 :])
    delay, link = (
        jnp.asarray(one).astype(ctx.clock) for one in (decision.delay_us, decision.link_us)
    )
    joins = visit.comes & visit.is_granted
    # one that was evicted in the step that would have moved it may be asked for again where it stays
    stays = jnp.where(is_asked, ctx.never, journey.delay)
    journey = journey.replace(
        delay=jnp.where(moves, delay, stays),
        link=jnp.where(moves, link, journey.link),
        joined_record=jnp.where(joins, work.lane.num_records, journey.joined_record),
        joins=journey.joins + as_int(joins),
        computed=jnp.where(joins, 0, journey.computed),
    )
    return moves, _with_journey(
        state, dataclasses.replace(work, gateway=gateway), one.request, journey
    )


def _prefill_done(
    ctx: Context, state: State, work: Work, one: Subject, visit: Visit, journey: Journey
) -> tuple[jax.Array, Work]:
    """`ask` where it was settled at the routing: a prefill part leaves once its prompt is computed."""
    is_prefill = (_movement(state).reservation(one.request).target >= 0) & (journey.came_from < 0)
    moves = is_prefill & visit.gains
    joins = visit.comes & visit.is_granted
    journey = journey.replace(
        delay=jnp.where(moves, jnp.zeros_like(journey.delay), journey.delay),
        joined_record=jnp.where(joins, work.lane.num_records, journey.joined_record),
        joins=journey.joins + as_int(joins),
        computed=jnp.where(joins, 0, journey.computed),
    )
    return moves, _with_journey(state, work, one.request, journey)


def starts_over(ctx: Context, state: State, one: Subject) -> jax.Array | None:
    """Whether the request heads the queue of its decode instance again, which has evicted it; None if none can."""
    if not ctx.mechanism.reserves_decode:
        return None
    journey = _movement(state).of(one.request)
    has_come = (_movement(state).reservation(one.request).target >= 0) & (journey.came_from >= 0)
    return one.is_queued & has_come & (journey.computed == 0)


def has_last_token(ctx: Context, state: State, one: Subject) -> jax.Array | None:
    """Whether the request needs no room for a last token: it came with its KV, and one token is all it makes."""
    if not ctx.mechanism.reserves_decode:
        return None
    journey = _movement(state).of(one.request)
    has_joined = (journey.joins > 0) & (journey.joined_record == one.past.scheduled_record)
    return has_joined & (one.fixed.output_len <= 1)


def leaves_after(
    ctx: Context, state: State, work: Work, slots: SlotRows, visited: jax.Array
) -> jax.Array:
    """Slots whose request moves on when its last step here has ended; `visited` marks the one just visited."""
    spare = jnp.int32(ctx.shape.num_requests)
    request = jnp.where(slots.request < 0, spare, slots.request)
    delay = Journey(None, _movement(state).journey_time[request]).delay
    if work.movement is not None:
        delay = jnp.where(visited, work.movement.journey.delay, delay)
    return delay < ctx.never


def num_moving(
    ctx: Context, state: State, work: Work, slots: SlotRows, visited: jax.Array, done: jax.Array
) -> jax.Array:
    """Members whose last step here this was and that go on elsewhere."""
    if ctx.mechanism.hand_over is None:
        return jnp.int32(0)
    return jnp.sum(done & leaves_after(ctx, state, work, slots, visited), dtype=jnp.int32)


def is_moving(ctx: Context, state: State, one: Subject) -> jax.Array:
    """Whether the request that gives up its place moves on instead of having completed."""
    if ctx.mechanism.hand_over is None:
        return jnp.array(False)
    return _movement(state).of(one.request).delay < ctx.never


def moved_on(
    ctx: Context, state: State, work: Work, one: Subject, moves: jax.Array
) -> tuple[Work, Past]:
    """The journey and the request's row once it has left; a request that completes has its last record there."""
    lane = work.lane
    past = one.past.replace(finish_record=jnp.where(moves, 0, lane.num_records))
    if ctx.mechanism.hand_over is None:
        return work, past
    journey = _movement(state).of(one.request)
    start = lane.now if ctx.mechanism.reserves_decode else lane.now + lane.duration
    if ctx.mechanism.reserves_decode:  # its transfer is about to begin
        transfer = jnp.zeros_like(start)
    else:
        others = _num_on_link(ctx, state, one.instance, start).astype(ctx.clock)
        transfer = jnp.where(moves, journey.delay + others * jnp.where(moves, journey.link, 0), 0)
    is_first = journey.came_from < 0
    journey = journey.replace(
        came_from=jnp.where(moves & is_first, one.instance, journey.came_from),
        computed=jnp.where(moves, one.fixed.input_len, journey.computed),
        first_record=jnp.where(moves, past.token_record, journey.first_record),
        scheduled_record=jnp.where(moves, past.scheduled_record, journey.scheduled_record),
        due=jnp.where(moves, start + transfer, journey.due),
        transfer=jnp.where(moves, transfer, journey.transfer),
        delay=jnp.where(moves, ctx.never, journey.delay),
        ended=journey.ended + as_int(moves),
    )
    return _with_journey(state, work, one.request, journey), past


def _num_on_link(ctx: Context, state: State, instance: jax.Array, start: jax.Array) -> jax.Array:
    """Transfers from the instance that are under way at this time."""
    movement = _movement(state)
    times, columns = movement.journey_time[:-1], Journey.time_columns
    due = times[:, columns.DUE]
    has_kv = movement.journey[:-1, Journey.columns.COMPUTED] > 0
    is_on = (due > start) & (due < ctx.never) & has_kv & (places_of(state)[:-1] == instance)
    return jnp.sum(is_on, dtype=jnp.int32)


def has_completed(ctx: Context, written: SlotWrite, leaves: jax.Array) -> jax.Array:
    """Whether a request that gives up its place has completed."""
    if not ctx.mechanism.moves_requests:
        return leaves
    return leaves & (written.past.finish_record > 0)

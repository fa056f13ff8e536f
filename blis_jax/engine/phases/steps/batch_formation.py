"""Batch formation: how many tokens a member of the batch or a waiting request gets in a step.

A step begins in `step_start.py`, visits one request at a time here, and ends in `step_end.py`, once the token budget,
the batch limit or the candidates run out. Running prefills come first in batch order, then waiting requests in the
scheduler's order. Members in decode take one token each and are counted, not visited, unless the memory model asks for
a visit, or the budget might not reach all of them. Memory grants or refuses the blocks for the tokens; the rest of a
visit is the same for all memory models, see `memory/memory.py`.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from blis_jax.core.columns import as_int, choose
from blis_jax.core.types import LAST
from blis_jax.engine.phases.departures.hand_over import answer_len
from blis_jax.engine.phases.policy_calls import keeps_states, queue_context
from blis_jax.engine.phases.router_view import asked_of_queue
from blis_jax.memory.block_tables.contents import Found
from blis_jax.memory.memory import Choice, Demand, Grant, Subject, Visit
from blis_jax.policies.contract import OverStep, PolicyStates
from blis_jax.policies.seeds import RandomSource
from blis_jax.tables.blocks import Asker
from blis_jax.tables.context import Context, SlotRows, Work, least_key, slot_of, waiting_mask
from blis_jax.tables.requests import Request
from blis_jax.tables.state import RUNAWAY, Past, Resident, State, StepInProgress
from blis_jax.tables.writes import SlotWrite

if TYPE_CHECKING:
    from jaxtyping import Array, Bool


def serve(
    ctx: Context,
    state: State,
    work: Work,
    instance: jax.Array,
) -> tuple[Work, SlotWrite]:
    """Serve the next candidate, or retry the one whose allocation failed before."""
    memory, hand_overs = ctx.memory, ctx.pools.steps
    subject = memory.subject(ctx, state, work, next_candidate(ctx, state, work, instance))
    cached = memory.look_up(ctx, state, work, subject)
    comes = hand_overs.comes_with_kv(ctx, state, subject)
    wanted = _demand(ctx, work, subject, cached, comes)
    wanted = hand_overs.demanded(ctx, state, subject, wanted, comes)
    demand = memory.remembered(work, subject, wanted)
    grant = memory.allocate(ctx, state, work, subject, demand)
    visit = ctx.worked_out(lambda: _visit(ctx, subject, demand, grant, comes))
    moves, work = hand_overs.ask(ctx, state, work, subject, visit)
    rows = memory.rows_of_visit(ctx, state, work, subject, grant, visit)
    past = _past(ctx, work, subject, demand, visit)
    row = _row(ctx, work, subject, grant, visit, moves)
    work = _counted(ctx, work, subject, grant, visit)
    for hook in ctx.hooks:
        work = hook.visited(ctx, state, work, subject, visit)
    return work, SlotWrite(instance, subject.slot, row, rows, subject.request, past)


def chunk_of(
    ctx: Context, budget: jax.Array, fixed: Request, progress: jax.Array, instance: jax.Array
) -> jax.Array:
    """Return the prompt tokens of the next chunk: the rest, limited by the class's threshold and the budget."""
    slo_class = fixed.slo_class
    threshold = ctx.params.cluster.prefill_threshold[instance, slo_class]
    remaining = fixed.input_len - progress
    is_cut = (threshold > 0) & (threshold < remaining)
    return jnp.minimum(jnp.where(is_cut, threshold, remaining), budget)


def _demand(ctx: Context, work: Work, subject: Subject, found: Found, comes: jax.Array) -> Demand:
    """Return the request's demand: a chunk of its prompt behind the cached blocks, or the next output token.

    A request that comes with its KV stores its whole prompt at once.
    """
    budget, past, in_decode = work.lane.budget, subject.past, subject.in_decode
    hits = jnp.where(subject.is_queued, found.count, 0)
    start = jnp.where(subject.is_again, past.step_progress, past.progress)
    start = jnp.where(in_decode, subject.position, start)
    start = jnp.where(subject.is_queued, hits * ctx.shape.block_size, start)
    chunk = chunk_of(ctx, budget, subject.fixed, start, subject.instance)
    chunk = ctx.memory.chunks.cut(ctx, subject, start, chunk)
    chunk = jnp.where(comes, subject.fixed.input_len - start, chunk)
    demand = Demand(
        asks=ctx.memory.lookahead.asks(
            subject, (subject.is_forced | (budget > 0)) & ~subject.is_idle
        ),
        start=start,
        tokens=jnp.where(in_decode, 1, chunk),
        hits=hits,
        found=found,
    )
    return dataclasses.replace(demand, asks=ctx.memory.chunks.asks(subject, demand))


def _visit(ctx: Context, subject: Subject, demand: Demand, grant: Grant, comes: jax.Array) -> Visit:
    """Return the visit: the tokens that the request gets, and whether its prompt is then computed."""
    tokens = jnp.where(demand.asks, demand.tokens, 0)
    done = jnp.where(subject.is_queued, demand.start, subject.past.progress) + tokens
    is_in = subject.in_batch | subject.is_queued
    is_granted = ctx.memory.chunks.is_granted(subject, demand, grant.is_granted)
    gains = grant.is_granted & is_in & ~subject.in_decode & (done >= subject.fixed.input_len)
    counted = jnp.where(comes, as_int(demand.asks), tokens)
    return Visit(demand.asks, is_granted, tokens, counted, comes, done, gains)


def stale_tokens(ctx: Context, subject: Subject) -> jax.Array:
    """Return the tokens that count for a request which the budget did not reach: those of its last visit."""
    if not ctx.mechanism.defects.stale_token_counts:
        return jnp.int32(0)
    served = subject.step - 1 - subject.past.token_index - subject.past.lag
    return jnp.where(subject.in_decode & (served > 0), 1, subject.past.num_new)


def _counted(ctx: Context, work: Work, subject: Subject, grant: Grant, visit: Visit) -> Work:
    """Return the work with the step's and the batch's counters after the visit."""
    lane, inst = work.lane, work.inst
    is_granted, in_decode = visit.is_granted, subject.in_decode | visit.comes
    counts = is_granted & (subject.in_batch | subject.is_queued) & ~subject.is_idle
    before = jnp.where(subject.is_again & subject.in_batch, subject.past.num_new, 0)
    now = jnp.where(visit.asks, visit.counted, stale_tokens(ctx, subject))
    change = jnp.where(counts, now - before, 0)
    is_member = (subject.asker == Asker.MEMBER) & ~subject.is_forced
    joins, gained = subject.is_queued & is_granted, visit.gains & ~subject.has_token
    cursor = jnp.where(is_member, subject.row.order, lane.cursor)
    cursor = jnp.where(subject.asker == Asker.GHOST, jnp.int32(LAST), cursor)
    of_lane = {
        "cursor": cursor,
        "num_to_visit": lane.num_to_visit - as_int(is_member),
        "budget": ctx.memory.chunks.left(
            subject,
            visit,
            lane.budget
            - ctx.memory.lookahead.charged(subject, jnp.where(is_granted, visit.counted, 0)),
        ),
        "prefill_tokens": lane.prefill_tokens + jnp.where(in_decode, 0, change),
        "decode_tokens": lane.decode_tokens + jnp.where(in_decode, change, 0),
        "num_waiting": lane.num_waiting - as_int(joins),
        "num_scheduled": lane.num_scheduled + as_int(joins),
        "num_decode": lane.num_decode + as_int(joins & visit.comes),
    }
    of_lane["num_decode"] = ctx.memory.unreached.num_decode(
        of_lane["num_decode"], subject, visit.asks
    )
    return grant.on(
        work,
        lane=of_lane,
        inst={
            "next_order": inst.next_order + as_int(joins),
            "num_prefill": inst.num_prefill + as_int(joins) - as_int(gained),
            "num_decode": inst.num_decode + as_int(gained),
        },
    )


def _row(
    ctx: Context,
    work: Work,
    subject: Subject,
    grant: Grant,
    visit: Visit,
    moves: jax.Array,
) -> Resident:
    """Return the slot's row after the visit; a second visit or an eviction recomputes the step of completion."""
    row, step, fixed = subject.row, subject.step, subject.fixed
    output_len = answer_len(ctx, fixed, subject.instance)
    left = fixed.input_len + jnp.maximum(output_len, 1) - 1 - visit.done
    left = ctx.pools.steps.steps_left(left, moves, visit.comes)
    finish = jnp.where(left >= 0, step + left, jnp.int32(RUNAWAY))
    finish = jnp.where(visit.gains, finish, row.finish)
    finish = ctx.memory.unreached.finish(finish, subject, visit.asks)
    is_past = visit.is_granted | subject.is_again | subject.has_token
    steps = jnp.where(is_past, step, step - 1)
    joins = subject.is_queued & visit.is_granted
    return row.replace(
        order=jnp.where(joins, work.inst.next_order, row.order),
        queued=jnp.where(joins, ctx.never, row.queued),
        finish=finish,
        alloc_offset=grant.held - jnp.where(finish != LAST, steps, 0),
    )


def _past(ctx: Context, work: Work, subject: Subject, demand: Demand, visit: Visit) -> Past:
    """Return the request's history row after its visit."""
    past, record = subject.past, work.lane.num_records
    scheduled, joins = past.num_scheduled, subject.is_queued & visit.is_granted
    is_first = joins & (scheduled == 0)
    is_new = visit.is_granted & visit.asks
    is_chunk = is_new & ~subject.in_decode
    is_lagging = subject.in_decode & ~visit.asks & ~subject.is_again

    def kept(field: str, changes: jax.Array, value: jax.Array) -> jax.Array:
        return jnp.where(changes, value, getattr(past, field))

    before = jnp.where(subject.is_again, past.step_progress, past.progress)
    before = jnp.where(subject.is_queued, 0, before)
    made = Past.make(
        progress=kept("progress", is_chunk, visit.done),
        # a prompt that comes with its KV is not computed here
        num_new=kept("num_new", is_new, visit.counted),
        lag=past.lag + as_int(is_lagging),
        num_scheduled=scheduled + as_int(joins),
        num_prefill_steps=jnp.where(joins, 0, past.num_prefill_steps) + as_int(is_chunk),
        cached_first=kept("cached_first", is_first, demand.hits),
        first_record=kept("first_record", is_first, record),
        scheduled_record=kept("scheduled_record", joins, record),
        scheduled_index=kept("scheduled_index", joins, subject.step),
        token_record=kept("token_record", visit.gains, record),
        token_index=kept("token_index", visit.gains, subject.step),
        finish_record=past.finish_record,
        step_progress=kept("step_progress", visit.is_granted & ~subject.in_decode, before),
    ).with_rest_of(past)
    made = ctx.pools.steps.first_token(made, subject, visit, is_new)
    return ctx.memory.unreached.past(made, subject, visit.asks)


def has_candidate(ctx: Context, state: State, work: Work, instance: jax.Array) -> jax.Array:
    """Return whether batch formation goes on: members to visit, or waiting requests with room and budget left."""
    lane, memory = work.lane, ctx.memory
    members = work.inst.num_prefill + work.inst.num_decode
    has_room = members < ctx.params.cluster.max_num_running_reqs[instance]
    has_queue = (lane.num_waiting > 0) & (lane.budget > 0) & memory.admits(work)
    if any(hook.withholds for hook in ctx.hooks):
        is_open = _open(ctx, SlotRows(state, instance), work, work.lane.now)
        has_queue = has_queue & jnp.any(is_open)
    is_left = (lane.num_to_visit > 0) | memory.is_redirected(work)
    return is_left | (has_queue & has_room)


def _open(ctx: Context, slots: SlotRows, work: Work, now: jax.Array) -> Bool[Array, "slot"]:
    """Return the waiting requests that may be served in this step."""
    is_waiting = waiting_mask(slots, now, work.inst.steps_at_now)
    for hook in ctx.hooks:
        is_waiting = hook.may_be_served(slots.state, work, slots.instance, is_waiting)
    return is_waiting


def member_key(slots: SlotRows, step: StepInProgress, is_due: Bool[Array, "slot"]) -> jax.Array:
    """Return the packed key of the next member to visit: in prefill, or due, or any if all are visited."""
    order, finish = slots.order, slots.finish
    is_ahead = (order > step.cursor) & (order <= step.order_limit)
    is_visited = (finish == LAST) | (step.visit_all > 0) | is_due
    return least_key(is_ahead & is_visited, order)


def queue_priority(ctx: Context, slots: SlotRows, work: Work) -> jax.Array:
    """Return the current priority of the request in every slot, `[slot]`."""
    return _ask_priority(ctx, slots, work, work.local[0].now)[0]


def _ask_priority(
    ctx: Context, slots: SlotRows, work: Work, state: object
) -> tuple[jax.Array, Any]:
    policy, numbers = ctx.mechanism.priority, ctx.params.policy.priority
    seen = asked_of_queue(ctx, slots, policy)
    context = queue_context(ctx, slots, work, RandomSource.PRIORITY, **seen)
    priority, after = policy.ask(numbers, state, context)
    return priority, after


def _ask_scheduler(
    ctx: Context, slots: SlotRows, work: Work, state: object, priority: jax.Array
) -> tuple[tuple[jax.Array, jax.Array], Any]:
    policy, numbers = ctx.mechanism.scheduler, ctx.params.policy.scheduler
    seen = {"priority": priority} | asked_of_queue(ctx, slots, policy)
    context = queue_context(ctx, slots, work, RandomSource.SCHEDULER, **seen)
    order, after = policy.ask(numbers, state, context)
    return order, after


def with_next_states(ctx: Context, slots: SlotRows, work: Work) -> Work:
    """At the begin of a step with waiting requests, advance the states of the instance's policies to those that the
    last such step left.

    The states that this step leaves are kept beside them, because several calls of a step use the same state.
    """
    if not keeps_states(ctx.mechanism.of_instance, work.local):
        return work
    is_asked = work.lane.queue_depth > 0
    priority, scheduler = (state.after for state in work.local)
    ranks, next_priority = _ask_priority(ctx, slots, work, priority)
    _, next_scheduler = _ask_scheduler(ctx, slots, work, scheduler, ranks)
    moved = OverStep(priority, next_priority), OverStep(scheduler, next_scheduler)
    local = choose(is_asked, PolicyStates(moved), work.local)
    return dataclasses.replace(work, local=local)


def queue_order(ctx: Context, slots: SlotRows, work: Work) -> tuple[jax.Array, jax.Array]:
    """Return the scheduler's value and rank of the request in every slot `[slot]` in the step that has begun."""
    priority = queue_priority(ctx, slots, work)
    order: tuple[jax.Array, jax.Array]
    order, _ = _ask_scheduler(ctx, slots, work, work.local[1].now, priority)
    return order


def queue_key(
    ctx: Context,
    slots: SlotRows,
    work: Work,
    priority: jax.Array,
) -> jax.Array:
    """Return the packed key of the first waiting request, in the scheduler's order, that may be served."""
    now = work.lane.now
    (value, rank), _ = _ask_scheduler(ctx, slots, work, work.local[1].now, priority)
    is_waiting = _open(ctx, slots, work, now)
    is_float = jnp.issubdtype(value.dtype, jnp.floating)
    top = jnp.inf if is_float else jnp.iinfo(value.dtype).max
    least = jnp.min(jnp.where(is_waiting, value, jnp.asarray(top, value.dtype)))
    return least_key(is_waiting & (value == least), rank)


def next_candidate(ctx: Context, state: State, work: Work, instance: jax.Array) -> Choice:
    """Choose the next request to visit: a member in batch order, one that memory selects, or the head of the queue."""
    slots, lane, memory = SlotRows(state, instance), work.lane, ctx.memory
    keeps_priority = memory.keeps_priority
    is_member = lane.num_to_visit > 0

    def from_batch() -> tuple[jax.Array, Any]:
        due = memory.is_due(ctx, slots, work.inst.step_index)
        none = jnp.float64(0.0) if keeps_priority else None
        return slot_of(member_key(slots, lane, due)), none

    def from_queue() -> tuple[jax.Array, Any]:
        priority = queue_priority(ctx, slots, work)
        slot = ctx.existing_slot(slot_of(queue_key(ctx, slots, work, priority)))
        return slot, priority[slot].astype(jnp.float64) if keeps_priority else None

    slot, priority = ctx.when(is_member | memory.is_redirected(work), from_batch, from_queue)
    asker = jnp.where(is_member, jnp.int32(Asker.MEMBER), jnp.int32(Asker.QUEUE))
    choice = Choice(instance, ctx.existing_slot(slot), asker, priority)
    return memory.redirected(state, work, choice)

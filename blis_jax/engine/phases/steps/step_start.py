"""The start of a step: who is waiting, what decode takes, and how many equal steps follow.

And the batch by request, for latency models that ask for it.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
from jax import lax

from blis_jax.core.columns import as_int, together
from blis_jax.core.exact import truncate
from blis_jax.core.outcome import Outcome
from blis_jax.core.types import LAST
from blis_jax.core.views import Members, StepBatch
from blis_jax.engine.phases.steps.batch_formation import with_next_states
from blis_jax.memory.memory import Plan
from blis_jax.tables.context import (
    Context,
    SlotRows,
    Work,
    chains_of,
    count_of,
    failing,
    first_chain,
    has_chain,
    row,
    steps_at,
    take_chain,
    waiting_mask,
    with_chains,
)
from blis_jax.tables.state import Mode, Past, State
from blis_jax.tables.writes import SlotWrite, no_slot

MAX_FAST_STEPS = 2048


def _fast_steps(
    ctx: Context,
    state: State,
    work: Work,
    instance: jax.Array,
    is_pure: jax.Array,
    next_queued: jax.Array,
    first_finish: jax.Array,
    next_cluster: jax.Array,
) -> jax.Array:
    """Equal decode steps that start before anything else can happen on this instance."""
    latency, cluster = ctx.mechanism.latency, ctx.params.cluster
    if latency.has_equal_decode_steps:
        members = decoding_alike(ctx) if latency.needs_members else None
    elif latency.grows_with_context and not ctx.shape.is_continuous:
        members = members_of(ctx, state, work, instance, no_slot(ctx))
    else:
        return jnp.int32(1)
    raw = _decode_time(ctx, state, work, instance, members)
    by_time = _steps_before(ctx, work, jnp.minimum(next_queued, next_cluster), raw)
    by_finish = (first_finish - work.inst.step_index).astype(jnp.int64)
    by_sum = lax.div(jnp.int32(LAST), cluster.total_kv_blocks[instance] + 1).astype(jnp.int64)
    limit = jnp.minimum(jnp.minimum(by_time, by_finish), by_sum)
    limit = jnp.clip(limit, 1, MAX_FAST_STEPS).astype(jnp.int32)
    if members is None or latency.has_equal_decode_steps:
        return limit
    first = truncate(raw, ctx.clock)
    return _alike(ctx, state, work, instance, members, first, jnp.where(is_pure, limit, 1))


def _decode_time(
    ctx: Context, state: State, work: Work, instance: jax.Array, members: Members | None
) -> jax.Array:
    """The time of a step in which every member decodes, float64 µs."""
    batch = StepBatch(jnp.int32(0), work.inst.num_decode, members)
    return step_time(ctx, state, instance, batch)


def _alike(
    ctx: Context,
    state: State,
    work: Work,
    instance: jax.Array,
    members: Members,
    first: jax.Array,
    limit: jax.Array,
) -> jax.Array:
    """1, 2, 4, … steps from this one on, or the limit, that take the same whole microseconds.

    No step is shorter than the one before, so that all are equal if the last is.
    """

    def is_equal(count: jax.Array) -> jax.Array:
        more = jnp.where(members.in_decode, count - 1, 0)
        later = dataclasses.replace(
            members, progress=members.progress + more, context=members.context + more
        )
        return truncate(_decode_time(ctx, state, work, instance, later), ctx.clock) == first

    def goes_on(tried: tuple[jax.Array, jax.Array]) -> jax.Array:
        count, is_alike = tried
        return is_alike & (count < limit)

    def double(tried: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        count, _ = tried
        more = jnp.minimum(2 * count, limit)
        is_alike = is_equal(more)
        return jnp.where(is_alike, more, count), is_alike

    count, _ = lax.while_loop(goes_on, double, (jnp.int32(1), jnp.array(True)))
    return count


def _steps_before(ctx: Context, work: Work, until: jax.Array, step_time: jax.Array) -> jax.Array:
    """Steps of this duration that start before a time and not after the horizon, int64."""
    horizon, now = ctx.params.cluster.horizon_us, work.lane.now
    if ctx.shape.is_continuous:
        until = jnp.minimum(until, horizon.astype(ctx.clock))
        most = jnp.float64(MAX_FAST_STEPS)
        return jnp.minimum(jnp.ceil((until - now) / step_time), most).astype(jnp.int64)
    duration = jnp.maximum(truncate(step_time, ctx.clock).astype(jnp.int64), 1)
    until = until.astype(jnp.int64)
    until = jnp.where(horizon < until, horizon + 1, until)
    return lax.div(until - now.astype(jnp.int64) + duration - 1, duration)


def _fresh_step(visits: Plan, num_waiting: jax.Array) -> dict[str, jax.Array]:
    return {
        "mode": jnp.int32(Mode.FORMING),
        "prefill_tokens": jnp.int32(0),
        "decode_tokens": visits.num_counted,
        "cursor": jnp.int32(-1),
        "num_scheduled": jnp.int32(0),
        "num_waiting": num_waiting,
        "queue_depth": num_waiting,
        "visit_all": visits.visit_all,
    }


def begin(
    ctx: Context, state: State, work: Work, instance: jax.Array, next_cluster: jax.Array
) -> Work:
    """Start a step now: count the candidates, reserve the decode tokens, allocate their blocks."""
    slots, now, inst = SlotRows(state, instance), work.lane.now, work.inst
    steps_at_now = steps_at(inst, now)
    queued = slots.queued
    is_waiting = waiting_mask(slots, now, steps_at_now)
    is_idle = inst.is_idle == 1
    starting = count_of(is_waiting & (queued == now))
    unverified = count_of((queued == now) & (slots.after_steps < 0))
    num_waiting = count_of(is_waiting)
    chains = chains_of(inst)
    is_simple = is_idle & ~has_chain(chains, now) & (starting == 1) & (unverified == 1)
    if not ctx.mechanism.defects.second_chain:
        starting = jnp.minimum(starting, 1)
    next_chains, fits = take_chain(chains, now, jnp.where(is_idle, starting, 0), ctx.never)
    num_prefill, num_decode = inst.num_prefill, inst.num_decode
    budget = ctx.params.cluster.max_num_scheduled_tokens[instance]
    is_pure = (num_prefill == 0) & (num_waiting == 0) & (num_decode <= budget) & (num_decode > 0)
    is_pure = is_pure & (first_chain(next_chains) == ctx.never)
    visits = ctx.memory.plan(ctx, slots, work, is_pure)
    next_queued = jnp.min(jnp.where(is_waiting, ctx.never, queued))
    first_finish = jnp.min(slots.finish)
    fast = _fast_steps(
        ctx, state, work, instance, visits.is_pure, next_queued, first_finish, next_cluster
    )
    num_steps = jnp.where(visits.is_pure, jnp.minimum(fast, visits.most_steps), 1)
    used = inst.used_blocks
    blocks, more = ctx.memory.decode_blocks(ctx, slots, inst.step_index, num_steps)
    blocks, summed = jnp.where(visits.visit_all, 0, blocks), used * num_steps + more
    counted = visits.num_counted
    lane, ties = work.lane, (unverified > 0) & ~is_simple
    changes = _fresh_step(visits, num_waiting) | {
        "outcome": failing(lane.outcome, ~fits, Outcome.CHAINS_FULL),
        "num_open_ties": lane.num_open_ties + as_int(ties),
        "active": instance,
        "budget": budget - counted,
        "num_decode": num_decode,
        "num_to_visit": num_prefill + num_decode - counted,
        "order_limit": inst.next_order - 1,
        "num_steps": num_steps,
        "sum_used": summed,
    }
    started = dataclasses.replace(
        work,
        lane=lane.replace(**changes),
        inst=with_chains(inst, next_chains).replace(
            used_blocks=used + blocks,
            misses=inst.misses + blocks,
            steps_at_now=steps_at_now,
        ),
        task=jax.tree.map(jnp.zeros_like, work.task),
    )
    return with_next_states(ctx, slots, started)


def members_of(
    ctx: Context, state: State, work: Work, instance: jax.Array, written: SlotWrite
) -> Members:
    """Return the members of the batch when its step has been formed.

    `written` was served in this scan step and its rows are not in the tables yet.
    """
    slots = SlotRows(state, instance)
    number = lax.iota(jnp.int32, ctx.shape.num_slots)
    is_written = (number == written.slot) & (written.instance == instance)
    request = slots.request
    spare = jnp.int32(ctx.shape.num_requests)
    rows = state.past.rows[jnp.where(request < 0, spare, request)]
    past = Past(jnp.where(is_written[:, None], together(written.past.numbers)[None, :], rows))

    index = work.inst.step_index + 1
    order = jnp.where(is_written, written.row.order, slots.order)
    is_member = order != LAST
    has_token = jnp.where(is_written, written.row.finish, slots.finish) != LAST
    decoded = jnp.where(has_token, index - past.token_index, 0)
    in_decode = is_member & (decoded > 0)
    in_prefill = is_member & ~in_decode
    context = jnp.where(is_member, past.progress + decoded, 0)
    before = past.step_progress
    new = past.num_new
    if not ctx.mechanism.defects.stale_token_counts:  # a member passed over counts nothing
        new = jnp.where(past.progress == before, 0, new)
    new = jnp.where(in_prefill, new, in_decode.astype(jnp.int32))
    new = ctx.memory.unreached.new_tokens(new, past, index)
    return Members(
        in_prefill=in_prefill,
        new_tokens=new,
        progress=jnp.where(in_prefill, before, jnp.where(in_decode, context - 1, 0)),
        context=context,
        in_step=new > 0,
        in_decode=in_decode & (new > 0),
        input_len=jnp.where(is_member, slots.input_len, 0),
        order=order,
    )


def step_time(ctx: Context, state: State, instance: jax.Array, batch: StepBatch) -> jax.Array:
    """Return how long a step with this batch takes that begins now, float64 µs."""
    time = ctx.mechanism.latency.step_time(row(ctx.params.cluster.beta, instance), batch)
    source = ctx.mechanism.source
    if source is None or source.step_time is None:
        return time
    memory = state.gateway[ctx.mechanism.of_gateway.index(source)]
    changed = source.step_time(ctx.params.policy.source, memory, instance, time)
    return jnp.asarray(changed, jnp.float64)


def decoding_alike(ctx: Context) -> Members:
    """Return members that stand for a batch that only decodes, where all such steps take the same time."""
    nothing = jnp.zeros((ctx.shape.num_slots,), jnp.int32)
    no_one = nothing.astype(bool)
    return Members(
        in_prefill=no_one,
        new_tokens=nothing,
        progress=nothing,
        context=nothing,
        in_step=no_one,
        in_decode=no_one,
        input_len=nothing,
        order=nothing,
    )

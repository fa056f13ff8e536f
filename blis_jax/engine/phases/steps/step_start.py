"""The start of a step: who is waiting, what decode takes, and how many equal steps follow."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from blis_jax.core.clock import truncate
from blis_jax.core.columns import as_int
from blis_jax.core.outcome import Outcome
from blis_jax.core.step_batch import Members, StepBatch
from blis_jax.core.types import LAST
from blis_jax.engine.context import Context, SlotRows, row
from blis_jax.engine.phases.steps.batch_view import decoding_alike, members_of
from blis_jax.engine.phases.steps.candidates import with_next_states
from blis_jax.engine.phases.steps.mid_step import (
    Work,
    chains_of,
    count_of,
    failing,
    first_chain,
    has_chain,
    steps_at,
    take_chain,
    waiting_mask,
    with_chains,
)
from blis_jax.engine.state import Mode, State
from blis_jax.engine.tables.slot_write import no_slot
from blis_jax.memory.memory import Plan

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
    raw = _decode_time(ctx, work, instance, members)
    by_time = _steps_before(ctx, work, jnp.minimum(next_queued, next_cluster), raw)
    by_finish = (first_finish - work.inst.step_index).astype(jnp.int64)
    by_sum = lax.div(jnp.int32(LAST), cluster.total_kv_blocks[instance] + 1).astype(jnp.int64)
    limit = jnp.minimum(jnp.minimum(by_time, by_finish), by_sum)
    limit = jnp.clip(limit, 1, MAX_FAST_STEPS).astype(jnp.int32)
    if members is None or latency.has_equal_decode_steps:
        return limit
    first = truncate(raw, ctx.clock)
    return _alike(ctx, work, instance, members, first, jnp.where(is_pure, limit, 1))


def _decode_time(ctx: Context, work: Work, instance: jax.Array, members: Any) -> jax.Array:
    """The time of a step in which every member decodes, float64 µs."""
    batch = StepBatch(jnp.int32(0), work.inst.num_decode, members)
    return ctx.mechanism.latency.step_time(row(ctx.params.cluster.beta, instance), batch)


def _alike(
    ctx: Context,
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
        return truncate(_decode_time(ctx, work, instance, later), ctx.clock) == first

    def goes_on(state: tuple[jax.Array, jax.Array]) -> jax.Array:
        count, is_alike = state
        return is_alike & (count < limit)

    def double(state: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        count, _ = state
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

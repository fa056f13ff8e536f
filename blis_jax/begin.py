"""The start of a step: who is waiting, what decode takes, and how many equal steps follow."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from blis_jax.batch_formation import steps_to_fill, with_next_states
from blis_jax.block_subject import is_due
from blis_jax.clock import truncate
from blis_jax.columns import as_int
from blis_jax.context import Context, SlotRows, row
from blis_jax.state import (
    SEQUENTIAL_LAGGING,
    Mode,
    State,
)
from blis_jax.step_batch import decoding_alike
from blis_jax.types import LAST, Outcome, StepBatch
from blis_jax.work import (
    Work,
    ceil_div,
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

MAX_FAST_STEPS = 2048


def _fast_steps(
    ctx: Context,
    work: Work,
    instance: jax.Array,
    next_queued: jax.Array,
    first_finish: jax.Array,
    next_cluster: jax.Array,
) -> jax.Array:
    """Equal decode steps that start before anything else can happen on this instance."""
    latency, cluster = ctx.mechanism.latency, ctx.params.cluster
    if not latency.has_equal_decode_steps:
        return jnp.int32(1)
    members = decoding_alike(ctx) if latency.needs_members else None
    batch = StepBatch(jnp.int32(0), work.inst.num_decode, members)
    raw = latency.step_time(row(cluster.beta, instance), batch)
    by_time = _steps_before(ctx, work, jnp.minimum(next_queued, next_cluster), raw)
    by_finish = (first_finish - work.inst.step_index).astype(jnp.int64)
    by_sum = lax.div(jnp.int32(LAST), cluster.total_kv_blocks[instance] + 1).astype(jnp.int64)
    limit = jnp.minimum(jnp.minimum(by_time, by_finish), by_sum)
    return jnp.clip(limit, 1, MAX_FAST_STEPS).astype(jnp.int32)


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


class _Visits(NamedTuple):
    """How the members of the batch are served in a step."""

    visit_all: Any  # every member by itself, in order: the budget might not reach them all
    num_counted: Any  # decode members that are counted and not visited
    is_pure: Any  # equal steps may be made at once
    most_steps: Any


def _fresh_step(visits: _Visits, num_waiting: jax.Array) -> dict[str, jax.Array]:
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
    index = inst.step_index
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
    visits = (_plan_blocks if ctx.shape.num_blocks else _plan_counts)(ctx, slots, work, is_pure)
    next_queued = jnp.min(jnp.where(is_waiting, ctx.never, queued))
    finish = slots.finish
    fast = _fast_steps(ctx, work, instance, next_queued, jnp.min(finish), next_cluster)
    num_steps = jnp.where(visits.is_pure, jnp.minimum(fast, visits.most_steps), 1)
    used, blocks = inst.used_blocks, jnp.int32(0)
    summed = used * num_steps
    if not ctx.shape.num_blocks:
        blocks, more = _decode_blocks(ctx, slots, finish, index, num_steps)
        blocks, summed = jnp.where(visits.visit_all, 0, blocks), summed + more
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


def _plan_counts(ctx: Context, slots: SlotRows, work: Work, is_pure: jax.Array) -> _Visits:
    """Without eviction only a fully cached prompt, admitted with no tokens, can exhaust the budget later on."""
    sequential = work.inst.is_sequential
    left = steps_to_fill(ctx, slots, work.inst.step_index)
    due = left == 0
    # a member passed over by the budget takes its blocks at other steps than the record would tell
    is_pure = is_pure & (sequential < SEQUENTIAL_LAGGING) & ~jnp.any(due)
    visit_all = (sequential > 0) & ~is_pure
    counted = jnp.where(visit_all, 0, work.inst.num_decode - count_of(due))
    return _Visits(visit_all, counted, is_pure, jnp.minimum(jnp.min(left), MAX_FAST_STEPS))


def _plan_blocks(ctx: Context, slots: SlotRows, work: Work, is_pure: jax.Array) -> _Visits:
    """At block level a member is visited when it needs a block, and equal steps end before one does."""
    blocks = slots.state.blocks
    assert blocks is not None
    budget = ctx.params.cluster.max_num_scheduled_tokens[slots.instance]
    size, index = jnp.int32(ctx.shape.block_size), work.inst.step_index
    finish, order = slots.finish, slots.order
    is_decode = finish != LAST
    due = is_due(ctx, slots, index)
    computed = row(blocks.computed, slots.instance)
    remaining = slots.input_len - computed
    by_class = row(ctx.params.cluster.prefill_threshold, slots.instance)
    threshold = by_class[slots.slo_class]
    wanted = jnp.where((threshold > 0) & (threshold < remaining), threshold, remaining)
    is_prefill = (order != LAST) & ~is_decode
    wants = jnp.sum(jnp.where(is_prefill, wanted, 0), dtype=jnp.int32)
    visit_all = wants + work.inst.num_decode > budget
    counted = jnp.where(visit_all, 0, count_of(is_decode & ~due))
    in_last = lax.rem(index + slots.alloc_offset, size)
    most = (size - 1 if ctx.shape.tracks_outputs else size) - in_last
    most_steps = jnp.maximum(jnp.min(jnp.where(is_decode, most, size)), 1)
    is_pure = is_pure & ~jnp.any(due) & (work.pool.pending_reloads == 0)
    return _Visits(visit_all, counted, is_pure, most_steps)


def _decode_blocks(
    ctx: Context, slots: SlotRows, finish: jax.Array, step_index: jax.Array, num_steps: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Blocks that decode members take over the next steps, and their sum over these steps."""
    size = ctx.shape.block_size
    held = step_index + slots.alloc_offset
    in_last = lax.rem(held, jnp.int32(size))
    room = jnp.where(in_last == 0, 0, jnp.int32(size) - in_last)
    beyond = jnp.maximum(num_steps - room, 0)
    full, part = lax.div(beyond, jnp.int32(size)), lax.rem(beyond, jnp.int32(size))
    summed = jnp.int32(size) * lax.div(full * (full + 1), jnp.int32(2)) + part * (full + 1)
    is_decode = finish != LAST
    return (
        jnp.sum(jnp.where(is_decode, ceil_div(beyond, size), 0), dtype=jnp.int32),
        jnp.sum(jnp.where(is_decode, summed, 0), dtype=jnp.int32),
    )

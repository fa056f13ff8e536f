"""The start of a step: who is waiting, what decode takes, and how many equal steps follow."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from blis_jax.columns import as_int, get, put
from blis_jax.context import Context, SlotRows, row
from blis_jax.exact import truncate
from blis_jax.state import Inst, InstTime, Mode, Reg, Slot, SlotTime, State, Time
from blis_jax.types import LAST, Outcome, StepTokens
from blis_jax.work import (
    Work,
    ceil_div,
    count_of,
    failing,
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
    cluster = ctx.params.cluster
    tokens = StepTokens(jnp.int32(0), get(work.inst, Inst.NUM_DECODE))
    raw = ctx.mechanism.step_time(row(cluster.beta, instance), tokens, ctx.infinity)
    duration = jnp.maximum(truncate(raw, ctx.clock).astype(jnp.int64), 1)
    now = get(work.times, Time.NOW).astype(jnp.int64)
    until = jnp.minimum(next_queued, next_cluster).astype(jnp.int64)
    until = jnp.where(cluster.horizon_us < until, cluster.horizon_us + 1, until)
    by_time = lax.div(until - now + duration - 1, duration)
    by_finish = (first_finish - get(work.inst, Inst.STEP_INDEX)).astype(jnp.int64)
    by_sum = lax.div(jnp.int32(LAST), cluster.total_kv_blocks[instance] + 1).astype(jnp.int64)
    limit = jnp.minimum(jnp.minimum(by_time, by_finish), by_sum)
    return jnp.clip(limit, 1, MAX_FAST_STEPS).astype(jnp.int32)


def _fresh_step() -> dict[Any, jax.Array]:
    return {
        Reg.MODE: jnp.int32(Mode.FORMING),
        Reg.PREFILL_TOKENS: jnp.int32(0),
        Reg.CURSOR: jnp.int32(-1),
        Reg.NUM_SCHEDULED: jnp.int32(0),
    }


def begin(
    ctx: Context, state: State, work: Work, instance: jax.Array, next_cluster: jax.Array
) -> Work:
    """Start a step now: count the candidates, reserve the decode tokens, allocate their blocks."""
    slots, now, inst = SlotRows(state, instance), get(work.times, Time.NOW), work.inst
    index = get(inst, Inst.STEP_INDEX)
    steps_at_now = steps_at(inst, work.inst_time, now)
    queued = slots.time(SlotTime.QUEUED)
    is_waiting = waiting_mask(slots, now, steps_at_now)
    is_idle = get(inst, Inst.IS_IDLE) == 1
    starting = count_of(is_waiting & (queued == now))
    unverified = count_of((queued == now) & (slots.column(Slot.AFTER_STEPS) < 0))
    num_waiting = count_of(is_waiting)
    chains = work.inst_time[InstTime.CHAIN :]
    is_simple = is_idle & jnp.all(chains != now) & (starting == 1) & (unverified == 1)
    next_chains, fits = take_chain(chains, now, jnp.where(is_idle, starting, 0), ctx.never)
    num_prefill, num_decode = get(inst, Inst.NUM_PREFILL), get(inst, Inst.NUM_DECODE)
    budget = ctx.params.cluster.max_num_scheduled_tokens[instance]
    is_pure = (num_prefill == 0) & (num_waiting == 0) & (num_decode <= budget) & (num_decode > 0)
    is_pure = is_pure & jnp.all(next_chains == ctx.never) & (not ctx.shape.has_shared_outputs)
    visit_all = (get(inst, Inst.IS_SEQUENTIAL) == 1) | ctx.shape.has_shared_outputs
    visit_all = visit_all & ~is_pure
    finish = slots.column(Slot.FINISH)
    next_queued = jnp.min(jnp.where(is_waiting, ctx.never, queued))
    fast = _fast_steps(ctx, work, instance, next_queued, jnp.min(finish), next_cluster)
    num_steps = jnp.where(is_pure, fast, 1)
    blocks, summed = _decode_blocks(ctx, slots, finish, index, num_steps)
    blocks = jnp.where(visit_all, 0, blocks)
    used = get(inst, Inst.USED_BLOCKS)
    counted = jnp.where(visit_all, 0, num_decode)
    registers, ties = work.registers, (unverified > 0) & ~is_simple
    changes = _fresh_step() | {
        Reg.OUTCOME: failing(get(registers, Reg.OUTCOME), ~fits, Outcome.CHAINS_FULL),
        Reg.NUM_OPEN_TIES: get(registers, Reg.NUM_OPEN_TIES) + as_int(ties),
        Reg.ACTIVE: instance,
        Reg.BUDGET: budget - counted,
        Reg.DECODE_TOKENS: counted,
        Reg.NUM_DECODE: num_decode,
        Reg.NUM_WAITING: num_waiting,
        Reg.QUEUE_DEPTH: num_waiting,
        Reg.NUM_TO_VISIT: num_prefill + jnp.where(visit_all, num_decode, 0),
        Reg.VISIT_ALL: visit_all,
        Reg.ORDER_LIMIT: get(inst, Inst.NEXT_ORDER) - 1,
        Reg.NUM_STEPS: num_steps,
        Reg.SUM_USED: used * num_steps + summed,
    }
    inst_changes = {
        Inst.USED_BLOCKS: used + blocks,
        Inst.MISSES: get(inst, Inst.MISSES) + blocks,
        Inst.STEPS_AT_NOW: steps_at_now,
    }
    return Work(
        put(registers, changes),
        work.times,
        put(inst, inst_changes),
        with_chains(work.inst_time, next_chains),
    )


def _decode_blocks(
    ctx: Context, slots: SlotRows, finish: jax.Array, step_index: jax.Array, num_steps: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Blocks that decode members take over the next steps, and their sum over these steps."""
    size = ctx.shape.block_size
    held = step_index + slots.column(Slot.ALLOC_OFFSET)
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

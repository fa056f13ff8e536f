"""Batch formation: which members of the batch and which waiting requests get tokens in a step.

A step begins (`begin`), visits one request at a time (`visit`), and ends in `advance.py`. Running prefills come
first in batch order, then waiting requests in the scheduler's order, until the token budget, the batch limit or
the candidates run out. Decode members take one token each and are counted, not visited, unless the
budget might not reach all of them: only a fully cached prompt, admitted with no new tokens, can bring that about.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax import lax

from blis_jax.columns import build, get, put
from blis_jax.context import NO_KEY, Context, SlotRows, least_key, row, slot_of
from blis_jax.exact import truncate
from blis_jax.kv_cache.no_eviction import PathRows, allocate, cached_blocks, read_path
from blis_jax.state import Dyn, Inst, InstTime, Mode, Reg, Req, Slot, SlotTime, State, Time
from blis_jax.types import LAST, Outcome, QueueView, StepTokens, pytree

if TYPE_CHECKING:
    from jaxtyping import Array, Int

MAX_FAST_STEPS = 2048


@pytree
class Work:
    """An instance in mid-step: what the phases of one scan step hand on."""

    registers: Int[Array, "column"]
    times: Any
    inst: Int[Array, "column"]
    inst_time: Any


def ceil_div(value: jax.Array, size: int) -> jax.Array:
    """Blocks needed for `value` tokens."""
    return lax.div(value + jnp.int32(size - 1), jnp.int32(size))


def failing(outcome: jax.Array, predicate: jax.Array, code: Outcome) -> jax.Array:
    """The code where the predicate holds, else the outcome so far."""
    return jnp.where(predicate, jnp.int32(code), outcome)


def _count(mask: jax.Array) -> jax.Array:
    return jnp.sum(mask, dtype=jnp.int32)


def waiting_mask(slots: SlotRows, now: jax.Array, steps_at_now: jax.Array) -> jax.Array:
    """Slots whose request has entered the wait queue by the next step at `now`.

    Queueing and a step in one microsecond: queued first, unless the host found that some steps of
    that microsecond came before.
    """
    queued = slots.time(SlotTime.QUEUED)
    in_time = (queued < now) | ((queued == now) & (slots.column(Slot.AFTER_STEPS) <= steps_at_now))
    return in_time & (slots.column(Slot.OVERSIZED) == 0)


def take_chain(
    chains: jax.Array, now: jax.Array, num_new: jax.Array, never: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Step events left when one at `now` is taken after `num_new` were added; and whether they fit."""
    at_now = chains == now
    left = _count(at_now) + num_new - 1
    rest = jnp.where(at_now, never, chains)
    return add_chain(rest, now, left, never)


def add_chain(
    chains: jax.Array, time: jax.Array, count: jax.Array, never: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Step events with `count` more at `time`; and whether they fit."""
    added = []
    for index in range(chains.shape[0]):
        is_free = chains[index] == never
        takes = is_free & (count > 0)
        added.append(jnp.where(takes, time, chains[index]))
        count = count - takes
    return jnp.stack(added), count <= 0


def with_chains(inst_time: jax.Array, chains: jax.Array) -> jax.Array:
    """The instance's times with its step events replaced."""
    return jnp.concatenate([inst_time[: InstTime.CHAIN], chains])


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


def begin(
    ctx: Context, state: State, work: Work, instance: jax.Array, next_cluster: jax.Array
) -> Work:
    """Start a step now: count the candidates, reserve the decode tokens, allocate their blocks."""
    slots, now, inst = SlotRows(state, instance), get(work.times, Time.NOW), work.inst
    index = get(inst, Inst.STEP_INDEX)
    has_stepped = (index > 0) & (get(work.inst_time, InstTime.LAST_START) == now)
    steps_at_now = jnp.where(has_stepped, get(inst, Inst.STEPS_AT_NOW), 0)
    queued = slots.time(SlotTime.QUEUED)
    is_waiting = waiting_mask(slots, now, steps_at_now)
    is_idle = get(inst, Inst.IS_IDLE) == 1
    starting = _count(is_waiting & (queued == now))
    unverified = _count((queued == now) & (slots.column(Slot.AFTER_STEPS) < 0))
    num_waiting = _count(is_waiting)
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
    ties = (unverified > 0) & ~is_simple
    registers = work.registers
    changes = {
        Reg.OUTCOME: failing(get(registers, Reg.OUTCOME), ~fits, Outcome.CHAINS_FULL),
        Reg.NUM_OPEN_TIES: get(registers, Reg.NUM_OPEN_TIES) + ties,
        Reg.ACTIVE: instance,
        Reg.MODE: jnp.int32(Mode.FORMING),
        Reg.BUDGET: budget - counted,
        Reg.PREFILL_TOKENS: jnp.int32(0),
        Reg.DECODE_TOKENS: counted,
        Reg.NUM_DECODE: num_decode,
        Reg.NUM_WAITING: num_waiting,
        Reg.QUEUE_DEPTH: num_waiting,
        Reg.NUM_TO_VISIT: num_prefill + jnp.where(visit_all, num_decode, 0),
        Reg.VISIT_ALL: visit_all,
        Reg.CURSOR: jnp.int32(-1),
        Reg.ORDER_LIMIT: get(inst, Inst.NEXT_ORDER) - 1,
        Reg.NUM_SCHEDULED: jnp.int32(0),
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


@pytree
class Visit:
    """One request served in a step: rows to write back."""

    work: Work
    slot: Int[Array, ""]
    slot_row: Int[Array, "column"]
    slot_time_row: Any
    dyn: Int[Array, "column"]
    path: PathRows


def has_candidate(ctx: Context, work: Work, instance: jax.Array) -> jax.Array:
    """Whether batch formation goes on: members to visit, or waiting requests with room and budget left."""
    registers = work.registers
    members = get(work.inst, Inst.NUM_PREFILL) + get(work.inst, Inst.NUM_DECODE)
    has_room = members < ctx.params.cluster.max_num_running_reqs[instance]
    has_queue = (get(registers, Reg.NUM_WAITING) > 0) & (get(registers, Reg.BUDGET) > 0)
    return (get(registers, Reg.NUM_TO_VISIT) > 0) | (has_queue & has_room)


def _member_key(slots: SlotRows, registers: jax.Array) -> jax.Array:
    order, finish = slots.column(Slot.ORDER), slots.column(Slot.FINISH)
    is_due = (order > get(registers, Reg.CURSOR)) & (order <= get(registers, Reg.ORDER_LIMIT))
    is_visited = (finish == LAST) | (get(registers, Reg.VISIT_ALL) == 1)
    return least_key(is_due & is_visited, order)


def _queue_key(ctx: Context, slots: SlotRows, work: Work) -> jax.Array:
    """Packed key of the waiting request that the scheduler puts first."""
    view, now = slots.view(), get(work.times, Time.NOW)
    policy, depth = ctx.params.policy, get(work.registers, Reg.QUEUE_DEPTH)
    priority = ctx.mechanism.priority(policy.priority, view, depth, now, ctx.infinity)
    cached = jnp.zeros_like(view.input_len)
    queue = QueueView(view, priority, slots.time(SlotTime.QUEUED), cached)
    value, rank = ctx.mechanism.scheduler(policy.scheduler, queue)
    is_waiting = waiting_mask(slots, now, get(work.inst, Inst.STEPS_AT_NOW))
    is_float = jnp.issubdtype(value.dtype, jnp.floating)
    top = jnp.inf if is_float else jnp.iinfo(value.dtype).max
    least = jnp.min(jnp.where(is_waiting, value, jnp.asarray(top, value.dtype)))
    return least_key(is_waiting & (value == least), rank)


def visit(ctx: Context, state: State, work: Work, instance: jax.Array) -> Visit:
    """Serve the next candidate: a member in batch order, or the head of the wait queue."""
    slots, registers = SlotRows(state, instance), work.registers
    is_member = get(registers, Reg.NUM_TO_VISIT) > 0
    key = ctx.when(
        is_member,
        lambda: _member_key(slots, registers),
        lambda: _queue_key(ctx, slots, work),
    )
    slot = jnp.minimum(slot_of(key), jnp.int32(ctx.shape.num_slots - 1))
    slot_row, slot_time_row = slots.one(slot)
    request = get(slot_row, Slot.REQUEST)
    path = read_path(state.shared, ctx.requests, instance, slot, request)
    chosen = Visit(work, slot, slot_row, slot_time_row, row(state.dyn, request), path)
    return _serve(ctx, chosen, row(ctx.requests.table, request), instance, is_member)


def _chunk(
    ctx: Context, budget: jax.Array, fixed: jax.Array, progress: jax.Array, instance: jax.Array
) -> jax.Array:
    """Prompt tokens of the next chunk: the rest, cut to the class's threshold and the budget."""
    slo_class = get(fixed, Req.SLO_CLASS)
    threshold = ctx.params.cluster.prefill_threshold[instance, slo_class]
    remaining = get(fixed, Req.INPUT_LEN) - progress
    is_cut = (threshold > 0) & (threshold < remaining)
    return jnp.minimum(jnp.where(is_cut, threshold, remaining), budget)


@pytree
class Service:
    """What the chosen request gets in this step."""

    is_member: Any
    is_decode: Any
    is_served: Any  # false: the budget was used up before it
    tokens: Any  # counted in the step time; stale if not served
    end: Any  # prompt tokens computed after the step
    cached: Any  # blocks found at a first look-up


def _serve(
    ctx: Context, chosen: Visit, fixed: jax.Array, instance: jax.Array, is_member: jax.Array
) -> Visit:
    """Give tokens and blocks to the chosen request, or keep its stale count if the budget is used up."""
    size, dyn, inst = ctx.shape.block_size, chosen.dyn, chosen.work.inst
    registers, index = chosen.work.registers, get(inst, Inst.STEP_INDEX)
    is_decode = is_member & (get(chosen.slot_row, Slot.FINISH) != LAST)
    budget = get(registers, Reg.BUDGET)
    is_served = budget > 0
    cached = cached_blocks(chosen.path, lax.div(get(fixed, Req.INPUT_LEN), jnp.int32(size)))
    progress = jnp.where(is_member, get(dyn, Dyn.PROGRESS), cached * size)
    chunk = _chunk(ctx, budget, fixed, progress, instance)
    served_decodes = index - get(dyn, Dyn.TOKEN_INDEX) - get(dyn, Dyn.LAG)
    stale = jnp.where(is_decode & (served_decodes > 0), 1, get(dyn, Dyn.NUM_NEW))
    tokens = jnp.where(is_served, jnp.where(is_decode, 1, chunk), stale)
    is_chunk = is_served & ~is_decode
    end = progress + jnp.where(is_chunk, chunk, 0)
    held = index + get(chosen.slot_row, Slot.ALLOC_OFFSET)
    takes_block = is_decode & is_served & (lax.rem(held, jnp.int32(size)) == 0)
    new_blocks = jnp.where(is_chunk, ceil_div(end, size) - ceil_div(progress, size), 0)
    new_blocks = new_blocks + takes_block
    hits = jnp.where(~is_member & (chunk > 0), cached, 0)
    # a list that began with a fully cached prompt holds outputs only: its contents match no prefix
    fills = is_decode & is_served & (get(dyn, Dyn.CACHED_FIRST) * size < get(fixed, Req.INPUT_LEN))
    start = jnp.where(is_chunk, progress, jnp.where(fills, held, 0))
    stop = jnp.where(is_chunk, end, jnp.where(fills, held + 1, 0))
    allocation = allocate(
        chosen.path,
        ~is_member,
        hits,
        lax.div(start, jnp.int32(size)),
        lax.div(stop, jnp.int32(size)),
    )
    used = get(inst, Inst.USED_BLOCKS)
    needed = jnp.where(is_chunk, ceil_div(chunk, size), takes_block.astype(jnp.int32))
    is_short = needed > ctx.params.cluster.total_kv_blocks[instance] - used
    outcome = failing(get(registers, Reg.OUTCOME), is_short, Outcome.KV_CHECK_TRIPPED)
    outcome = failing(outcome, allocation.is_full == 1, Outcome.COPIES_FULL)
    changes = {
        Reg.OUTCOME: outcome,
        Reg.CURSOR: jnp.where(
            is_member, get(chosen.slot_row, Slot.ORDER), get(registers, Reg.CURSOR)
        ),
        Reg.NUM_TO_VISIT: get(registers, Reg.NUM_TO_VISIT) - is_member,
        Reg.BUDGET: budget - jnp.where(is_served, tokens, 0),
        Reg.PREFILL_TOKENS: get(registers, Reg.PREFILL_TOKENS) + jnp.where(is_decode, 0, tokens),
        Reg.DECODE_TOKENS: get(registers, Reg.DECODE_TOKENS) + jnp.where(is_decode, tokens, 0),
        Reg.NUM_WAITING: get(registers, Reg.NUM_WAITING) - ~is_member,
        Reg.NUM_SCHEDULED: get(registers, Reg.NUM_SCHEDULED) + ~is_member,
    }
    inst_changes = {
        Inst.USED_BLOCKS: used + new_blocks + allocation.num_revived,
        Inst.MISSES: get(inst, Inst.MISSES) + new_blocks,
        Inst.HITS: get(inst, Inst.HITS) + hits,
    }
    service = Service(is_member, is_decode, is_served, tokens, end, cached)
    served = dataclasses.replace(chosen, path=allocation.rows)
    return _record(ctx, served, fixed, service, changes, inst_changes)


def _record(
    ctx: Context,
    visit: Visit,
    fixed: jax.Array,
    service: Service,
    changes: dict[Any, jax.Array],
    inst_changes: dict[Any, jax.Array],
) -> Visit:
    """Rows of the request after its visit; its last step is known as soon as its first token is."""
    work, inst, dyn, slot_row = visit.work, visit.work.inst, visit.dyn, visit.slot_row
    is_member, is_decode, is_served = service.is_member, service.is_decode, service.is_served
    index, record = get(inst, Inst.STEP_INDEX) + 1, get(work.registers, Reg.NUM_RECORDS)
    input_len = get(fixed, Req.INPUT_LEN)
    has_token = ~is_decode & is_served & (service.end == input_len)
    is_zero = ~is_member & (service.tokens == 0)
    is_lagging = is_decode & ~is_served
    last = index + jnp.maximum(get(fixed, Req.OUTPUT_LEN), 1) - 1
    finish = jnp.where(has_token, last, get(slot_row, Slot.FINISH))
    order = get(inst, Inst.NEXT_ORDER)
    offset = jnp.where(is_zero, 0, input_len) - index
    old_offset = get(slot_row, Slot.ALLOC_OFFSET) - is_lagging
    scheduled = get(dyn, Dyn.NUM_SCHEDULED)
    is_first = ~is_member & (scheduled == 0)
    chunks = jnp.where(is_member, get(dyn, Dyn.NUM_PREFILL_STEPS), 0)

    def kept(column: Dyn, is_new: jax.Array, value: jax.Array) -> jax.Array:
        return jnp.where(is_new, value, get(dyn, column))

    columns = {
        Dyn.PROGRESS: service.end,
        Dyn.NUM_NEW: kept(Dyn.NUM_NEW, ~is_decode, service.tokens),
        Dyn.LAG: get(dyn, Dyn.LAG) + is_lagging,
        Dyn.NUM_SCHEDULED: scheduled + ~is_member,
        Dyn.NUM_PREFILL_STEPS: chunks + (~is_decode & is_served),
        Dyn.CACHED_FIRST: kept(Dyn.CACHED_FIRST, is_first, service.cached),
        Dyn.FIRST_RECORD: kept(Dyn.FIRST_RECORD, is_first, record),
        Dyn.SCHEDULED_RECORD: kept(Dyn.SCHEDULED_RECORD, ~is_member, record),
        Dyn.SCHEDULED_INDEX: kept(Dyn.SCHEDULED_INDEX, ~is_member, index),
        Dyn.TOKEN_RECORD: kept(Dyn.TOKEN_RECORD, has_token, record),
        Dyn.TOKEN_INDEX: kept(Dyn.TOKEN_INDEX, has_token, index),
        Dyn.FINISH_RECORD: get(dyn, Dyn.FINISH_RECORD),
    }
    joins, gains = (~is_member).astype(jnp.int32), has_token.astype(jnp.int32)
    inst_changes |= {
        Inst.NEXT_ORDER: order + joins,
        Inst.NUM_PREFILL: get(inst, Inst.NUM_PREFILL) + joins - gains,
        Inst.NUM_DECODE: get(inst, Inst.NUM_DECODE) + gains,
        Inst.IS_SEQUENTIAL: get(inst, Inst.IS_SEQUENTIAL) | is_zero.astype(jnp.int32),
    }
    slot_changes = {
        Slot.ORDER: jnp.where(is_member, get(slot_row, Slot.ORDER), order),
        Slot.FINISH: finish,
        Slot.ALLOC_OFFSET: jnp.where(has_token, offset, old_offset),
    }
    return dataclasses.replace(
        visit,
        work=Work(
            put(work.registers, changes), work.times, put(inst, inst_changes), work.inst_time
        ),
        slot_row=put(slot_row, slot_changes),
        slot_time_row=put(visit.slot_time_row, {SlotTime.QUEUED: ctx.never}),
        dyn=build(Dyn, columns, jnp.int32),
    )

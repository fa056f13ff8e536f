"""Batch formation: which members of the batch and which waiting requests get tokens in a step.

A step begins in `begin.py`, visits one request at a time here, and ends in `advance.py`. Running prefills come
first in batch order, then waiting requests in the scheduler's order, until the token budget, the batch limit or
the candidates run out. Decode members take one token each and are counted, not visited, unless one fills a block
that a later prompt may find, or the budget might not reach all of them: only a fully cached prompt, admitted
with no new tokens, can bring that about.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax import lax

from blis_jax.columns import as_int, build, get, put
from blis_jax.context import Context, SlotRows, least_key, row, slot_of
from blis_jax.joined import past_of
from blis_jax.kv_cache.blocks import Task
from blis_jax.kv_cache.contents import found_blocks
from blis_jax.kv_cache.no_eviction import (
    allocate,
    cached_blocks,
    cached_for_all,
    read_path,
)
from blis_jax.policy_calls import Purpose, keeps_states, queue_context
from blis_jax.slot_write import SlotWrite
from blis_jax.state import SEQUENTIAL_LAGGING, Dyn, Inst, Reg, Req, Slot, SlotTime, State, Time
from blis_jax.types import LAST, Outcome, pytree
from blis_jax.work import Work, ceil_div, failing, waiting_mask

if TYPE_CHECKING:
    from jaxtyping import Array, Int


def has_candidate(ctx: Context, work: Work, instance: jax.Array) -> jax.Array:
    """Whether batch formation goes on: members to visit, or waiting requests with room and budget left."""
    registers = work.registers
    members = get(work.inst, Inst.NUM_PREFILL) + get(work.inst, Inst.NUM_DECODE)
    has_room = members < ctx.params.cluster.max_num_running_reqs[instance]
    has_queue = (get(registers, Reg.NUM_WAITING) > 0) & (get(registers, Reg.BUDGET) > 0)
    is_left = get(registers, Reg.NUM_TO_VISIT) > 0
    if work.task is not None:
        is_left = is_left | (get(work.task, Task.NUM_GHOSTS) > 0)
        has_queue = has_queue & (get(work.task, Task.HAS_PREEMPTED) == 0)
    return is_left | (has_queue & has_room)


def member_key(slots: SlotRows, registers: jax.Array, is_due: jax.Array) -> jax.Array:
    """Packed key of the next member to visit: one in prefill, one that is due, or any of them."""
    order, finish = slots.column(Slot.ORDER), slots.column(Slot.FINISH)
    is_ahead = (order > get(registers, Reg.CURSOR)) & (order <= get(registers, Reg.ORDER_LIMIT))
    is_visited = (finish == LAST) | (get(registers, Reg.VISIT_ALL) > 0) | is_due
    return least_key(is_ahead & is_visited, order)


def steps_to_fill(ctx: Context, slots: SlotRows, step_index: jax.Array) -> Int[Array, "slot"]:
    """Steps before the one in which a decode member fills a block that others may look up; LAST if never."""
    finish, size = slots.column(Slot.FINISH), jnp.int32(ctx.shape.block_size)
    # a block of one token is never looked up, see keeps_prefix
    if not ctx.shape.has_shared_outputs or ctx.shape.block_size == 1:
        return jnp.full_like(finish, LAST)
    held = step_index + slots.column(Slot.ALLOC_OFFSET)
    return jnp.where(finish == LAST, jnp.int32(LAST), size - 1 - lax.rem(held, size))


def queue_priority(ctx: Context, slots: SlotRows, work: Work) -> jax.Array:
    """Priority of the request in every slot `[slot]` now."""
    return _ask_priority(ctx, slots, work, work.local[0][0])[0]


def _ask_priority(ctx: Context, slots: SlotRows, work: Work, state: Any) -> tuple[jax.Array, Any]:
    policy, numbers = ctx.mechanism.priority, ctx.params.policy.priority
    cached = _cached_for_queue(ctx, slots) if policy.reads_cached_blocks else None
    context = queue_context(ctx, slots, work, Purpose.PRIORITY, num_cached_blocks=cached)
    priority, after = policy.decide(numbers, state, context)
    return priority, after


def _ask_scheduler(
    ctx: Context, slots: SlotRows, work: Work, state: Any, priority: jax.Array
) -> tuple[tuple[jax.Array, jax.Array], Any]:
    policy, numbers = ctx.mechanism.scheduler, ctx.params.policy.scheduler
    cached = _cached_for_queue(ctx, slots) if policy.reads_cached_blocks else None
    seen = {"num_cached_blocks": cached, "priority": priority}
    context = queue_context(ctx, slots, work, Purpose.SCHEDULER, **seen)
    order, after = policy.decide(numbers, state, context)
    return order, after


def with_next_states(ctx: Context, slots: SlotRows, work: Work) -> Work:
    """A step has begun: if requests wait, the instance's policies move on to the state that the last such step left.

    What they remember of this step is kept beside it, for several questions are asked with one state.
    """
    if not keeps_states(ctx.mechanism.of_instance, work.local):
        return work
    is_asked = get(work.registers, Reg.QUEUE_DEPTH) > 0
    (_, priority), (_, scheduler) = work.local
    ranks, next_priority = _ask_priority(ctx, slots, work, priority)
    _, next_scheduler = _ask_scheduler(ctx, slots, work, scheduler, ranks)
    moved = ((priority, next_priority), (scheduler, next_scheduler))
    local = jax.tree.map(lambda new, old: jnp.where(is_asked, new, old), moved, work.local)
    return dataclasses.replace(work, local=local)


def _cached_for_queue(ctx: Context, slots: SlotRows) -> jax.Array:
    """Leading prompt blocks in the cache for every slot."""
    input_len = slots.column(Slot.INPUT_LEN)
    requests, prompt_blocks = slots.column(Slot.REQUEST), input_len // ctx.shape.block_size
    blocks, shared = slots.state.blocks, slots.state.shared
    if blocks is not None:
        slot = lax.iota(jnp.int32, input_len.shape[0])

        def one(slot: jax.Array, request: jax.Array, prompt: jax.Array) -> jax.Array:
            new = jnp.array(False)
            return found_blocks(ctx, blocks, slots.instance, slot, request, prompt, new).count

        return jax.vmap(one)(slot, requests, prompt_blocks)
    if ctx.shape.num_nodes == 0:
        return jnp.zeros_like(input_len)
    assert shared is not None
    return cached_for_all(shared, ctx.requests, slots.instance, requests, prompt_blocks)


def queue_key(ctx: Context, slots: SlotRows, work: Work, priority: jax.Array) -> jax.Array:
    """Packed key of the waiting request that the scheduler puts first."""
    now = get(work.times, Time.NOW)
    (value, rank), _ = _ask_scheduler(ctx, slots, work, work.local[1][0], priority)
    is_waiting = waiting_mask(slots, now, get(work.inst, Inst.STEPS_AT_NOW))
    is_float = jnp.issubdtype(value.dtype, jnp.floating)
    top = jnp.inf if is_float else jnp.iinfo(value.dtype).max
    least = jnp.min(jnp.where(is_waiting, value, jnp.asarray(top, value.dtype)))
    return least_key(is_waiting & (value == least), rank)


def visit(ctx: Context, state: State, work: Work, instance: jax.Array) -> tuple[Work, SlotWrite]:
    """Serve the next candidate: a member in batch order, or the head of the wait queue."""
    slots, registers = SlotRows(state, instance), work.registers
    is_member = get(registers, Reg.NUM_TO_VISIT) > 0
    due = steps_to_fill(ctx, slots, get(work.inst, Inst.STEP_INDEX)) == 0
    key = ctx.when(
        is_member,
        lambda: member_key(slots, registers, due),
        lambda: queue_key(ctx, slots, work, queue_priority(ctx, slots, work)),
    )
    slot = jnp.minimum(slot_of(key), jnp.int32(ctx.shape.num_slots - 1))
    slot_row, slot_time_row = slots.one(ctx, slot)
    request = get(slot_row, Slot.REQUEST)
    assert state.shared is not None
    path = read_path(state.shared, ctx.requests, instance, slot, request)
    dyn = ctx.vector(row(state.dyn, request))
    chosen = SlotWrite(instance, slot, slot_row, slot_time_row, path, None, request, dyn)
    return _serve(ctx, work, chosen, row(ctx.requests.table, request), is_member)


def chunk_of(
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


def keeps_prefix(ctx: Context, dyn: jax.Array, fixed: jax.Array, held: jax.Array) -> jax.Array:
    """Whether a block that the next decode token fills is registered under the request's own prefix.

    Not after a fully cached prompt (the list holds outputs only) nor once the budget passed the request over
    (a token is missing); and a block that one token fills, fresh from the free list, never is.
    """
    size = ctx.shape.block_size
    is_prefix = get(dyn, Dyn.CACHED_FIRST) * size < get(fixed, Req.INPUT_LEN)
    is_partial = lax.rem(held, jnp.int32(size)) != 0
    return is_prefix & is_partial & (get(dyn, Dyn.LAG) == 0)


def _serve(
    ctx: Context, work: Work, chosen: SlotWrite, fixed: jax.Array, is_member: jax.Array
) -> tuple[Work, SlotWrite]:
    """Give tokens and blocks to the chosen request, or keep its stale count if the budget is used up."""
    size, dyn, inst = ctx.shape.block_size, chosen.dyn, work.inst
    registers, index, instance = work.registers, get(inst, Inst.STEP_INDEX), chosen.instance
    assert chosen.path is not None
    is_decode = is_member & (get(chosen.row, Slot.FINISH) != LAST)
    budget = get(registers, Reg.BUDGET)
    is_served = budget > 0
    cached = cached_blocks(chosen.path, lax.div(get(fixed, Req.INPUT_LEN), jnp.int32(size)))
    progress = jnp.where(is_member, get(dyn, Dyn.PROGRESS), cached * size)
    chunk = chunk_of(ctx, budget, fixed, progress, instance)
    served_decodes = index - get(dyn, Dyn.TOKEN_INDEX) - get(dyn, Dyn.LAG)
    stale = jnp.where(is_decode & (served_decodes > 0), 1, get(dyn, Dyn.NUM_NEW))
    stale = jnp.where(ctx.mechanism.defects.stale_token_counts, stale, 0)
    tokens = jnp.where(is_served, jnp.where(is_decode, 1, chunk), stale)
    is_chunk = is_served & ~is_decode
    end = progress + jnp.where(is_chunk, chunk, 0)
    held = index + get(chosen.row, Slot.ALLOC_OFFSET)
    takes_block = is_decode & is_served & (lax.rem(held, jnp.int32(size)) == 0)
    new_blocks = jnp.where(is_chunk, ceil_div(end, size) - ceil_div(progress, size), 0)
    new_blocks = new_blocks + as_int(takes_block)
    hits = jnp.where(~is_member & (chunk > 0), cached, 0)
    fills = is_decode & is_served & keeps_prefix(ctx, dyn, fixed, held)
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
    needed = jnp.where(is_chunk, ceil_div(chunk, size), as_int(takes_block))
    is_short = needed > ctx.params.cluster.total_kv_blocks[instance] - used
    outcome = failing(get(registers, Reg.OUTCOME), is_short, Outcome.KV_CHECK_TRIPPED)
    outcome = failing(outcome, allocation.is_full == 1, Outcome.COPIES_FULL)
    changes = {
        Reg.OUTCOME: outcome,
        Reg.CURSOR: jnp.where(is_member, get(chosen.row, Slot.ORDER), get(registers, Reg.CURSOR)),
        Reg.NUM_TO_VISIT: get(registers, Reg.NUM_TO_VISIT) - as_int(is_member),
        Reg.BUDGET: budget - jnp.where(is_served, tokens, 0),
        Reg.PREFILL_TOKENS: get(registers, Reg.PREFILL_TOKENS) + jnp.where(is_decode, 0, tokens),
        Reg.DECODE_TOKENS: get(registers, Reg.DECODE_TOKENS) + jnp.where(is_decode, tokens, 0),
        Reg.NUM_WAITING: get(registers, Reg.NUM_WAITING) - as_int(~is_member),
        Reg.NUM_SCHEDULED: get(registers, Reg.NUM_SCHEDULED) + as_int(~is_member),
    }
    inst_changes = {
        Inst.USED_BLOCKS: used + new_blocks + allocation.num_revived,
        Inst.MISSES: get(inst, Inst.MISSES) + new_blocks,
        Inst.HITS: get(inst, Inst.HITS) + hits,
    }
    service = Service(is_member, is_decode, is_served, tokens, end, cached)
    served = dataclasses.replace(chosen, path=allocation.rows)
    return _record(ctx, work, served, fixed, service, changes, inst_changes)


def _members(
    inst: jax.Array, joins: jax.Array, gains: jax.Array, is_zero: jax.Array, lags: jax.Array
) -> dict[Any, jax.Array]:
    """The batch's counts after a request joined it, got its first token, or joined with no tokens."""
    order, prefill = get(inst, Inst.NEXT_ORDER), get(inst, Inst.NUM_PREFILL)
    order_now = jnp.where(lags, SEQUENTIAL_LAGGING, as_int(is_zero))
    return {
        Inst.NEXT_ORDER: order + as_int(joins),
        Inst.NUM_PREFILL: prefill + as_int(joins) - as_int(gains),
        Inst.NUM_DECODE: get(inst, Inst.NUM_DECODE) + as_int(gains),
        Inst.IS_SEQUENTIAL: jnp.maximum(get(inst, Inst.IS_SEQUENTIAL), order_now),
    }


def _record(
    ctx: Context,
    work: Work,
    chosen: SlotWrite,
    fixed: jax.Array,
    service: Service,
    changes: dict[Any, jax.Array],
    inst_changes: dict[Any, jax.Array],
) -> tuple[Work, SlotWrite]:
    """Rows of the request after its visit; its last step is known as soon as its first token is."""
    inst, dyn, slot_row = work.inst, chosen.dyn, chosen.row
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
    old_offset = get(slot_row, Slot.ALLOC_OFFSET) - as_int(is_lagging)
    scheduled = get(dyn, Dyn.NUM_SCHEDULED)
    is_first = ~is_member & (scheduled == 0)
    chunks = jnp.where(is_member, get(dyn, Dyn.NUM_PREFILL_STEPS), 0)

    def kept(column: Dyn, is_new: jax.Array, value: jax.Array) -> jax.Array:
        return jnp.where(is_new, value, get(dyn, column))

    before = jnp.where(is_member, get(dyn, Dyn.PROGRESS), 0)
    columns = {
        Dyn.PROGRESS: service.end,
        Dyn.NUM_NEW: kept(Dyn.NUM_NEW, ~is_decode, service.tokens),
        Dyn.LAG: get(dyn, Dyn.LAG) + as_int(is_lagging),
        Dyn.NUM_SCHEDULED: scheduled + as_int(~is_member),
        Dyn.NUM_PREFILL_STEPS: chunks + as_int(~is_decode & is_served),
        Dyn.CACHED_FIRST: kept(Dyn.CACHED_FIRST, is_first, service.cached),
        Dyn.FIRST_RECORD: kept(Dyn.FIRST_RECORD, is_first, record),
        Dyn.SCHEDULED_RECORD: kept(Dyn.SCHEDULED_RECORD, ~is_member, record),
        Dyn.SCHEDULED_INDEX: kept(Dyn.SCHEDULED_INDEX, ~is_member, index),
        Dyn.TOKEN_RECORD: kept(Dyn.TOKEN_RECORD, has_token, record),
        Dyn.TOKEN_INDEX: kept(Dyn.TOKEN_INDEX, has_token, index),
        Dyn.FINISH_RECORD: get(dyn, Dyn.FINISH_RECORD),
        Dyn.STEP_PROGRESS: kept(Dyn.STEP_PROGRESS, ~is_decode, before),
    }
    inst_changes |= _members(inst, ~is_member, has_token, is_zero, is_lagging)
    slot_changes = {
        Slot.ORDER: jnp.where(is_member, get(slot_row, Slot.ORDER), order),
        Slot.FINISH: finish,
        Slot.ALLOC_OFFSET: jnp.where(has_token, offset, old_offset),
    }
    work = dataclasses.replace(
        work, registers=put(work.registers, changes), inst=put(inst, inst_changes)
    )
    return work, dataclasses.replace(
        chosen,
        row=put(slot_row, slot_changes),
        time_row=put(chosen.time_row, {SlotTime.QUEUED: ctx.never}),
        dyn=past_of(dyn, build(Dyn, columns, jnp.int32)),
    )

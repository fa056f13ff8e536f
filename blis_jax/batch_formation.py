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

from blis_jax.columns import as_int
from blis_jax.context import Context, SlotRows, least_key, slot_of
from blis_jax.kv_cache.contents import found_blocks
from blis_jax.kv_cache.no_eviction import (
    allocate,
    cached_blocks,
    cached_for_all,
    read_path,
)
from blis_jax.policy_calls import Purpose, keeps_states, queue_context
from blis_jax.slot_write import SlotWrite
from blis_jax.state import SEQUENTIAL_LAGGING, Instance, Past, Request, State, StepInProgress
from blis_jax.types import LAST, Outcome, pytree
from blis_jax.work import Work, ceil_div, failing, waiting_mask

if TYPE_CHECKING:
    from jaxtyping import Array, Int


def has_candidate(ctx: Context, work: Work, instance: jax.Array) -> jax.Array:
    """Whether batch formation goes on: members to visit, or waiting requests with room and budget left."""
    lane = work.lane
    members = work.inst.num_prefill + work.inst.num_decode
    has_room = members < ctx.params.cluster.max_num_running_reqs[instance]
    has_queue = (lane.num_waiting > 0) & (lane.budget > 0)
    is_left = lane.num_to_visit > 0
    if not work.task.is_absent:
        is_left = is_left | (work.task.num_ghosts > 0)
        has_queue = has_queue & (work.task.has_preempted == 0)
    return is_left | (has_queue & has_room)


def member_key(slots: SlotRows, step: StepInProgress, is_due: jax.Array) -> jax.Array:
    """Packed key of the next member to visit: one in prefill, one that is due, or any of them."""
    order, finish = slots.order, slots.finish
    is_ahead = (order > step.cursor) & (order <= step.order_limit)
    is_visited = (finish == LAST) | (step.visit_all > 0) | is_due
    return least_key(is_ahead & is_visited, order)


def steps_to_fill(ctx: Context, slots: SlotRows, step_index: jax.Array) -> Int[Array, "slot"]:
    """Steps before the one in which a decode member fills a block that others may look up; LAST if never."""
    finish, size = slots.finish, jnp.int32(ctx.shape.block_size)
    # a block of one token is never looked up, see keeps_prefix
    if not ctx.shape.has_shared_outputs or ctx.shape.block_size == 1:
        return jnp.full_like(finish, LAST)
    held = step_index + slots.alloc_offset
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
    is_asked = work.lane.queue_depth > 0
    (_, priority), (_, scheduler) = work.local
    ranks, next_priority = _ask_priority(ctx, slots, work, priority)
    _, next_scheduler = _ask_scheduler(ctx, slots, work, scheduler, ranks)
    moved = ((priority, next_priority), (scheduler, next_scheduler))
    local = jax.tree.map(lambda new, old: jnp.where(is_asked, new, old), moved, work.local)
    return dataclasses.replace(work, local=local)


def _cached_for_queue(ctx: Context, slots: SlotRows) -> jax.Array:
    """Leading prompt blocks in the cache for every slot."""
    input_len = slots.input_len
    requests, prompt_blocks = slots.request, input_len // ctx.shape.block_size
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
    now = work.lane.now
    (value, rank), _ = _ask_scheduler(ctx, slots, work, work.local[1][0], priority)
    is_waiting = waiting_mask(slots, now, work.inst.steps_at_now)
    is_float = jnp.issubdtype(value.dtype, jnp.floating)
    top = jnp.inf if is_float else jnp.iinfo(value.dtype).max
    least = jnp.min(jnp.where(is_waiting, value, jnp.asarray(top, value.dtype)))
    return least_key(is_waiting & (value == least), rank)


def visit(ctx: Context, state: State, work: Work, instance: jax.Array) -> tuple[Work, SlotWrite]:
    """Serve the next candidate: a member in batch order, or the head of the wait queue."""
    slots, lane = SlotRows(state, instance), work.lane
    is_member = lane.num_to_visit > 0
    due = steps_to_fill(ctx, slots, work.inst.step_index) == 0
    key = ctx.when(
        is_member,
        lambda: member_key(slots, lane, due),
        lambda: queue_key(ctx, slots, work, queue_priority(ctx, slots, work)),
    )
    slot = jnp.minimum(slot_of(key), jnp.int32(ctx.shape.num_slots - 1))
    slot_row = slots.one(ctx, slot)
    request = slot_row.request
    assert state.shared is not None
    path = read_path(state.shared, ctx.requests, instance, slot, request)
    past = ctx.past(state, request)
    chosen = SlotWrite(instance, slot, slot_row, path, None, request, past)
    return _serve(ctx, work, chosen, ctx.request(request), is_member)


def chunk_of(
    ctx: Context, budget: jax.Array, fixed: Request, progress: jax.Array, instance: jax.Array
) -> jax.Array:
    """Prompt tokens of the next chunk: the rest, cut to the class's threshold and the budget."""
    slo_class = fixed.slo_class
    threshold = ctx.params.cluster.prefill_threshold[instance, slo_class]
    remaining = fixed.input_len - progress
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


def keeps_prefix(ctx: Context, past: Past, fixed: Request, held: jax.Array) -> jax.Array:
    """Whether a block that the next decode token fills is registered under the request's own prefix.

    Not after a fully cached prompt (the list holds outputs only) nor once the budget passed the request over
    (a token is missing); and a block that one token fills, fresh from the free list, never is.
    """
    size = ctx.shape.block_size
    is_prefix = past.cached_first * size < fixed.input_len
    is_partial = lax.rem(held, jnp.int32(size)) != 0
    return is_prefix & is_partial & (past.lag == 0)


def _serve(
    ctx: Context, work: Work, chosen: SlotWrite, fixed: Request, is_member: jax.Array
) -> tuple[Work, SlotWrite]:
    """Give tokens and blocks to the chosen request, or keep its stale count if the budget is used up."""
    size, past, inst = ctx.shape.block_size, chosen.past, work.inst
    lane, index, instance = work.lane, inst.step_index, chosen.instance
    assert chosen.path is not None
    is_decode = is_member & (chosen.row.finish != LAST)
    budget = lane.budget
    is_served = budget > 0
    cached = cached_blocks(chosen.path, lax.div(fixed.input_len, jnp.int32(size)))
    progress = jnp.where(is_member, past.progress, cached * size)
    chunk = chunk_of(ctx, budget, fixed, progress, instance)
    served_decodes = index - past.token_index - past.lag
    stale = jnp.where(is_decode & (served_decodes > 0), 1, past.num_new)
    stale = jnp.where(ctx.mechanism.defects.stale_token_counts, stale, 0)
    tokens = jnp.where(is_served, jnp.where(is_decode, 1, chunk), stale)
    is_chunk = is_served & ~is_decode
    end = progress + jnp.where(is_chunk, chunk, 0)
    held = index + chosen.row.alloc_offset
    takes_block = is_decode & is_served & (lax.rem(held, jnp.int32(size)) == 0)
    new_blocks = jnp.where(is_chunk, ceil_div(end, size) - ceil_div(progress, size), 0)
    new_blocks = new_blocks + as_int(takes_block)
    hits = jnp.where(~is_member & (chunk > 0), cached, 0)
    fills = is_decode & is_served & keeps_prefix(ctx, past, fixed, held)
    start = jnp.where(is_chunk, progress, jnp.where(fills, held, 0))
    stop = jnp.where(is_chunk, end, jnp.where(fills, held + 1, 0))
    allocation = allocate(
        chosen.path,
        ~is_member,
        hits,
        lax.div(start, jnp.int32(size)),
        lax.div(stop, jnp.int32(size)),
    )
    used = inst.used_blocks
    needed = jnp.where(is_chunk, ceil_div(chunk, size), as_int(takes_block))
    is_short = needed > ctx.params.cluster.total_kv_blocks[instance] - used
    outcome = failing(lane.outcome, is_short, Outcome.KV_CHECK_TRIPPED)
    outcome = failing(outcome, allocation.is_full == 1, Outcome.COPIES_FULL)
    changes = {
        "outcome": outcome,
        "cursor": jnp.where(is_member, chosen.row.order, lane.cursor),
        "num_to_visit": lane.num_to_visit - as_int(is_member),
        "budget": budget - jnp.where(is_served, tokens, 0),
        "prefill_tokens": lane.prefill_tokens + jnp.where(is_decode, 0, tokens),
        "decode_tokens": lane.decode_tokens + jnp.where(is_decode, tokens, 0),
        "num_waiting": lane.num_waiting - as_int(~is_member),
        "num_scheduled": lane.num_scheduled + as_int(~is_member),
    }
    inst_changes = {
        "used_blocks": used + new_blocks + allocation.num_revived,
        "misses": inst.misses + new_blocks,
        "hits": inst.hits + hits,
    }
    service = Service(is_member, is_decode, is_served, tokens, end, cached)
    served = dataclasses.replace(chosen, path=allocation.rows)
    return _record(ctx, work, served, fixed, service, changes, inst_changes)


def _members(
    inst: Instance, joins: jax.Array, gains: jax.Array, is_zero: jax.Array, lags: jax.Array
) -> dict[Any, jax.Array]:
    """The batch's counts after a request joined it, got its first token, or joined with no tokens."""
    order, prefill = inst.next_order, inst.num_prefill
    order_now = jnp.where(lags, SEQUENTIAL_LAGGING, as_int(is_zero))
    return {
        "next_order": order + as_int(joins),
        "num_prefill": prefill + as_int(joins) - as_int(gains),
        "num_decode": inst.num_decode + as_int(gains),
        "is_sequential": jnp.maximum(inst.is_sequential, order_now),
    }


def _record(
    ctx: Context,
    work: Work,
    chosen: SlotWrite,
    fixed: Request,
    service: Service,
    changes: dict[Any, jax.Array],
    inst_changes: dict[Any, jax.Array],
) -> tuple[Work, SlotWrite]:
    """Rows of the request after its visit; its last step is known as soon as its first token is."""
    inst, past, slot_row = work.inst, chosen.past, chosen.row
    is_member, is_decode, is_served = service.is_member, service.is_decode, service.is_served
    index, record = inst.step_index + 1, work.lane.num_records
    input_len = fixed.input_len
    has_token = ~is_decode & is_served & (service.end == input_len)
    is_zero = ~is_member & (service.tokens == 0)
    is_lagging = is_decode & ~is_served
    last = index + jnp.maximum(fixed.output_len, 1) - 1
    finish = jnp.where(has_token, last, slot_row.finish)
    order = inst.next_order
    offset = jnp.where(is_zero, 0, input_len) - index
    old_offset = slot_row.alloc_offset - as_int(is_lagging)
    scheduled = past.num_scheduled
    is_first = ~is_member & (scheduled == 0)
    chunks = jnp.where(is_member, past.num_prefill_steps, 0)

    def kept(field: str, is_new: jax.Array, value: jax.Array) -> jax.Array:
        return jnp.where(is_new, value, getattr(past, field))

    before = jnp.where(is_member, past.progress, 0)
    inst_changes |= _members(inst, ~is_member, has_token, is_zero, is_lagging)
    slot_changes = {
        "order": jnp.where(is_member, slot_row.order, order),
        "finish": finish,
        "alloc_offset": jnp.where(has_token, offset, old_offset),
    }
    work = dataclasses.replace(
        work, lane=work.lane.replace(**changes), inst=inst.replace(**inst_changes)
    )
    return work, dataclasses.replace(
        chosen,
        row=slot_row.replace(**slot_changes, queued=ctx.never),
        past=Past.make(
            progress=service.end,
            num_new=kept("num_new", ~is_decode, service.tokens),
            lag=past.lag + as_int(is_lagging),
            num_scheduled=scheduled + as_int(~is_member),
            num_prefill_steps=chunks + as_int(~is_decode & is_served),
            cached_first=kept("cached_first", is_first, service.cached),
            first_record=kept("first_record", is_first, record),
            scheduled_record=kept("scheduled_record", ~is_member, record),
            scheduled_index=kept("scheduled_index", ~is_member, index),
            token_record=kept("token_record", has_token, record),
            token_index=kept("token_index", has_token, index),
            finish_record=past.finish_record,
            step_progress=kept("step_progress", ~is_decode, before),
        ).with_rest_of(past),
    )

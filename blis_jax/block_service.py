"""Serving one request when memory is modelled block by block.

The same visit as in `batch_formation.py`, but blocks may be missing: then content is reloaded, a request is
evicted and the visit repeated, or admission ends. Members that only store one more token in their last block
are not visited unless the budget might not reach them.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
from jax import lax

from blis_jax.batch_formation import chunk_of, member_key, queue_key, queue_priority
from blis_jax.block_records import recorded
from blis_jax.block_subject import Given, Subject, is_due, subject_of
from blis_jax.columns import as_int, choose
from blis_jax.context import Context, SlotRows, slot_of
from blis_jax.kv_cache.allocation import Demand, Grant, attempt
from blis_jax.kv_cache.blocks import Asker, Blocks, Do, MemoryTask
from blis_jax.kv_cache.contents import found_blocks, nothing_found
from blis_jax.slot_write import SlotWrite
from blis_jax.state import State
from blis_jax.types import LAST, Outcome
from blis_jax.work import Work, failing


def _choose(
    ctx: Context, state: State, work: Work, instance: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Who is visited next, as (asker, slot, priority)."""
    blocks = state.blocks
    assert blocks is not None
    slots, task, lane = SlotRows(state, instance), work.task, work.lane
    index = work.inst.step_index
    is_forced = task.do == Do.ATTEMPT
    is_member = lane.num_to_visit > 0
    is_ghost = ~is_member & (task.num_ghosts > 0)

    def from_batch() -> tuple[jax.Array, jax.Array]:
        due = is_due(ctx, slots, index)
        return slot_of(member_key(slots, lane, due)), jnp.float64(0.0)

    def from_queue() -> tuple[jax.Array, jax.Array]:
        priority = queue_priority(ctx, slots, work)
        slot = slot_of(queue_key(ctx, slots, work, priority))
        slot = jnp.minimum(slot, jnp.int32(ctx.shape.num_slots - 1))
        return slot, priority[slot].astype(jnp.float64)

    slot, priority = ctx.when(is_member | is_ghost | is_forced, from_batch, from_queue)
    top = jnp.maximum(task.num_ghosts - 1, 0)
    slot = jnp.where(is_ghost, blocks.ghosts[top], slot)
    slot = jnp.where(is_forced, task.slot, slot)
    slot = jnp.minimum(slot, jnp.int32(ctx.shape.num_slots - 1))
    asker = jnp.where(is_ghost, jnp.int32(Asker.GHOST), jnp.int32(Asker.QUEUE))
    asker = jnp.where(is_member, jnp.int32(Asker.MEMBER), asker)
    return jnp.where(is_forced, task.asker, asker), slot, priority


def serve(ctx: Context, state: State, work: Work, instance: jax.Array) -> tuple[Work, SlotWrite]:
    """Serve the next candidate, or the one whose allocation failed before."""
    blocks = state.blocks
    assert blocks is not None
    asker, slot, priority = _choose(ctx, state, work, instance)
    one = subject_of(ctx, state, work, instance, slot, asker, priority)
    computed = blocks.computed[instance, slot]
    is_served = one.is_forced | (work.lane.budget > 0)
    demand, asked = _demand(ctx, blocks, work, instance, one, computed)
    is_idle = one.in_decode & (one.fixed.output_len == 0)
    grant = attempt(ctx, work, instance, demand)
    asks = is_served & ~is_idle
    given = Given(
        asks=asks,
        is_granted=grant.is_granted | ~asks,
        is_idle=is_idle,
        tokens=jnp.where(asks, asked["asked_tokens"], 0),
        cached=asked["asked_start"] // ctx.shape.block_size,
        computed=computed,
    )
    is_popped = (asker == Asker.GHOST) & ~one.is_forced
    work = dataclasses.replace(work, task=_task_after(work.task, grant, asked, asks, is_popped))
    work, written = recorded(ctx, one, _counted(ctx, work, one, grant, given), grant, given)
    rows, is_admitted = written.blocks, one.is_queued & given.is_granted
    assert rows is not None
    stored = _stored_priority(ctx, blocks, instance, slot)
    rows = dataclasses.replace(rows, priority=jnp.where(is_admitted, priority, stored))
    return work, dataclasses.replace(written, instance=instance, blocks=rows)


def _stored_priority(
    ctx: Context, blocks: Blocks, instance: jax.Array, slot: jax.Array
) -> jax.Array:
    if not ctx.mechanism.evicts_lowest_priority:
        return jnp.float64(0.0)
    return blocks.priority[instance, slot]


def _demand(
    ctx: Context,
    blocks: Blocks,
    work: Work,
    instance: jax.Array,
    one: Subject,
    computed: jax.Array,
) -> tuple[Demand, dict[str, jax.Array]]:
    """What the visited request asks for, now and when it was visited first."""
    size, task = jnp.int32(ctx.shape.block_size), work.task
    input_len = one.fixed.input_len
    request = one.slot_row.request
    is_retry = one.is_forced & (task.is_retry == 1)
    where = (ctx, blocks, instance, one.slot, request)
    now = ctx.when(
        one.is_queued | is_retry,
        lambda: found_blocks(*where, lax.div(input_len, size), jnp.array(False)),
        nothing_found,
    )
    count = now.count
    steps = one.step - 1
    first = one.past.step_progress
    progress = jnp.where(one.is_again, first, computed)
    progress = jnp.where(one.in_decode, computed + steps, progress)
    start = jnp.where(one.is_queued, count * size, progress)
    chunk = chunk_of(ctx, work.lane.budget, one.fixed, start, instance)
    chunk = jnp.where(one.in_decode, 1, chunk)
    hits = jnp.where(one.is_queued, count, 0)
    start = jnp.where(one.is_forced, task.asked_start, start)
    chunk = jnp.where(one.is_forced, task.asked_tokens, chunk)
    hits = jnp.where(one.is_forced, task.asked_hits, hits)
    asked = {"asked_start": start, "asked_tokens": chunk, "asked_hits": hits}
    finds_more = is_retry & (count * size > start)
    # the blocks found first are kept, whatever the reload made of them
    is_old, end = is_retry & ~finds_more, start + chunk
    found = ctx.when(is_old, lambda: found_blocks(*where, hits, jnp.array(True)), lambda: now)
    demand = Demand(
        asker=one.asker,
        slot=one.slot,
        request=request,
        held=one.held(),
        start=jnp.where(finds_more, count * size, start),
        tokens=jnp.where(finds_more, end - count * size, chunk),
        in_prefill=~one.in_decode,
        is_clean=one.life.is_clean == 1,
        is_retry=is_retry,
        found=found,
        is_old=is_old,
        beyond=one.in_decode & (start - input_len >= one.fixed.output_len),
    )
    return demand, asked


def _task_after(
    task: MemoryTask,
    grant: Grant,
    asked: dict[str, jax.Array],
    asks: jax.Array,
    is_popped: jax.Array,
) -> MemoryTask:
    """The task after the visit."""
    kept = task.replace(num_ghosts=task.num_ghosts - as_int(is_popped))
    return choose(asks, kept.replace(**(grant.task | asked)), kept)


def _counted(ctx: Context, work: Work, one: Subject, grant: Grant, given: Given) -> Work:
    """The step's counters after the visit; a request counts with the tokens of its last visit."""
    lane, asks, is_granted = work.lane, given.asks, given.is_granted
    counts = is_granted & (one.in_batch | one.is_queued) & ~given.is_idle
    before = jnp.where(one.is_again & one.in_batch, one.past.num_new, 0)
    now = jnp.where(asks, given.tokens, stale_tokens(ctx, one))
    change = jnp.where(counts, now - before, 0)
    is_member = (one.asker == Asker.MEMBER) & ~one.is_forced
    outcome = failing(lane.outcome, asks & grant.crashes, Outcome.REFERENCE_CRASH)
    joins = one.is_queued & is_granted
    cursor = jnp.where(is_member, one.slot_row.order, lane.cursor)
    cursor = jnp.where(one.asker == Asker.GHOST, jnp.int32(LAST), cursor)
    return dataclasses.replace(
        work,
        lane=lane.replace(
            outcome=outcome,
            cursor=cursor,
            num_to_visit=lane.num_to_visit - as_int(is_member),
            budget=lane.budget - jnp.where(is_granted, given.tokens, 0),
            prefill_tokens=lane.prefill_tokens + jnp.where(one.in_decode, 0, change),
            decode_tokens=lane.decode_tokens + jnp.where(one.in_decode, change, 0),
            num_waiting=lane.num_waiting - as_int(joins),
            num_scheduled=lane.num_scheduled + as_int(joins),
        ),
    )


def stale_tokens(ctx: Context, one: Subject) -> jax.Array:
    """Tokens with which a request counts that the budget did not reach: those of its last visit."""
    if not ctx.mechanism.defects.stale_token_counts:
        return jnp.int32(0)
    served = one.step - 1 - one.past.token_index - one.past.lag
    return jnp.where(one.in_decode & (served > 0), 1, one.past.num_new)

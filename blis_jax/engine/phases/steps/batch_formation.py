"""Batch formation: which tokens a member of the batch or a waiting request gets in a step.

A step begins in `step_start.py`, visits one request at a time here, and ends in `step_end.py`. `candidates.py` says
who comes next, until the token budget, the batch limit or the candidates run out. Memory grants or refuses the blocks
for the tokens; everything else of a visit is the same whatever the memory model, see `memory/memory.py`.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from blis_jax.core.columns import as_int
from blis_jax.core.types import LAST
from blis_jax.engine.context import Context
from blis_jax.engine.phases.departures.hand_over import ask, comes_with_kv, starts_over
from blis_jax.engine.phases.steps.candidates import next_candidate
from blis_jax.engine.phases.steps.mid_step import Work
from blis_jax.engine.state import RUNAWAY, Past, Request, Resident, State
from blis_jax.engine.tables.slot_write import SlotWrite
from blis_jax.memory.block_tables.blocks import Asker
from blis_jax.memory.block_tables.contents import Found, nothing_found
from blis_jax.memory.index_events import allocated
from blis_jax.memory.memory import Demand, Grant, Subject, Visit, is_passed_over


def serve(ctx: Context, state: State, work: Work, instance: jax.Array) -> tuple[Work, SlotWrite]:
    """Serve the next candidate, or the one whose allocation failed before."""
    memory = ctx.memory
    one = memory.subject(ctx, state, work, next_candidate(ctx, state, work, instance))
    found = memory.look_up(ctx, state, work, one)
    comes = comes_with_kv(ctx, state, one)
    asked = _demand(ctx, work, one, found, comes)
    again = starts_over(ctx, state, one)
    if again is not None:
        asked = _of_decode_part(one, asked, comes, comes | again)
    demand = memory.remembered(work, one, asked)
    grant = memory.allocate(ctx, state, work, one, demand)
    visit = _visit(one, demand, grant, comes)
    moves, work = ask(ctx, state, work, one, visit)
    rows = memory.rows_of_visit(ctx, state, work, one, grant, visit)
    past = _past(ctx, work, one, demand, visit)
    row = _row(ctx, work, one, grant, visit, moves)
    work = allocated(ctx, state, _counted(ctx, work, one, grant, visit), one, visit)
    return work, SlotWrite(instance, one.slot, row, rows, one.request, past)


def chunk_of(
    ctx: Context, budget: jax.Array, fixed: Request, progress: jax.Array, instance: jax.Array
) -> jax.Array:
    """Prompt tokens of the next chunk: the rest, cut to the class's threshold and the budget."""
    slo_class = fixed.slo_class
    threshold = ctx.params.cluster.prefill_threshold[instance, slo_class]
    remaining = fixed.input_len - progress
    is_cut = (threshold > 0) & (threshold < remaining)
    return jnp.minimum(jnp.where(is_cut, threshold, remaining), budget)


def _demand(ctx: Context, work: Work, one: Subject, found: Found, comes: jax.Array) -> Demand:
    """Tokens that the request can use: a chunk of its prompt, behind what is cached, or the next output token.

    A request that comes with its KV stores its whole prompt at once.
    """
    budget, past, in_decode = work.lane.budget, one.past, one.in_decode
    hits = jnp.where(one.is_queued, found.count, 0)
    start = jnp.where(one.is_again, past.step_progress, past.progress)
    start = jnp.where(in_decode, one.position, start)
    start = jnp.where(one.is_queued, hits * ctx.shape.block_size, start)
    chunk = chunk_of(ctx, budget, one.fixed, start, one.instance)
    chunk = jnp.where(comes, one.fixed.input_len - start, chunk)
    return Demand(
        asks=(one.is_forced | (budget > 0)) & ~one.is_idle,
        start=start,
        tokens=jnp.where(in_decode, 1, chunk),
        hits=hits,
        found=found,
    )


def _of_decode_part(one: Subject, asked: Demand, comes: jax.Array, is_part: jax.Array) -> Demand:
    """What a request asks for whose prompt was computed elsewhere: one token, and nothing is looked up.

    Its KV has its blocks already; once it was evicted, it begins with the first token of its prompt, and finds what
    comes back from the CPU.
    """
    nothing, start = nothing_found(), jnp.where(comes, one.fixed.input_len, 0)
    hides = is_part & ~one.is_forced
    return dataclasses.replace(
        asked,
        start=jnp.where(is_part, start, asked.start),
        tokens=jnp.where(is_part, 1, asked.tokens),
        hits=jnp.where(is_part, 0, asked.hits),
        found=jax.tree.map(lambda a, b: jnp.where(hides, a, b), nothing, asked.found),
    )


def _visit(one: Subject, demand: Demand, grant: Grant, comes: jax.Array) -> Visit:
    """What the request gets; its last step is known as soon as its prompt is computed."""
    tokens = jnp.where(demand.asks, demand.tokens, 0)
    done = jnp.where(one.is_queued, demand.start, one.past.progress) + tokens
    is_in = one.in_batch | one.is_queued
    gains = grant.is_granted & is_in & ~one.in_decode & (done >= one.fixed.input_len)
    counted = jnp.where(comes, as_int(demand.asks), tokens)
    return Visit(demand.asks, grant.is_granted, tokens, counted, comes, done, gains)


def stale_tokens(ctx: Context, one: Subject) -> jax.Array:
    """Tokens with which a request counts that the budget did not reach: those of its last visit."""
    if not ctx.mechanism.defects.stale_token_counts:
        return jnp.int32(0)
    served = one.step - 1 - one.past.token_index - one.past.lag
    return jnp.where(one.in_decode & (served > 0), 1, one.past.num_new)


def _counted(ctx: Context, work: Work, one: Subject, grant: Grant, visit: Visit) -> Work:
    """The counters of the step and of the batch; a request counts with the tokens of its last visit."""
    lane, inst = work.lane, work.inst
    is_granted, in_decode = visit.is_granted, one.in_decode | visit.comes
    counts = is_granted & (one.in_batch | one.is_queued) & ~one.is_idle
    before = jnp.where(one.is_again & one.in_batch, one.past.num_new, 0)
    now = jnp.where(visit.asks, visit.counted, stale_tokens(ctx, one))
    change = jnp.where(counts, now - before, 0)
    is_member = (one.asker == Asker.MEMBER) & ~one.is_forced
    joins, gained = one.is_queued & is_granted, visit.gains & ~one.has_token
    cursor = jnp.where(is_member, one.row.order, lane.cursor)
    cursor = jnp.where(one.asker == Asker.GHOST, jnp.int32(LAST), cursor)
    of_lane = {
        "cursor": cursor,
        "num_to_visit": lane.num_to_visit - as_int(is_member),
        "budget": lane.budget - jnp.where(is_granted, visit.counted, 0),
        "prefill_tokens": lane.prefill_tokens + jnp.where(in_decode, 0, change),
        "decode_tokens": lane.decode_tokens + jnp.where(in_decode, change, 0),
        "num_waiting": lane.num_waiting - as_int(joins),
        "num_scheduled": lane.num_scheduled + as_int(joins),
        "num_decode": lane.num_decode + as_int(joins & visit.comes),
    }
    if ctx.mechanism.rules.passes_over:
        of_lane["num_decode"] -= as_int(is_passed_over(one, visit.asks))
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
    ctx: Context, work: Work, one: Subject, grant: Grant, visit: Visit, moves: jax.Array
) -> Resident:
    """The slot's row: a second visit in the same step, or an eviction, takes the step of completion back."""
    row, step, fixed = one.row, one.step, one.fixed
    left = fixed.input_len + jnp.maximum(fixed.output_len, 1) - 1 - visit.done
    if ctx.mechanism.reserves_decode:
        left = jnp.where(moves, 0, jnp.where(visit.comes, jnp.maximum(left, 0), left))
    else:
        left = jnp.where(moves, 0, left - as_int(visit.comes))
    finish = jnp.where(left >= 0, step + left, jnp.int32(RUNAWAY))
    finish = jnp.where(visit.gains, finish, row.finish)
    if ctx.mechanism.rules.passes_over:
        finish = finish + as_int(is_passed_over(one, visit.asks))
    is_past = visit.is_granted | one.is_again | one.has_token
    steps = jnp.where(is_past, step, step - 1)
    joins = one.is_queued & visit.is_granted
    return row.replace(
        order=jnp.where(joins, work.inst.next_order, row.order),
        queued=jnp.where(joins, ctx.never, row.queued),
        finish=finish,
        alloc_offset=grant.held - jnp.where(finish != LAST, steps, 0),
    )


def _past(ctx: Context, work: Work, one: Subject, demand: Demand, visit: Visit) -> Past:
    """The request's row after its visit."""
    past, record = one.past, work.lane.num_records
    scheduled, joins = past.num_scheduled, one.is_queued & visit.is_granted
    is_first = joins & (scheduled == 0)
    is_new = visit.is_granted & visit.asks
    is_chunk = is_new & ~one.in_decode
    is_lagging = one.in_decode & ~visit.asks & ~one.is_again

    def kept(field: str, changes: jax.Array, value: jax.Array) -> jax.Array:
        return jnp.where(changes, value, getattr(past, field))

    before = jnp.where(one.is_again, past.step_progress, past.progress)
    before = jnp.where(one.is_queued, 0, before)
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
        scheduled_index=kept("scheduled_index", joins, one.step),
        token_record=kept("token_record", visit.gains, record),
        token_index=kept("token_index", visit.gains, one.step),
        finish_record=past.finish_record,
        step_progress=kept("step_progress", visit.is_granted & ~one.in_decode, before),
    ).with_rest_of(past)
    if not ctx.mechanism.rules.passes_over:
        return made
    if ctx.mechanism.reserves_decode:  # as if it had made its first token in the step before
        comes = visit.comes & is_new
        made = made.replace(
            progress=jnp.where(comes, one.fixed.input_len, made.progress),
            token_index=jnp.where(comes, one.step - 1, made.token_index),
        )
    # its steps since the first token count without this one
    is_over = is_passed_over(one, visit.asks)
    return made.replace(
        lag=kept("lag", is_over, one.step), token_index=made.token_index + as_int(is_over)
    )

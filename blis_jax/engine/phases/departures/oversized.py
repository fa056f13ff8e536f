"""Requests that can never fit into an instance's memory: found at the head of its queue, and dropped."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from blis_jax.core.columns import as_int
from blis_jax.core.exact import ceil_div
from blis_jax.core.outcome import Outcome
from blis_jax.core.views import ContextLimits
from blis_jax.engine.phases.steps.step_end import next_event
from blis_jax.tables.context import (
    Context,
    SlotRows,
    Work,
    failing,
    has_entered,
    least_key,
    slot_of,
    steps_at,
)
from blis_jax.tables.joined import add_chain, chains_of, has_chain, with_chains
from blis_jax.tables.requests import RequestDeadlines
from blis_jax.tables.state import State
from blis_jax.tables.writes import SlotWrite, no_slot


def find_drop(state: State, work: Work, instance: jax.Array) -> jax.Array:
    """Return the packed key of an oversized request whose queueing time has come, NO_KEY if there is none."""
    slots = SlotRows(state, instance)
    now = work.lane.now
    is_due = has_entered(slots, now, steps_at(work.inst, now))
    is_due = is_due & (slots.oversized == 1)
    return least_key(is_due, slots.queue_rank)


def is_unservable(ctx: Context, state: State, request: jax.Array, instance: jax.Array) -> jax.Array:
    """Return whether a request is dropped instead of queued: its prompt exceeds the KV cache, or it
    exceeds the longest context.
    """
    cluster, fixed = ctx.params.cluster, ctx.request(request)
    input_len = fixed.input_len
    stored = ctx.memory.preempted.stored_len(state, request, input_len)
    is_oversized = ceil_div(stored, ctx.shape.block_size) > cluster.total_kv_blocks[instance]
    if ContextLimits in cluster:
        limit = cluster[ContextLimits].most
        limit = limit[instance] if jnp.ndim(limit) else limit
        longest = input_len + fixed.output_len
        is_oversized = is_oversized | (input_len >= limit)
        is_oversized = is_oversized | (longest > limit)
    return is_oversized


def drop(
    ctx: Context, state: State, work: Work, instance: jax.Array, key: jax.Array
) -> tuple[Work, SlotWrite]:
    """Drop an oversized request; if its instance is idle, an empty step still starts.

    A step of the same microsecond may or may not come before, which decides whether the instance is idle.
    """
    slots, inst = SlotRows(state, instance), work.inst
    slot = ctx.existing_slot(slot_of(key))
    slot_row = slots.one(ctx, slot)
    is_idle = inst.is_idle == 1
    chains, fits = add_chain(
        chains_of(work.inst),
        work.lane.now,
        as_int(is_idle & ctx.mechanism.defects.second_chain),
        ctx.never,
    )
    outcome = failing(work.lane.outcome, ~fits, Outcome.CHAINS_FULL)
    has_step = has_chain(chains_of(work.inst), work.lane.now)
    is_tie = has_step & (slot_row.after_steps < 0)
    ties = work.lane.num_open_ties + as_int(is_tie)
    work = dataclasses.replace(
        work,
        lane=work.lane.replace(outcome=outcome, num_open_ties=ties),
        inst=with_chains(inst, chains).replace(
            load=inst.load - 1,
            num_oversized=inst.num_oversized - 1,
            num_dropped=inst.num_dropped + 1,
            event=next_event(ctx, slots, is_idle, chains, slot, inst.busy_until),
        ),
    )
    request = slot_row.request
    rows = ctx.memory.preempted.rows_of_dropped(ctx, state, request)
    dropped = jnp.int32(-1)
    if RequestDeadlines in ctx.requests:  # its time is up, if that is not why it is dropped
        is_late = as_int(~is_unservable(ctx, state, request, instance))
        dropped = dropped - is_late
        count = work.inst.num_dropped - is_late
        work = dataclasses.replace(work, inst=work.inst.replace(num_dropped=count))
    past = ctx.past(state, request)
    if ctx.mechanism.moves_requests:  # it may have been served elsewhere: `stays.times_scheduled`
        dropped = dropped - 2 * past.num_scheduled
    past = past.replace(num_scheduled=dropped)
    return work, dataclasses.replace(
        no_slot(ctx), instance=instance, slot=slot, memory=rows, request=request, past=past
    )

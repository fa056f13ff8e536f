"""The start of a step: the waiting requests, the decode tokens, and how many equal steps of the batch follow."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from blis_jax.core.columns import as_int
from blis_jax.core.outcome import Outcome
from blis_jax.engine.phases.steps.batch_formation import with_next_states
from blis_jax.engine.phases.steps.decode_steps import DecodeSteps, fast_steps
from blis_jax.memory.memory import Plan
from blis_jax.tables.context import (
    Context,
    SlotRows,
    Work,
    count_of,
    failing,
    steps_at,
    waiting_mask,
)
from blis_jax.tables.joined import chains_of, first_chain, has_chain, take_chain, with_chains
from blis_jax.tables.state import Mode, State


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


def _in_one_go(ctx: Context, is_pure: jax.Array) -> jax.Array:
    """Return whether several steps may be made at once: only if no hook needs them one by one."""
    return jnp.array(False) if any(hook.one_by_one for hook in ctx.hooks) else is_pure


def begin(
    ctx: Context,
    state: State,
    work: Work,
    instance: jax.Array,
    next_cluster: jax.Array,
) -> tuple[Work, DecodeSteps | None]:
    """Start a step now: count the candidates, reserve the decode tokens, allocate their blocks.

    The undisturbed steps that follow are made with it; the stretch holds their durations if these differ.
    """
    slots, now, inst = SlotRows(state, instance), work.lane.now, work.inst
    queued, steps_at_now = slots.queued, steps_at(inst, now)
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
    only_decodes = (num_prefill == 0) & (num_waiting == 0) & (num_decode <= budget)
    is_pure = only_decodes & (num_decode > 0) & (first_chain(next_chains) == ctx.never)
    is_pure = _in_one_go(ctx, is_pure)
    visits = ctx.memory.plan(ctx, slots, work, is_pure)
    until = jnp.minimum(jnp.min(jnp.where(is_waiting, ctx.never, queued)), next_cluster)
    most, first_finish = jnp.where(visits.is_pure, visits.most_steps, 0), jnp.min(slots.finish)
    fast, stretch = fast_steps(ctx, state, work, instance, until, first_finish, most)
    num_steps = jnp.where(visits.is_pure, jnp.minimum(fast, visits.most_steps), 1)
    taken = jnp.int32(0) if stretch is None else jnp.sum(stretch.taken, dtype=jnp.int32)
    blocks, more = ctx.memory.decode_blocks(ctx, slots, inst.step_index, num_steps, taken)
    blocks, summed = jnp.where(visits.takes_blocks, blocks, 0), inst.used_blocks * num_steps + more
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
            used_blocks=inst.used_blocks + blocks,
            misses=inst.misses + blocks,
            steps_at_now=steps_at_now,
        ),
        task=ctx.memory.task_before_step(ctx, jax.tree.map(jnp.zeros_like, work.task)),
    )
    return with_next_states(ctx, slots, started), stretch

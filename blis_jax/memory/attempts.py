"""How block-level memory decides on a visit, and what the visit leaves in the request's row."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

from blis_jax.core.branching import branch
from blis_jax.engine.context import Context
from blis_jax.engine.phases.steps.mid_step import Work
from blis_jax.engine.state import State
from blis_jax.memory.allocation import Answer, attempt
from blis_jax.memory.block_tables.block_rows import Tenant, blocks_of
from blis_jax.memory.block_tables.blocks import BlockLife
from blis_jax.memory.block_tables.contents import found_blocks
from blis_jax.memory.memory import Demand, Grant, Visit
from blis_jax.memory.second_tier.mirrored import attempt_with_tier


def decision_of(
    ctx: Context, state: State, work: Work, one: Tenant, demand: Demand
) -> Callable[[], Answer]:
    """How it is decided on the demand."""
    if ctx.shape.has_mirror:
        return lambda: attempt_with_tier(ctx, state, work, one, demand)
    now, is_old = demand, jnp.array(False)
    if not demand.is_last:
        now, is_old = _after_reload(ctx, state, one, demand)
    return lambda: attempt(ctx, work, one, now, is_old)


def worked_out(ctx: Context, decision: Callable[[], Answer]) -> Answer:
    """The decision behind a branch that is always taken: else it is worked out anew for each number of a row."""
    if ctx.when is not branch:
        return decision()
    nothing = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), jax.eval_shape(decision))
    return branch(ctx.params.cluster.infinity > 0, decision, lambda: nothing)


def _after_reload(
    ctx: Context, state: State, one: Tenant, demand: Demand
) -> tuple[Demand, jax.Array]:
    """The demand of a retry, which may find more than before; and whether the blocks found are listed already."""
    size, found_now, start = jnp.int32(ctx.shape.block_size), demand.found.count, demand.start
    end = start + demand.tokens
    if not ctx.mechanism.defects.overrunning_reload:
        found_now = jnp.minimum(found_now, lax.div(end, size))
    finds_more = one.is_retry & (found_now * size > start)
    # the blocks found first are kept, whatever the reload made of them
    is_old = one.is_retry & ~finds_more
    most = jnp.where(is_old, demand.hits, found_now)
    at = (ctx, blocks_of(state), one.instance, one.slot, one.request)
    found = ctx.when(one.is_retry, lambda: found_blocks(*at, most, is_old), lambda: demand.found)
    return dataclasses.replace(
        demand,
        start=jnp.where(finds_more, found_now * size, start),
        tokens=jnp.where(finds_more, end - found_now * size, demand.tokens),
        found=found,
    ), is_old


def life_after(ctx: Context, work: Work, one: Tenant, grant: Grant, visit: Visit) -> BlockLife:
    """What the request has been through; a second visit in the same step takes a first token back."""
    life, past, answer = one.life, one.past, grant.own
    is_new = visit.gains & ~one.has_token

    def old(field: str, value: jax.Array) -> jax.Array:
        return jnp.where(is_new, value, getattr(life, field))

    first = jnp.where(one.has_token, life.old_first_token, life.first_token)
    # a request computed beyond its prompt never gets a first token
    is_exact = visit.done == one.fixed.input_len
    token = jnp.where(visit.gains & is_exact, work.lane.num_records + 1, first)
    if ctx.mechanism.rules.keeps_output:  # what a later life computes again is not its first token
        token = jnp.where(first > 0, first, token)
    is_stored = visit.asks & answer.is_granted
    return BlockLife.make(
        visited_at=one.step,
        jumps=jnp.where(is_stored, answer.jumps, life.jumps),
        offset=jnp.where(is_stored, answer.offset, life.offset),
        first_token=jnp.where(visit.gains, token, life.first_token),
        old_first_token=old("old_first_token", life.first_token),
        old_token_record=old("old_token_record", past.token_record),
        old_token_index=old("old_token_index", past.token_index),
    )

"""Output that a preempted request keeps, as in vLLM: it counts as prompt from then on, until a stop takes it away.

The tokens move with the request's KV. Where its life ends otherwise than by a preemption, the record of preemptions has
a row for that, so that it is known which token came after each preemption; see `resumed.py`.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import jax.numpy as jnp

from blis_jax.engine.context import Context, row
from blis_jax.engine.outcome import Outcome
from blis_jax.engine.phases.steps.mid_step import Work, failing
from blis_jax.engine.state import State
from blis_jax.engine.tables.columns import as_int, choose
from blis_jax.memory.block_tables.block_rows import BlockRows, Tenant, blocks_of, no_block_rows
from blis_jax.memory.block_tables.blocks import CUT_OFF, BlockLife, EvictionRecord

if TYPE_CHECKING:
    from jaxtyping import Array, Bool, Int


def num_made(ctx: Context, state: State, one: Tenant) -> Int[Array, ""]:
    """Output tokens that a running request has made in its current life.

    One that joined the batch with its KV has made one more where it comes from.
    """
    here = jnp.where(one.in_decode, one.step - one.past.token_index, 0)
    if ctx.mechanism.hand_over is None:
        return here
    assert state.movement is not None  # there is one where requests are handed over
    journey = state.movement.of(one.request)
    has_joined = (journey.joins > 0) & (journey.joined_record == one.past.scheduled_record)
    return here + as_int(has_joined)


def of_one_that_comes(ctx: Context, state: State, request: Int[Array, ""]) -> BlockRows:
    """A request is routed; where output is kept its first token stays, which it may have made elsewhere."""
    rows = no_block_rows(ctx)
    if not ctx.mechanism.rules.keeps_output:
        return rows
    return dataclasses.replace(
        rows, life=BlockLife(ctx.vector(row(blocks_of(state).life, request)))
    )


def of_one_that_goes(
    ctx: Context,
    state: State,
    work: Work,
    one: Tenant,
    rows: BlockRows,
    goes: Bool[Array, ""],
    stops: Bool[Array, ""] | None,
) -> tuple[Work, BlockRows]:
    """A running request leaves its instance before it has completed; its tokens are gone if the instance stops."""
    token = jnp.where(one.in_decode, one.past.token_record + 1, 0)
    work, rows = _cut_off(ctx, state, work, one.request, rows, goes, token)
    if stops is not None:
        rows = _without_tokens(ctx, rows, one.request, stops)
    return work, rows


def of_one_that_waits(
    ctx: Context,
    state: State,
    work: Work,
    request: Int[Array, ""],
    rows: BlockRows,
    has_kv: Bool[Array, ""],
) -> tuple[Work, BlockRows]:
    """A request leaves the queue of an instance that goes down; its tokens stay if its KV has come and stays, too."""
    work, rows = _cut_off(ctx, state, work, request, rows, ~has_kv, jnp.int32(0))
    life = BlockLife(ctx.vector(row(blocks_of(state).life, request)))
    rows = dataclasses.replace(rows, life=choose(has_kv, life, rows.life))
    return work, _without_tokens(ctx, rows, request, ~has_kv)


def _without_tokens(
    ctx: Context, rows: BlockRows, request: Int[Array, ""], is_gone: Bool[Array, ""]
) -> BlockRows:
    spare = jnp.int32(ctx.shape.num_requests)
    return dataclasses.replace(
        rows, regained=jnp.int32(0), regained_at=jnp.where(is_gone, request, spare)
    )


def _cut_off(
    ctx: Context,
    state: State,
    work: Work,
    request: Int[Array, ""],
    rows: BlockRows,
    is_it: Bool[Array, ""],
    token: Int[Array, ""],
) -> tuple[Work, BlockRows]:
    """The row of a life that ended, with the record of its first token plus 1, if tokens were kept before it."""
    blocks, none = blocks_of(state), no_block_rows(ctx)
    is_it = is_it & (blocks.regained[request] > 0)
    is_full = is_it & (blocks.num_evictions >= ctx.shape.eviction_capacity)
    outcome = failing(work.lane.outcome, is_full, Outcome.EVICTIONS_FULL)
    entry = EvictionRecord.filled().replace(
        request=request,
        record=work.lane.num_records,
        decode_record=token,
        scheduled_record=jnp.int32(CUT_OFF),
    )
    at = jnp.minimum(blocks.num_evictions, none.eviction_at)
    return dataclasses.replace(work, lane=work.lane.replace(outcome=outcome)), dataclasses.replace(
        rows, eviction_at=jnp.where(is_it, at, none.eviction_at), eviction=entry
    )

"""Output that a preempted request keeps, as in vLLM: it counts as prompt from then on, until a stop takes it away.

The tokens move with the request's KV. Where its life ends otherwise than by a preemption, the record of preemptions has
a row for that, so that it is known which token came after each preemption; see `resumed.py`. Without the rule, and
without preemptions, nothing of this is in a program.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp

from blis_jax.core.columns import as_int, choose
from blis_jax.core.outcome import Outcome
from blis_jax.engine.context import Context, row
from blis_jax.engine.phases.steps.mid_step import Work, failing
from blis_jax.engine.state import Resident, State
from blis_jax.memory.block_tables.block_rows import BlockRows, Tenant, blocks_of, no_block_rows
from blis_jax.memory.block_tables.blocks import CUT_OFF, BlockLife, EvictionRecord

if TYPE_CHECKING:
    from jaxtyping import Array, Bool, Int

    from blis_jax.core.types import RequestView
    from blis_jax.memory.memory import Subject


def moves_tokens(ctx: Context, state: State) -> bool:
    """Whether requests may have kept tokens that move with them."""
    mechanism = ctx.mechanism
    return mechanism.rules.keeps_output and mechanism.moves_requests and state.blocks is not None


def num_kept(ctx: Context, state: State, request: Int[Array, ""]) -> Int[Array, ""] | None:
    """Output tokens of a request that count as prompt; None where none move."""
    return blocks_of(state).regained[request] if moves_tokens(ctx, state) else None


def with_kept(view: RequestView, kept: Int[Array, ""] | None) -> RequestView:
    """What policies may know of a request whose kept tokens count as prompt."""
    return view if kept is None else dataclasses.replace(view, input_len=view.input_len + kept)


def of_victim(
    ctx: Context,
    state: State,
    one: Tenant,
    evicts: Bool[Array, ""],
    rows: BlockRows,
    slot_row: Resident,
) -> tuple[BlockRows, Resident]:
    """The rows of a request that is evicted: what it has made so far becomes prompt."""
    made, spare = _num_made(ctx, state, one), jnp.int32(ctx.shape.num_requests)
    rows = dataclasses.replace(
        rows,
        regained=blocks_of(state).regained[one.request] + made,
        regained_at=jnp.where(evicts, one.request, spare),
    )
    longer = jnp.where(evicts, one.fixed.input_len + made, one.row.input_len)
    return rows, slot_row.replace(input_len=longer)


def _num_made(ctx: Context, state: State, one: Tenant) -> Int[Array, ""]:
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


def of_one_that_comes(ctx: Context, state: State, request: Int[Array, ""], rows: Any) -> Any:
    """A request is routed: its first token stays, which it may have made elsewhere."""
    return dataclasses.replace(rows, life=_life(ctx, state, request))


def of_one_that_goes(
    ctx: Context,
    state: State,
    work: Work,
    one: Subject,
    rows: Any,
    goes: Bool[Array, ""],
    stops: Bool[Array, ""] | None,
) -> tuple[Work, Any]:
    """The rows of a request that leaves the batch for another instance, if it `goes`.

    Its tokens are gone if its instance `stops`; None: none ever does.
    """
    token = jnp.where(one.in_decode, one.past.token_record + 1, 0)
    work, rows = _cut_off(ctx, state, work, one.request, rows, goes, token)
    if stops is not None:
        rows = _without_tokens(ctx, rows, one.request, stops)
    return work, rows


def of_one_that_waits(
    ctx: Context, state: State, work: Work, request: Int[Array, ""], rows: Any, has_kv: Any
) -> tuple[Work, Any]:
    """The rows of a request that leaves the queue of an instance that goes down.

    Its tokens stay if its KV has come there and stays, `has_kv`.
    """
    work, rows = _cut_off(ctx, state, work, request, rows, ~has_kv, jnp.int32(0))
    life = choose(has_kv, _life(ctx, state, request), rows.life)
    return work, _without_tokens(ctx, dataclasses.replace(rows, life=life), request, ~has_kv)


def _life(ctx: Context, state: State, request: Int[Array, ""]) -> BlockLife:
    return BlockLife(ctx.vector(row(blocks_of(state).life, request)))


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

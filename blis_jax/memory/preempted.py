"""What a preempted request keeps, by the rules of a revision: nothing, its first token's time, or all its output.

A revision's rule is an object of memory, chosen when a program is built; methods that a rule does not override are
those of February's. In vLLM the output of a preempted request counts as prompt from then on, until a stop takes it
away, and the tokens move with the request's KV. A request's life on an instance ends with a preemption; if it ends in
another way, the record of preemptions has a row for that, so that it is known which token came after each preemption;
see `latencies.py`.
"""

from __future__ import annotations

import dataclasses
import functools
import operator
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax import lax

from blis_jax.core.columns import as_int, choose
from blis_jax.core.outcome import Outcome
from blis_jax.core.types import NO_REQUEST
from blis_jax.memory.block_tables.block_rows import (
    BlockRows,
    Regains,
    Tenant,
    no_block_rows,
)
from blis_jax.memory.memory import Left
from blis_jax.tables.blocks import CUT_OFF, BlockLife, Blocks, EvictionRecord, Regained
from blis_jax.tables.context import Context, SlotRows, failing, row
from blis_jax.tables.journeys import Journeys
from blis_jax.tables.requests import Request
from blis_jax.tables.state import State

if TYPE_CHECKING:
    from jaxtyping import Array, Bool, Int

    from blis_jax.core.types import RequestView
    from blis_jax.memory.memory import Subject


class Preempted:
    """February's rule: a preempted request is recomputed from its start, and keeps the time of its first token."""

    def given_back(self, tokens: jax.Array, is_bulk: jax.Array, is_passed: jax.Array) -> jax.Array:
        """Return the budget that a preempted request gives back: 1 if a token was reserved that it has not reached."""
        return as_int(is_bulk & ~is_passed)

    def recorded(self, eviction: dict[str, jax.Array]) -> dict[str, jax.Array]:
        """Return the columns of the record of a preemption, as this rule writes them."""
        return eviction

    def prompt_len(self, ctx: Context, subject: Subject) -> jax.Array:
        """Return the length of a request's own prompt in tokens, whose blocks other requests may share."""
        return subject.fixed.input_len

    def prompts_in(self, ctx: Context, slots: SlotRows) -> Int[Array, "slot"]:
        """Return the prompt length in tokens of the request in every slot."""
        return slots.input_len

    def fixed(self, ctx: Context, state: State, request: jax.Array) -> Request:
        """Return the given values of a request, with the prompt that must be computed now."""
        return ctx.request(request)

    def first_token(self, first: jax.Array, token: jax.Array) -> jax.Array:
        """Return the step record of the first token, plus 1; `first` is that of an earlier life, 0 if there is none."""
        return token

    def no_rows(self, ctx: Context) -> tuple[Regains, ...]:
        """Return this rule's own rows with nothing to write."""
        return ()

    def written(self, blocks: Blocks, rows: BlockRows) -> Blocks:
        """Return the blocks with this rule's own rows written."""
        return blocks

    def of_victim(
        self, ctx: Context, state: State, tenant: Tenant, evicts: Bool[Array, ""]
    ) -> tuple[tuple[Regains, ...], dict[str, jax.Array]]:
        """Return this rule's own rows for an evicted request, and the changes of its slot's row."""
        return (), {}

    def stored_len(self, state: State, request: Int[Array, ""], tokens: jax.Array) -> jax.Array:
        """Return `tokens` plus the output tokens of the request that count as prompt on every instance."""
        return tokens

    def with_kept(self, state: State, request: Int[Array, ""], view: RequestView) -> RequestView:
        """Return the view of the request for policies, with its kept tokens counted as prompt."""
        return dataclasses.replace(view, input_len=self.stored_len(state, request, view.input_len))

    def arrives(self, ctx: Context, state: State, request: Int[Array, ""], rows: Any) -> Any:
        """Return the rows of a request that has been routed."""
        return rows

    def departs(
        self, ctx: Context, state: State, subject: Subject, left: Left, why: tuple[jax.Array, ...]
    ) -> Left:
        """Return the work and memory's rows after a request has left the batch.

        `why` says whether the request moves on and, where instances can stop, whether its instance stops.
        """
        return left

    def cut_off(
        self, ctx: Context, state: State, request: Int[Array, ""], left: Left, is_gone: jax.Array
    ) -> Left:
        """Return the work and rows of a waiting request whose instance goes down; `is_gone`: its KV is lost."""
        return left

    def rows_of_dropped(self, ctx: Context, state: State, request: jax.Array) -> Any:
        """Return the rows of a waiting request that is dropped."""
        return ctx.memory.rows_of_leaver(ctx, request)


class Restarted(Preempted):
    """August's rule: a preempted request loses its first token, whose time is reported until there is another."""

    def given_back(self, tokens: jax.Array, is_bulk: jax.Array, is_passed: jax.Array) -> jax.Array:
        """Return all budget that the request got in this step."""
        return tokens

    def recorded(self, eviction: dict[str, jax.Array]) -> dict[str, jax.Array]:
        """Return the columns with the record of the lost first token, as a negative number."""
        decode_record = -eviction["decode_record"]
        return eviction | {"first_token": jnp.int32(0), "decode_record": decode_record}


class Resumed(Preempted):
    """vLLM's rule: the output of a preempted request so far becomes prompt."""

    def prompt_len(self, ctx: Context, subject: Subject) -> jax.Array:
        """Return the length of the prompt with which the request arrived."""
        return ctx.request(subject.request).input_len

    def prompts_in(self, ctx: Context, slots: SlotRows) -> Int[Array, "slot"]:
        """Return the length of the prompt with which the request in every slot arrived."""
        prompts = ctx.requests.table[slots.request, Request.columns.INPUT_LEN]
        return jnp.where(slots.request == NO_REQUEST, 0, prompts)

    def fixed(self, ctx: Context, state: State, request: jax.Array) -> Request:
        """Return the given values of a request, with the tokens that count as prompt since its last preemption."""
        fixed, regained = ctx.request(request), _regained(state, request)
        return fixed.replace(
            input_len=fixed.input_len + regained, output_len=fixed.output_len - regained
        )

    def first_token(self, first: jax.Array, token: jax.Array) -> jax.Array:
        """Return the first token's record of the earliest life: a token that is recomputed is not a first token."""
        return jnp.where(first > 0, first, token)

    def no_rows(self, ctx: Context) -> tuple[Regains, ...]:
        """Return the row that changes no request's prompt."""
        return (Regains(jnp.int32(0), ctx.spare_request),)

    def written(self, blocks: Blocks, rows: BlockRows) -> Blocks:
        """Return the blocks with the request's output counted as prompt."""
        put, row_ = lax.dynamic_update_slice, rows[Regains]
        return blocks.having(
            Regained(put(blocks[Regained].tokens, row_.tokens[None], (row_.request,)))
        )

    def of_victim(
        self, ctx: Context, state: State, tenant: Tenant, evicts: Bool[Array, ""]
    ) -> tuple[tuple[Regains, ...], dict[str, jax.Array]]:
        """Return the changes that count the victim's output so far as prompt."""
        made, spare = self._num_made(ctx, state, tenant), ctx.spare_request
        tokens = _regained(state, tenant.request) + made
        regains = Regains(tokens, jnp.where(evicts, tenant.request, spare))
        longer = jnp.where(evicts, tenant.fixed.input_len + made, tenant.row.input_len)
        return (regains,), {"input_len": longer}

    def _num_made(self, ctx: Context, state: State, tenant: Tenant) -> Int[Array, ""]:
        """Return the number of output tokens that a running request has made in its current life."""
        made = jnp.where(tenant.in_decode, tenant.step - tenant.past.token_index, 0)
        return ctx.memory.lookahead.num_made(state, tenant, made)


class ResumedElsewhere(Resumed):
    """Preempted requests that keep their output, where requests move between instances."""

    def stored_len(self, state: State, request: Int[Array, ""], tokens: jax.Array) -> jax.Array:
        """Return `tokens` plus the output tokens that the request has kept."""
        return tokens + _regained(state, request)

    def arrives(self, ctx: Context, state: State, request: Int[Array, ""], rows: Any) -> Any:
        """Return the rows with the record of the request's first token, which it may have made elsewhere."""
        return dataclasses.replace(rows, life=_life(ctx, state, request))

    def departs(
        self, ctx: Context, state: State, subject: Subject, left: Left, why: tuple[jax.Array, ...]
    ) -> Left:
        """Return the work and rows with the request's life here ended; its tokens are lost if its instance stops."""
        _, *stops = why
        goes = functools.reduce(operator.or_, why)
        token = jnp.where(subject.in_decode, subject.past.token_record + 1, 0)
        left = _cut_off(ctx, state, subject.request, left, goes, token)
        for is_gone in stops:
            left = _without_tokens(ctx, left, subject.request, is_gone)
        return left

    def cut_off(
        self, ctx: Context, state: State, request: Int[Array, ""], left: Left, is_gone: jax.Array
    ) -> Left:
        """Return the work and rows with the request's life ended; tokens whose KV has arrived and stays are kept."""
        has_kv = (state[Journeys].of(request).computed > 0) & ~is_gone
        left = _cut_off(ctx, state, request, left, ~has_kv, jnp.int32(0))
        life = choose(has_kv, _life(ctx, state, request), left.rows.life)
        left = left._replace(rows=dataclasses.replace(left.rows, life=life))
        return _without_tokens(ctx, left, request, ~has_kv)

    def rows_of_dropped(self, ctx: Context, state: State, request: jax.Array) -> Any:
        """Return the rows in which the dropped request keeps its first token."""
        return ctx.memory.rows_of_quitter(ctx, state, request)


class ResumedWithJoins(ResumedElsewhere):
    """vLLM's rule where requests are handed over: a request that joined with its KV has made a token before."""

    def _num_made(self, ctx: Context, state: State, tenant: Tenant) -> Int[Array, ""]:
        here = super()._num_made(ctx, state, tenant)
        journey = state[Journeys].of(tenant.request)
        has_joined = (journey.joins > 0) & (journey.joined_record == tenant.past.scheduled_record)
        return here + as_int(has_joined)


def _life(ctx: Context, state: State, request: Int[Array, ""]) -> BlockLife:
    return BlockLife(ctx.vector(row(state[Blocks].life, request)))


def _without_tokens(
    ctx: Context, left: Left, request: Int[Array, ""], is_gone: Bool[Array, ""]
) -> Left:
    at = jnp.where(is_gone, request, ctx.spare_request)
    return left._replace(rows=left.rows.having(Regains(jnp.int32(0), at)))


def _regained(state: State, request: Int[Array, ""]) -> Int[Array, ""]:
    return state[Blocks][Regained].tokens[request]


def _cut_off(
    ctx: Context,
    state: State,
    request: Int[Array, ""],
    left: Left,
    is_it: Bool[Array, ""],
    token: Int[Array, ""],
) -> Left:
    """Return the work and rows with a record of the ended life if tokens were kept; `token`: its first record + 1."""
    work, blocks, none = left.work, state[Blocks], no_block_rows(ctx)
    is_it = is_it & (_regained(state, request) > 0)
    is_full = is_it & (blocks.num_evictions >= ctx.shape.eviction_capacity)
    outcome = failing(work.lane.outcome, is_full, Outcome.EVICTIONS_FULL)
    entry = EvictionRecord.filled().replace(
        request=request,
        record=work.lane.num_records,
        decode_record=token,
        scheduled_record=jnp.int32(CUT_OFF),
    )
    at = jnp.minimum(blocks.num_evictions, none.eviction_at)
    work = dataclasses.replace(work, lane=work.lane.replace(outcome=outcome))
    at = jnp.where(is_it, at, none.eviction_at)
    return Left(work, dataclasses.replace(left.rows, eviction_at=at, eviction=entry))

"""How block-level memory decides on a visit, and how the visit changes the request's row.

Members in decode that a step's budget does not reach follow the rules of a revision, an object of memory. In February
such a member goes on as if it had been served, and its lag counts how often that was. In August it is passed over: it
makes no progress in the step, and its lag is the number of the last such step. See `stays.py`.

Members that draft tokens ask for room for the drafts, too, and the budget for them is set aside when a step begins;
another object has the rules (`Lookahead`). A third (`Chunks`) says where prompts are cut beside the threshold and the
budget, with any memory.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
from jax import lax

from blis_jax.core.columns import as_int
from blis_jax.core.exact import full_blocks
from blis_jax.core.outcome import Outcome
from blis_jax.core.types import LAST
from blis_jax.memory.allocation import Answer, Refusal, attempt, attempt_with_tier
from blis_jax.memory.block_tables.block_rows import BlockRows, Tenant, no_block_rows
from blis_jax.memory.block_tables.contents import found_blocks
from blis_jax.memory.memory import Demand, Grant, Visit
from blis_jax.tables.blocks import PASSED_OVER, BlockLife, Blocks, EvictionRecord
from blis_jax.tables.context import Context, SlotRows, Work, failing
from blis_jax.tables.drafts import DraftTable
from blis_jax.tables.state import Past, State

if TYPE_CHECKING:
    from jaxtyping import Array, Bool, Int

    from blis_jax.memory.memory import Subject

    Counted = Callable[[jax.Array, Subject, jax.Array], jax.Array]  # of who `asks` for tokens


def decision_of(
    ctx: Context, state: State, work: Work, tenant: Tenant, demand: Demand, refusal: Refusal
) -> Callable[[], Answer]:
    """Return the function that decides on the demand: with the CPU tier where there is one, else by `attempt`."""
    if ctx.shape.has_mirror:
        return lambda: attempt_with_tier(ctx, state, work, tenant, demand)
    now, is_old = demand, jnp.array(False)
    if not demand.is_last:
        now, is_old = _after_reload(ctx, state, tenant, demand)
    return lambda: attempt(ctx, work, tenant, now, is_old, refusal)


def _after_reload(
    ctx: Context, state: State, tenant: Tenant, demand: Demand
) -> tuple[Demand, jax.Array]:
    """Return a retry's demand, for which more blocks may be cached now, and whether its blocks are listed already."""
    size, found_now, start = jnp.int32(ctx.shape.block_size), demand.found.count, demand.start
    end = start + demand.tokens
    if not ctx.mechanism.defects.overrunning_reload:
        found_now = jnp.minimum(found_now, lax.div(end, size))
    finds_more = tenant.is_retry & (found_now * size > start)
    # the blocks found first are kept, whatever the reload made of them
    is_old = tenant.is_retry & ~finds_more
    most = jnp.where(is_old, demand.hits, found_now)
    at = (ctx, state[Blocks], tenant.instance, tenant.slot, tenant.request)
    blocks_found = ctx.when(
        tenant.is_retry, lambda: found_blocks(*at, most, is_old), lambda: demand.found
    )
    return dataclasses.replace(
        demand,
        start=jnp.where(finds_more, found_now * size, start),
        tokens=jnp.where(finds_more, end - found_now * size, demand.tokens),
        found=blocks_found,
    ), is_old


def life_after(ctx: Context, work: Work, tenant: Tenant, grant: Grant, visit: Visit) -> BlockLife:
    """Return the request's history after a visit; a second visit in one step may take back a first token."""
    life, past, answer = tenant.life, tenant.past, grant.own
    is_new = visit.gains & ~tenant.has_token

    def old(field: str, value: jax.Array) -> jax.Array:
        return jnp.where(is_new, value, getattr(life, field))

    first = jnp.where(tenant.has_token, life.old_first_token, life.first_token)
    # a request computed beyond its prompt never gets a first token
    is_exact = visit.done == tenant.fixed.input_len
    token = jnp.where(visit.gains & is_exact, work.lane.num_records + 1, first)
    token = ctx.memory.preempted.first_token(first, token)
    is_stored = visit.asks & answer.is_granted
    return BlockLife.make(
        visited_at=tenant.step,
        jumps=jnp.where(is_stored, answer.jumps, life.jumps),
        offset=jnp.where(is_stored, answer.offset, life.offset),
        first_token=jnp.where(visit.gains, token, life.first_token),
        old_first_token=old("old_first_token", life.first_token),
        old_token_record=old("old_token_record", past.token_record),
        old_token_index=old("old_token_index", past.token_index),
    )


def _is_over(subject: Subject, asks: jax.Array) -> jax.Array:
    """Return whether a member in decode gets nothing in this step."""
    return subject.in_decode & ~asks & ~subject.is_idle


def _past(made: Past, subject: Subject, asks: jax.Array) -> Past:
    """Return the row with this step not counted among the steps since the first token, if the member gets nothing."""
    is_over = _is_over(subject, asks)
    lag = jnp.where(is_over, subject.step, subject.past.lag)
    return made.replace(lag=lag, token_index=made.token_index + as_int(is_over))


def _outcome(
    ctx: Context, state: State, outcome: jax.Array, tenant: Tenant, asks: jax.Array
) -> jax.Array:
    is_full = state[Blocks].num_evictions >= ctx.shape.eviction_capacity
    return failing(outcome, is_full & _is_over(tenant, asks), Outcome.EVICTIONS_FULL)


def _rows(
    ctx: Context, state: State, work: Work, tenant: Tenant, rows: BlockRows, asks: jax.Array
) -> BlockRows:
    """Return the rows with a record of the step in the table of preemptions, if the member gets nothing."""
    is_over, none = _is_over(tenant, asks), no_block_rows(ctx)
    at = jnp.minimum(state[Blocks].num_evictions, none.eviction_at)
    entry = EvictionRecord.filled().replace(
        request=tenant.request,
        record=work.lane.num_records,
        index=tenant.step,
        scheduled_record=jnp.int32(PASSED_OVER),
    )
    at = jnp.where(is_over, at, none.eviction_at)
    return dataclasses.replace(none, eviction_at=at, eviction=entry)


@dataclass(frozen=True)
class Unreached:
    """Hold the rules for members that the budget does not reach; the defaults, February's, change nothing."""

    # members that make a token in the step
    num_decode: Counted = lambda count, subject, asks: count
    # the step in which the request completes
    finish: Counted = lambda finish, subject, asks: finish
    progressed: Counted = lambda progressed, subject, asks: progressed  # at block level
    past: Callable[[Past, Subject, jax.Array], Past] = lambda made, subject, asks: made
    # tokens that members of the batch get in the step with this index
    new_tokens: Callable[[jax.Array, Past, jax.Array], jax.Array] = lambda new, past, index: new
    # of a visit at block level, which has records of them, and where no blocks are told apart
    outcome: Callable[..., jax.Array] = lambda ctx, state, outcome, subject, asks: outcome
    outcome_of_lag: Callable[[jax.Array, jax.Array], jax.Array] = lambda outcome, lags: outcome
    rows: Callable[..., BlockRows] = lambda ctx, state, work, subject, rows, asks: rows


GOES_ON = Unreached()
IS_PASSED_OVER = Unreached(
    num_decode=lambda count, subject, asks: count - as_int(_is_over(subject, asks)),
    finish=lambda finish, subject, asks: finish + as_int(_is_over(subject, asks)),
    progressed=lambda progressed, subject, asks: progressed - as_int(_is_over(subject, asks)),
    past=_past,
    new_tokens=lambda new, past, index: jnp.where(past.lag == index, 0, new),
    outcome=_outcome,
    outcome_of_lag=lambda outcome, lags: failing(outcome, lags, Outcome.KV_CHECK_TRIPPED),
    rows=_rows,
)


class Lookahead:
    """The tokens that members in decode ask room for beyond their next token; by default none."""

    def due(
        self, ctx: Context, slots: SlotRows, in_last: Int[Array, "slot"], due: Bool[Array, "slot"]
    ) -> Bool[Array, "slot"]:
        """Return the members that must be visited; `due` marks those whose next token needs a visit."""
        return due

    def visits_all(self, visits_all: jax.Array) -> jax.Array:
        """Return whether members must take budget one after the other because it might not reach them all."""
        return visits_all

    def asks(self, subject: Subject, asks: jax.Array) -> jax.Array:
        """Return whether a request gets anything in the step; `asks` says whether the budget reaches it."""
        return asks

    def demand(self, state: State, subject: Subject, demand: Demand) -> Demand:
        """Return the demand with the further tokens added."""
        return demand

    def charged(self, subject: Subject, tokens: jax.Array) -> jax.Array:
        """Return the budget that a visit uses which gave `tokens` tokens."""
        return tokens

    def given_back(self, state: State, subject: Subject, tokens: jax.Array) -> jax.Array:
        """Return the budget that an evicted member gives back; `tokens` is the part for its next token."""
        return tokens

    def num_made(self, state: State, subject: Subject, steps: jax.Array) -> jax.Array:
        """Return how many output tokens a request has made in `steps` steps of decode."""
        return steps


class DraftRoom(Lookahead):
    """Room for the drafts of a step, all or none, as in vLLM; their budget is set aside when the step begins."""

    def due(
        self, ctx: Context, slots: SlotRows, in_last: Int[Array, "slot"], due: Bool[Array, "slot"]
    ) -> Bool[Array, "slot"]:
        """Return the members that are due, and those whose drafts need room."""
        return due | (slots.state[DraftTable].more[slots.instance] != 0)

    def visits_all(self, visits_all: jax.Array) -> jax.Array:
        """Return false: the budget reaches all members in decode."""
        return jnp.array(False)

    def asks(self, subject: Subject, asks: jax.Array) -> jax.Array:
        """Return whether the request gets anything; a request in decode always does."""
        return asks | (subject.in_decode & ~subject.is_idle)

    def demand(self, state: State, subject: Subject, demand: Demand) -> Demand:
        """Return the demand with the drafts' tokens added."""
        more = jnp.where(
            subject.in_decode, state[DraftTable].more[subject.instance, subject.slot], 0
        )
        return dataclasses.replace(demand, tokens=demand.tokens + more)

    def charged(self, subject: Subject, tokens: jax.Array) -> jax.Array:
        """Return 0 for a request in decode, whose budget was set aside, else `tokens`."""
        return jnp.where(subject.in_decode, 0, tokens)

    def given_back(self, state: State, subject: Subject, tokens: jax.Array) -> jax.Array:
        """Return the budget that was set aside for a member in decode: its own token and its drafts."""
        return jnp.where(subject.in_decode, state[DraftTable].num[subject.instance] + 1, tokens)

    def num_made(self, state: State, subject: Subject, steps: jax.Array) -> jax.Array:
        """Return the steps plus the accepted drafts, without those that the current step would have verified."""
        upcoming = state[DraftTable].accepted[subject.instance, subject.slot]
        accepted = subject.past.progress - subject.fixed.input_len - upcoming
        return jnp.where(subject.in_decode, steps + accepted, steps)


class Chunks:
    """The rule where prompts are cut; by default only at the class's threshold and the budget."""

    def cut(self, ctx: Context, subject: Subject, start: jax.Array, tokens: jax.Array) -> jax.Array:
        """Return the tokens of a chunk that begins at `start` and may have at most `tokens`."""
        return tokens

    def asks(self, subject: Subject, demand: Demand) -> jax.Array:
        """Return whether the request asks for the tokens of the demand."""
        return demand.asks

    def is_granted(self, subject: Subject, demand: Demand, is_granted: jax.Array) -> jax.Array:
        """Return whether the visit grants the demand; `is_granted` is memory's answer."""
        return is_granted

    def left(self, subject: Subject, visit: Visit, budget: jax.Array) -> jax.Array:
        """Return the budget after a visit; `budget` is the budget less the visit's tokens."""
        return budget

    def visits_all(self, ctx: Context, slots: SlotRows, work: Work, visits: jax.Array) -> jax.Array:
        """Return whether every member of a step must be visited; `visits` says so for other reasons."""
        return visits


@dataclass(frozen=True)
class AlignedChunks(Chunks):
    """Chunks that end where the state of linear attention can be kept: at a whole KV block (vLLM, mode `align`).

    A prompt has a last such place. Chunks that end before it consist of whole blocks, no chunk crosses it, and after it
    chunks are not aligned. If the budget has no whole block left, a member gets nothing in the step and the members
    after it go on; a waiting request ends the admission.
    """

    dropped: int  # blocks before that place in which no state is looked up again: 1 with a drafter that reads states

    def cut(self, ctx: Context, subject: Subject, start: jax.Array, tokens: jax.Array) -> jax.Array:
        """Return the tokens up to the last whole block or the last such place, or all of them behind it."""
        size, prompt = ctx.shape.block_size, subject.fixed.input_len
        last = jnp.maximum(full_blocks(prompt, size) - self.dropped, 0) * size
        end, whole = start + tokens, full_blocks(tokens, size) * size
        crosses = (start < last) & (last < end)
        return jnp.where(end < last, whole, jnp.where(crosses, last - start, tokens))

    def asks(self, subject: Subject, demand: Demand) -> jax.Array:
        """Return false if the chunk is empty though the prompt still needs tokens."""
        is_whole = demand.start >= subject.fixed.input_len
        return demand.asks & ((demand.tokens > 0) | is_whole | subject.is_forced)

    def is_granted(self, subject: Subject, demand: Demand, is_granted: jax.Array) -> jax.Array:
        """Return false for a waiting request that gets nothing: it does not join the batch."""
        return is_granted & (demand.asks | ~subject.is_queued)

    def left(self, subject: Subject, visit: Visit, budget: jax.Array) -> jax.Array:
        """Return 0 after a waiting request that gets nothing, which ends the admission."""
        return jnp.where(subject.is_queued & ~visit.asks, 0, budget)

    def visits_all(self, ctx: Context, slots: SlotRows, work: Work, visits: jax.Array) -> jax.Array:
        """Return true if the prompts in prefill may use up the budget before all members in decode have a token."""
        is_prefill = (slots.order != LAST) & (slots.finish == LAST)
        most = jnp.sum(jnp.where(is_prefill, slots.input_len, 0), dtype=jnp.int32)
        budget = ctx.params.cluster.max_num_scheduled_tokens[slots.instance]
        return visits | ((most > 0) & (most + work.inst.num_decode > budget))

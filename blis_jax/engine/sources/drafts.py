"""Drafted tokens (speculative decoding): how many a request in decode drafts for its next step, and how many of them
are accepted.

When a step is over, each request in decode drafts tokens for the next step, which verifies them. How many will be
accepted is drawn at once, from the numbers of the request and of its step alone. A request that makes one token a step
ends after as many steps as it has tokens left; if a step accepts drafts, the request's row is moved on by as many
tokens, so that it ends earlier. So no other part of the engine depends on drafts.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp

from blis_jax.core.columns import PastTable, together
from blis_jax.core.exact import ceil_div, exact_product
from blis_jax.core.types import LAST, NO_REQUEST
from blis_jax.core.views import Members, StepBatch
from blis_jax.engine.calendar import EventSource, NextEvent
from blis_jax.errors import UnsupportedError
from blis_jax.policies.contexts import DraftContext
from blis_jax.policies.contract import NoState
from blis_jax.policies.seeds import RandomSource
from blis_jax.tables.blocks import Blocks
from blis_jax.tables.context import Context, SlotRows, Work, count_of, decision_key
from blis_jax.tables.drafts import TOKEN_PARTS, DraftParams, DraftPast, DraftPasts, DraftTable
from blis_jax.tables.joined import instance_of, lane_of
from blis_jax.tables.requests import RequestDeadlines
from blis_jax.tables.state import RUNAWAY, Dyn, Inst, Instance, Mode, Slot, State

if TYPE_CHECKING:
    from jaxtyping import Array, Bool, Int

    from blis_jax.tables.writes import SlotWrite, Writes


class Drafts(EventSource):
    """The drafts that are drawn between two steps of an instance."""

    one_by_one = True

    def first_tables(self, ctx: Context) -> tuple[object, ...]:
        """Return the tables with no tokens drafted.

        Raises:
            UnsupportedError: what happens in this run beside drafts has no rule yet.
        """
        refuse(ctx)
        return DraftTable.first(ctx.shape), DraftPasts.first(ctx.shape)

    def settle(self, ctx: Context, state: State, event: NextEvent, done: Writes) -> State:
        """Return the state with the tokens of the next step drafted, if a step is over."""
        instance, lane = done.instance, lane_of(ctx, state)
        index = state.inst.numbers[Inst.STEP_INDEX, instance]
        is_over = event.is_instance & (lane.mode == Mode.BETWEEN)
        is_over = is_over & (index != state[DraftTable].drawn_at[instance])
        return ctx.in_place(is_over, lambda now, is_it: _drafted(ctx, now, instance, is_it), state)

    # --- hooks of steps -----------------------------------------------------------------------

    def begun(
        self, ctx: Context, state: State, work: Work, instance: jax.Array, begins: jax.Array
    ) -> Work:
        """Return the work with the drafts charged to the step's budget, and their blocks allocated."""
        table, lane, inst = state[DraftTable], work.lane, work.inst
        # with the tokens of those that will be visited, see `DraftRoom`
        drafts = (table.num[instance] + 1) * lane.num_decode - lane.decode_tokens
        drafts = jnp.where(begins, drafts, 0)
        blocks = jnp.where(begins, table.blocks[instance], 0)
        return dataclasses.replace(
            work,
            lane=lane.replace(budget=lane.budget - drafts),
            inst=inst.replace(used_blocks=inst.used_blocks + blocks, misses=inst.misses + blocks),
        )

    def shown(
        self, ctx: Context, state: State, work: Work, instance: jax.Array, batch: StepBatch
    ) -> StepBatch:
        """Return the batch with each member in decode listed once for its token, and once more for each draft."""
        table, members = state[DraftTable], batch.members
        num = table.num[instance]
        if members is not None:
            here = table.request[instance] == SlotRows(state, instance).request
            later = jnp.where(here, table.accepted[instance], 0)  # the row has them already
            members = _with_drafts(members, later, num, ctx.mechanism.num_drafts)
        return StepBatch(batch.num_prefill_tokens, batch.num_decode_tokens * (num + 1), members)

    def outputs(
        self, ctx: Context, state: State, written: SlotWrite, tokens: jax.Array
    ) -> jax.Array:
        """Return in how many steps the request received tokens: those of one step are delivered together."""
        upcoming = state[DraftTable].accepted[written.instance, written.slot]
        before = state[DraftPasts].rows[written.request, DraftPast.columns.ACCEPTED]
        return tokens - before - upcoming

    def further_us(
        self, ctx: Context, state: State, work: Work, instance: jax.Array
    ) -> tuple[jax.Array, ...]:
        """Return the drafter's time for the tokens that the step verifies, float64 µs."""
        numbers, num = ctx.params.cluster[DraftParams], state[DraftTable].num[instance]
        passes = jnp.where(work.lane.decode_tokens > 0, num, 0)
        tokens = num * work.lane.decode_tokens
        per_pass = exact_product(numbers.step_us, passes.astype(jnp.float64))
        return (per_pass + exact_product(numbers.token_us, tokens.astype(jnp.float64)),)


def refuse(ctx: Context) -> None:
    """Refuse runs with mechanisms that have no rule beside drafts.

    Raises:
        UnsupportedError: with what to change.
    """
    is_pressed = ctx.shape.num_blocks > 0
    reasons = {
        "the KV cache runs full, and the profile makes a preempted request answer again from its first token; set "
        "preemption_mode recompute, as vLLM does": is_pressed
        and not ctx.mechanism.rules.keeps_output,
        "the KV cache runs full, and a request that is preempted ahead of others leaves them without their drafts, for "
        "which there is no rule; leave victim_policy and slo_preemption out, or give more total_kv_blocks": is_pressed
        and (ctx.mechanism.evicts_lowest_priority or ctx.mechanism.victim is not None),
        "later prompts hold earlier answers, and which block of an answer is full has no rule yet; take a workload "
        "of single turns": ctx.shape.has_shared_outputs,
        "requests give up after a time, for which there is no rule yet; take their timeouts out": RequestDeadlines
        in ctx.requests,
    }
    for reason, is_so in reasons.items():
        if is_so:
            raise UnsupportedError(f"speculative_config: {reason}")


def _drafted(ctx: Context, state: State, instance: jax.Array, is_it: jax.Array) -> State:
    """Return the state after the members of an instance have drafted tokens, if `is_it`."""
    numbers, slots = ctx.params.cluster[DraftParams], SlotRows(state, instance)
    inst, old = instance_of(ctx, state, instance), state[DraftTable].row(instance)
    request, finish, slo_class = slots.request, slots.finish, slots.slo_class
    drafts = is_it & (finish != LAST) & (finish != RUNAWAY)
    # one that was preempted waits in its slot, and has verified nothing
    is_made = is_it & (old.request != NO_REQUEST)
    is_made = is_made & ((request != old.request) | (finish != LAST))
    pasts = _with_made(ctx, state[DraftPasts], old, is_made)
    past = DraftPast(pasts.rows[jnp.where(drafts, request, ctx.spare_request)])
    verified = count_of(is_made & (old.num > 0))
    accepted_before = jnp.sum(jnp.where(is_made, old.accepted, 0), dtype=jnp.int32)
    so_far = {
        "num_drafts": old.num_drafts + verified,
        "num_draft_tokens": old.num_draft_tokens + verified * old.num,
        "num_accepted_tokens": old.num_accepted_tokens + accepted_before,
    }
    num = _num_drafts(ctx, state, inst, instance, so_far)
    credit = past.credit + numbers.expected[slo_class, num]
    drawn = _drawn(ctx, numbers.reach[slo_class], num, request, past.turns + 1)
    most = jnp.where(numbers.is_expected, credit // TOKEN_PARTS, drawn)
    accepted = jnp.where(drafts, jnp.minimum(most, finish - inst.step_index - 1), 0)
    left = jnp.where(drafts & (old.request == request), old.ahead - old.accepted, 0)
    # the step stores one token, so that much less of what is left is ahead of it
    ahead = jnp.where(drafts, jnp.maximum(left - 1, num), 0)
    more = jnp.where(drafts, ahead - left, 0)
    held, size = inst.step_index + slots.alloc_offset, ctx.shape.block_size
    in_turn = _asked(ctx, held, more) if Blocks in state else jnp.zeros_like(more)
    more = more - in_turn
    blocks = jnp.where(drafts, ceil_div(held + more, size) - ceil_div(held, size), 0)
    new = DraftTable(
        drawn_at=inst.step_index,
        num=num,
        blocks=jnp.sum(blocks, dtype=jnp.int32),
        request=jnp.where(drafts, request, NO_REQUEST),
        accepted=accepted,
        credit=credit % TOKEN_PARTS,
        ahead=ahead,
        more=in_turn,
        **so_far,
    )
    state = _moved_on(ctx, state, instance, accepted, more)
    return state.having(state[DraftTable].with_row(instance, new, is_it), pasts)


def _asked(ctx: Context, held: Int[Array, "slot"], more: Int[Array, "slot"]) -> Int[Array, "slot"]:
    """Return the room decided in the step: where it needs a block, or the list would count one too few till then."""
    size, listed = ctx.shape.block_size, ceil_div(held, ctx.shape.block_size)
    needs = (more > 0) & (ceil_div(held + 1 + more, size) > listed)
    return jnp.where(needs | (ceil_div(held + more, size) < listed), more, 0)


def _num_drafts(
    ctx: Context, state: State, inst: Instance, instance: jax.Array, so_far: dict[str, jax.Array]
) -> jax.Array:
    """Return how many tokens each request in decode drafts, as the policy or else the settings say."""
    numbers, policy = ctx.params.cluster[DraftParams], ctx.mechanism.draft
    members = inst.num_prefill + inst.num_decode
    num = numbers.nums[jnp.sum(numbers.sizes <= members, dtype=jnp.int32) - 1]
    if policy is None:
        return num
    lane, most = lane_of(ctx, state), jnp.max(numbers.nums)
    context = DraftContext(
        num_running=members,
        num_decode=inst.num_decode,
        num_waiting=lane.num_waiting,
        num_blocks=ctx.params.cluster.total_kv_blocks[instance],
        num_used_blocks=inst.used_blocks,
        **so_far,
        num_speculative_tokens=num,
        most_speculative_tokens=most,
        now_us=lane.now + lane.duration,
        instance=instance,
    )
    decided, _ = policy.ask(ctx.params.policy.draft, NoState(), context)
    return jnp.clip(decided, 0, most)


def _with_made(
    ctx: Context, pasts: DraftPasts, old: DraftTable, is_made: Bool[Array, "slot"]
) -> DraftPasts:
    """Return the drafting history of requests, with the last step's drafts added for those that were in that step."""
    request = jnp.where(is_made, old.request, ctx.spare_request)
    past = DraftPast(pasts.rows[request])
    made = DraftPast.make(
        turns=past.turns + 1, accepted=past.accepted + old.accepted, credit=old.credit
    )
    return DraftPasts(ctx.write_rows(pasts.rows, (), request, together(made.numbers).T))


def _drawn(
    ctx: Context,
    reach: jax.Array,
    num: jax.Array,
    request: Int[Array, "slot"],
    turn: Int[Array, "slot"],
) -> Int[Array, "slot"]:
    """Return the tokens accepted of each request, by one random number each: more drafts never accept fewer."""

    def uniform(request: jax.Array, turn: jax.Array) -> jax.Array:
        key = decision_key(ctx, RandomSource.DRAFTS, request, turn)
        return jax.random.uniform(key, dtype=jnp.float64)

    is_drafted = jnp.arange(reach.shape[1], dtype=jnp.int32) < num
    is_reached = jax.vmap(uniform)(jnp.maximum(request, 0), turn)[:, None] < reach
    return jnp.sum(is_reached & is_drafted[None, :], axis=1, dtype=jnp.int32)


def _moved_on(
    ctx: Context,
    state: State,
    instance: jax.Array,
    accepted: Int[Array, "slot"],
    more: Int[Array, "slot"],
) -> State:
    """Return the state in which requests are `accepted` tokens further on, and have room for `more` tokens."""
    if Blocks in state:
        blocks = state[Blocks]
        computed = blocks.computed.at[instance].add(accepted)
        state = state.having(dataclasses.replace(blocks, computed=computed))
    slot, past = state.slot.numbers, state.past.rows
    slots = SlotRows(state, instance)
    request = jnp.where(slots.request < 0, ctx.spare_request, slots.request)
    column = jnp.full_like(request, Dyn.PROGRESS)
    progress = past[request, Dyn.PROGRESS] + accepted
    return dataclasses.replace(
        state,
        slot=state.slot.with_numbers(
            slot.at[Slot.FINISH, instance].add(-accepted).at[Slot.ALLOC_OFFSET, instance].add(more)
        ),
        past=PastTable((ctx.write_pairs(past, request, column, progress), *state.past.parts[1:])),
    )


def _with_drafts(members: Members, later: Int[Array, "slot"], num: jax.Array, most: int) -> Members:
    """Return the members, and those in decode once more for each draft, each copy one token further on."""

    def copy(place: int) -> Members:
        is_there = members.in_decode if place else jnp.ones_like(members.in_decode)
        is_there = is_there & (place <= num)
        further = jnp.where(members.in_decode, place - later, 0)
        moved = dataclasses.replace(
            members, progress=members.progress + further, context=members.context + further
        )
        return jax.tree.map(lambda leaf: jnp.where(is_there, leaf, jnp.zeros_like(leaf)), moved)

    copies = [copy(place) for place in range(most + 1)]
    return jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *copies)

"""KV memory while no cached content is ever lost: counts, and the live copies of shared blocks.

Exact as long as each instance takes blocks from the never-used part of its free list, which is checked at every
allocation and after every step; block-level memory takes over beyond that. So every demand is granted, nobody is
visited twice in a step, and nothing follows from an allocation.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp

from blis_jax.core.columns import as_int
from blis_jax.core.exact import ceil_div, exact_quotient, full_blocks, in_last_block
from blis_jax.core.outcome import Outcome
from blis_jax.core.types import LAST
from blis_jax.memory import shared_blocks
from blis_jax.memory.block_tables.contents import Found
from blis_jax.memory.memory import Choice, Demand, Grant, Memory, Plan, Subject, Visit
from blis_jax.memory.shared_blocks import PathRows, cached_blocks, read_path
from blis_jax.tables.blocks import InstanceMemory
from blis_jax.tables.context import Context, SlotRows, Work, count_of, failing
from blis_jax.tables.state import SEQUENTIAL_LAGGING, SharedBlocks, State, no_copies
from blis_jax.tables.writes import SlotWrite

if TYPE_CHECKING:
    from jaxtyping import Array, Bool, Int

    from blis_jax.tables.writes import Writes


@dataclass(frozen=True)
class OnPath(Subject):
    """A request and the shared blocks on its path."""

    path: PathRows


class NoEviction(Memory[OnPath, PathRows]):
    """The memory model without eviction."""

    def no_rows(self, ctx: Context) -> PathRows:
        """Return the rows of a request without shared blocks."""
        return shared_blocks.no_path(ctx.shape)

    def subject(self, ctx: Context, state: State, work: Work, choice: Choice) -> OnPath:
        """Return the request and the rows of its path."""
        instance, slot = choice.instance, choice.slot
        row = SlotRows(state, instance).one(ctx, slot)
        request = row.request
        return OnPath(
            instance=instance,
            slot=slot,
            asker=choice.asker,
            request=request,
            row=row,
            past=ctx.past(state, request),
            fixed=ctx.request(request),
            step=work.inst.step_index + 1,
            path=read_path(state[SharedBlocks], ctx.requests, instance, slot, request),
        )

    def look_up(self, ctx: Context, state: State, work: Work, one: OnPath) -> Found:
        """Count the leading blocks of the prompt that the instance's table names."""
        prompt_blocks = full_blocks(one.fixed.input_len, ctx.shape.block_size)
        return Found(cached_blocks(one.path, prompt_blocks), jnp.int32(0), jnp.array(True))

    def allocate(
        self, ctx: Context, state: State, work: Work, one: OnPath, demand: Demand
    ) -> Grant:
        """Count the blocks; references to shared ones, and new copies of those that are filled."""
        size, inst = ctx.shape.block_size, work.inst
        tokens = jnp.where(demand.asks, demand.tokens, 0)
        hits = jnp.where(tokens > 0, demand.hits, 0)
        base = jnp.where(_finds_blocks(ctx, one), hits * size, one.held)
        held, path = base + tokens, one.path
        new = ceil_div(held, size) - ceil_div(base, size)
        needed = jnp.where(_stores_output(ctx, one), new, ceil_div(tokens, size))
        is_short = needed > ctx.params.cluster.total_kv_blocks[one.instance] - inst.used_blocks
        outcome = failing(work.lane.outcome, is_short, Outcome.KV_CHECK_TRIPPED)
        if ctx.mechanism.reserves_decode and ctx.shape.has_shared_outputs:
            # what was found on the prefill instance says nothing of the list here; the other model knows
            is_found = one.past.cached_first * size >= one.fixed.input_len
            outcome = failing(outcome, one.has_kv & is_found, Outcome.KV_CHECK_TRIPPED)
        if ctx.shape.has_shared_outputs or not demand.is_last:
            fills = ~_stores_output(ctx, one) | _keeps_prefix(ctx, one)
            end = full_blocks(jnp.where(fills, held, base), size)
            start = full_blocks(base, size)
            allocation = shared_blocks.allocate(path, _finds_blocks(ctx, one), hits, start, end)
            path = allocation.rows
            outcome = failing(outcome, allocation.is_full == 1, Outcome.COPIES_FULL)
        used = inst.used_blocks + new
        changes = {"misses": inst.misses + new}
        if not demand.is_last:
            is_zero = one.is_queued & (tokens == 0)
            lags = one.in_decode & ~demand.asks
            outcome = self.unreached.outcome_of_lag(outcome, lags)
            order_now = jnp.where(lags, SEQUENTIAL_LAGGING, as_int(is_zero))
            used = used + allocation.num_revived
            changes |= {
                "hits": inst.hits + hits,
                "is_sequential": jnp.maximum(inst.is_sequential, order_now),
            }
        changes["used_blocks"] = used
        return Grant(jnp.array(True), held, outcome, changes, work.task, path)

    def rows_of_visit(
        self, ctx: Context, state: State, work: Work, one: OnPath, grant: Grant, visit: Visit
    ) -> PathRows:
        """Return the rows of the path after the allocation."""
        path: PathRows = grant.own
        return path

    def release(
        self, ctx: Context, work: Work, one: OnPath, grant: Grant
    ) -> tuple[Grant, PathRows]:
        """Free the blocks that nobody else holds."""
        freed = shared_blocks.release(grant.own)
        private = ceil_div(grant.held, ctx.shape.block_size) - freed.num_held
        cluster = ctx.params.cluster
        left = grant.inst["used_blocks"] - private - freed.num_freed
        total = cluster.total_kv_blocks[one.instance]
        share = exact_quotient(left.astype(jnp.float64), total.astype(jnp.float64))
        offloads = share > cluster.offload_threshold[one.instance]
        outcome = failing(grant.outcome, offloads, Outcome.KV_CHECK_TRIPPED)
        inst = grant.inst | {"used_blocks": left}
        return dataclasses.replace(grant, outcome=outcome, inst=inst), freed.rows

    def first_tables(self, ctx: Context) -> SharedBlocks:
        """Return that nobody holds a copy of anything."""
        return no_copies(ctx.shape)

    def write(self, ctx: Context, state: State, done: Writes) -> State:
        """Return the state with the path's rows in their places."""
        slot = done.slot
        if ctx.shape.num_nodes == 0:
            return state
        where = slot.instance, slot.slot
        return state.having(shared_blocks.write_path(ctx, state[SharedBlocks], slot.memory, *where))

    def emptied(self, ctx: Context, state: State, is_it: Bool[Array, "instance"]) -> State:
        """Return the state in which no content is named any more, and nobody holds a copy."""
        shared = state[SharedBlocks]

        def reset(table: jax.Array, value: int) -> jax.Array:
            rows = is_it.reshape((-1,) + (1,) * (table.ndim - 1))
            return jnp.where(rows, jnp.int32(value), table)

        if shared.is_joined:  # the copy that is named stands behind the others
            (copies,) = shared.copies
            parts = reset(copies[:, :, :-1], 0), reset(copies[:, :, -1:], -1)
            tables: tuple[jax.Array, ...] = (jnp.concatenate(parts, axis=2),)
        else:
            tables = reset(shared.copies[0], 0), reset(shared.copies[1], -1)
        return state.having(SharedBlocks(tables, reset(shared.held, -1)))

    def num_cached(self, ctx: Context, slots: SlotRows) -> Int[Array, "slot"]:
        """Count the leading prompt blocks that the instance's table names."""
        if ctx.shape.num_nodes == 0:
            return jnp.zeros_like(slots.input_len)
        prompt_blocks = full_blocks(slots.input_len, ctx.shape.block_size)
        at = (slots.state[SharedBlocks], ctx.requests, slots.instance, slots.request)
        return shared_blocks.cached_for_all(*at, prompt_blocks)

    def registered(self, ctx: Context, state: State) -> Int[Array, "instance node"]:
        """Count the registered blocks of each content: none is lost, so they are the leading ones."""
        named, rows = state[SharedBlocks].named, ctx.shape.num_instances
        count = jnp.sum(named[:rows] >= 0, axis=2, dtype=jnp.int32)
        return count.at[:, ctx.shape.num_nodes].set(0)

    def is_due(self, ctx: Context, slots: SlotRows, step_index: jax.Array) -> Bool[Array, "slot"]:
        """Return the members whose next token fills a block that others may look up."""
        return _steps_to_fill(ctx, slots, step_index) == 0

    def plan(self, ctx: Context, slots: SlotRows, work: Work, is_pure: jax.Array) -> Plan:
        """Plan a step: only a fully cached prompt, admitted with no tokens, can exhaust the budget later on."""
        sequential = work.inst.is_sequential
        left = _steps_to_fill(ctx, slots, work.inst.step_index)
        due = left == 0
        # a member passed over by the budget takes its blocks at other steps than the record would tell
        is_pure = is_pure & (sequential < SEQUENTIAL_LAGGING) & ~jnp.any(due)
        visit_all = (sequential > 0) & ~is_pure
        counted = jnp.where(visit_all, 0, work.inst.num_decode - count_of(due))
        return Plan(visit_all, counted, is_pure, jnp.min(left))

    def decode_blocks(
        self, ctx: Context, slots: SlotRows, step_index: jax.Array, num_steps: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """Return the blocks that follow from the tokens held: members that are counted take theirs all at once."""
        size, is_decode = ctx.shape.block_size, slots.finish != LAST
        held = step_index + slots.alloc_offset
        in_last = in_last_block(held, size)
        room = jnp.where(in_last == 0, 0, jnp.int32(size) - in_last)
        beyond = jnp.maximum(num_steps - room, 0)
        full, part = full_blocks(beyond, size), in_last_block(beyond, size)
        summed = jnp.int32(size) * full_blocks(full * (full + 1), 2) + part * (full + 1)
        return (
            jnp.sum(jnp.where(is_decode, ceil_div(beyond, size), 0), dtype=jnp.int32),
            jnp.sum(jnp.where(is_decode, summed, 0), dtype=jnp.int32),
        )

    def after_step(
        self,
        ctx: Context,
        state: State,
        work: Work,
        instance: jax.Array,
        written: SlotWrite[PathRows],
        finish: Int[Array, "slot"],
        num_done: jax.Array,
    ) -> tuple[jax.Array, InstanceMemory]:
        """Check that blocks never used before remain, or that no content can be looked up again: else
        the counts are not exact.
        """
        total = ctx.params.cluster.total_kv_blocks[instance]
        is_over = work.inst.used_blocks > total
        is_reused = (work.inst.misses > total) & (ctx.requests.has_shared == 1)
        outcome = failing(work.lane.outcome, is_over | is_reused, Outcome.KV_CHECK_TRIPPED)
        return outcome, work.pool


def _stores_output(ctx: Context, one: OnPath) -> jax.Array:
    """Whether the tokens are outputs: of a member in decode, or of a request whose whole prompt is here already."""
    return one.in_decode | one.has_kv if ctx.mechanism.reserves_decode else one.in_decode


def _finds_blocks(ctx: Context, one: OnPath) -> jax.Array:
    """Whether the list begins with the blocks that were found in the cache."""
    return one.is_queued & ~one.has_kv if ctx.mechanism.reserves_decode else one.is_queued


def _steps_to_fill(ctx: Context, slots: SlotRows, step_index: jax.Array) -> Int[Array, "slot"]:
    """Steps before the one in which a decode member fills a block that others may look up; LAST if never."""
    finish, size = slots.finish, ctx.shape.block_size
    # a block of one token is never looked up, see _keeps_prefix
    if not ctx.shape.has_shared_outputs or ctx.shape.block_size == 1:
        return jnp.full_like(finish, LAST)
    held = step_index + slots.alloc_offset
    return jnp.where(finish == LAST, jnp.int32(LAST), size - 1 - in_last_block(held, size))


def _keeps_prefix(ctx: Context, one: OnPath) -> jax.Array:
    """Whether a block that the next decode token fills is registered under the request's own prefix.

    Not after a fully cached prompt (the list holds outputs only) nor once the budget passed the request over
    (a token is missing); and a block that one token fills, fresh from the free list, never is.
    """
    if not ctx.shape.has_shared_outputs:
        return jnp.array(False)
    size, past = ctx.shape.block_size, one.past
    is_prefix = past.cached_first * size < one.fixed.input_len
    is_partial = in_last_block(one.held, size) != 0
    return is_prefix & is_partial & (past.lag == 0)

"""KV memory while no cached content is ever lost: counts, and the live copies of shared blocks.

Exact as long as each instance takes blocks from the never-used part of its free list, which is checked at every
allocation and after every step; beyond that, block-level memory is needed. So every demand is granted, no request is
visited twice in a step, and an allocation needs no operations.

A content that two requests share may exist in several physical copies, because a request that is still chunking does
not look up again; used blocks count copies, and the table names the copy written last.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
from jax import lax

from blis_jax.core.columns import as_int
from blis_jax.core.exact import ceil_div, exact_quotient, full_blocks, in_last_block
from blis_jax.core.outcome import Outcome
from blis_jax.core.pytrees import pytree
from blis_jax.core.types import LAST
from blis_jax.memory.block_tables.contents import Found, nothing_found
from blis_jax.memory.memory import (
    Choice,
    Demand,
    Grant,
    Memory,
    Plan,
    Subject,
    Visit,
    blocks_of_decode,
)
from blis_jax.tables.blocks import InstanceMemory
from blis_jax.tables.context import Context, SlotRows, Work, count_of, failing
from blis_jax.tables.requests import Requests, nodes_of
from blis_jax.tables.state import SEQUENTIAL_LAGGING, SharedBlocks, State, no_copies
from blis_jax.tables.writes import SlotWrite

if TYPE_CHECKING:
    from jaxtyping import Array, Bool, Int

    from blis_jax.tables.writes import Writes


@pytree
class PathRows:
    """The shared blocks on one request's path, on one instance."""

    node: Int[Array, "path"]  # spare node where the path has ended
    start: Int[Array, "path"]  # first block of the node
    length: Int[Array, "path"]  # blocks of the node, 0 past the path's end
    holders: Int[Array, "path copy block"]
    named: Int[Array, "path block"]
    held: Int[Array, "path block"]


def read_path(
    shared: SharedBlocks,
    requests: Requests,
    instance: jax.Array,
    slot: jax.Array,
    request: jax.Array,
) -> PathRows:
    """Read the rows of the request's nodes, one contiguous read each."""
    zero, depth = jnp.int32(0), requests.path.shape[1]
    path, start, length = nodes_of(requests, request)
    _, _, copies, blocks = shared.copies[0].shape
    held = lax.dynamic_slice(shared.held, (instance, slot, zero, zero), (1, 1, depth, blocks))[0, 0]
    if depth > 1:
        rows = [table[instance, path] for table in shared.copies]
    else:
        at, first = (instance, path[0], zero), shared.copies[0]
        rows = [lax.dynamic_slice(first, (*at, zero), (1, 1, copies, blocks))[0]]
        rows += [lax.dynamic_slice(named, at, (1, 1, blocks))[0] for named in shared.copies[1:]]
    if shared.is_joined:
        rows = [rows[0][:, :-1], rows[0][:, -1]]
    holders, named = rows
    return PathRows(path, start, length, holders, named, held)


def write_path(
    ctx: Context, shared: SharedBlocks, rows: PathRows, instance: jax.Array, slot: jax.Array
) -> SharedBlocks:
    """Return the tables with the rows written; writes that must not happen go to the spare instance."""
    zero, values = jnp.int32(0), [rows.holders, rows.named]
    if shared.is_joined:
        values = [jnp.concatenate([rows.holders, rows.named[:, None]], axis=1)]

    def put(table: jax.Array, value: jax.Array) -> jax.Array:
        if rows.node.shape[0] > 1:
            return ctx.write_rows(table, (instance,), rows.node, value)
        at = (instance, rows.node[0], *(zero,) * (table.ndim - 2))
        return lax.dynamic_update_slice(table, value[None], at)

    copies = tuple(map(put, shared.copies, values))
    at_slot = (instance, slot, zero, zero)
    held = lax.dynamic_update_slice(shared.held, rows.held[None, None], at_slot)
    return SharedBlocks(copies, held)


def cached_blocks(rows: PathRows, most: jax.Array) -> jax.Array:
    """Count the leading blocks of the prompt in the prefix table, `most` at most."""
    num_named = jnp.sum(rows.named >= 0, axis=1, dtype=jnp.int32)
    num_named = jnp.clip(most - rows.start, 0, num_named)
    is_whole = (num_named == rows.length).astype(jnp.int32)
    reached = jnp.concatenate([jnp.ones((1,), jnp.int32), jnp.cumprod(is_whole)[:-1]])
    return jnp.sum(num_named * reached, dtype=jnp.int32)


def cached_for_all(
    shared: SharedBlocks,
    requests: Requests,
    instance: jax.Array,
    request: Int[Array, "slot"],
    most: Int[Array, "slot"],
) -> Int[Array, "slot"]:
    """Count the leading prompt blocks in the instance's prefix table, `most` at most, for every slot at once."""
    table = shared.copies[-1]
    named = table[instance, :, -1] if shared.is_joined else table[instance]
    registered = jnp.sum(named >= 0, axis=1, dtype=jnp.int32)
    path = requests.path[request]
    num_named = jnp.clip(most[:, None] - requests.node_start[path], 0, registered[path])
    is_whole = (num_named == requests.node_blocks[path]).astype(jnp.int32)
    before = jnp.cumprod(is_whole, axis=1)[:, :-1]
    reached = jnp.concatenate([jnp.ones((request.shape[0], 1), jnp.int32), before], axis=1)
    return jnp.sum(num_named * reached, axis=1, dtype=jnp.int32)


def allocate(
    rows: PathRows,
    is_first: jax.Array,
    num_hit_blocks: jax.Array,
    first_block: jax.Array,
    end_block: jax.Array,
) -> tuple[PathRows, jax.Array, jax.Array]:
    """Pin the hit blocks on a first allocation, and register the blocks `[first_block, end_block)` that it fills.

    Returns:
        The rows, how many hit blocks nobody held, and whether a copy was needed beyond the table's capacity.
    """
    copies = rows.holders.shape[1]
    block = lax.broadcasted_iota(jnp.int32, rows.named.shape, 1)
    absolute = block + rows.start[:, None]
    inside = block < rows.length[:, None]
    pinned = inside & (absolute < num_hit_blocks)
    filled = inside & (absolute >= first_block) & (absolute < end_block)
    copy = lax.broadcasted_iota(jnp.int32, rows.holders.shape, 1)
    is_named = copy == rows.named[:, None, :]
    revived = pinned[:, None, :] & is_named & (rows.holders == 0)
    holders = rows.holders + (pinned[:, None, :] & is_named).astype(jnp.int32)
    is_free = (holders == 0) & ~is_named
    choice = jnp.min(jnp.where(is_free, copy, LAST), axis=1)
    holders = holders + (filled[:, None, :] & (copy == choice[:, None, :])).astype(jnp.int32)
    held = jnp.where(is_first, jnp.int32(-1), rows.held)
    held = jnp.where(pinned, rows.named, jnp.where(filled, choice, held))
    named = jnp.where(filled, choice, rows.named)
    after = dataclasses.replace(rows, holders=holders, named=named, held=held)
    num_revived = jnp.sum(revived, dtype=jnp.int32)
    return after, num_revived, jnp.any(filled & (choice >= copies)).astype(jnp.int32)


def release(rows: PathRows) -> tuple[PathRows, jax.Array, jax.Array]:
    """Drop the request's reference to every shared block in its list.

    Returns:
        The rows, how many blocks it listed, and how many of these nobody holds any more.
    """
    copy = lax.broadcasted_iota(jnp.int32, rows.holders.shape, 1)
    is_held = copy == rows.held[:, None, :]
    freed = is_held & (rows.holders == 1)
    holders, held = rows.holders - is_held.astype(jnp.int32), jnp.full_like(rows.held, -1)
    num_held = jnp.sum(rows.held >= 0, dtype=jnp.int32)
    after = dataclasses.replace(rows, holders=holders, held=held)
    return after, num_held, jnp.sum(freed, dtype=jnp.int32)


@dataclass(frozen=True)
class OnPath(Subject):
    """A request and the shared blocks on its path."""

    path: PathRows


class NoEviction(Memory[OnPath, PathRows]):
    """The memory model for runs in which no cached content is evicted."""

    def no_rows(self, ctx: Context) -> PathRows:
        """Return the rows of a request without shared blocks, at the spare node."""
        shape = ctx.shape
        nothing = jnp.zeros((shape.path_depth,), jnp.int32)
        empty = jnp.full((shape.path_depth, shape.node_blocks), -1, jnp.int32)
        copies = shape.path_depth, shape.num_copies, shape.node_blocks
        spare = nothing + shape.num_nodes
        return PathRows(spare, nothing, nothing, jnp.zeros(copies, jnp.int32), empty, empty)

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

    def look_up(self, ctx: Context, state: State, work: Work, subject: OnPath) -> Found:
        """Count the leading blocks of the prompt in the instance's prefix table."""
        if not ctx.mechanism.finds_prefixes:
            return nothing_found()
        findable = ctx.mechanism.rules.findable(subject.fixed.input_len)
        most = full_blocks(findable, ctx.shape.block_size)
        return Found(cached_blocks(subject.path, most), jnp.int32(0), jnp.array(True))

    def allocate(
        self, ctx: Context, state: State, work: Work, subject: OnPath, demand: Demand
    ) -> Grant:
        """Count the blocks to allocate; add references to shared blocks, and copies of those that are filled."""
        size, inst = ctx.shape.block_size, work.inst
        tokens = jnp.where(demand.asks, demand.tokens, 0)
        hits = jnp.where(tokens > 0, demand.hits, 0)
        base = jnp.where(_finds_blocks(ctx, subject), hits * size, subject.held)
        held, path = base + tokens, subject.path
        new = ceil_div(held, size) - ceil_div(base, size)
        needed = jnp.where(_stores_output(ctx, subject), new, ceil_div(tokens, size))
        is_short = needed > ctx.params.cluster.total_kv_blocks[subject.instance] - inst.used_blocks
        outcome = failing(work.lane.outcome, is_short, Outcome.KV_CHECK_TRIPPED)
        if ctx.mechanism.reserves_decode and ctx.shape.has_shared_outputs:
            # what was found on the prefill instance says nothing of the list here; the other model knows
            is_found = subject.past.cached_first * size >= subject.fixed.input_len
            outcome = failing(outcome, subject.has_kv & is_found, Outcome.KV_CHECK_TRIPPED)
        if ctx.shape.has_shared_outputs or not demand.is_last:
            fills = ~_stores_output(ctx, subject) | _keeps_prefix(ctx, subject)
            end = full_blocks(jnp.where(fills, held, base), size)
            start = full_blocks(base, size)
            path, revived, is_full = allocate(path, _finds_blocks(ctx, subject), hits, start, end)
            outcome = failing(outcome, is_full == 1, Outcome.COPIES_FULL)
        used = inst.used_blocks + new
        changes = {"misses": inst.misses + new}
        if not demand.is_last:
            is_zero, lags = subject.is_queued & (tokens == 0), subject.in_decode & ~demand.asks
            outcome = self.unreached.outcome_of_lag(outcome, lags)
            order_now = jnp.where(lags, SEQUENTIAL_LAGGING, as_int(is_zero))
            used = used + revived
            changes |= {
                "hits": inst.hits + hits,
                "is_sequential": jnp.maximum(inst.is_sequential, order_now),
            }
        changes["used_blocks"] = used
        return Grant(jnp.array(True), held, outcome, changes, work.task, path)

    def rows_of_visit(
        self, ctx: Context, state: State, work: Work, subject: OnPath, grant: Grant, visit: Visit
    ) -> PathRows:
        """Return the rows of the path after the allocation."""
        path: PathRows = grant.own
        return path

    def release(
        self, ctx: Context, work: Work, subject: OnPath, grant: Grant
    ) -> tuple[Grant, PathRows]:
        """Free the blocks that no other request holds."""
        rows, num_held, num_freed = release(grant.own)
        private = ceil_div(grant.held, ctx.shape.block_size) - num_held
        cluster = ctx.params.cluster
        left = grant.inst["used_blocks"] - private - num_freed
        total = cluster.total_kv_blocks[subject.instance]
        share = exact_quotient(left.astype(jnp.float64), total.astype(jnp.float64))
        offloads = share > cluster.offload_threshold[subject.instance]
        outcome = failing(grant.outcome, offloads, Outcome.KV_CHECK_TRIPPED)
        inst = grant.inst | {"used_blocks": left}
        return dataclasses.replace(grant, outcome=outcome, inst=inst), rows

    def first_tables(self, ctx: Context) -> SharedBlocks:
        """Return the tables with no copies held."""
        return no_copies(ctx.shape)

    def write(self, ctx: Context, state: State, done: Writes) -> State:
        """Return the state with the path's rows written."""
        slot = done.slot
        if ctx.shape.num_nodes == 0:
            return state
        where = slot.instance, slot.slot
        return state.having(write_path(ctx, state[SharedBlocks], slot.memory, *where))

    def emptied(self, ctx: Context, state: State, is_it: Bool[Array, "instance"]) -> State:
        """Return the state in which these instances have no content in the prefix table, and no copy is held."""
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
        """Count the leading prompt blocks in the instance's prefix table, for the request in every slot."""
        if ctx.shape.num_nodes == 0 or not ctx.mechanism.finds_prefixes:
            return jnp.zeros_like(slots.input_len)
        most = full_blocks(ctx.mechanism.rules.findable(slots.input_len), ctx.shape.block_size)
        at = (slots.state[SharedBlocks], ctx.requests, slots.instance, slots.request)
        return cached_for_all(*at, most)

    def registered(self, ctx: Context, state: State) -> Int[Array, "instance node"]:
        """Count the registered blocks of each content: since none is lost, they are the leading blocks."""
        named, rows = state[SharedBlocks].named, ctx.shape.num_instances
        count = jnp.sum(named[:rows] >= 0, axis=2, dtype=jnp.int32)
        return count.at[:, ctx.shape.num_nodes].set(0)

    def is_due(self, ctx: Context, slots: SlotRows, step_index: jax.Array) -> Bool[Array, "slot"]:
        """Return the members whose next token fills a block that others may look up."""
        return _steps_to_fill(ctx, slots, step_index) == 0

    def plan(self, ctx: Context, slots: SlotRows, work: Work, is_pure: jax.Array) -> Plan:
        """Plan a step: only a fully cached prompt, admitted with no tokens, can exhaust the budget later."""
        sequential = work.inst.is_sequential
        left = _steps_to_fill(ctx, slots, work.inst.step_index)
        due = left == 0
        # a member passed over by the budget takes its blocks at other steps than the record would tell
        is_pure = is_pure & (sequential < SEQUENTIAL_LAGGING) & ~jnp.any(due)
        visit_all = self.chunks.visits_all(ctx, slots, work, (sequential > 0) & ~is_pure)
        counted = jnp.where(visit_all, 0, work.inst.num_decode - count_of(due))
        return Plan(visit_all, counted, is_pure, jnp.min(left), ~visit_all)

    def decode_blocks(
        self, ctx: Context, slots: SlotRows, index: jax.Array, steps: jax.Array, taken: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """Return the blocks that counted members take, all at once, computed from the tokens held."""
        return blocks_of_decode(ctx, slots, index, steps)

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
        """Check that blocks never used before remain, or that no content can be looked up again; otherwise the counts
        are not exact.
        """
        total = ctx.params.cluster.total_kv_blocks[instance]
        is_over = work.inst.used_blocks > total
        is_reused = (work.inst.misses > total) & (ctx.requests.has_shared == 1)
        outcome = failing(work.lane.outcome, is_over | is_reused, Outcome.KV_CHECK_TRIPPED)
        return outcome, work.pool


def _stores_output(ctx: Context, subject: OnPath) -> jax.Array:
    """Return whether the tokens are outputs: of a member in decode, or of a request with its whole prompt stored."""
    decodes = subject.in_decode
    return decodes | subject.has_kv if ctx.mechanism.reserves_decode else decodes


def _finds_blocks(ctx: Context, subject: OnPath) -> jax.Array:
    """Return whether the request's list begins with cached blocks."""
    is_queued = subject.is_queued
    return is_queued & ~subject.has_kv if ctx.mechanism.reserves_decode else is_queued


def _steps_to_fill(ctx: Context, slots: SlotRows, step_index: jax.Array) -> Int[Array, "slot"]:
    """Return the number of steps until a decode member fills a block that others may look up; LAST if never."""
    finish, size = slots.finish, ctx.shape.block_size
    # a block of one token is never looked up, see _keeps_prefix
    if not ctx.shape.has_shared_outputs or ctx.shape.block_size == 1:
        return jnp.full_like(finish, LAST)
    held = step_index + slots.alloc_offset
    return jnp.where(finish == LAST, jnp.int32(LAST), size - 1 - in_last_block(held, size))


def _keeps_prefix(ctx: Context, subject: OnPath) -> jax.Array:
    """Return whether a block that the next decode token fills is registered under the request's own prefix.

    It is not after a fully cached prompt (the list holds outputs only), nor once the budget passed the request over (a
    token is missing), nor for a block of one token that is fresh from the free list.
    """
    if not ctx.shape.has_shared_outputs:
        return jnp.array(False)
    size, past = ctx.shape.block_size, subject.past
    is_prefix = past.cached_first * size < subject.fixed.input_len
    is_partial = in_last_block(subject.held, size) != 0
    return is_prefix & is_partial & (past.lag == 0)

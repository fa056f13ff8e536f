"""Physical copies of shared blocks, while no cached content is ever lost.

Exact as long as each instance takes blocks from the never-used part of its free list, which the engine
checks at every allocation; block-level memory takes over beyond that. A content that two requests
share may exist in several physical copies, because a request that is still chunking does not look up again;
used blocks count copies, and the table names the copy written last.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
from jax import lax

from blis_jax.core.types import LAST, EngineShape, pytree
from blis_jax.tables.context import Context
from blis_jax.tables.requests import Requests, nodes_of
from blis_jax.tables.state import SharedBlocks

if TYPE_CHECKING:
    from jaxtyping import Array, Int


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
    """Put the rows back; the spare instance takes writes that must not happen."""
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


def cached_blocks(rows: PathRows, num_prompt_blocks: jax.Array) -> jax.Array:
    """Count the leading blocks of the prompt that the table holds."""
    found = jnp.sum(rows.named >= 0, axis=1, dtype=jnp.int32)
    found = jnp.where(rows.start < num_prompt_blocks, found, 0)
    is_whole = (found == rows.length).astype(jnp.int32)
    reached = jnp.concatenate([jnp.ones((1,), jnp.int32), jnp.cumprod(is_whole)[:-1]])
    return jnp.sum(found * reached, dtype=jnp.int32)


def cached_for_all(
    shared: SharedBlocks,
    requests: Requests,
    instance: jax.Array,
    request: Int[Array, "slot"],
    num_prompt_blocks: Int[Array, "slot"],
) -> Int[Array, "slot"]:
    """Count the leading prompt blocks that the instance's table holds, for every slot at once."""
    table = shared.copies[-1]
    named = table[instance, :, -1] if shared.is_joined else table[instance]
    registered = jnp.sum(named >= 0, axis=1, dtype=jnp.int32)
    path = requests.path[request]
    is_prompt = requests.node_start[path] < num_prompt_blocks[:, None]
    found = jnp.where(is_prompt, registered[path], 0)
    is_whole = (found == requests.node_blocks[path]).astype(jnp.int32)
    before = jnp.cumprod(is_whole, axis=1)[:, :-1]
    reached = jnp.concatenate([jnp.ones((request.shape[0], 1), jnp.int32), before], axis=1)
    return jnp.sum(found * reached, axis=1, dtype=jnp.int32)


@pytree
class Allocation:
    """Effect of one prefill chunk on the shared blocks."""

    rows: PathRows
    num_revived: Int[Array, ""]  # hit blocks that nobody held
    is_full: Int[Array, ""]  # a copy was needed beyond the table's capacity


def allocate(
    rows: PathRows,
    is_first: jax.Array,
    num_hit_blocks: jax.Array,
    first_block: jax.Array,
    end_block: jax.Array,
) -> Allocation:
    """Pin the hit blocks on a first allocation and register the blocks `[first_block, end_block)` filled now."""
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
    return Allocation(
        PathRows(rows.node, rows.start, rows.length, holders, named, held),
        jnp.sum(revived, dtype=jnp.int32),
        jnp.any(filled & (choice >= copies)).astype(jnp.int32),
    )


@pytree
class Release:
    """Effect of a completion on the shared blocks."""

    rows: PathRows
    num_held: Int[Array, ""]  # shared blocks in the request's list
    num_freed: Int[Array, ""]  # of these, the ones nobody holds any more


def release(rows: PathRows) -> Release:
    """Drop the request's reference to every shared block it lists."""
    copy = lax.broadcasted_iota(jnp.int32, rows.holders.shape, 1)
    mine = copy == rows.held[:, None, :]
    freed = mine & (rows.holders == 1)
    return Release(
        PathRows(
            rows.node,
            rows.start,
            rows.length,
            rows.holders - mine.astype(jnp.int32),
            rows.named,
            jnp.full_like(rows.held, -1),
        ),
        jnp.sum(rows.held >= 0, dtype=jnp.int32),
        jnp.sum(freed, dtype=jnp.int32),
    )


def no_path(shape: EngineShape) -> PathRows:
    """Return the rows of a request without shared blocks, at the spare node."""
    depth, blocks = shape.path_depth, shape.node_blocks
    nothing = jnp.zeros((depth,), jnp.int32)
    empty = jnp.full((depth, blocks), -1, jnp.int32)
    return PathRows(
        nothing + shape.num_nodes,
        nothing,
        nothing,
        jnp.zeros((depth, shape.num_copies, blocks), jnp.int32),
        empty,
        empty,
    )

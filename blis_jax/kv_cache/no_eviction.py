"""KV memory while no cached content is ever lost: counts, and the live copies of shared blocks.

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

from blis_jax.state import Requests, SharedBlocks
from blis_jax.types import LAST, EngineShape, pytree

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
    shared: SharedBlocks, requests: Requests, instance: jax.Array, slot: jax.Array, request: jax.Array
) -> PathRows:
    """Rows of the request's nodes; one contiguous read each."""
    zero = jnp.int32(0)
    path = lax.dynamic_slice(requests.path, (request, zero), (1, requests.path.shape[1]))[0]
    _, _, copies, blocks = shared.holders.shape
    holders, named, start, length = [], [], [], []
    for depth in range(path.shape[0]):
        node = path[depth]
        holders.append(
            lax.dynamic_slice(shared.holders, (instance, node, zero, zero), (1, 1, copies, blocks))[0, 0]
        )
        named.append(lax.dynamic_slice(shared.named, (instance, node, zero), (1, 1, blocks))[0, 0])
        start.append(requests.node_start[node])
        length.append(requests.node_blocks[node])
    held = lax.dynamic_slice(
        shared.held, (instance, slot, zero, zero), (1, 1, path.shape[0], blocks)
    )[0, 0]
    return PathRows(
        path, jnp.stack(start), jnp.stack(length), jnp.stack(holders), jnp.stack(named), held
    )


def write_path(
    shared: SharedBlocks, rows: PathRows, instance: jax.Array, slot: jax.Array
) -> SharedBlocks:
    """Put the rows back; the spare instance takes writes that must not happen."""
    holders, named, zero = shared.holders, shared.named, jnp.int32(0)
    for depth in range(rows.node.shape[0]):
        at = (instance, rows.node[depth])
        holders = lax.dynamic_update_slice(holders, rows.holders[depth][None, None], (*at, zero, zero))
        named = lax.dynamic_update_slice(named, rows.named[depth][None, None], (*at, zero))
    held = lax.dynamic_update_slice(shared.held, rows.held[None, None], (instance, slot, zero, zero))
    return SharedBlocks(holders, named, held)


def cached_blocks(rows: PathRows, num_prompt_blocks: jax.Array) -> jax.Array:
    """Leading blocks of the prompt that the table holds."""
    found = jnp.sum(rows.named >= 0, axis=1, dtype=jnp.int32)
    total = jnp.zeros((), jnp.int32)
    reached = jnp.array(True)
    for depth in range(rows.node.shape[0]):
        reached = reached & (rows.start[depth] < num_prompt_blocks)
        total = total + jnp.where(reached, found[depth], 0)
        reached = reached & (found[depth] == rows.length[depth])
    return total


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
    """Rows of a request without shared blocks, at the spare node."""
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

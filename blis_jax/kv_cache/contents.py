"""Names of KV contents, and where the table from content to block keeps each of them.

A content is the whole prefix of a request up to some token. Its name is a number that two requests share exactly
where they share the prefix: the shared block and the place in it, else the request and the position. What a
disturbed block list holds is no prefix; it is named by request and position too, apart from the prefixes, and
matches nothing else. The lowest bit of a name says that a roll-back lost the block's tokens.

Only full blocks of prefixes can be looked up, so only they have a place in the table: one for each shared block,
and one for each position of a resident request. A place that a request has left may still hold its
block; a look-up compares names.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax import lax

from blis_jax.context import Context, row
from blis_jax.kv_cache.blocks import NO_KEY, Blocks, num_contents
from blis_jax.types import pytree

if TYPE_CHECKING:
    from jaxtyping import Array, Int

OWNER_BITS = 32
LOST = 1  # in a name: the block's tokens are gone


def _shared(
    ctx: Context, request: jax.Array, position: Int[Array, "n"]
) -> tuple[jax.Array, jax.Array]:
    """Number of the shared block at each block position of a request, and whether it is shared."""
    requests = ctx.requests
    if ctx.shape.num_nodes == 0:
        return jnp.zeros_like(position), jnp.zeros(position.shape, bool)
    path = row(requests.path, request)
    start, length = requests.node_start[path], requests.node_blocks[path]
    offset = position[:, None] - start[None, :]
    is_inside = (offset >= 0) & (offset < length[None, :])
    number = jnp.where(is_inside, requests.node_base[path][None, :] + offset, 0)
    return jnp.sum(number, axis=1, dtype=jnp.int32), jnp.any(is_inside, axis=1)


def names(ctx: Context, request: jax.Array, end: Int[Array, "n"], is_clean: jax.Array) -> jax.Array:
    """Names of the contents that end before token `end`, int64; of a prefix if `is_clean`."""
    size = jnp.int32(ctx.shape.block_size)
    last = end - 1
    number, is_shared = _shared(ctx, request, lax.div(last, size))
    is_shared = is_shared & is_clean
    disturbed = jnp.broadcast_to(~is_clean, end.shape).astype(jnp.int64)
    of_shared = number.astype(jnp.int64) * size.astype(jnp.int64)
    of_shared = of_shared + lax.rem(last, size).astype(jnp.int64) + 1
    owner = (request.astype(jnp.int64) + 1) << OWNER_BITS
    of_own = owner | (end.astype(jnp.int64) * 2 + disturbed)
    return jnp.where(is_shared, of_shared, of_own) << 1


def is_same(first: jax.Array, second: jax.Array) -> jax.Array:
    """Whether two names stand for the same content, whatever became of the tokens."""
    return (first >> 1) == (second >> 1)


def places(ctx: Context, blocks: Blocks, name: jax.Array) -> jax.Array:
    """Where the table keeps each content; past its end if it cannot be looked up."""
    shape, size = ctx.shape, ctx.shape.block_size
    nowhere = jnp.int32(num_contents(shape))
    content = name >> 1
    owner = (content >> OWNER_BITS).astype(jnp.int32)
    rest = content & jnp.int64((1 << OWNER_BITS) - 1)
    number = ((rest - 1) // size).astype(jnp.int32)
    is_whole = (rest - 1) % size == size - 1
    shared = jnp.where((rest > 0) & is_whole, number, nowhere)
    end = (rest >> 1).astype(jnp.int32)
    is_prefix = (rest & 1) == 0
    position = lax.div(end, jnp.int32(size)) - 1
    slot = blocks.slot_of[jnp.maximum(owner - 1, 0)]
    is_kept = is_prefix & (lax.rem(end, jnp.int32(size)) == 0) & (slot >= 0)
    is_kept = is_kept & (position < shape.list_blocks)
    own = jnp.int32(shape.num_shared_blocks) + slot * jnp.int32(shape.list_blocks) + position
    place = jnp.where(owner == 0, shared, jnp.where(is_kept, own, nowhere))
    return jnp.where(name >> 1 == NO_KEY, nowhere, place)


@pytree
class Found:
    """The longest run of leading prompt blocks that are registered."""

    count: Int[Array, ""]
    block: Int[Array, "position"]  # junk from `count` on


def look_up(
    ctx: Context,
    blocks: Blocks,
    instance: jax.Array,
    slot: jax.Array,
    request: jax.Array,
    num_prompt_blocks: jax.Array,
) -> Found:
    """What the instance's table holds of the request's prompt."""
    shape = ctx.shape
    position = lax.iota(jnp.int32, shape.list_blocks)
    number, is_shared = _shared(ctx, request, position)
    own = jnp.int32(shape.num_shared_blocks) + slot * jnp.int32(shape.list_blocks) + position
    block = blocks.named[instance, jnp.where(is_shared, number, own)]
    carried = blocks.key[instance, jnp.maximum(block, 0)]
    expected = names(ctx, request, (position + 1) * jnp.int32(shape.block_size), jnp.array(True))
    is_found = (block >= 0) & is_same(carried, expected) & (position < num_prompt_blocks)
    missing = jnp.where(is_found, jnp.int32(shape.list_blocks), position)
    return Found(jnp.min(missing), block)


def holds_prefix(
    ctx: Context,
    blocks: Blocks,
    instance: jax.Array,
    request: jax.Array,
    block: Int[Array, "position"],
    count: jax.Array,
) -> jax.Array:
    """Whether the first `count` blocks hold the tokens of the request's own prefix."""
    position = lax.iota(jnp.int32, block.shape[0])
    carried = blocks.key[instance, jnp.maximum(block, 0)]
    expected = names(
        ctx, request, (position + 1) * jnp.int32(ctx.shape.block_size), jnp.array(True)
    )
    return jnp.all((carried == expected) | (position >= count))


def is_registered(
    ctx: Context, blocks: Blocks, instance: jax.Array, name: Any, place: jax.Array
) -> jax.Array:
    """Whether the instance's table names a block for this content, with the CPU tier's bits at hand."""
    block = blocks.named[instance, place]
    carried = blocks.key[instance, jnp.maximum(block, 0)]
    is_kept = (block >= 0) & is_same(carried, name)
    real = ctx.shape.num_blocks  # the spare block's entries are junk
    numbers, bits = row(blocks.key, instance)[:real], row(blocks.is_named, instance)[:real]
    found = jnp.any(is_same(numbers, name) & bits)
    return jnp.where(place == jnp.int32(num_contents(ctx.shape)), found, is_kept)

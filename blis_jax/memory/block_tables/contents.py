"""Names of KV contents, and where the table from content to block keeps each of them.

A content is the whole prefix of a request up to some token. Its name is a number that two requests share exactly where
they share the prefix: it is made of the shared block and the place in it, else of the request and the position. A
disturbed block list holds no prefix, but the request's tokens with jumps in between; its contents are named by the
holder of the last token, and by a number made of the position and all jumps. The lowest bit of a name says that a
roll-back lost the block's tokens.

Only full blocks of prefixes can be looked up, so only they have a place in the table: one for each shared block, and
one for each position of a resident request. After a request has left, its places may still hold its blocks; a look-up
compares names.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
from jax import lax

from blis_jax.core.exact import full_blocks, in_last_block
from blis_jax.core.pytrees import pytree
from blis_jax.tables.blocks import LOOK_UP_BLOCKS, NO_BLOCK, Blocks, num_contents
from blis_jax.tables.context import Context, row, shared_numbers

if TYPE_CHECKING:
    from jaxtyping import Array, Bool, Int

OWNER_BITS = 32
LOST = 1  # in a name: the block's tokens are gone


NO_JUMPS = 0
MIXING = 1_000_003  # an odd prime: products wrap


def holder(number: jax.Array, is_shared: jax.Array, request: jax.Array, ctx: Context) -> jax.Array:
    """Return a code for the holder of the tokens up to a block: the shared block `number`, or the request alone."""
    return jnp.where(is_shared, number, jnp.int32(ctx.shape.num_shared_blocks) + request)


def after_jump(
    ctx: Context,
    jumps: jax.Array,
    request: jax.Array,
    held: jax.Array,
    old: jax.Array,
    offset: jax.Array,
) -> jax.Array:
    """Return the number that stands for a list's jumps after one more jump, from offset `old` to `offset`, with `held`
    tokens in the list.

    The number mixes the positions before and after the jump, how many tokens the last block has, and the holder of the
    tokens before the jump, so that two requests have one name for the same tokens. The length of the list does not
    matter: it may contain blocks twice.
    """
    size, reached = ctx.shape.block_size, held + old
    number, is_shared = shared_numbers(
        ctx, request, full_blocks(jnp.maximum(reached - 1, 0), size)[None]
    )
    whose = holder(number[0], is_shared[0], request, ctx)
    mixed = jumps
    for part in (reached, held + offset, in_last_block(held, size), whose):
        mixed = (mixed * jnp.int32(MIXING)) ^ (part + 1)
    return jnp.where(mixed == NO_JUMPS, jnp.int32(1), mixed)


def names(ctx: Context, request: jax.Array, end: Int[Array, "n"], jumps: jax.Array) -> jax.Array:
    """Return the names, int64, of the contents that end before token `end`: prefixes, unless the list has `jumps`."""
    is_clean = jumps == NO_JUMPS
    size = jnp.int32(ctx.shape.block_size)
    last = end - 1
    number, is_shared = shared_numbers(ctx, request, lax.div(last, size))
    of_shared = number.astype(jnp.int64) * size.astype(jnp.int64)
    of_shared = of_shared + lax.rem(last, size).astype(jnp.int64) + 1
    owner, wide = (request.astype(jnp.int64) + 1) << OWNER_BITS, end.astype(jnp.int64)
    of_prefix = jnp.where(is_shared, of_shared, owner | (wide * 2))
    of_jumps = (jumps.astype(jnp.int64) * 31 + wide * MIXING) & jnp.int64(2 ** (OWNER_BITS - 1) - 1)
    whose = holder(number, is_shared, request, ctx).astype(jnp.int64) + 1
    disturbed = (whose << OWNER_BITS) | (of_jumps * 2 + 1)
    return jnp.where(is_clean, of_prefix, disturbed) << 1


def shared_number_of(ctx: Context, name: jax.Array) -> jax.Array:
    """Return the number of the shared block that each name stands for; `num_shared_blocks` if for none."""
    size, content = ctx.shape.block_size, name >> 1
    rest = content & jnp.int64((1 << OWNER_BITS) - 1)
    is_whole = (content >> OWNER_BITS == 0) & (rest > 0) & ((rest - 1) % size == size - 1)
    number = ((rest - 1) // size).astype(jnp.int32)
    return jnp.where(is_whole, number, jnp.int32(ctx.shape.num_shared_blocks))


def owner_of(ctx: Context, name: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the request whose prefix each name stands for, and its last block's position; −1 if no prefix."""
    size, content = jnp.int32(ctx.shape.block_size), name >> 1
    owner = (content >> OWNER_BITS).astype(jnp.int32)
    rest = content & jnp.int64((1 << OWNER_BITS) - 1)
    end = (rest >> 1).astype(jnp.int32)
    is_prefix = (owner > 0) & (rest & 1 == 0) & (lax.rem(end, size) == 0)
    return jnp.maximum(owner - 1, 0), jnp.where(is_prefix, lax.div(end, size) - 1, -1)


def is_same(first: jax.Array, second: jax.Array) -> jax.Array:
    """Return whether two names stand for the same content, even if its tokens were lost in one of them."""
    return (first >> 1) == (second >> 1)


def places(ctx: Context, blocks: Blocks, name: jax.Array, instance: jax.Array) -> jax.Array:
    """Return the place of each content in the instance's table; past its end if the content cannot be looked up."""
    shape = ctx.shape
    nowhere = jnp.int32(num_contents(shape))
    number, num_shared = shared_number_of(ctx, name), jnp.int32(shape.num_shared_blocks)
    request, position = owner_of(ctx, name)
    slot = blocks.slot_of[request]
    is_kept = (position >= 0) & (slot >= 0) & (position < shape.list_blocks)
    if ctx.mechanism.moves_requests:  # on another instance the slot is somebody else's
        is_kept = is_kept & (lax.div(slot, jnp.int32(shape.num_slots)) == instance)
        slot = lax.rem(slot, jnp.int32(shape.num_slots))
    place = num_shared + slot * jnp.int32(shape.list_blocks) + position
    return jnp.where(number < num_shared, number, jnp.where(is_kept, place, nowhere))


@pytree
class Found:
    """The longest run of leading prompt blocks in the prefix table, or the run found at an earlier attempt."""

    count: Int[Array, ""]
    num_free: Int[Array, ""]  # of these, the ones that nobody holds
    is_clean: Bool[Array, ""]  # they hold the tokens of the request's own prefix


def nothing_found() -> Found:
    """Return an empty look-up result."""
    return Found(jnp.int32(0), jnp.int32(0), jnp.array(True))


def shared_or_own(
    ctx: Context, slot: jax.Array, request: jax.Array, position: Int[Array, "n"]
) -> Int[Array, "n"]:
    """Return the table entries for the contents of a resident request's prompt, by block position."""
    shape = ctx.shape
    number, is_shared = shared_numbers(ctx, request, position)
    private = jnp.int32(shape.num_shared_blocks) + slot * jnp.int32(shape.list_blocks) + position
    return jnp.where(is_shared, number, private)


def _expected(ctx: Context, request: jax.Array, position: Int[Array, "n"]) -> jax.Array:
    end = (position + 1) * jnp.int32(ctx.shape.block_size)
    return names(ctx, request, end, jnp.int32(NO_JUMPS))


def found_blocks(
    ctx: Context,
    blocks: Blocks,
    instance: jax.Array,
    slot: jax.Array,
    request: jax.Array,
    most: jax.Array,
    is_old: jax.Array,
) -> Found:
    """Return at most `most` leading blocks in the table; if `is_old`, those at the head of the slot's list."""
    if not ctx.mechanism.finds_prefixes:
        return nothing_found()
    window = lax.iota(jnp.int32, LOOK_UP_BLOCKS)
    most = jnp.minimum(most, jnp.int32(ctx.shape.list_blocks))

    def goes_on(carry: tuple[jax.Array, Found]) -> jax.Array:
        start, so_far = carry
        return (so_far.count == start) & (start < most)

    def look(carry: tuple[jax.Array, Found]) -> tuple[jax.Array, Found]:
        """Read one window of the list or of the table."""
        start, so_far = carry
        position = start + window
        at = (instance, slot, start)
        listed = lax.dynamic_slice(blocks.lists, at, (1, 1, LOOK_UP_BLOCKS))[0, 0]
        named = blocks.named[instance, shared_or_own(ctx, slot, request, position)]
        block = jnp.where(is_old, listed, named)
        carried = blocks.key[instance, jnp.maximum(block, 0)]
        expected = _expected(ctx, request, position)
        is_there = is_old | ((block >= 0) & is_same(carried, expected))
        is_hit = jnp.cumprod((is_there & (position < most)).astype(jnp.int32)) == 1
        is_free = is_hit & (blocks.hold[instance, jnp.maximum(block, 0)] < 0)
        return start + LOOK_UP_BLOCKS, Found(
            so_far.count + jnp.sum(is_hit, dtype=jnp.int32),
            so_far.num_free + jnp.sum(is_free, dtype=jnp.int32),
            so_far.is_clean & jnp.all((carried == expected) | ~is_hit),
        )

    return lax.while_loop(goes_on, look, (jnp.int32(0), nothing_found()))[1]


def registered_blocks(ctx: Context, blocks: Blocks) -> Int[Array, "instance node"]:
    """Count the leading blocks of every shared content in each instance's table; 0 for the spare content."""
    rows, count = ctx.shape.num_instances, ctx.shape.num_shared_blocks
    size, number = ctx.shape.block_size, lax.iota(jnp.int32, count)
    name = (((number.astype(jnp.int64) + 1) * size) << 1)[None, :]
    named = blocks.named[:rows, :count]
    carried = jnp.take_along_axis(blocks.key[:rows], jnp.maximum(named, 0), axis=1)
    is_there = (named >= 0) & is_same(carried, name)
    missing = jnp.where(is_there, jnp.int32(count), number[None, :])
    next_missing = lax.cummin(missing, axis=1, reverse=True)
    next_missing = jnp.pad(next_missing, ((0, 0), (0, 1)), constant_values=count)
    length = ctx.requests.node_blocks
    start = jnp.cumsum(length, dtype=jnp.int32) - length
    num_named = next_missing[:, jnp.minimum(start, count)] - start[None, :]
    return jnp.clip(num_named, 0, length[None, :])


def without_own(
    ctx: Context, blocks: Blocks, request: jax.Array, instance: jax.Array, slot: jax.Array
) -> Blocks:
    """Return the tables without the prefixes on the instance that belong to this request alone, now in the slot."""
    carried, zero = row(blocks.key, instance), jnp.int32(0)
    owner, position = owner_of(ctx, carried)
    is_own = (owner == request) & (position >= 0)
    key = jnp.where(is_own, jnp.int64(0), carried)
    none = jnp.full((1, ctx.shape.list_blocks), NO_BLOCK, jnp.int32)
    start = jnp.int32(ctx.shape.num_shared_blocks) + slot * jnp.int32(ctx.shape.list_blocks)
    put = lax.dynamic_update_slice
    changed = dataclasses.replace(
        blocks,
        key=put(blocks.key, key[None], (instance, zero)),
        named=put(blocks.named, none, (instance, start)),
    )
    if not ctx.shape.names_blocks:
        return changed
    bits = row(blocks.is_named, instance) & ~is_own
    return dataclasses.replace(changed, is_named=put(blocks.is_named, bits[None], (instance, zero)))


def is_registered(
    ctx: Context, blocks: Blocks, instance: jax.Array, name: jax.Array, place: jax.Array
) -> jax.Array:
    """Return whether a block of the instance carries this content; without a place, the CPU tier's bits tell."""
    block = blocks.named[instance, place]
    carried = blocks.key[instance, jnp.maximum(block, 0)]
    is_kept = (block >= 0) & is_same(carried, name)
    real = ctx.shape.num_blocks  # the spare block's entries are junk
    numbers, bits = row(blocks.key, instance)[:real], row(blocks.is_named, instance)[:real]
    is_anywhere = jnp.any(is_same(numbers, name) & bits)
    return jnp.where(place == jnp.int32(num_contents(ctx.shape)), is_anywhere, is_kept)

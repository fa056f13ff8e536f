"""Blocks that members of a batch take while it only decodes, without a visit.

There are enough free blocks for all members, so nothing is decided: step by step, and in batch order within a step,
each member whose last block is full pops the next block of the free list. The content of the popped block, if any, is
forgotten.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
from jax import lax

from blis_jax.core.exact import full_blocks, in_last_block
from blis_jax.core.pytrees import pytree
from blis_jax.core.types import LAST
from blis_jax.memory.block_tables.contents import places
from blis_jax.memory.memory import MAX_TAKES
from blis_jax.tables.blocks import NO_BLOCK, Blocks, Pool
from blis_jax.tables.context import Context, SlotRows, Work, count_of, least_key, slot_of
from blis_jax.tables.state import RUNAWAY, State

if TYPE_CHECKING:
    from jaxtyping import Array, Bool, Int

ORDER_BITS = 31


@pytree
class DecodeTakes:
    """The members that take the next blocks of the free list, one after the other."""

    count: Int[Array, ""]
    slot: Int[Array, "take"]
    position: Int[Array, "take"]  # in the list of the slot


@pytree
class _Popped:
    """A free block that has been popped."""

    block: Int[Array, ""]
    forgotten: Int[Array, ""]  # place of its content, see contents.places
    head: Int[Array, ""]  # ring position behind it


def no_takes() -> DecodeTakes:
    """Return that no member takes a block."""
    nobody = jnp.zeros((MAX_TAKES,), jnp.int32)
    return DecodeTakes(jnp.int32(0), nobody, nobody)


def steps_at_once(ctx: Context, slots: SlotRows, work: Work, due: Bool[Array, "slot"]) -> jax.Array:
    """Return for how many steps no member can run out of free blocks, or of room in its list.

    The result is 0 if the members that are `due` now must be visited: blocks might not suffice, or a request is
    computed beyond its end.
    """
    size, is_decode = jnp.int32(ctx.shape.block_size), slots.finish != LAST
    free = ctx.params.cluster.total_kv_blocks[slots.instance] - work.inst.used_blocks
    rounds = lax.div(jnp.maximum(free, 0), jnp.maximum(work.inst.num_decode, 1))
    held = jnp.where(is_decode, work.inst.step_index + slots.alloc_offset, 0)
    room = jnp.int32(ctx.shape.list_blocks) * size - jnp.max(held)
    steps = jnp.minimum(jnp.minimum(rounds, MAX_TAKES) * size, room)
    is_simple = (count_of(due) <= MAX_TAKES) & ~jnp.any(slots.finish == RUNAWAY)
    return jnp.where(is_simple, jnp.maximum(steps, 0), 0)


def takes_after(
    ctx: Context, slots: SlotRows, step_index: jax.Array, num_steps: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Return how many members take a block after `num_steps` steps, and the number of steps before the next take."""
    size, is_decode = ctx.shape.block_size, slots.finish != LAST
    in_last = in_last_block(step_index + num_steps + slots.alloc_offset, size)
    fullest = jnp.max(jnp.where(is_decode, in_last, 0))
    return count_of(is_decode & (in_last == 0)), num_steps + jnp.int32(size) - fullest


def takes_of(ctx: Context, slots: SlotRows, step_index: jax.Array, count: jax.Array) -> DecodeTakes:
    """Return which members take the next `count` blocks from this step on."""
    size = ctx.shape.block_size
    held, order = step_index + slots.alloc_offset, slots.order.astype(jnp.int64)
    is_decode, in_last = slots.finish != LAST, in_last_block(held, size)
    first_due = jnp.where(in_last == 0, 0, jnp.int32(size) - in_last)  # in so many steps
    put = lax.dynamic_update_slice

    def take(
        number: jax.Array, carry: tuple[DecodeTakes, jax.Array]
    ) -> tuple[DecodeTakes, jax.Array]:
        """Note the member whose last block is full next, and the position of its new block."""
        takes, due = carry
        rank = (due.astype(jnp.int64) << ORDER_BITS) | order
        slot = slot_of(least_key(is_decode, rank))
        position = full_blocks(held[slot] + due[slot], size)
        at, after = (number,), due[slot] + jnp.int32(size)
        made = DecodeTakes(
            takes.count,
            put(takes.slot, slot[None], at),
            put(takes.position, position[None], at),
        )
        return made, put(due, after[None], (slot,))

    first = dataclasses.replace(no_takes(), count=count)
    return lax.fori_loop(0, count, take, (first, first_due))[0]


def _pop(ctx: Context, blocks: Blocks, instance: jax.Array) -> _Popped:
    last = jnp.int32(ctx.shape.ring_size - 1)

    def free_at(head: jax.Array) -> jax.Array:
        return blocks.ring[instance, head & last]

    head = blocks.pool[instance, Pool.HEAD]
    head = lax.while_loop(lambda head: free_at(head) < 0, lambda head: head + 1, head)
    content = blocks.key[instance, free_at(head)]
    return _Popped(free_at(head), places(ctx, blocks, content[None], instance)[0], head + 1)


def with_takes(ctx: Context, state: State, instance: jax.Array, takes: DecodeTakes) -> Blocks:
    """Return the blocks of all instances after the members of one instance have taken theirs."""
    put = lax.dynamic_update_slice

    def take(number: jax.Array, blocks: Blocks) -> Blocks:
        """Pop a free block for the next member noted."""
        popped = ctx.worked_out(lambda: _pop(ctx, blocks, instance))

        def at(table: jax.Array, place: jax.Array, value: jax.Array | int) -> jax.Array:
            return put(table, jnp.full((1, 1), value, table.dtype), (instance, place))

        listed = (instance, takes.slot[number], takes.position[number])
        return dataclasses.replace(
            blocks,
            named=at(blocks.named, popped.forgotten, NO_BLOCK),
            key=at(blocks.key, popped.block, 0),
            hold=at(blocks.hold, popped.block, 1),
            lists=put(blocks.lists, popped.block[None, None, None], listed),
            pool=at(blocks.pool, jnp.int32(Pool.HEAD), popped.head),
        )

    return lax.fori_loop(0, takes.count, take, state[Blocks])

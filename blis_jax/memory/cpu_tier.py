"""The second tier: content of free blocks copied to the CPU, and brought back when an allocation fails.

Entries are keyed by physical block number; writing over one leaks the usage count, as in the reference.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from blis_jax.core.columns import as_int
from blis_jax.memory.block_tables.contents import is_registered, places
from blis_jax.memory.block_tables.operations import forgotten_bits, offloads, pop
from blis_jax.memory.block_tables.turn import Moves, Turn
from blis_jax.tables.blocks import NO_BLOCK, Do
from blis_jax.tables.context import row

if TYPE_CHECKING:
    from jaxtyping import Array, Int

THRASHING_WINDOW_US = 1000


def reload(turn: Turn) -> Moves:
    """Look at the next CPU entry; if its content is not on the GPU, load it into the head of the free list."""
    task, blocks, ctx = turn.task, turn.blocks, turn.ctx
    entries = row(blocks.cpu_key, turn.instance)[: ctx.shape.num_blocks]
    number = lax.iota(jnp.int32, ctx.shape.num_blocks)
    is_due = (entries != 0) & (number >= task.cursor)
    entry = jnp.min(jnp.where(is_due, number, turn.spare_block))
    is_over = (entry == turn.spare_block) | (turn.total <= turn.inst.used_blocks)
    name = blocks.cpu_key[turn.instance, entry]
    place = places(ctx, blocks, name[None], turn.instance)[0]
    is_here = is_registered(ctx, blocks, turn.instance, name, place)
    wanted = ~is_over & ~is_here
    popped = pop(turn, as_int(wanted))
    is_loaded = wanted & (popped.count == 1)
    block = jnp.min(popped.block)  # the spare block is beyond all others
    loads = as_int(is_loaded)
    old = jnp.where(is_loaded, blocks.key[turn.instance, block], jnp.int64(0))
    old_place = places(ctx, blocks, old[None], turn.instance)[0]
    tail = turn.pool.tail
    owner = jnp.where(is_loaded, block, turn.spare_block)[None]
    emptied = jnp.where(is_loaded, entry, turn.spare_block)
    new_place = jnp.where(is_loaded, place, turn.nowhere)
    # a block may come back with the content that it lost just now
    old_place = jnp.where(old_place == new_place, turn.nowhere, old_place)
    age = turn.lane.now - blocks.cpu_time[turn.instance, entry]
    is_thrashing = is_loaded & (age < THRASHING_WINDOW_US)
    is_past = is_loaded | (~is_over & is_here)
    has_reloaded = task.has_reloaded | loads
    then = jnp.where(has_reloaded == 1, jnp.int32(Do.ATTEMPT), jnp.int32(Do.FAILED))
    # an instance without the tier may share a compilation with instances that have it
    has_tier = turn.own(ctx.params.cluster.kv_cpu_blocks) > 0
    missed = is_over & (has_reloaded == 0) & has_tier
    changes = {
        "cursor": jnp.where(is_past, entry + 1, task.cursor),
        "has_reloaded": has_reloaded,
        "is_retry": jnp.where(is_over, jnp.int32(1), task.is_retry),
        "do": jnp.where(is_over, then, jnp.int32(Do.RELOAD)),
    }
    pool = {
        "head": popped.head,
        "tail": tail + loads,
        "cpu_used": turn.pool.cpu_used - loads,
        "reloads": turn.pool.reloads + loads,
        "cpu_misses": turn.pool.cpu_misses + as_int(missed),
        "thrashing": turn.pool.thrashing + as_int(is_thrashing),
        "pending_reloads": turn.pool.pending_reloads + loads,
    }
    return turn.end(
        changes,
        pool,
        named=((old_place, jnp.int32(NO_BLOCK)), (new_place, block)),
        key=((block, name),),
        hold=((block, jnp.where(is_loaded, -1 - tail, 1)),),
        ring=((turn.place(tail, is_loaded), block),),
        cpu_key=((emptied, jnp.int64(0)),),
        **forgotten_bits(turn, ((old[None], block[None]),), owner),
    )


def offload(turn: Turn) -> Moves:
    """Copy content of free blocks, from the free list's head on, while the GPU is fuller than the threshold.

    Content to which an offload policy gives no worth stays on the GPU, and the scan passes it over.
    """
    task, blocks, ctx = turn.task, turn.blocks, turn.ctx
    window = jnp.int32(ctx.shape.window)
    room = turn.own(ctx.params.cluster.kv_cpu_blocks) - turn.pool.cpu_used
    tail, scan = turn.pool.tail, _scan(turn)
    start, end, block, name = scan.start, scan.end, scan.block, scan.name
    acts = offloads(turn, turn.inst.used_blocks)
    carries = name != 0
    goes = carries & ctx.memory.uses.is_worth_it(turn, name)
    rank = jnp.cumsum(goes, dtype=jnp.int32) - 1
    moves = goes & (rank < room) & acts
    count = jnp.sum(moves, dtype=jnp.int32)
    stays = carries & ~moves
    is_full = jnp.any(goes & ~moves)
    moved = jnp.where(moves, block, turn.spare_block)
    name = jnp.where(moves, name, jnp.int64(0))
    place = places(ctx, blocks, name, turn.instance)
    new = tail + rank
    moved_time = jnp.full_like(blocks.cpu_time, turn.lane.now, shape=moved.shape)
    reached = jnp.where(jnp.any(stays), start + _first(stays), jnp.minimum(start + window, end))
    is_over = ~acts | is_full | (start + window >= end)
    # what was moved lies behind the end of the scan and carries nothing
    reached = jnp.where(is_over & ~jnp.any(stays), tail + count, reached)
    reached = jnp.where(start > scan.hashless, scan.hashless, reached)
    changes = {
        "done": jnp.where(is_over, 0, start + window - turn.pool.head),
        "cursor": jnp.where(is_over, 0, end),
        "do": jnp.where(is_over, task.after_offload, jnp.int32(Do.OFFLOAD)),
    }
    pool = {
        "tail": tail + count,
        "hashless_up_to": jnp.where(acts, reached, turn.pool.hashless_up_to),
        "cpu_used": turn.pool.cpu_used + count,
        "offloads": turn.pool.offloads + count,
    }
    return turn.end(
        changes,
        pool,
        named=((place, jnp.full_like(place, NO_BLOCK)),),
        key=((moved, jnp.zeros_like(name)),),
        hold=((moved, jnp.where(moves, -1 - new, 1)),),
        ring=(
            (turn.place(scan.position, moves), jnp.full_like(block, NO_BLOCK)),
            (turn.place(new, moves), block),
        ),
        cpu_key=((moved, name),),
        cpu_time=((moved, moved_time),),
        **forgotten_bits(turn, ((name, moved),)),
    )


class Scan(NamedTuple):
    """A window of the free list; positions of the ring."""

    hashless: jax.Array  # what lies before it carries no content
    start: jax.Array  # of the window; beyond `hashless` where content was passed over
    end: jax.Array  # of the list when the scan began
    position: Int[Array, "window"]
    block: Int[Array, "window"]  # the spare block in holes
    name: Int[Array, "window"]


def _scan(turn: Turn) -> Scan:
    """The window that is next; `done` says how far the scan is from the list's head."""
    task, blocks, head = turn.task, turn.blocks, turn.pool.head
    is_first = task.done == 0
    hashless = jnp.maximum(turn.pool.hashless_up_to, head)
    start = jnp.where(is_first, hashless, head + task.done)
    end = jnp.where(is_first, turn.pool.tail, task.cursor)
    position = start + turn.window
    is_inside = position < end
    block = blocks.ring[turn.instance, turn.place(position, is_inside)]
    is_live = is_inside & (block >= 0)
    block = jnp.where(is_live, block, turn.spare_block)
    name = jnp.where(is_live, blocks.key[turn.instance, block], jnp.int64(0))
    return Scan(hashless, start, end, position, block, name)


def _first(mask: jax.Array) -> jax.Array:
    place = lax.iota(jnp.int32, mask.shape[0])
    return jnp.min(jnp.where(mask, place, jnp.int32(mask.shape[0])))

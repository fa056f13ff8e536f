"""Operations on block-level memory, at most `window` blocks at a time.

Each operation computes its changes on the active instance; if it is not its turn, on the spare instance. The operation
in progress and its progress are in the task.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax import lax

from blis_jax.core.columns import as_int
from blis_jax.core.exact import ceil_div, exact_quotient, in_last_block
from blis_jax.core.outcome import Outcome
from blis_jax.core.pytrees import pytree
from blis_jax.memory.block_tables.contents import (
    LOST,
    NO_JUMPS,
    is_same,
    names,
    places,
    shared_or_own,
)
from blis_jax.memory.block_tables.turn import Moves, Turn
from blis_jax.memory.index_events import popped as removed_from_index
from blis_jax.tables.blocks import NO_BLOCK, Asker, Do, Pinning
from blis_jax.tables.context import failing, row

if TYPE_CHECKING:
    from jaxtyping import Array, Bool, Int


def after_blocks(turn: Turn) -> jax.Array:
    """Return the operation after a complete allocation: RELEASE if the request completes, else NOTHING."""
    is_last = turn.task.asker == Asker.COMPLETION
    return jnp.where(is_last, jnp.int32(Do.RELEASE), jnp.int32(Do.NOTHING))


def pin(turn: Turn) -> Moves:
    """List the cached blocks that were found and take references to them; free blocks leave the free list."""
    task, blocks, window = turn.task, turn.blocks, jnp.int32(turn.ctx.shape.window)
    done, hits, slot = task.done, task.hits, task.slot
    pinning = task.pinning
    listed_at = position = turn.window + done
    is_listed = position < hits
    is_hit = is_listed & (pinning != Pinning.NOTED)
    named_at = shared_or_own(turn.ctx, slot, task.request, position)
    block = blocks.named[turn.instance, jnp.where(is_listed, named_at, turn.nowhere)]
    block = jnp.where(task.is_old == 1, turn.listed(done, slot), block)
    pinned = jnp.where(is_hit, block, turn.spare_block)
    hold = blocks.hold[turn.instance, pinned]
    was_free = is_hit & (hold < 0)
    place = turn.place(-1 - hold, was_free)
    is_over = done + window >= hits
    then = jnp.where(pinning == Pinning.DOOMED, jnp.int32(Do.ROLL_BACK), jnp.int32(Do.TAKE))
    then = jnp.where(pinning == Pinning.NOTED, jnp.int32(Do.RELOAD), then)
    if turn.ctx.shape.has_mirror:  # blocks may come behind others that are held
        then = jnp.where(pinning == Pinning.LEFT, jnp.int32(Do.FAILED), then)
        listed_at = position + jnp.where(pinning == Pinning.NOTED, 0, task.cursor)
    changes = {
        "done": jnp.where(is_over, 0, done + window),
        "do": jnp.where(is_over, then, jnp.int32(Do.PIN)),
    }
    inst = {
        "used_blocks": turn.inst.used_blocks + jnp.sum(was_free, dtype=jnp.int32),
        "hits": turn.inst.hits + jnp.sum(is_hit, dtype=jnp.int32),
    }
    end = jnp.int32(turn.ctx.shape.list_blocks)
    return turn.end(
        changes,
        inst=inst,
        hold=((pinned, jnp.where(was_free, 1, hold + 1)),),
        ring=((place, jnp.full_like(place, NO_BLOCK)),),
        listed=((jnp.where(is_listed, listed_at, end), block),),
        **turn.ctx.memory.uses.taken(
            turn, blocks.key[turn.instance, pinned], is_hit & (pinning != Pinning.DOOMED)
        ),
    )


@pytree
class Popped:
    """Free blocks popped from the head of the free list."""

    block: Int[Array, "window"]  # the spare block where nothing is popped
    is_taken: Bool[Array, "window"]
    rank: Int[Array, "window"]
    count: Int[Array, ""]
    head: Int[Array, ""]  # new head


def pop(turn: Turn, need: jax.Array) -> Popped:
    """Pop up to `need` blocks from the next places of the ring, skipping holes."""
    head, tail = turn.pool.head, turn.pool.tail
    position = head + turn.window
    is_inside = position < tail
    block = turn.blocks.ring[turn.instance, turn.place(position, is_inside)]
    is_live = is_inside & (block >= 0)
    rank = jnp.cumsum(is_live, dtype=jnp.int32) - 1
    is_taken = is_live & (rank < need)
    count = jnp.sum(is_taken, dtype=jnp.int32)
    last = jnp.max(jnp.where(is_taken, turn.window, -1)) + 1
    passed = jnp.minimum(jnp.int32(turn.ctx.shape.window), tail - head)
    return Popped(
        block=jnp.where(is_taken, block, turn.spare_block),
        is_taken=is_taken,
        rank=rank,
        count=count,
        head=head + jnp.where(count == need, last, jnp.maximum(passed, 0)),
    )


def forgotten_bits(
    turn: Turn,
    forgotten: Sequence[tuple[jax.Array, ...]],
    *registered: jax.Array,
) -> dict[str, Any]:
    """Return the changes of the bits when contents, and blocks popped with them, leave the table and others enter it.

    Empty without a CPU tier, which alone needs the bits.
    """
    if not turn.ctx.shape.names_blocks:
        return {}
    unnamed = [_unnamed(turn, *of_name) for of_name in forgotten]
    return {"unnamed": (jnp.concatenate(unnamed),), "registered": registered}


def _unnamed(turn: Turn, name: jax.Array, *popped: jax.Array) -> jax.Array:
    """Return the blocks that the prefix table stops listing when these contents leave it, and the popped blocks.

    A content without a place in the table is searched for, but only if the popped block is not listed itself; several
    blocks with one content are rare, and at most one of them is listed.
    """
    blocks, ctx = turn.blocks, turn.ctx
    place = places(ctx, blocks, name, turn.instance)
    named = blocks.named[turn.instance, place]
    carried = blocks.key[turn.instance, jnp.maximum(named, 0)]
    is_kept = (named >= 0) & is_same(carried, name) & (name != 0)
    searched = (name != 0) & (place == turn.nowhere)
    unnamed = [jnp.where(is_kept, named, turn.spare_block)]
    for block in popped:
        searched = searched & ~blocks.is_named[turn.instance, block]
        unnamed.append(block)

    def search() -> jax.Array:
        keys, bits = row(blocks.key, turn.instance), row(blocks.is_named, turn.instance)
        match = is_same(keys[None, :], name[:, None]) & searched[:, None] & bits[None, :]
        number = lax.broadcasted_iota(jnp.int32, match.shape, 1)
        return jnp.min(jnp.where(match, number, turn.spare_block), axis=1)

    nobody = jnp.full(name.shape, turn.spare_block)
    carriers = ctx.when(jnp.any(searched), search, lambda: nobody)
    return jnp.concatenate([*unnamed, carriers])


def _filled(turn: Turn) -> tuple[jax.Array, jax.Array]:
    """Return the list's last block and its name if the first tokens fill the block; else the spare block and 0."""
    task, size = turn.task, turn.ctx.shape.block_size
    held, stored = task.held, task.stored
    fills = (stored > 0) & (in_last_block(held + stored, size) == 0)
    fills = fills & (task.done == 0) & turn.is_on
    last = jnp.maximum(ceil_div(held, size) - 1, 0)
    block = turn.listed(last, task.slot)[0]
    end = task.start + stored
    name = names(turn.ctx, task.request, end[None], task.jumps)[0]
    return jnp.where(fills, block, turn.spare_block), jnp.where(fills, name, jnp.int64(0))


def take(turn: Turn) -> Moves:
    """Fill the last block and pop new ones; full prompt blocks enter the prefix table as they are filled.

    Popping a block removes its content from the table, even that of an earlier block of the same allocation.
    """
    task, blocks, ctx, size = turn.task, turn.blocks, turn.ctx, turn.ctx.shape.block_size
    done, takes = task.done, task.takes
    held, stored = task.held, task.stored
    popped = pop(turn, takes - done)
    tokens = stored + (done + popped.rank + 1) * jnp.int32(size)
    is_full = popped.is_taken & (tokens <= task.tokens)
    is_full = is_full & (task.in_prefill == 1)
    request = task.request
    jumps = task.jumps if ctx.shape.has_mirror else jnp.int32(NO_JUMPS)
    new = names(ctx, request, task.start + tokens, jumps)
    new = jnp.where(is_full, new, jnp.int64(0))
    old = jnp.where(popped.is_taken, blocks.key[turn.instance, popped.block], jnp.int64(0))
    last_block, filled = _filled(turn)
    contents = jnp.concatenate([filled[None], new])
    owners = jnp.concatenate([last_block[None], popped.block])
    place = places(ctx, blocks, contents, turn.instance)
    # the first tokens fill the last block; then a block is popped and filled at a time
    forgotten = places(ctx, blocks, old, turn.instance)
    in_turn = jnp.stack([forgotten, place[1:]], axis=1).reshape(-1)
    named = jnp.stack([jnp.full_like(popped.block, NO_BLOCK), popped.block], axis=1).reshape(-1)
    start = jnp.where(held == 0, task.hits, ceil_div(held, size))
    position = jnp.where(popped.is_taken, start + done + popped.rank, 0)
    end = jnp.int32(ctx.shape.list_blocks)
    is_long = jnp.any(popped.is_taken & (position >= end))
    position = jnp.where(popped.is_taken & (position < end), position, end)
    count = done + popped.count
    is_over = count >= takes
    changes = {
        "done": jnp.where(is_over, 0, count),
        "do": jnp.where(is_over, after_blocks(turn), jnp.int32(Do.TAKE)),
    }
    inst = {
        "used_blocks": turn.inst.used_blocks + popped.count,
        "misses": turn.inst.misses + popped.count,
    }
    outcome = failing(turn.lane.outcome, is_long, Outcome.LISTS_FULL)
    return turn.end(
        changes,
        {"head": popped.head},
        inst,
        {"outcome": outcome},
        named=((jnp.append(place[0], in_turn), jnp.append(last_block, named)),),
        key=((owners, contents),),
        hold=((popped.block, jnp.full_like(popped.block, 1)),),
        listed=((position, popped.block),),
        index=removed_from_index(turn, old, task.in_prefill == 1),
        **turn.ctx.memory.uses.taken(turn, contents, contents != 0),
        **forgotten_bits(
            turn, ((old, popped.block), (contents,)), _kept(turn, contents, owners, old)
        ),
    )


def _kept(turn: Turn, contents: jax.Array, owners: jax.Array, old: jax.Array) -> jax.Array:
    """Return the blocks filled in this turn whose content no later pop of the turn has removed."""
    number = lax.iota(jnp.int32, contents.shape[0])
    is_later = turn.window[None, :] >= number[:, None]  # the first content comes before all pops
    is_gone = jnp.any(is_same(contents[:, None], old[None, :]) & is_later, axis=1)
    return jnp.where((contents != 0) & ~is_gone, owners, turn.spare_block)


def offloads(turn: Turn, used: jax.Array) -> jax.Array:
    """Return whether the GPU's usage is above the threshold and the CPU tier has room."""
    cluster = turn.ctx.params.cluster
    share = exact_quotient(used.astype(jnp.float64), turn.total.astype(jnp.float64))
    has_room = turn.pool.cpu_used < turn.own(cluster.kv_cpu_blocks)
    return (share > turn.own(cluster.offload_threshold)) & has_room


def release(turn: Turn) -> Moves:
    """Drop references from the list's end on; blocks without a reference go to the free list's tail."""
    task, blocks, window = turn.task, turn.blocks, jnp.int32(turn.ctx.shape.window)
    length, done = task.freed_blocks, task.done
    count = jnp.minimum(length - done, window)
    block = turn.listed(length - done - count, task.freed_slot)
    is_mine = turn.window < count
    block = jnp.where(is_mine, block, turn.spare_block)
    hold = blocks.hold[turn.instance, block]
    times: jax.Array | int = 1
    is_counted = is_mine
    if turn.ctx.shape.has_mirror:  # a list may have a block twice
        times, is_first = _occurrences(turn, block)
        is_counted = is_mine & is_first
    is_freed = is_counted & (hold == times)
    freed = as_int(is_freed)
    total = jnp.sum(freed, dtype=jnp.int32)
    after = total - jnp.cumsum(freed, dtype=jnp.int32)  # freed blocks behind it in the list
    tail = turn.pool.tail
    place = turn.place(tail + after, is_freed)
    new_hold = jnp.where(is_freed, -1 - (tail + after), hold - times)
    new_hold = jnp.where(is_mine, new_hold, 1)
    is_over = done + count >= length
    then = task.after_release
    if turn.ctx.shape.has_cpu_tier:
        left = turn.inst.used_blocks - total
        skips = (then == Do.OFFLOAD) & ~offloads(turn, left)
        then = jnp.where(skips, task.after_offload, then)
    changes = {
        "done": jnp.where(is_over, 0, done + count),
        "do": jnp.where(is_over, then, jnp.int32(Do.RELEASE)),
    }
    inst = {"used_blocks": turn.inst.used_blocks - total}
    length_now = tail + total - turn.pool.head
    is_full = length_now > jnp.int32(turn.ctx.shape.ring_size)
    outcome = failing(turn.lane.outcome, is_full, Outcome.RING_FULL)
    lane = {"outcome": outcome}
    pool = {"tail": tail + total}
    if turn.ctx.shape.has_mirror:  # the first one says what becomes of it
        block = jnp.where(is_counted, block, turn.spare_block)
        new_hold = jnp.where(is_counted, new_hold, 1)
        pool["is_mirrored"] = jnp.int32(0)
    tables = {"hold": ((block, new_hold),), "ring": ((place, block),)}
    return turn.end(changes, pool, inst, lane, **tables)


def _occurrences(turn: Turn, block: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return how often each block is in the window, and whether it is there for the first time."""
    is_equal = block[:, None] == block[None, :]
    is_earlier = turn.window[None, :] < turn.window[:, None]
    return jnp.sum(is_equal, axis=1, dtype=jnp.int32), ~jnp.any(is_equal & is_earlier, axis=1)


def roll_back(turn: Turn) -> Moves:
    """Undo, first half, a first allocation that ran out: the contents of its full blocks leave the table.

    The allocation had popped all free blocks. The place of each such content remembers the number of its pop.
    """
    task, blocks = turn.task, turn.blocks
    size, window = turn.ctx.shape.block_size, jnp.int32(turn.ctx.shape.window)
    num_free = turn.total - turn.inst.used_blocks
    done = task.done
    number = done + turn.window
    end = (number + 1) * jnp.int32(size)
    is_full = (number < num_free) & (end <= task.tokens)
    name = names(turn.ctx, task.request, task.start + end, jnp.int32(NO_JUMPS))
    name = jnp.where(is_full, name, jnp.int64(0))
    place = places(turn.ctx, blocks, name, turn.instance)
    bits = forgotten_bits(turn, ((name,),))
    is_over = done + window >= num_free
    changes = {
        "done": jnp.where(is_over, 0, done + window),
        "do": jnp.where(is_over, jnp.int32(Do.RESTORE), jnp.int32(Do.ROLL_BACK)),
        "cursor": turn.pool.tail,
    }
    inst = {
        "hits": turn.inst.hits - jnp.where(is_over, task.hits, 0),
    }
    return turn.end(changes, inst=inst, named=((place, -2 - number),), **bits)


def restore(turn: Turn) -> Moves:
    """Undo, second half: popped blocks return to the table, from the last to the first, but without tokens.

    A content is listed with the first block that carried it, unless this allocation had filled a block with it earlier
    on.
    """
    task, blocks, ctx = turn.task, turn.blocks, turn.ctx
    window = jnp.int32(ctx.shape.window)
    head, end = turn.pool.head, task.cursor
    start = jnp.maximum(end - window, head)
    position = start + turn.window
    is_inside = position < end
    block = blocks.ring[turn.instance, turn.place(position, is_inside)]
    is_live = is_inside & (block >= 0)
    block = jnp.where(is_live, block, turn.spare_block)
    num_free = turn.total - turn.inst.used_blocks
    live = as_int(is_live)
    behind = jnp.sum(live, dtype=jnp.int32) - jnp.cumsum(live, dtype=jnp.int32)
    number = num_free - task.done - 1 - behind
    name = jnp.where(is_live, blocks.key[turn.instance, block], jnp.int64(0))
    is_earlier = turn.window[None, :] < turn.window[:, None]
    is_second = jnp.any(is_same(name[:, None], name[None, :]) & is_earlier, axis=1)
    place = places(ctx, blocks, name, turn.instance)
    mark = blocks.named[turn.instance, place]
    is_filled_before = (place != turn.nowhere) & (mark <= -2) & (-2 - mark < number)
    is_restored = (name != 0) & ~is_second & ~is_filled_before
    place = jnp.where(is_restored, place, turn.nowhere)
    again = jnp.where(is_restored, name, jnp.int64(0))
    owners = jnp.where(is_restored, block, turn.spare_block)
    bits = forgotten_bits(turn, ((again,),), owners)
    lost = jnp.where(name != 0, name | LOST, name)
    # the router is not told that it is back
    gone = removed_from_index(turn, name, jnp.array(False))
    is_over = start <= head
    changes = {
        "done": jnp.where(is_over, 0, task.done + jnp.sum(live, dtype=jnp.int32)),
        "cursor": jnp.where(is_over, 0, start),
        "do": jnp.where(is_over, jnp.int32(Do.RELEASE), jnp.int32(Do.RESTORE)),
    }
    named, key = ((place, block),), ((block, lost),)
    return turn.end(changes, named=named, key=key, index=gone, **bits)

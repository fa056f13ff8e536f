"""The CPU tier of February: contents of free blocks are copied to the CPU, and come back when an allocation fails.

Entries are indexed by physical block number; overwriting an entry leaks the usage count, as in the reference.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from blis_jax.core.columns import as_int, branch
from blis_jax.core.pytrees import pytree
from blis_jax.memory.block_tables.contents import is_registered, places
from blis_jax.memory.block_tables.operations import forgotten_bits, offloads, pop
from blis_jax.memory.block_tables.turn import Moves, Turn, applied, planned
from blis_jax.memory.mirror import Member, after_uses, member_of, relinked, searched
from blis_jax.tables.blocks import NO_BLOCK, Blocks, Do, TierOrder
from blis_jax.tables.context import Context, row
from blis_jax.tables.state import State

if TYPE_CHECKING:
    from jaxtyping import Array, Bool, Int


THRASHING_WINDOW_US = 1000


def reload(turn: Turn) -> Moves:
    """Check the next CPU entry; if its content is not on the GPU, load it into the block at the free list's head."""
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
    """Copy contents of free blocks, from the free list's head on, while the GPU's usage is above the threshold.

    A content to which an offload policy gives no worth stays on the GPU, and the scan skips it.
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
    """A window of the free list, by positions of the ring."""

    hashless: jax.Array  # what lies before it carries no content
    start: jax.Array  # of the window; beyond `hashless` where content was passed over
    end: jax.Array  # of the list when the scan began
    position: Int[Array, "window"]
    block: Int[Array, "window"]  # the spare block in holes
    name: Int[Array, "window"]


def _scan(turn: Turn) -> Scan:
    """Return the next window of the scan; `done` says how far the scan is from the free list's head."""
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


# --- uses of August's CPU tier one after the other, where no policy judges them ------------------


def is_in_order(ctx: Context, blocks: Blocks) -> bool:
    """Return whether the program makes uses one by one, in order."""
    return TierOrder in blocks and ctx.when is branch


@pytree
class _Uses:
    """One window of the uses of a member's list."""

    member: Member
    count: Int[Array, ""]
    name: Int[Array, "window"]  # 0: a block without a content
    place: Int[Array, "window"]  # see contents.places
    capacity: Int[Array, ""]
    num_filled: Int[Array, ""]  # entries that have a content before


@pytree
class _Entry:
    """The entry of the CPU tier that one use takes."""

    name: Int[Array, ""]
    place: Int[Array, ""]
    entry: Int[Array, ""]  # the spare one if there is no content
    is_new: Bool[Array, ""]
    is_filled: Bool[Array, ""]  # it was empty
    before: tuple[jax.Array, jax.Array]  # links as indices and values
    behind: tuple[jax.Array, jax.Array]


def _uses(turn: Turn) -> _Uses:
    member = member_of(turn)
    name = turn.blocks.key[turn.instance, member.block]
    name = jnp.where(member.block == turn.spare_block, jnp.int64(0), name)
    return _Uses(
        member,
        jnp.clip(member.count - turn.task.done, 0, name.shape[0]),
        name,
        places(turn.ctx, turn.blocks, name, turn.instance),
        turn.own(turn.ctx.params.cluster.kv_cpu_blocks),
        turn.pool.cpu_used,
    )


Tables = tuple[jax.Array, TierOrder, jax.Array, jax.Array]  # keys, order, entries filled, and new


def _entry(ctx: Context, instance: jax.Array, uses: _Uses, at: jax.Array, tables: Tables) -> _Entry:
    """Return the entry of one use: the one with the content, else an empty one, else the least recently used."""
    keys, order, filled, _ = tables
    name, place = uses.name[at], uses.place[at]
    spare = jnp.int32(keys.shape[1] - 1)
    noted = order.entry_of[instance, place]
    noted = jnp.where(keys[instance, noted] == name, noted, spare)
    is_elsewhere = place == jnp.int32(order.entry_of.shape[1] - 1)
    if ctx.mechanism.moves_requests:  # a content that has left may come back to another place
        is_elsewhere = jnp.array(True)
    entry = ctx.when(
        is_elsewhere & (name != 0),
        lambda: searched(keys, instance, name, uses.capacity),
        lambda: noted,
    )
    next_empty = uses.num_filled + filled
    is_there, has_room = entry != spare, next_empty < uses.capacity
    other = jnp.where(has_room, next_empty, order.behind[instance, spare])
    is_use, is_new = name != 0, ~is_there & (name != 0)
    entry = jnp.where(is_there, entry, other)
    links = relinked(order, instance, entry, is_there | ~has_room, is_use)
    entry = jnp.where(is_use, entry, spare)
    return _Entry(name, place, entry, is_new, is_new & has_room, *links)


def use_in_order(ctx: Context, state: State, is_on: jax.Array) -> State:
    """Return the state after the batch has used one window of contents of a member's list."""
    instance, uses = planned(ctx, state, is_on, _uses)
    blocks, zero = state[Blocks], jnp.int32(0)
    at_instance = (instance,)

    def use(at: jax.Array, tables: Tables) -> Tables:
        """Make a content the most recently used, in its entry or in a new one."""
        entry = ctx.worked_out(lambda: _entry(ctx, instance, uses, at, tables))
        keys, order, filled, new = tables
        put = lax.dynamic_update_slice
        changed = TierOrder(
            ctx.write(order.before, at_instance, *entry.before),
            ctx.write(order.behind, at_instance, *entry.behind),
            put(order.entry_of, entry.entry[None, None], (instance, entry.place)),
        )
        keys = put(keys, entry.name[None, None], (instance, entry.entry))
        return keys, changed, filled + as_int(entry.is_filled), new + as_int(entry.is_new)

    first = blocks.cpu_key, blocks[TierOrder], zero, zero
    keys, order, filled, new = lax.fori_loop(0, uses.count, use, first)
    used = dataclasses.replace(blocks.having(order), cpu_key=keys)

    def ends(turn: Turn) -> Moves:
        reached = turn.task.done + uses.count
        return turn.end(*after_uses(turn, uses.member, reached, new, filled))

    state = state.having(used)
    return applied(ctx, state, *planned(ctx, state, is_on, ends))

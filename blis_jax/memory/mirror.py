"""The CPU tier of August's revision: contents of batches are copied there, and come back before an allocation.

An entry holds one content, by its name, and the time of its last use, counted in uses; the spare entry holds the number
of uses so far. The least recently used entry is evicted. After every step all contents of the batch are used in batch
order; those before the first member that has changed would only return to the order that they have. A content that
comes back also stays on the CPU; its block goes to the free list's tail, and no request holds it yet.

With an offload policy, a use has a worth, or does not count. The entry whose last use had the least worth is evicted
(of several, the least recently used), and only for a use of at least that worth.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax import lax

from blis_jax.core.columns import as_int
from blis_jax.core.exact import ceil_div, full_blocks
from blis_jax.core.pytrees import pytree
from blis_jax.core.types import LAST
from blis_jax.memory.block_tables.contents import NO_JUMPS, is_same, names, places, shared_or_own
from blis_jax.memory.block_tables.operations import forgotten_bits, pop
from blis_jax.memory.block_tables.turn import Moves, Turn
from blis_jax.tables.blocks import NO_BLOCK, Do, TierEntries, TierOrder
from blis_jax.tables.context import SlotRows, row

if TYPE_CHECKING:
    from jaxtyping import Array, Bool, Int


def bring_back(turn: Turn) -> Moves:
    """Load the prompt's next block that only the CPU has; end at the first block that neither the GPU nor the CPU has.

    No more blocks come back than were free before, so that none of them takes another's place.
    """
    task, blocks, ctx, instance = turn.task, turn.blocks, turn.ctx, turn.instance
    request, size = task.request, ctx.shape.block_size
    prompt_blocks = full_blocks(ctx.request(request).input_len, size)
    position = task.cursor + turn.window
    name = names(ctx, request, (position + 1) * jnp.int32(size), task.jumps)
    is_sought = (position < prompt_blocks) & ~_is_here(turn, position, name)
    place = jnp.argmax(is_sought)
    name = jnp.where(jnp.any(is_sought), name[place], jnp.int64(0))
    spare = jnp.int32(blocks.cpu_key.shape[1] - 1)
    uses = ctx.memory.uses
    match = ctx.when(name != 0, lambda: _entry_of(turn, name), lambda: spare)
    match = uses.readable(turn, match)
    has_room = task.done < turn.total - turn.inst.used_blocks
    is_done = jnp.any(is_sought) & ~((match != spare) & has_room)
    is_past = ~jnp.any(is_sought)
    is_over = is_done | (is_past & (task.cursor + turn.window[-1] + 1 >= prompt_blocks))
    wanted = ~is_over & ~is_past
    popped = pop(turn, as_int(wanted))
    is_loaded = wanted & (popped.count == 1)
    loads, block = as_int(is_loaded), jnp.min(popped.block)
    content = jnp.where(is_loaded, blocks.key[instance, block], jnp.int64(0))
    old = places(ctx, blocks, content[None], turn.instance)[0]
    new = jnp.where(is_loaded, places(ctx, blocks, name[None], turn.instance)[0], turn.nowhere)
    old = jnp.where(old == new, turn.nowhere, old)
    owner = jnp.where(is_loaded, block, turn.spare_block)[None]
    tail, now = turn.pool.tail, blocks.cpu_time[instance, spare]
    entry = uses.moved(turn, jnp.where(is_loaded, match, spare))
    ahead = jnp.where(is_past, turn.window[-1] + 1, place.astype(jnp.int32) + loads)
    changes = {
        "cursor": task.cursor + ahead,
        "done": jnp.where(is_over, 0, task.done + loads),
        "has_reloaded": task.has_reloaded | loads,
        "is_retry": as_int(is_over),
        "do": jnp.where(is_over, jnp.int32(uses.after_reload), jnp.int32(uses.again)),
    }
    pool = {
        "head": popped.head,
        "tail": tail + loads,
        "reloads": turn.pool.reloads + loads,
        "pending_reloads": turn.pool.pending_reloads + loads,
        "is_mirrored": turn.pool.is_mirrored & (1 - loads),
    }
    return turn.end(
        changes,
        pool,
        named=((old, jnp.int32(NO_BLOCK)), (new, block)),
        key=((block, name),),
        hold=((block, jnp.where(is_loaded, -1 - tail, 1)),),
        ring=((turn.place(tail, is_loaded), block),),
        cpu_time=((entry, now), (spare, now + loads.astype(jnp.int64))),
        **_used_last(turn, match, is_loaded),
        **forgotten_bits(turn, ((content[None], block[None]),), owner),
    )


def _used_last(turn: Turn, entry: jax.Array, is_it: jax.Array) -> dict[str, Any]:
    """Return the changed links once this entry, which has a content, is the most recently used."""
    if TierOrder not in turn.blocks:
        return {}
    order, instance = turn.blocks[TierOrder], turn.instance
    return {"cpu_links": (relinked(order, instance, entry, jnp.array(True), is_it),)}


def relinked(
    order: TierOrder,
    instance: jax.Array,
    entry: jax.Array,
    is_linked: jax.Array,
    is_used: jax.Array,
) -> tuple[tuple[jax.Array, jax.Array], tuple[jax.Array, jax.Array]]:
    """Return the links, before and behind, that change when an entry becomes the most recently used."""
    nowhere = jnp.int32(order.before.shape[1] - 1)
    end = nowhere - 1
    ahead, after = order.before[instance, entry], order.behind[instance, entry]
    latest = order.before[instance, end]
    moves = is_used & (latest != entry)
    leaves = moves & is_linked

    def where(is_it: jax.Array, place: jax.Array) -> jax.Array:
        return jnp.where(is_it, place, nowhere)

    before = jnp.stack([where(leaves, after), where(moves, entry), where(moves, end)])
    behind = jnp.stack([where(leaves, ahead), where(moves, latest), where(moves, entry)])
    return (
        (before, jnp.stack([ahead, latest, entry])),
        (behind, jnp.stack([after, entry, end])),
    )


def _is_here(turn: Turn, position: jax.Array, name: jax.Array) -> jax.Array:
    """Return which of these prompt contents are in the GPU's table; those of a disturbed list have no place there."""
    ctx, blocks, instance, task = turn.ctx, turn.blocks, turn.instance, turn.task

    def in_table() -> jax.Array:
        named = blocks.named[instance, shared_or_own(ctx, task.slot, task.request, position)]
        return (named >= 0) & is_same(blocks.key[instance, jnp.maximum(named, 0)], name)

    def anywhere() -> jax.Array:
        keys = jnp.where(row(blocks.is_named, instance), row(blocks.key, instance), jnp.int64(0))
        return jnp.any(keys[None, :-1] == name[:, None], axis=1)

    return ctx.when(task.jumps == NO_JUMPS, in_table, anywhere)


def mirror(turn: Turn) -> Moves:
    """Use the contents of the batch, a window of a member's list at a time, and copy those that the CPU lacks.

    Contents with entries are used together; a content that seems to be missing takes a turn for itself. In the task,
    `cursor` is the place of the next member and `done` how much of its list is used; `is_retry` counts the earlier uses
    of the whole batch, `has_reloaded` says whether this use has copied anything, and `hits` counts the last uses in a
    row that have not.
    """
    task, blocks, instance = turn.task, turn.blocks, turn.instance
    member, uses = member_of(turn), turn.ctx.memory.uses
    name = blocks.key[instance, member.block]
    name = jnp.where(member.block == turn.spare_block, jnp.int64(0), name)
    name, worth = uses.used(turn, name, member.request)
    entry, window = blocks[TierEntries].entry[instance, member.block], member.block.shape[0]
    number = lax.iota(jnp.int32, window)
    missing = (name != 0) & (blocks.cpu_key[instance, entry] != name)
    name, missing = uses.allowed(turn, name, worth, missing)
    first = jnp.min(jnp.where(missing, number, window))
    renewed = (name != 0) & (number < first)
    at = jnp.minimum(first, window - 1)
    searches = (first < window) & ~jnp.any(renewed)
    sought = jnp.where(searches, name[at], jnp.int64(0))
    entry_worth = tuple(values[at] for values in worth)
    places = turn.ctx.when(
        searches, lambda: _entry_for(turn, sought, entry_worth), lambda: _no_entry(turn)
    )
    spare = jnp.int32(blocks.cpu_key.shape[1] - 1)
    rank, now = jnp.cumsum(renewed, dtype=jnp.int64), blocks.cpu_time[instance, spare]
    touched = jnp.where(renewed, entry, spare)
    used = places.entry != spare
    after = now + rank[-1] + used.astype(jnp.int64)
    reached = jnp.where(first < window, first + as_int(searches), window) + task.done
    return turn.end(
        *after_uses(turn, member, reached, as_int(places.is_new), as_int(places.is_filled)),
        cpu_key=((places.entry, sought),),
        cpu_time=((touched, now + rank - 1), (places.entry, now), (spare, after)),
        cpu_entry=((jnp.where(used, member.block[at], turn.spare_block), places.entry),),
        **uses.touched(touched, renewed, worth, places.entry, entry_worth),
    )


def after_uses(
    turn: Turn, member: Member, reached: jax.Array, new: jax.Array, filled: jax.Array
) -> tuple[dict[str, jax.Array], dict[str, jax.Array]]:
    """Return the changes of the task and of the pool after uses up to the position `reached` of the member's list.

    `new` is the number of contents that were copied, `filled` the number of these that took an empty entry.
    """
    task, pool, uses = turn.task, turn.pool, turn.ctx.memory.uses
    copies = jnp.where(task.is_retry == 1, uses.weight(turn), 1) * new
    has_copied = task.has_reloaded | as_int(new > 0)
    return _next_use_of_batch(turn, member, reached, has_copied), {
        "is_mirrored": jnp.where(member.is_last(reached), 1, pool.is_mirrored),
        "offloads": pool.offloads + copies,
        "cpu_used": pool.cpu_used + filled,
        "thrashing": pool.thrashing + copies - filled,
    }


@pytree
class Member:
    """A window of the block list of the member whose contents are used next."""

    place: Int[Array, ""]  # in the batch; LAST if nobody is left
    later: Int[Array, ""]  # place of the member behind it
    count: Int[Array, ""]  # blocks of its list
    block: Int[Array, "window"]  # the spare block past the list's end
    request: Int[Array, ""]

    def is_over(self, reached: jax.Array) -> jax.Array:
        """Return whether the member's list ends at this position or before it."""
        return reached >= self.count

    def is_last(self, reached: jax.Array) -> jax.Array:
        """Return whether the whole batch has been used when this position is reached."""
        return (self.place == LAST) | (self.is_over(reached) & (self.later == LAST))


def member_of(turn: Turn) -> Member:
    """Return the member at the task's cursor or after it; at the start, the first member that has changed."""
    task, blocks, instance = turn.task, turn.blocks, turn.instance
    slots, shape = SlotRows(turn.state, instance), turn.ctx.shape
    uses = turn.ctx.memory.uses
    width = uses.width(shape)
    order, request = slots.order, slots.request
    held = slots.alloc_offset + jnp.where(slots.finish != LAST, turn.inst.step_index, 0)
    capacity = turn.own(turn.ctx.params.cluster.kv_cpu_blocks)
    is_member = (order != LAST) & (capacity > 0)
    listed = jnp.where(is_member, ceil_div(held, shape.block_size), 0)
    cursor = uses.start(turn, request, order, is_member, listed)

    def least(is_it: jax.Array) -> jax.Array:
        return jnp.min(jnp.where(is_member & is_it, order, jnp.int32(LAST)))

    place = least(order >= cursor)
    slot = jnp.argmax(order == place).astype(jnp.int32)
    count = jnp.where(place == LAST, 0, listed[slot])
    block = lax.dynamic_slice(blocks.lists, (instance, slot, task.done), (1, 1, width))[0, 0]
    is_listed = task.done + lax.iota(jnp.int32, width) < count
    block = jnp.where(is_listed, block, turn.spare_block)
    return Member(place, least(order > place), count, block, request[slot])


@pytree
class TierEntry:
    """The entry of the CPU tier for a content that seems to be missing."""

    entry: Int[Array, ""]  # the spare one if it goes nowhere
    is_new: Bool[Array, ""]  # it was not there
    is_filled: Bool[Array, ""]  # and the entry was empty


def _no_entry(turn: Turn) -> TierEntry:
    no = jnp.array(False)
    return TierEntry(jnp.int32(turn.blocks.cpu_key.shape[1] - 1), no, no)


def _entry_for(turn: Turn, name: jax.Array, worth: tuple[jax.Array, ...]) -> TierEntry:
    """Return the entry of this content, else the first empty entry, else the entry to evict if there is one."""
    blocks, instance = turn.blocks, turn.instance
    number = lax.iota(jnp.int32, blocks.cpu_key.shape[1])
    capacity = turn.own(turn.ctx.params.cluster.kv_cpu_blocks)
    is_real, nowhere = number < capacity, jnp.int32(number.shape[0] - 1)
    there = _entry_of(turn, name)
    is_there, has_room = there != nowhere, turn.pool.cpu_used < capacity

    def oldest() -> tuple[jax.Array, jax.Array]:
        gives_way, is_worth_it = turn.ctx.memory.uses.gives_way(turn, is_real, worth)
        used = jnp.where(gives_way, row(blocks.cpu_time, instance), jnp.iinfo(jnp.int64).max)
        return jnp.argmin(used).astype(jnp.int32), is_worth_it

    other, is_worth_it = turn.ctx.when(
        is_there | has_room, lambda: (turn.pool.cpu_used, jnp.array(True)), oldest
    )
    entry = jnp.where(is_there, there, jnp.where(is_worth_it, other, nowhere))
    is_new = ~is_there & is_worth_it
    return TierEntry(entry, is_new, is_new & has_room)


def _entry_of(turn: Turn, name: jax.Array) -> Int[Array, ""]:
    """Return the entry that holds this content; the spare entry if none does."""
    capacity = turn.own(turn.ctx.params.cluster.kv_cpu_blocks)
    return searched(turn.blocks.cpu_key, turn.instance, name, capacity)


def searched(
    keys: jax.Array, instance: jax.Array, name: jax.Array, capacity: jax.Array
) -> Int[Array, ""]:
    """Return the entry of an instance that holds this content; the spare entry if none does."""
    number = lax.iota(jnp.int32, keys.shape[1])
    is_it = (number < capacity) & (row(keys, instance) == name) & (name != 0)
    return jnp.min(jnp.where(is_it, number, jnp.int32(number.shape[0] - 1)))


def _next_use_of_batch(
    turn: Turn, member: Member, reached: jax.Array, has_copied: jax.Array
) -> dict[str, jax.Array]:
    """Return the next task: the rest of the list, the next member, another use of the batch, or nothing."""
    task = turn.task
    is_over, is_last = member.is_over(reached), member.is_last(reached)
    idle = jnp.where((task.is_retry == 0) | (has_copied == 1), 0, task.hits + 1)
    goes_on = turn.ctx.memory.uses.goes_on(turn, has_copied, idle)
    then = jnp.where(is_last & ~goes_on, jnp.int32(Do.NOTHING), jnp.int32(Do.MIRROR))
    return {
        "do": then,
        "cursor": jnp.where(is_last, 0, jnp.where(is_over, member.later, member.place)),
        "done": jnp.where(is_last | is_over, 0, reached),
        "is_retry": task.is_retry + as_int(is_last),
        "has_reloaded": jnp.where(is_last, 0, has_copied),
        "hits": jnp.where(is_last, idle, task.hits),
    }

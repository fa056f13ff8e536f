"""The CPU tier of August's revision: what batches hold is copied there, and brought back before an allocation.

An entry holds one content, by its name, and says when it was used last; the one used longest ago gives way. After every
step all contents of the batch are used in batch order. A content that is brought back stays on the CPU; its block goes
to the free list's tail, and nobody holds it yet.

With an offload policy, a use is worth something, or does not count. The entry whose last use was worth least gives way,
of equals the one used longest ago, and only to a use that is worth as much.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax import lax

from blis_jax.engine.arithmetic.block_counts import ceil_div, full_blocks
from blis_jax.engine.context import SlotRows, row
from blis_jax.engine.tables.columns import as_int
from blis_jax.engine.types import LAST, pytree
from blis_jax.memory.block_tables.blocks import NO_BLOCK, Do
from blis_jax.memory.block_tables.contents import NO_JUMPS, is_same, names, places, shared_or_own
from blis_jax.memory.block_tables.operations import forgotten_bits, pop
from blis_jax.memory.block_tables.takes import worth_of
from blis_jax.memory.block_tables.turn import Moves, Turn

if TYPE_CHECKING:
    from jaxtyping import Array, Int


def bring_back(turn: Turn) -> Moves:
    """Bring the next block of the prompt back that only the CPU has; the first that neither has ends it.

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
    match = (row(blocks.cpu_key, instance) == name) & (name != 0)
    is_done = jnp.any(is_sought) & ~(
        jnp.any(match) & (task.done < turn.total - turn.inst.used_blocks)
    )
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
    tail, used = turn.pool.tail, row(blocks.cpu_time, instance)
    entry = jnp.where(is_loaded, jnp.argmax(match), used.shape[0] - 1).astype(jnp.int32)
    ahead = jnp.where(is_past, turn.window[-1] + 1, place.astype(jnp.int32) + loads)
    changes = {
        "cursor": task.cursor + ahead,
        "done": jnp.where(is_over, 0, task.done + loads),
        "has_reloaded": task.has_reloaded | loads,
        "is_retry": as_int(is_over),
        "do": jnp.where(is_over, jnp.int32(Do.ATTEMPT), jnp.int32(Do.RELOAD)),
    }
    pool = {
        "head": popped.head,
        "tail": tail + loads,
        "reloads": turn.pool.reloads + loads,
        "pending_reloads": turn.pool.pending_reloads + loads,
    }
    return turn.end(
        changes,
        pool,
        named=((old, jnp.int32(NO_BLOCK)), (new, block)),
        key=((block, name),),
        hold=((block, jnp.where(is_loaded, -1 - tail, 1)),),
        ring=((turn.place(tail, is_loaded), block),),
        cpu_time=((entry, _next_use(used)),),
        **forgotten_bits(turn, ((content[None], block[None]),), owner),
    )


def _is_here(turn: Turn, position: jax.Array, name: jax.Array) -> jax.Array:
    """Whether the GPU's table names these contents of the prompt; those of a disturbed list have no place in it."""
    ctx, blocks, instance, task = turn.ctx, turn.blocks, turn.instance, turn.task

    def in_table() -> jax.Array:
        named = blocks.named[instance, shared_or_own(ctx, task.slot, task.request, position)]
        return (named >= 0) & is_same(blocks.key[instance, jnp.maximum(named, 0)], name)

    def anywhere() -> jax.Array:
        keys = jnp.where(row(blocks.is_named, instance), row(blocks.key, instance), jnp.int64(0))
        return jnp.any(keys[None, :-1] == name[:, None], axis=1)

    return ctx.when(task.jumps == NO_JUMPS, in_table, anywhere)


@pytree
class Tier:
    """An instance's entries, and what was done to them."""

    key: Int[Array, "entry"]  # 0: empty
    used: Int[Array, "entry"]  # when it was used last, counted in uses
    entry: Int[Array, "block"]  # that last had the block's content
    now: Int[Array, ""]
    copied: Int[Array, ""]
    filled: Int[Array, ""]  # of these, the ones that took an empty entry
    worth: Any = (
        None  # float64[entry]: of its last use, -inf if it is empty; only with an offload policy
    )


def _next_use(used: jax.Array) -> jax.Array:
    """A time after all uses of real entries; the last one is a spare."""
    return jnp.max(used[:-1]) + 1


def mirror(turn: Turn) -> Moves:
    """Use what the batch holds, as often as equal steps were made; what the CPU lacks is copied.

    The second of equal uses finds the order of the first, and so do all later ones.
    """
    blocks, instance = turn.blocks, turn.instance
    used = row(blocks.cpu_time, instance)
    zero = jnp.int32(0)
    tier = Tier(
        row(blocks.cpu_key, instance),
        used,
        row(blocks.cpu_entry, instance),
        _next_use(used),
        zero,
        zero,
        None if blocks.cpu_worth is None else row(blocks.cpu_worth, instance),
    )
    once = _use_all(turn, tier)
    again = jnp.maximum(turn.lane.num_steps - 1, 0)
    if tier.worth is not None:
        return _mirrored(turn, _use_again(turn, once, again))
    is_again = (again > 0) & (once.copied > 0)
    twice = lax.cond(is_again, lambda: _use_all(turn, once), lambda: once)
    copied = once.copied + (twice.copied - once.copied) * again
    return _mirrored(turn, _replaced(twice, copied=copied))


def _mirrored(turn: Turn, tier: Tier) -> Moves:
    """The changes once everything is used."""
    pool = turn.pool
    changes = {
        "offloads": pool.offloads + tier.copied,
        "cpu_used": pool.cpu_used + tier.filled,
        "thrashing": pool.thrashing + tier.copied - tier.filled,
    }
    judged = () if tier.worth is None else (tier.worth,)
    tables = (tier.key, tier.used, tier.entry, *judged)
    return turn.end({"do": jnp.int32(Do.NOTHING)}, changes, tier=tables)


def _use_again(turn: Turn, tier: Tier, again: jax.Array) -> Tier:
    """Equal uses one by one, until two of them have copied nothing: then no later one does.

    A first use may meet worths of earlier steps, so unlike uses of one worth it need not be like the next.
    """

    def goes_on(carry: tuple[jax.Array, jax.Array, Tier]) -> jax.Array:
        return (carry[0] < again) & (carry[1] < 2)

    def use(carry: tuple[jax.Array, jax.Array, Tier]) -> tuple[jax.Array, jax.Array, Tier]:
        number, idle, before = carry
        after = _use_all(turn, before)
        is_idle = after.copied == before.copied
        return number + 1, jnp.where(is_idle, idle + 1, 0), after

    return lax.while_loop(goes_on, use, (jnp.int32(0), jnp.int32(0), tier))[2]


def _use_all(turn: Turn, tier: Tier) -> Tier:
    """Every block of every member used, in batch order, a window of a list at a time."""
    slots, window = SlotRows(turn.state, turn.instance), jnp.int32(turn.ctx.shape.window)
    order, finish = slots.order, slots.finish
    held = slots.alloc_offset + jnp.where(finish != LAST, turn.inst.step_index, 0)
    has_tier = turn.own(turn.ctx.params.cluster.kv_cpu_blocks) > 0
    count = jnp.where((order != LAST) & has_tier, ceil_div(held, turn.ctx.shape.block_size), 0)

    def after(place: jax.Array) -> jax.Array:
        return jnp.min(jnp.where(order > place, order, jnp.int32(LAST)))

    def goes_on(carry: tuple[jax.Array, jax.Array, Tier]) -> jax.Array:
        return carry[0] != LAST

    def step(carry: tuple[jax.Array, jax.Array, Tier]) -> tuple[jax.Array, jax.Array, Tier]:
        """The blocks of one window; then the next window, or the next member."""
        place, start, tier = carry
        slot = jnp.argmax(order == place).astype(jnp.int32)
        is_listed = start + turn.window < count[slot]
        block = jnp.where(is_listed, turn.listed(start, slot), turn.spare_block)
        name = jnp.where(is_listed, turn.blocks.key[turn.instance, block], jnp.int64(0))
        worth = _worth(turn, name, slots.request[slot])
        if worth is not None:
            name = jnp.where(worth > 0, name, jnp.int64(0))
        tier = _use(turn, tier, block, name, worth)
        is_over = start + window >= count[slot]
        return jnp.where(is_over, after(place), place), jnp.where(is_over, 0, start + window), tier

    return lax.while_loop(goes_on, step, (after(jnp.int32(-1)), jnp.int32(0), tier))[2]


def _worth(turn: Turn, name: jax.Array, request: jax.Array) -> Any:
    """What these uses are worth, float64[window]; None without an offload policy."""
    if turn.ctx.mechanism.offload is None:
        return None
    return worth_of(turn, name, jnp.broadcast_to(request, name.shape), has_demand=False)


def _use(turn: Turn, tier: Tier, block: jax.Array, name: jax.Array, worth: Any) -> Tier:
    """The contents of these blocks used, one after the other; blocks without a name have none."""
    entry, carries = tier.entry[block], name != 0
    is_there = ~carries | (tier.key[entry] == name)
    if worth is not None:
        is_refused = _is_refused(turn, tier, name, worth, is_there)
        is_there, carries = is_there | is_refused, carries & ~is_refused
    is_later = turn.window[:, None] > turn.window[None, :]
    is_twice = carries[:, None] & (name[:, None] == name[None, :]) & is_later

    def one_by_one() -> Tier:
        def use(i: jax.Array, tier: Tier) -> Tier:
            return _use_one(turn, tier, block[i], name[i], None if worth is None else worth[i])

        return lax.fori_loop(0, name.shape[0], use, tier)

    return lax.cond(
        jnp.all(is_there) & ~jnp.any(is_twice),
        lambda: _renewed(turn, tier, entry, carries, worth),
        one_by_one,
    )


def _is_refused(
    turn: Turn, tier: Tier, name: jax.Array, worth: jax.Array, is_there: jax.Array
) -> jax.Array:
    """Whether no entry has the content or gives way to these uses, whatever those before them in the window do."""
    is_real = lax.iota(jnp.int32, tier.key.shape[0]) < turn.own(
        turn.ctx.params.cluster.kv_cpu_blocks
    )

    def look() -> jax.Array:
        least = jnp.min(jnp.where(is_real, tier.worth, jnp.inf))
        least = jnp.minimum(least, jnp.min(jnp.where((name != 0) & is_there, worth, jnp.inf)))
        is_known = jnp.any((tier.key[None, :] == name[:, None]) & is_real[None, :], axis=1)
        return (name != 0) & (worth < least) & ~is_known

    return lax.cond(jnp.all(is_there), lambda: jnp.zeros(name.shape, bool), look)


def _renewed(turn: Turn, tier: Tier, entry: jax.Array, carries: jax.Array, worth: Any) -> Tier:
    """The entries used in this order."""
    rank, spare = jnp.cumsum(carries, dtype=jnp.int64), jnp.int32(tier.key.shape[0] - 1)
    entry = jnp.where(carries, entry, spare)
    used = turn.ctx.write(tier.used, (), entry, tier.now + rank - 1)
    renewed = _replaced(tier, used=used, now=tier.now + rank[-1])
    if worth is None:
        return renewed
    given = jnp.where(carries, worth, -jnp.inf)
    return _replaced(renewed, worth=turn.ctx.write(tier.worth, (), entry, given))


def _use_one(turn: Turn, tier: Tier, block: jax.Array, name: jax.Array, worth: Any) -> Tier:
    """One content used: where it is, else in the entry that gives way, if one does."""
    number = lax.iota(jnp.int32, tier.key.shape[0])
    capacity, spare = (
        turn.own(turn.ctx.params.cluster.kv_cpu_blocks),
        jnp.int32(number.shape[0] - 1),
    )
    is_real = number < capacity
    match = (tier.key == name) & is_real
    is_found, carries = jnp.any(match), name != 0
    gives_way = is_real
    if worth is not None:
        least = jnp.min(jnp.where(is_real, tier.worth, jnp.inf))
        gives_way = is_real & (tier.worth == least)
        carries = carries & (is_found | (least <= worth))
        name = jnp.where(carries, name, jnp.int64(0))
    oldest = jnp.argmin(jnp.where(gives_way, tier.used, jnp.iinfo(jnp.int64).max))
    entry = jnp.where(is_found, jnp.argmax(match), oldest).astype(jnp.int32)
    entry, is_new = jnp.where(carries, entry, spare), carries & ~is_found
    is_empty = is_new & (tier.key[entry] == 0)

    def put(table: jax.Array, at: jax.Array, value: jax.Array) -> jax.Array:
        return lax.dynamic_update_slice(table, value.astype(table.dtype)[None], (at,))

    return Tier(
        put(tier.key, entry, name),
        put(tier.used, entry, tier.now),
        put(tier.entry, block, entry),
        tier.now + carries.astype(jnp.int64),
        tier.copied + as_int(is_new),
        tier.filled + as_int(is_empty),
        None if worth is None else put(tier.worth, entry, jnp.where(carries, worth, -jnp.inf)),
    )


def _replaced(tier: Tier, **changes: Any) -> Tier:
    fields = {name: getattr(tier, name) for name in Tier.__dataclass_fields__}
    return Tier(**(fields | changes))

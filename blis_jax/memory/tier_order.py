"""Uses of August's CPU tier one after the other, where no policy judges them.

A batch that holds more than the tier has room for finds nothing there: each use takes the place of the one that would
have come next. So every use is made in a few operations, whatever the size of the tier. A table says in which entry
each content was put last, and links tell the order of use. In many lanes, `mirror.py` makes the uses in windows.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
from jax import lax

from blis_jax.core.columns import as_int, branch
from blis_jax.core.pytrees import pytree
from blis_jax.memory.block_tables.contents import places
from blis_jax.memory.block_tables.turn import Moves, Turn, applied, planned
from blis_jax.memory.mirror import Member, after_uses, member_of, relinked, searched
from blis_jax.tables.blocks import Blocks, TierOrder
from blis_jax.tables.context import Context
from blis_jax.tables.state import State

if TYPE_CHECKING:
    from jaxtyping import Array, Bool, Int


def is_in_order(ctx: Context, blocks: Blocks) -> bool:
    """Return whether the program makes uses one by one."""
    return TierOrder in blocks and ctx.when is branch


@pytree
class _Uses:
    """Uses of one member's list, a window of it."""

    member: Member
    count: Int[Array, ""]
    name: Int[Array, "window"]  # 0: a block without a content
    place: Int[Array, "window"]  # see contents.places
    capacity: Int[Array, ""]
    num_filled: Int[Array, ""]  # entries that have a content before


@pytree
class _Entry:
    """The entry that one use takes."""

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
    """The entry of one use: the one that has the content, an empty one, or the one used longest ago."""
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
    """Return the state after the batch has used the contents of a window of one member's list."""
    instance, uses = planned(ctx, state, is_on, _uses)
    blocks, zero = state[Blocks], jnp.int32(0)
    at_instance = (instance,)

    def use(at: jax.Array, tables: Tables) -> Tables:
        """Put a content behind all others in the order of use, into its entry or a new one."""
        found = ctx.worked_out(lambda: _entry(ctx, instance, uses, at, tables))
        keys, order, filled, new = tables
        put = lax.dynamic_update_slice
        changed = TierOrder(
            ctx.write(order.before, at_instance, *found.before),
            ctx.write(order.behind, at_instance, *found.behind),
            put(order.entry_of, found.entry[None, None], (instance, found.place)),
        )
        keys = put(keys, found.name[None, None], (instance, found.entry))
        return keys, changed, filled + as_int(found.is_filled), new + as_int(found.is_new)

    first = blocks.cpu_key, blocks[TierOrder], zero, zero
    keys, order, filled, new = lax.fori_loop(0, uses.count, use, first)
    used = dataclasses.replace(blocks.having(order), cpu_key=keys)

    def ends(turn: Turn) -> Moves:
        reached = turn.task.done + uses.count
        return turn.end(*after_uses(turn, uses.member, reached, new, filled))

    state = state.having(used)
    return applied(ctx, state, *planned(ctx, state, is_on, ends))

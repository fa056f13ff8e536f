"""One operation on block-level memory: the state it reads, the changes it makes, and how they are written."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import jax
import jax.numpy as jnp
from jax import lax

from blis_jax.core.columns import Row, choose
from blis_jax.core.pytrees import pytree
from blis_jax.memory.index_events import left_out
from blis_jax.tables.blocks import (
    Blocks,
    InstanceMemory,
    MemoryTask,
    Takes,
    TierEntries,
    TierOrder,
    TierWorths,
    num_contents,
)
from blis_jax.tables.context import Context, column, row
from blis_jax.tables.state import Instance, Lane, State

if TYPE_CHECKING:
    from jaxtyping import Array, Int

    from blis_jax.memory.index_events import Removal
    from blis_jax.tables.router import LateWrite

    Pairs = tuple[tuple[Array, Array], ...]  # entries of a table, and their values


@pytree
class Moves:
    """The changes of an operation: entries of the instance's tables, as indices and values, and its scalars.

    The changes of one table are a tuple of writes, which may be empty.
    """

    hold: Pairs
    key: Pairs
    ring: Pairs
    named: Pairs
    listed: Pairs  # positions of the slot's list
    cpu_key: Pairs
    cpu_time: Pairs
    unnamed: tuple[Int[Array, "_"], ...]  # blocks that the table no longer names
    registered: tuple[Int[Array, "_"], ...]  # blocks that it names now
    taken: Pairs  # of shared contents
    taker: Pairs
    index: tuple[Removal | LateWrite, ...]  # from the router's index
    cpu_entry: Pairs  # of August's CPU tier, likewise the next
    cpu_worth: Pairs
    cpu_links: tuple[Pairs, ...]  # links of its entries, before and behind
    task: MemoryTask
    pool: InstanceMemory
    inst: Instance
    lane: Lane  # without its times


@dataclasses.dataclass(frozen=True)
class Turn:
    """The surroundings of one operation: the active instance, or the spare one if it is not its turn."""

    ctx: Context
    state: State
    is_on: jax.Array
    blocks: Blocks
    instance: jax.Array
    task: MemoryTask
    pool: InstanceMemory
    inst: Instance  # without its times
    lane: Lane

    @property
    def window(self) -> jax.Array:
        """Return the offsets of the blocks in one window."""
        return lax.iota(jnp.int32, self.ctx.shape.window)

    @property
    def spare_block(self) -> jax.Array:
        """Return a block number that no list holds."""
        return jnp.int32(self.ctx.shape.num_blocks)

    @property
    def nowhere(self) -> jax.Array:
        """Return an index of the prefix table that stands for no content."""
        return jnp.int32(num_contents(self.ctx.shape))

    @property
    def total(self) -> jax.Array:
        """Return the number of blocks of the instance."""
        return self.own(self.ctx.params.cluster.total_kv_blocks)

    def own(self, numbers: jax.Array) -> jax.Array:
        """Return this instance's entry of an array `[instance]`."""
        last = jnp.int32(self.ctx.shape.num_instances - 1)
        return numbers[jnp.minimum(self.instance, last)]

    def place(self, position: jax.Array, is_valid: jax.Array) -> jax.Array:
        """Return the ring index of a ring position; the spare index where the position is not valid."""
        size = self.ctx.shape.ring_size
        return jnp.where(is_valid, position & jnp.int32(size - 1), jnp.int32(size))

    def listed(self, start: jax.Array, slot: jax.Array) -> Int[Array, "window"]:
        """Return one window of blocks of a slot's list, from a position on."""
        at = (self.instance, slot, start)
        return lax.dynamic_slice(self.blocks.lists, at, (1, 1, self.ctx.shape.window))[0, 0]

    def end(
        self,
        task: Mapping[str, jax.Array],
        pool: Mapping[str, jax.Array] | None = None,
        inst: Mapping[str, jax.Array] | None = None,
        lane: Mapping[str, jax.Array] | None = None,
        **tables: Any,
    ) -> Moves:
        """Return the operation's changes; task, pool, instance and lane stay unchanged if it is not its turn."""

        def kept(old: R, changes: Mapping[str, jax.Array] | None) -> R:
            return choose(self.is_on, old.replace(**changes), old) if changes else old

        return Moves(
            **{name: tables.get(name, ()) for name in _TABLES},
            task=kept(self.task, task),
            pool=kept(self.pool, pool),
            inst=kept(self.inst, inst),
            lane=kept(Lane(self.lane.numbers), lane),
        )


R = TypeVar("R", bound=Row)
T = TypeVar("T")
_TABLES = tuple(Moves.__dataclass_fields__)[:15]
_PLAIN = ("hold", "key", "ring", "cpu_key")
_IN_ORDER = ("named", "cpu_time")  # a place may be written twice
Operation = Callable[[Turn], Moves]


def take_turn(ctx: Context, state: State, is_on: jax.Array, operation: Operation) -> State:
    """Run the operation on the active instance, if it is its turn."""
    instance, moves = planned(ctx, state, is_on, operation)
    return applied(ctx, state, instance, moves)


def planned(
    ctx: Context, state: State, is_on: jax.Array, plan: Callable[[Turn], T]
) -> tuple[jax.Array, T]:
    """Return the active instance, or the spare one if it is not its turn, and the result of `plan` for it."""
    blocks, lane = state[Blocks], state.lane.row
    instance = jnp.where(is_on, lane.active, ctx.spare_instance)

    def made() -> T:
        pool = InstanceMemory(row(blocks.pool, instance))
        inst, task = Instance(column(state.inst.numbers, instance)), MemoryTask(blocks.task)
        return plan(Turn(ctx, state, is_on, blocks, instance, task, pool, inst, lane))

    return instance, ctx.worked_out(made)


def applied(ctx: Context, state: State, instance: jax.Array, moves: Moves) -> State:
    """Return the state with the changes written; several writes to one place must have the same value."""
    blocks = state[Blocks]
    first = (instance, jnp.int32(0))
    tables: dict[str, Any] = {"task": moves.task.numbers}
    for name in (*_PLAIN, *_IN_ORDER):
        put = ctx.write_in_order if name in _IN_ORDER else ctx.write
        for index, value in getattr(moves, name):
            tables[name] = put(tables.get(name, getattr(blocks, name)), (instance,), index, value)
    for index, value in moves.cpu_entry:
        entries = ctx.write(blocks[TierEntries].entry, (instance,), index, value)
        blocks = blocks.having(TierEntries(entries))
    for index, value in moves.cpu_worth:
        worths = ctx.write(blocks[TierWorths].worth, (instance,), index, value)
        blocks = blocks.having(TierWorths(worths))
    for links in moves.cpu_links:
        order, at = blocks[TierOrder], (instance,)
        before, behind = (
            ctx.write(order.before, at, *links[0]),
            ctx.write(order.behind, at, *links[1]),
        )
        blocks = blocks.having(dataclasses.replace(order, before=before, behind=behind))
    for (index, count), (_, taker) in zip(moves.taken, moves.taker, strict=True):
        takes, at = blocks[Takes], (instance,)
        counts = ctx.write(takes.count, at, index, count)
        blocks = blocks.having(Takes(counts, ctx.write(takes.taker, at, index, taker)))
    for index, value in moves.listed:
        slot = MemoryTask(blocks.task).slot
        tables["lists"] = ctx.write(blocks.lists, (instance, slot), index, value)
    bits = blocks.is_named
    for is_named, changed in ((False, moves.unnamed), (True, moves.registered)):
        for block in changed:
            bits = ctx.write(bits, (instance,), block, jnp.full(block.shape, is_named))
    for gone in moves.index:
        state = left_out(ctx, state, instance, gone)
    tables["pool"] = lax.dynamic_update_slice(blocks.pool, moves.pool.numbers[None], first)
    inst = lax.dynamic_update_slice(state.inst.numbers, moves.inst.numbers[:, None], first[::-1])
    return dataclasses.replace(
        state.having(dataclasses.replace(blocks, is_named=bits, **tables)),
        inst=state.inst.with_numbers(inst),
        lane=state.lane.with_numbers(moves.lane.numbers),
    )

"""One operation on block-level memory: what it sees, what it changes, and how the changes are made."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import jax
import jax.numpy as jnp
from jax import lax

from blis_jax.core.columns import choose
from blis_jax.core.rows import Row
from blis_jax.core.types import pytree
from blis_jax.engine.context import Context, row
from blis_jax.engine.state import Instance, Lane, State
from blis_jax.memory.block_tables.blocks import Blocks, InstanceMemory, MemoryTask, num_contents
from blis_jax.memory.index_events import without

if TYPE_CHECKING:
    from jaxtyping import Array, Int


@pytree
class Moves:
    """What an operation changes: entries of the instance's tables, as indices and values, and its scalars."""

    hold: Any
    key: Any
    ring: Any
    named: Any
    listed: Any  # positions of the slot's list
    cpu_key: Any
    cpu_time: Any
    unnamed: Any  # blocks that the table no longer names
    registered: Any  # blocks that it names now
    taken: Any  # of shared contents
    taker: Any
    index: Any  # Removal from the router's index
    cpu_entry: Any  # of August's CPU tier, likewise the next
    cpu_worth: Any
    task: MemoryTask
    pool: InstanceMemory
    inst: Instance
    lane: Lane  # without its times


@dataclasses.dataclass(frozen=True)
class Turn:
    """One operation's surroundings: the active instance, or the spare one when it is not its turn."""

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
        """Offsets of the blocks dealt with at a time."""
        return lax.iota(jnp.int32, self.ctx.shape.window)

    @property
    def spare_block(self) -> jax.Array:
        """A block number that no list holds."""
        return jnp.int32(self.ctx.shape.num_blocks)

    @property
    def nowhere(self) -> jax.Array:
        """A place of the table that no content has."""
        return jnp.int32(num_contents(self.ctx.shape))

    @property
    def total(self) -> jax.Array:
        """Blocks of the instance."""
        return self.own(self.ctx.params.cluster.total_kv_blocks)

    def own(self, numbers: jax.Array) -> jax.Array:
        """The instance's own one of numbers `[instance]`."""
        last = jnp.int32(self.ctx.shape.num_instances - 1)
        return numbers[jnp.minimum(self.instance, last)]

    def place(self, position: jax.Array, is_valid: jax.Array) -> jax.Array:
        """Index into the ring of a ring position."""
        size = self.ctx.shape.ring_size
        return jnp.where(is_valid, position & jnp.int32(size - 1), jnp.int32(size))

    def listed(self, start: jax.Array, slot: jax.Array) -> Int[Array, "window"]:
        """Blocks of a slot's list from a position on."""
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
        """The changes; scalars stay as they are when it is not its turn."""

        def kept(old: R, changes: Mapping[str, jax.Array] | None) -> R:
            return choose(self.is_on, old.replace(**changes), old) if changes else old

        return Moves(
            **{name: tables.get(name) for name in _TABLES},
            task=kept(self.task, task),
            pool=kept(self.pool, pool),
            inst=kept(self.inst, inst),
            lane=kept(Lane(self.lane.numbers), lane),
        )


R = TypeVar("R", bound=Row)
_TABLES = tuple(Moves.__dataclass_fields__)[:14]
_PLAIN = ("hold", "key", "ring", "cpu_key", "cpu_entry", "cpu_worth", "taken", "taker")
_IN_ORDER = ("named", "cpu_time")  # a place may be written twice
Operation = Callable[[Turn], Moves]


def take_turn(ctx: Context, state: State, is_on: jax.Array, operation: Operation) -> State:
    """Run the operation on the active instance if it is its turn.

    What it changes is computed behind a branch that is always taken: read and write of a table in one piece of code
    would make the compiler copy the table, because it fuses reads into places that it puts after the write.
    """
    blocks = state.blocks
    assert blocks is not None
    lane = Lane(state.registers, state.times)
    instance = jnp.where(is_on, lane.active, jnp.int32(ctx.shape.num_instances))

    def planned() -> Moves:
        pool = InstanceMemory(row(blocks.pool, instance))
        inst, task = Instance(row(state.inst, instance)), MemoryTask(blocks.task)
        return operation(Turn(ctx, state, is_on, blocks, instance, task, pool, inst, lane))

    nothing = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), jax.eval_shape(planned))
    moves = ctx.when(ctx.params.cluster.infinity > 0, planned, lambda: nothing)
    return _applied(ctx, state, blocks, instance, moves)


def _applied(
    ctx: Context, state: State, blocks: Blocks, instance: jax.Array, moves: Moves
) -> State:
    """The state with the changes made; of several writes to one place the value must be the same."""
    at = (instance, jnp.int32(0))
    tables: dict[str, Any] = {"task": moves.task.numbers}
    for name in (*_PLAIN, *_IN_ORDER):
        if (pairs := getattr(moves, name)) is not None:
            table = getattr(blocks, name)
            put = ctx.write_in_order if name in _IN_ORDER else ctx.write
            for index, value in pairs:
                table = put(table, (instance,), index, value)
            tables[name] = table
    if moves.listed is not None:
        slot = MemoryTask(blocks.task).slot
        tables["lists"] = ctx.write(blocks.lists, (instance, slot), *moves.listed)
    if moves.unnamed is not None:
        zeros = jnp.zeros(moves.unnamed.shape, bool)
        bits = ctx.write(blocks.is_named, (instance,), moves.unnamed, zeros)
        if moves.registered is not None:
            ones = jnp.ones(moves.registered.shape, bool)
            bits = ctx.write(bits, (instance,), moves.registered, ones)
        tables["is_named"] = bits
    router = state.router
    if moves.index is not None and router is not None:
        router = without(ctx, router, instance, moves.index)
    tables["pool"] = lax.dynamic_update_slice(blocks.pool, moves.pool.numbers[None], at)
    return dataclasses.replace(
        state,
        blocks=dataclasses.replace(blocks, **tables),
        inst=lax.dynamic_update_slice(state.inst, moves.inst.numbers[None], at),
        registers=moves.lane.numbers,
        router=router,
    )

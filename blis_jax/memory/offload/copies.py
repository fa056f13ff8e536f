"""Copies of batch contents on the CPU: which entries they take, and how they go on to storage.

After a step the contents of the batch are used in batch order. A content that the CPU lacks takes the least recently
used entry that no transfer holds, and goes on to every tier.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
from jax import lax

from blis_jax.core.columns import as_int
from blis_jax.core.exact import ceil_div, full_blocks
from blis_jax.core.types import LAST
from blis_jax.memory.block_tables.contents import places
from blis_jax.memory.block_tables.takes import Uses
from blis_jax.memory.offload.here import (
    LAST_TURN,
    Here,
    begun,
    ended,
    entries_of,
    num_tiers,
    numbers_of,
    submitted,
)
from blis_jax.tables.blocks import Blocks, Do, MemoryTask
from blis_jax.tables.context import Context, SlotRows
from blis_jax.tables.offload import Count, OffloadTable, WaitPhase, waits_of
from blis_jax.tables.state import Instance, State

if TYPE_CHECKING:
    from blis_jax.memory.block_tables.block_rows import Tenant
    from blis_jax.memory.block_tables.turn import Turn


class OffloadUses(Uses):
    """The rules of a CPU tier with storage behind it: transfers hold entries, and a reload takes no time."""

    after_reload = Do.FETCH
    again = Do.BRING_BACK

    def readable(self, turn: Turn, entry: jax.Array) -> jax.Array:
        """Return the entry if its content has arrived on the CPU, else the spare entry."""
        table, spare = turn.state[OffloadTable], jnp.int32(turn.blocks.cpu_key.shape[1] - 1)
        return jnp.where(table.is_pending[turn.instance, entry], spare, entry)

    def moved(self, turn: Turn, entry: jax.Array) -> jax.Array:
        """Return the entry if a use makes it the most recent one, else the spare entry."""
        table, spare = turn.state[OffloadTable], jnp.int32(turn.blocks.cpu_key.shape[1] - 1)
        return jnp.where(table.num_writes[turn.instance, entry] > 0, spare, entry)

    def before_step(self, task: MemoryTask) -> MemoryTask:
        """Return the task that polls for ended transfers."""
        return task.replace(do=jnp.int32(Do.POLL))

    def repeats(self, is_pure: jax.Array) -> jax.Array:
        """Return false: each step uses the contents of the batch."""
        return jnp.array(False)

    def waits(self, state: State, instance: jax.Array) -> tuple[jax.Array, ...]:
        """Return whether a request of the instance waits for storage."""
        slots = SlotRows(state, instance)
        phase = waits_of(state[OffloadTable], instance, slots.request)
        return (jnp.any((phase == WaitPhase.LOOK_UP) | (phase == WaitPhase.WAIT)),)


class SavingUses(OffloadUses):
    """The rules with recomputation saved: blocks that come back are not recomputed, so a retry asks for the rest."""

    def keeps_to(self, tenant: Tenant, is_again: jax.Array) -> jax.Array:
        """Return whether a retry keeps to its first demand: not for a waiting request, which may find more blocks."""
        return is_again & ~tenant.is_queued


def mirror(ctx: Context, state: State, is_on: jax.Array) -> State:
    """Return the state after the contents of the batch have been used."""
    here, task, now = begun(ctx, state, is_on)
    slots, size = SlotRows(state, here.instance), ctx.shape.block_size
    inst = Instance(state.inst.numbers[:, here.instance])
    order = slots.order
    held = slots.alloc_offset + jnp.where(slots.finish != LAST, inst.step_index, 0)
    count = jnp.where(order != LAST, ceil_div(held, size), 0)
    in_prompt = jnp.minimum(count, full_blocks(slots.input_len, size))
    count = jnp.where(numbers_of(ctx).is_prompt_only, in_prompt, count)

    def next_member(place: jax.Array) -> jax.Array:
        return jnp.min(jnp.where((order > place) & (count > 0), order, jnp.int32(LAST)))

    def goes_on(carry: tuple[jax.Array, jax.Array, Here]) -> jax.Array:
        return is_on & (carry[0] != LAST)

    def use(carry: tuple[jax.Array, jax.Array, Here]) -> tuple[jax.Array, jax.Array, Here]:
        place, start, here = carry
        slot = jnp.argmax(order == place).astype(jnp.int32)
        here, reached = _used(ctx, state, here, slot, start, count[slot], now)
        is_over = reached >= count[slot]
        after = jnp.where(is_over, next_member(place), place)
        return after, jnp.where(is_over, 0, reached), here

    first = next_member(jnp.int32(-1)), jnp.int32(0), here
    here = lax.while_loop(goes_on, use, first)[2]
    return ended(state, here, task, is_on, do=jnp.int32(Do.NOTHING))


def _used(
    ctx: Context,
    state: State,
    here: Here,
    slot: jax.Array,
    start: jax.Array,
    count: jax.Array,
    now: jax.Array,
) -> tuple[Here, jax.Array]:
    """Return the tiers after the uses of a member's list up to the first block that gets an entry, and its position."""
    blocks, shape = state[Blocks], ctx.shape
    position = lax.iota(jnp.int32, shape.list_blocks)
    is_listed = (position >= start) & (position < count)
    listed = lax.dynamic_slice(
        blocks.lists, (here.instance, slot, jnp.int32(0)), (1, 1, shape.list_blocks)
    )[0, 0]
    name = blocks.key[here.instance, jnp.where(is_listed, listed, jnp.int32(shape.num_blocks))]
    name = jnp.where(is_listed, name, jnp.int64(0))
    place = places(ctx, blocks, name, here.instance)
    entry, idle = entries_of(ctx, here, name, place), here.idle
    missing = (name != 0) & (entry == here.spare)
    capacity = ctx.params.cluster.kv_cpu_blocks[jnp.minimum(here.instance, shape.num_instances - 1)]
    has_empty = here.used < capacity
    has_room = has_empty | jnp.any(idle)
    first = jnp.min(jnp.where(missing & has_room, position, count))
    is_touched = (name != 0) & ~missing & (position < first) & idle[entry]
    before = here.time[here.spare]
    touched = here.time.at[jnp.where(is_touched, entry, here.spare)].max(
        before + position.astype(jnp.int64)
    )
    stores = first < count
    oldest = jnp.argmin(jnp.where(idle, touched, LAST_TURN)).astype(jnp.int32)
    into = jnp.where(has_empty, here.used, oldest)
    number, at = lax.iota(jnp.int32, here.key.shape[0]), jnp.minimum(first, position[-1])
    is_new = stores & (number == into)
    turn = jnp.where(is_new, before + first.astype(jnp.int64), touched)
    spare = number == here.spare
    noted = here.contents.entry
    where = (here.instance, jnp.where(stores, place[at], noted.shape[1] - 1))
    here = dataclasses.replace(
        here,
        key=jnp.where(is_new, name[at], here.key),
        time=jnp.where(spare, before + position.shape[0], turn),
        used=here.used + as_int(stores & has_empty),
        copies=here.copies + as_int(stores),
        num_writes=jnp.where(is_new, jnp.int32(num_tiers(ctx)), here.num_writes),
        contents=dataclasses.replace(here.contents, entry=noted.at[where].set(into)),
    )
    here = here.counted(Count.EVICTIONS, stores & ~has_empty)
    skipped = jnp.sum(missing & ~has_room, dtype=jnp.int32)
    here = _written(ctx, here.counted(Count.SKIPS, skipped), into, now, stores)
    return here, jnp.where(stores, first + 1, count)


def _written(ctx: Context, here: Here, entry: jax.Array, now: jax.Array, stores: jax.Array) -> Here:
    """Return the tiers with a new entry on its way to each of them."""
    jobs, counts, single = here.jobs, here.counts, jnp.int32(1)
    for at in range(num_tiers(ctx)):
        job, tier = jnp.int32(at * here.key.shape[0]) + entry, jnp.int32(at)
        jobs, counts = submitted(numbers_of(ctx), jobs, counts, job, tier, single, now, stores)
    return dataclasses.replace(here, jobs=jobs, counts=counts)

"""The request that a phase is about when memory is modelled block by block, and the rows that the phase may change."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax import lax

from blis_jax.core.columns import as_int, selected
from blis_jax.core.exact import in_last_block
from blis_jax.core.pytrees import HasParts, Parts, pytree
from blis_jax.core.types import LAST
from blis_jax.memory.memory import Choice, Subject
from blis_jax.tables.blocks import BlockLife, Blocks, Do, EvictionRecord, MemoryTask
from blis_jax.tables.context import Context, SlotRows, Work, row
from blis_jax.tables.state import RUNAWAY, State

if TYPE_CHECKING:
    from jaxtyping import Array, Bool, Int

    from blis_jax.memory.victims import Victims
    from blis_jax.tables.writes import Writes


@pytree
class Regains:
    """How many output tokens of a request count as prompt from now on; the spare request if none do."""

    tokens: Int[Array, ""]  # that count as prompt now
    request: Int[Array, ""]


@pytree
class BlockRows(HasParts):
    """The rows that a phase changes besides those of slot and request; spare indices where nothing is written."""

    life: BlockLife
    computed: Int[Array, ""]
    priority: jax.Array
    ghost_at: Int[Array, ""]
    ghost: Int[Array, ""]
    eviction_at: Int[Array, ""]
    eviction: EvictionRecord
    moved_instance: Int[Array, ""]
    moved_slot: Int[Array, ""]
    moved_order: Int[Array, ""]
    left: Int[Array, ""]  # request that gives up its slot
    own: Parts  # Regains


def no_block_rows(ctx: Context) -> BlockRows:
    """Return rows that point to the spare places of their tables, so that writing them changes nothing."""
    shape, zero = ctx.shape, jnp.int32(0)
    return BlockRows(
        life=BlockLife.filled(),
        computed=zero,
        priority=jnp.float64(0.0),
        ghost_at=jnp.int32(shape.num_slots),
        ghost=zero,
        eviction_at=jnp.int32(shape.eviction_capacity),
        eviction=EvictionRecord.filled(),
        moved_instance=jnp.int32(shape.num_instances),
        moved_slot=zero,
        moved_order=zero,
        left=jnp.int32(shape.num_requests),
        own=Parts(*ctx.memory.preempted.no_rows(ctx)),
    )


def is_due(ctx: Context, slots: SlotRows, step_index: jax.Array) -> Bool[Array, "slot"]:
    """Return the decode members whose next token needs a block, fills a tracked block, or lies beyond the output."""
    size = ctx.shape.block_size
    finish = slots.finish
    in_last = in_last_block(step_index + slots.alloc_offset, size)
    due = (in_last == 0) | (finish == RUNAWAY)
    if ctx.shape.tracks_outputs:
        due = due | (in_last == size - 1)
    return ctx.memory.lookahead.due(ctx, slots, in_last, due) & (finish != LAST)


@dataclass(frozen=True)
class Tenant(Subject):
    """A request and its history at block level."""

    task: MemoryTask
    life: BlockLife
    computed: jax.Array  # Blocks.computed
    priority: jax.Array | None  # what the scheduler saw, if it matters
    is_last: bool  # static: it completes

    @property
    def is_forced(self) -> jax.Array:
        """Return whether an allocation that failed is retried."""
        return self.task.do == Do.ATTEMPT

    @property
    def is_retry(self) -> jax.Array:
        """Return whether the allocation is retried after a reload."""
        return self.is_forced & (self.task.is_retry == 1)

    @property
    def is_again(self) -> jax.Array:
        """Return whether this step has already visited the request."""
        return self.life.visited_at == self.step

    @property
    def has_token(self) -> jax.Array:
        """Return whether an earlier visit in this step has computed the request's first token."""
        return (self.row.finish != LAST) & (self.past.token_index == self.step)

    @property
    def position(self) -> jax.Array:
        """Return the position of the next tokens of a request in decode."""
        return self.computed + self.step - 1

    @property
    def held(self) -> jax.Array:
        """Return the number of tokens in the request's block list, even if its slot is given up already."""
        held = super().held
        return jnp.where(self.is_forced, self.task.held, held) if self.is_last else held


def tenant(ctx: Context, state: State, work: Work, choice: Choice) -> Tenant:
    """Return the request in a slot, or the one with a retried allocation, with its block-level state."""
    blocks, task, instance = state[Blocks], work.task, choice.instance

    def read() -> dict[str, Any]:
        """Read the request's rows from the tables."""
        is_forced = task.do == Do.ATTEMPT
        slot = jnp.where(is_forced, task.slot, choice.slot)
        slot_row = SlotRows(state, instance).one(ctx, slot)
        request = slot_row.request
        if choice.is_last:
            request = jnp.where(is_forced, task.request, request)
        return {
            "slot": slot,
            "asker": jnp.where(is_forced, task.asker, choice.asker),
            "request": request,
            "row": slot_row,
            "past": ctx.past(state, request),
            "fixed": ctx.memory.preempted.fixed(ctx, state, request),
            "life": BlockLife(ctx.vector(row(blocks.life, request))),
            "computed": blocks.computed[instance, slot],
        }

    return Tenant(
        instance=instance,
        step=work.inst.step_index + 1,
        task=task,
        priority=choice.priority,
        is_last=choice.is_last,
        **ctx.worked_out(read),
    )


def written(ctx: Context, state: State, done: Writes, victims: Victims) -> State:
    """Return the state with the rows of `done` written."""
    blocks, slot, zero = state[Blocks], done.slot, jnp.int32(0)
    rows: BlockRows = slot.memory
    put = lax.dynamic_update_slice
    slot_of = put(blocks.slot_of, jnp.full((1,), -1, jnp.int32), (rows.left,))
    evicts = rows.eviction_at < ctx.shape.eviction_capacity
    home = slot.slot
    if ctx.mechanism.moves_requests:
        home = home + slot.instance * jnp.int32(ctx.shape.num_slots)
    at = (slot.instance, slot.slot)
    changed = dataclasses.replace(
        blocks,
        slot_of=put(slot_of, home[None], (done.routed,)),
        computed=put(blocks.computed, rows.computed[None, None], at),
        ghosts=put(blocks.ghosts, rows.ghost[None], (rows.ghost_at,)),
        life=put(blocks.life, selected(rows.life.numbers)[None], (slot.request, zero)),
        pool=put(blocks.pool, done.pool.numbers[None], (done.instance, zero)),
        task=done.task.numbers,
        evictions=put(
            blocks.evictions, selected(rows.eviction.numbers)[None], (rows.eviction_at, zero)
        ),
        num_evictions=blocks.num_evictions + as_int(evicts),
    )
    changed = ctx.memory.preempted.written(changed, rows)
    return victims.written(state, changed, rows, done)

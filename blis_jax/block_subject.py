"""The request that a visit is about when memory is modelled block by block, and what the visit may change."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax import lax

from blis_jax.columns import as_int
from blis_jax.context import Context, SlotRows, row
from blis_jax.kv_cache.blocks import Asker, BlockLife, Do, EvictionRecord
from blis_jax.state import Past, Request, Resident, State
from blis_jax.types import LAST, pytree
from blis_jax.work import Work

if TYPE_CHECKING:
    from jaxtyping import Array, Int

RUNAWAY = LAST - 1  # finish step of a request computed beyond its end: it never completes


@pytree
class BlockRows:
    """What a visit changes besides the slot's and the request's rows; spare places where nothing is written."""

    life: BlockLife
    computed: Int[Array, ""]
    priority: Any
    ghost_at: Int[Array, ""]
    ghost: Int[Array, ""]
    eviction_at: Int[Array, ""]
    eviction: EvictionRecord
    moved_instance: Int[Array, ""]
    moved_slot: Int[Array, ""]
    moved_order: Int[Array, ""]
    left: Int[Array, ""]  # request that gives up its slot


def no_rows(ctx: Context) -> BlockRows:
    """Nothing to write."""
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
    )


def is_due(ctx: Context, slots: SlotRows, step_index: jax.Array) -> jax.Array:
    """Decode members `[slot]` whose next token needs a block, fills one that matters, or does not exist."""
    size = jnp.int32(ctx.shape.block_size)
    finish = slots.finish
    in_last = lax.rem(step_index + slots.alloc_offset, size)
    due = (in_last == 0) | (finish == RUNAWAY)
    if ctx.shape.tracks_outputs:
        due = due | (in_last == size - 1)
    return due & (finish != LAST)


@dataclass(frozen=True)
class Subject:
    """The request that is visited, before the visit."""

    asker: jax.Array
    slot: jax.Array
    slot_row: Resident
    past: Past
    life: BlockLife
    fixed: Request
    priority: jax.Array  # what the scheduler saw
    is_forced: jax.Array  # the allocation is attempted again
    step: jax.Array  # number of the step being formed

    @property
    def is_queued(self) -> jax.Array:
        """Whether it heads the wait queue."""
        return self.asker == Asker.QUEUE

    @property
    def in_batch(self) -> jax.Array:
        """Whether it was running before the visit."""
        return self.slot_row.order != LAST

    @property
    def has_token(self) -> jax.Array:
        """Whether its first token comes with this very step."""
        has_finish = self.slot_row.finish != LAST
        return has_finish & (self.past.token_index == self.step)

    @property
    def in_decode(self) -> jax.Array:
        """Whether it was in decode when the step began."""
        return (self.slot_row.finish != LAST) & ~self.has_token

    @property
    def is_again(self) -> jax.Array:
        """Whether this step has visited it before."""
        return self.life.visited_at == self.step

    def held(self) -> jax.Array:
        """Tokens in its block list."""
        steps = self.step - 1 + as_int(self.is_again | self.has_token)
        has_finish = self.slot_row.finish != LAST
        return self.slot_row.alloc_offset + jnp.where(has_finish, steps, 0)


@dataclass(frozen=True)
class Given:
    """What a visit gives the request."""

    asks: jax.Array  # for tokens: the budget reached it, and it has use for some
    is_granted: jax.Array  # or asked for nothing
    is_idle: (
        jax.Array
    )  # computed beyond an empty output: takes part in steps without getting anything
    tokens: jax.Array
    cached: jax.Array  # blocks found at the first look-up
    computed: jax.Array  # Blocks.computed before the visit


def subject_of(
    ctx: Context,
    state: State,
    work: Work,
    instance: jax.Array,
    slot: jax.Array,
    asker: jax.Array,
    priority: jax.Array,
) -> Subject:
    """Everything about the request in a slot."""
    blocks = state.blocks
    assert blocks is not None
    slot_row = SlotRows(state, instance).one(ctx, slot)
    request = slot_row.request
    return Subject(
        asker=asker,
        slot=slot,
        slot_row=slot_row,
        past=ctx.past(state, request),
        life=BlockLife(ctx.vector(row(blocks.life, request))),
        fixed=ctx.request(request),
        priority=priority,
        is_forced=work.task.do == Do.ATTEMPT,
        step=work.inst.step_index + 1,
    )

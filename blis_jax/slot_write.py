"""What a phase changes about one request: the rows of its slot and its own row."""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax.numpy as jnp

from blis_jax.block_subject import BlockRows, no_rows
from blis_jax.context import Context
from blis_jax.kv_cache.no_eviction import PathRows, no_path
from blis_jax.state import Past, Resident
from blis_jax.types import LAST, NO_REQUEST, pytree

if TYPE_CHECKING:
    from jaxtyping import Array, Int


@pytree
class SlotWrite:
    """One slot's rows, and the request's; at the spare instance and request if nothing is written."""

    instance: Int[Array, ""]
    slot: Int[Array, ""]
    row: Resident
    path: PathRows | None  # memory without eviction
    blocks: BlockRows | None  # memory at block level
    request: Int[Array, ""]
    past: Past


def free_slot(ctx: Context) -> Resident:
    """The row of a free slot."""
    values = {"REQUEST": NO_REQUEST, "ORDER": LAST, "FINISH": LAST}
    numbers = jnp.array([values.get(one.name, 0) for one in Resident.columns], jnp.int32)
    times = jnp.full((len(Resident.time_columns),), ctx.never, ctx.clock)
    return Resident(numbers, times)


def no_slot(ctx: Context) -> SlotWrite:
    """Rows for the spare instance; a slot that is given up gets the same ones."""
    return SlotWrite(
        instance=jnp.int32(ctx.shape.num_instances),
        slot=jnp.int32(0),
        row=free_slot(ctx),
        path=None if ctx.shape.num_blocks else no_path(ctx.shape),
        blocks=no_rows(ctx) if ctx.shape.num_blocks else None,
        request=jnp.int32(ctx.shape.num_requests),
        past=ctx.no_past(),
    )

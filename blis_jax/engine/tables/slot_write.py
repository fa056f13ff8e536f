"""What a phase changes about one request: the rows of its slot and its own row."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar

import jax.numpy as jnp

from blis_jax.core.types import LAST, NO_REQUEST, pytree
from blis_jax.engine.context import Context
from blis_jax.engine.state import Past, Resident

if TYPE_CHECKING:
    from jaxtyping import Array, Int


R = TypeVar("R")


@pytree
class SlotWrite(Generic[R]):
    """One slot's rows, and the request's; at the spare instance and request if nothing is written."""

    instance: Int[Array, ""]
    slot: Int[Array, ""]
    row: Resident
    memory: R  # what the memory model changes besides
    request: Int[Array, ""]
    past: Past


def free_slot(ctx: Context) -> Resident:
    """The row of a free slot."""
    values = {"REQUEST": NO_REQUEST, "ORDER": LAST, "FINISH": LAST}
    numbers = jnp.array([values.get(one.name, 0) for one in Resident.columns], jnp.int32)
    times = jnp.full((len(Resident.time_columns),), ctx.never, ctx.clock)
    return Resident(numbers, times)


def no_slot(ctx: Context) -> SlotWrite[Any]:
    """Rows for the spare instance; a slot that is given up gets the same ones."""
    return SlotWrite(
        instance=jnp.int32(ctx.shape.num_instances),
        slot=jnp.int32(0),
        row=free_slot(ctx),
        memory=ctx.memory.no_rows(ctx),
        request=jnp.int32(ctx.shape.num_requests),
        past=ctx.no_past(),
    )

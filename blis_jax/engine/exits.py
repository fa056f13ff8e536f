"""Who leaves an instance before the end: evicted for a request at the gateway, or because its time is up.

What is done is in phases/giving_up.py. A mechanism in which nobody gives up has none of this in its program.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax import lax

from blis_jax.engine.types import EngineShape, Mechanism, pytree

if TYPE_CHECKING:
    from jaxtyping import Array, Int


@pytree
class Exits:
    """The member that is leaving, and when others have left; a spare row in the tables of requests."""

    leaving: Int[Array, ""]  # request, the spare one: nobody
    step_index: Int[Array, "request"]  # steps of the instance when it left the batch, 0: it did not
    record: Int[Array, "request"]  # step records of the run then


@pytree
class ExitWrite:
    """Who is leaving now, and who has left."""

    leaving: Int[Array, ""]
    request: Int[Array, ""]
    step_index: Int[Array, ""]
    record: Int[Array, ""]


def no_exits(shape: EngineShape, mechanism: Mechanism) -> Exits | None:
    """Nobody has left; None where nobody does."""
    if not mechanism.evicts_in_flight:
        return None
    nothing = jnp.zeros((shape.num_requests + 1,), jnp.int32)
    return Exits(jnp.int32(shape.num_requests), nothing, nothing)


def no_exit(exits: Exits | None) -> Any:
    """The same one is leaving, if anybody."""
    if exits is None:
        return None
    spare = jnp.int32(exits.record.shape[0] - 1)
    return ExitWrite(exits.leaving, spare, jnp.int32(0), jnp.int32(0))


def exits_after(exits: Exits | None, change: ExitWrite | None) -> Exits | None:
    """The tables with the change in its place."""
    if exits is None or change is None:
        return None

    def put(table: jax.Array, value: jax.Array) -> jax.Array:
        return lax.dynamic_update_slice(table, value[None], (change.request,))

    return Exits(
        change.leaving, put(exits.step_index, change.step_index), put(exits.record, change.record)
    )

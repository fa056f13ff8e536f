"""Who leaves an instance before the end: evicted for a request at the gateway, or because its time is up.

What is done is in phases/departures/giving_up.py. A mechanism in which nobody gives up has none of this in its program.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax import lax

from blis_jax.core.types import EngineShape, pytree

if TYPE_CHECKING:
    from jaxtyping import Array, Int


KEPT, ORPHANED = 1, 2


@pytree
class Exits:
    """The member that is leaving, and when others have left; a spare row in the tables of requests."""

    leaving: Int[Array, ""]  # request, the spare one: nobody
    # steps of the instance when it left the batch, 0: it did not; -1: it left the queue
    step_index: Int[Array, "request"]
    record: Int[Array, "request"]  # step records of the run then
    # KEPT: the batch is there though its last member was evicted; ORPHANED: the last event was a step that found nobody
    keeps_batch: Int[Array, "instance"]


@pytree
class ExitWrite:
    """Who is leaving now, and who has left."""

    leaving: Int[Array, ""]
    request: Int[Array, ""]
    step_index: Int[Array, ""]
    record: Int[Array, ""]
    instance: Int[Array, ""]
    keeps_batch: Int[Array, ""]


def no_exits(shape: EngineShape) -> Exits:
    """Nobody has left."""
    nothing = jnp.zeros((shape.num_requests + 1,), jnp.int32)
    keeps = jnp.zeros((shape.num_instances + 1,), jnp.int32)
    return Exits(jnp.int32(shape.num_requests), nothing, nothing, keeps)


def no_exit(exits: Exits | None) -> Any:
    """The same one is leaving, if anybody."""
    if exits is None:
        return None
    spare = jnp.int32(exits.record.shape[0] - 1)
    nowhere = jnp.int32(exits.keeps_batch.shape[0] - 1)
    return ExitWrite(exits.leaving, spare, jnp.int32(0), jnp.int32(0), nowhere, jnp.int32(0))


def exits_after(exits: Exits | None, change: ExitWrite | None) -> Exits | None:
    """The tables with the change in its place."""
    if exits is None or change is None:
        return None

    def put(table: jax.Array, value: jax.Array, at: jax.Array) -> jax.Array:
        return lax.dynamic_update_slice(table, value[None], (at,))

    return Exits(
        change.leaving,
        put(exits.step_index, change.step_index, change.request),
        put(exits.record, change.record, change.request),
        put(exits.keeps_batch, change.keeps_batch, change.instance),
    )

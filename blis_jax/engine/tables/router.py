"""The tables of the router's prefix index; router_index.py says what they mean."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax.numpy as jnp

from blis_jax.engine.types import EngineShape, Mechanism, pytree

if TYPE_CHECKING:
    from jaxtyping import Array, Int

ROUTINGS_READ = 32  # routings that are looked at together for the next one to an instance


@pytree
class RouterIndex:
    """What the router has sent where, see router_index.py; the node axis has a spare row.

    With several gateways each has columns of its own for the instances, one gateway's after the other's.
    `own` and what is removed only where the caches feed it: what it holds then may have gaps, see index_events.py.
    """

    touched: Int[Array, "node instance"]  # number of the latest touch, 0: never
    num_blocks: Int[Array, "instance"]  # what the latest touch has pushed out included
    oldest: Int[Array, "instance"]  # number of the oldest entry
    num_sent: Int[Array, ""]  # routings, or allocations of prompts, so far
    sent: Any  # int32[request or instance, routing], only where the index evicts
    own: Any = None  # int32[request]: number of the latest touch of its private blocks
    removed: Any = None  # int32[instance, shared block]: number of touches when it was used again
    own_removed: Any = None  # int32[request, position]: the same of private blocks
    since: Any = (
        None  # clock[node, instance]: when an entry came in, only where the index is delayed
    )


def no_index(shape: EngineShape, mechanism: Mechanism) -> RouterIndex | None:
    """The router's index before anything is routed; None where no policy looks at it."""
    if not mechanism.uses_prefix_index:
        return None
    i32, requests = jnp.int32, shape.num_requests + 1
    rows = shape.num_instances * mechanism.num_indices
    size = max(shape.num_routings, shape.num_requests) + ROUTINGS_READ
    has_gaps = mechanism.is_precise and shape.num_blocks > 0
    shared, positions = shape.num_shared_blocks + 1, shape.list_blocks + 1
    since = jnp.zeros((shape.num_nodes + 1, rows), shape.clock_dtype)
    return RouterIndex(
        touched=jnp.zeros((shape.num_nodes + 1, rows), i32),
        num_blocks=jnp.zeros((rows,), i32),
        oldest=jnp.ones((rows,), i32),
        num_sent=jnp.int32(0),
        sent=jnp.full((2, size), -1, i32) if shape.has_router_eviction else None,
        own=jnp.zeros((requests,), i32) if mechanism.is_precise else None,
        removed=jnp.zeros((rows + 1, shared), i32) if has_gaps else None,
        own_removed=jnp.zeros((requests, positions), i32) if has_gaps else None,
        since=since if mechanism.delays_index else None,
    )

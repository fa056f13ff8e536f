"""The tables of the router's prefix index; router_index.py says what they mean."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax.numpy as jnp

from blis_jax.core.types import EngineShape, Mechanism, pytree

if TYPE_CHECKING:
    from jaxtyping import Array, Int

ROUTINGS_READ = 32  # routings that are looked at together for the next one to an instance
NEWS_FIELDS = 3  # of a message, see late_news.MessageField


@pytree
class LateNews:
    """Messages of the caches that the router has not heard of yet, in the order of telling; see late_news.py.

    A ring, behind which there is a spare place. With `num_told` messages the next one has place `num_told % size`.
    """

    told_us: Int[Array, "place"]  # of the clock
    about: Int[Array, "field place"]  # see late_news.MessageField
    name: Any  # int64[place, window]: contents that are used again; None where none ever is
    num_told: Int[Array, ""]
    num_heard: Int[Array, ""]
    # int32[instance]: messages told before it lost its cache, which nobody hears; only where instances stop
    void: Any = None


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
    own: Any = None  # int32[request]: number of the latest touch of its private blocks; see own_row
    removed: Any = None  # int32[instance, shared block]: number of touches when it was used again
    own_removed: Any = None  # int32[request, position]: the same of private blocks
    since: Any = None  # clock[node, instance]: when an entry came in, where routings are heard late
    late: LateNews | None = None  # where the caches are heard late


def no_index(shape: EngineShape, mechanism: Mechanism) -> RouterIndex | None:
    """The router's index before anything is routed; None where no policy looks at it."""
    if not mechanism.uses_prefix_index:
        return None
    i32, rows = jnp.int32, shape.num_instances * mechanism.num_indices
    requests = (shape.num_requests + 1) * (shape.num_instances if mechanism.moves_requests else 1)
    size = max(shape.num_routings, shape.num_requests) + ROUTINGS_READ
    has_gaps = mechanism.is_precise and shape.num_blocks > 0
    shared, positions = shape.num_shared_blocks + 1, shape.list_blocks + 1
    is_late = mechanism.delays_index
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
        since=since if is_late and not mechanism.is_precise else None,
        late=_no_news(shape, mechanism, has_gaps) if is_late and mechanism.is_precise else None,
    )


def _no_news(shape: EngineShape, mechanism: Mechanism, has_gaps: bool) -> LateNews:
    places = shape.num_routings + 1
    return LateNews(
        told_us=jnp.zeros((places,), shape.clock_dtype),
        about=jnp.zeros((NEWS_FIELDS, places), jnp.int32),
        name=jnp.zeros((places, shape.window), jnp.int64) if has_gaps else None,
        num_told=jnp.int32(0),
        num_heard=jnp.int32(0),
        void=None if mechanism.cluster is None else jnp.zeros((shape.num_instances,), jnp.int32),
    )

"""Schedulers: the order in which waiting requests are considered.

Each has the signature `(params, QueueView) -> (value[slot], rank[slot])`: least value first, equal values
by least rank; ranks are unique. Source: BLIS `sim/scheduler.go`, but for `priority_cached`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp

from blis_jax.exact import exact_product
from blis_jax.policies.admission import NoParams
from blis_jax.types import QueueView, pytree

if TYPE_CHECKING:
    from jaxtyping import Array, Float

Keys = tuple[jax.Array, jax.Array]


def fcfs(params: NoParams, queue: QueueView) -> Keys:
    """In order of entry into the queue, which is not order of arrival."""
    del params
    return queue.queued_us, queue.request.queue_rank


def priority_fcfs(params: NoParams, queue: QueueView) -> Keys:
    """Highest priority first, then by arrival."""
    del params
    return -queue.priority, queue.request.tie_rank


def reverse_priority(params: NoParams, queue: QueueView) -> Keys:
    """Lowest priority first: a deliberately bad policy."""
    del params
    return queue.priority, queue.request.tie_rank


def sjf(params: NoParams, queue: QueueView) -> Keys:
    """Shortest prompt first, then by arrival."""
    del params
    return queue.request.input_len, queue.request.tie_rank


@pytree
class CachedParams:
    """Numbers of the cache-aware order."""

    per_block: Float[Array, ""]  # priority that a cached block of the prompt is worth


def priority_cached(params: CachedParams, queue: QueueView) -> Keys:
    """Highest priority first, where cached blocks add to it, then by arrival; ours, not BLIS's."""
    blocks = queue.num_cached_blocks.astype(jnp.float64)
    infinity = (params.per_block + 1.0) * jnp.inf  # known only at run time
    worth = exact_product(params.per_block, blocks, infinity)
    return -(queue.priority + worth), queue.request.tie_rank

"""Schedulers: the order in which waiting requests are considered.

A scheduler's decision is `(value[slot], rank[slot])`: least value first, equal values by least rank; ranks
are unique. Source: BLIS `sim/scheduler.go`, but for `priority_cached`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from blis_jax.core.exact import exact_product
from blis_jax.core.types import pytree
from blis_jax.lazy import jax, jnp
from blis_jax.policies.contract import NoParams, NoState, QueueContext, scheduler
from blis_jax.policies.numbers import number

if TYPE_CHECKING:
    from jaxtyping import Array, Float

Order = tuple[tuple["jax.Array", "jax.Array"], Any]


@scheduler()
def fcfs(params: NoParams, state: NoState, context: QueueContext) -> Order:
    """In order of entry into the queue, which is not order of arrival."""
    del params
    return (context.queued_us, context.request.queue_rank), state


@scheduler()
def priority_fcfs(params: NoParams, state: NoState, context: QueueContext) -> Order:
    """Highest priority first, then by arrival."""
    del params
    return (-context.priority, context.request.tie_rank), state


@scheduler()
def reverse_priority(params: NoParams, state: NoState, context: QueueContext) -> Order:
    """Lowest priority first: a deliberately bad policy."""
    del params
    return (context.priority, context.request.tie_rank), state


@scheduler()
def sjf(params: NoParams, state: NoState, context: QueueContext) -> Order:
    """Shortest prompt first, then by arrival."""
    del params
    return (context.request.input_len, context.request.tie_rank), state


@pytree
class CachedParams:
    """Numbers of the cache-aware order."""

    per_block: Float[Array, ""] = number(
        0.01, "priority/block", "priority that a cached block of the prompt is worth",
        low=0, search=(0.001, 1), prior="log-uniform", setting="cached_block_priority",
    )  # fmt: skip


@scheduler(CachedParams, reads_cached_blocks=True)
def priority_cached(params: CachedParams, state: NoState, context: QueueContext) -> Order:
    """Highest priority first, where cached blocks add to it, then by arrival; ours, not BLIS's."""
    blocks = context.num_cached_blocks.astype(jnp.float64)
    worth = exact_product(params.per_block, blocks)
    return (-(context.priority + worth), context.request.tie_rank), state

"""Orders of the wait queue in which cached blocks, and blocks that others wait for, are worth priority.

`prefix_grouped` is after SGLang's cache-aware schedules: the longest cached prefix first (`lpm`), and the heaviest
branch of the tree of waiting prompts first (`dfs-weight`). Here both are worth priority, so that SLO classes and age
keep their say.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from blis_jax.core.exact import exact_product
from blis_jax.core.pytrees import pytree
from blis_jax.lazy import jax, jnp
from blis_jax.policies.contexts import QueueContext
from blis_jax.policies.contract import NoState, scheduler
from blis_jax.policies.numbers import number

if TYPE_CHECKING:
    from jaxtyping import Array, Float, Int


@pytree
class CachedParams:
    """Numbers of the cache-aware order."""

    per_block: Float[Array, ""] = number(
        0.01, "priority/block", "priority that a cached block of the prompt is worth",
        low=0, search=(0.001, 1), prior="log-uniform",
    )  # fmt: skip


@scheduler(CachedParams)
def priority_cached(
    params: CachedParams, state: NoState, context: QueueContext
) -> tuple[tuple[jax.Array, jax.Array], Any]:
    """Serve the highest priority first, where cached blocks add to it, then by arrival."""
    blocks = context.num_cached_blocks.astype(jnp.float64)
    worth = exact_product(params.per_block, blocks)
    return (-(context.priority + worth), context.request.tie_rank), state


NOBODYS = -2  # below every content


@pytree
class GroupedParams:
    """The worth of blocks that are cached, and of those that others would find cached."""

    cached_block: Float[Array, ""] = number(
        0.01, "priority/block", "priority that a cached block of the prompt is worth",
        low=0, search=(0.001, 1), prior="log-uniform",
    )  # fmt: skip
    shared_block: Float[Array, ""] = number(
        0.001, "priority/block", "priority that a block is worth for each other waiting request that would find it",
        low=0, search=(0.0001, 0.1), prior="log-uniform",
    )  # fmt: skip


def _count(in_order: Int[Array, "slot"], values: Int[Array, "slot"]) -> Int[Array, "slot"]:
    """Return how often each value occurs in a sorted list; comparing all pairs would take quadratic time."""
    last = jnp.searchsorted(in_order, values, side="right")
    return (last - jnp.searchsorted(in_order, values)).astype(jnp.int32)


def blocks_for_others(context: QueueContext) -> Int[Array, "slot"]:
    """Count each prompt's blocks that are not cached, once for each other waiting request with the same block."""
    contents, cached = context.contents, context.num_cached_blocks[:, None]
    end = contents.start + contents.length
    missing = jnp.maximum(end - jnp.maximum(contents.start, cached), 0)
    waits = context.is_waiting[:, None] & (contents.length > 0)
    wanted = jnp.sort(jnp.where(waits, contents.content, NOBODYS), axis=0)
    others = jax.vmap(_count, in_axes=1, out_axes=1)(wanted, contents.content)
    others = others - context.is_waiting[:, None].astype(jnp.int32)
    return jnp.sum(jnp.where(contents.length > 0, missing * others, 0), axis=1, dtype=jnp.int32)


@scheduler(GroupedParams)
def prefix_grouped(
    params: GroupedParams, state: NoState, context: QueueContext
) -> tuple[tuple[jax.Array, jax.Array], Any]:
    """Serve the highest priority first, where cached blocks and blocks that others wait for add to it,
    then by arrival.
    """
    num_cached = context.num_cached_blocks.astype(jnp.float64)
    for_others = blocks_for_others(context).astype(jnp.float64)
    worth = exact_product(params.cached_block, num_cached)
    worth = worth + exact_product(params.shared_block, for_others)
    return (-(context.priority + worth), context.request.tie_rank), state

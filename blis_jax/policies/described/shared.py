"""What several of these policies do: weigh the usual scorers, hash the head of a prompt, rank instances."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from blis_jax.core.exact import exact_product, exact_quotient
from blis_jax.core.types import LAST, Snapshots
from blis_jax.lazy import jax, jnp, lax
from blis_jax.policies import registry
from blis_jax.policies.contract import GatewayContext, NoParams, NoState

if TYPE_CHECKING:
    from jaxtyping import Array, Bool, Float, Int

SCORERS = ("prefix-affinity", "queue-depth", "kv-utilization")


def best_by_weights(context: GatewayContext, weights: tuple[Any, Any, Any]) -> Int[Array, ""]:
    """The first active instance with the best sum of affinity, queue depth and free KV, as weighted routing adds it."""
    total = exact_sum(weights)
    scores = jnp.zeros(context.snapshots.effective_load.shape, jnp.float64)
    for name, weight in zip(SCORERS, weights, strict=True):
        score, _ = registry.find("scorer", name).decide(NoParams(), NoState(), context)
        share = exact_quotient(weight, total)
        scores = scores + exact_product(jnp.clip(score, 0.0, 1.0), share)
    return first_best(jnp.where(context.snapshots.is_active, scores, -jnp.inf))


def exact_sum(values: tuple[Any, ...]) -> Float[Array, ""]:
    """The sum from the first value on."""
    total = jnp.zeros((), jnp.float64)
    for value in values:
        total = total + value
    return total


def first_best(values: Float[Array, "instance"]) -> Int[Array, ""]:
    """Index of the first of the greatest values."""
    return lax.argmax(values, 0, jnp.int32)


def mean_over_active(snapshots: Snapshots, values: Any) -> Float[Array, ""]:
    """Mean of whole numbers over the active instances."""
    is_active = snapshots.is_active
    total = jnp.sum(jnp.where(is_active, values, 0).astype(jnp.float64))
    return exact_quotient(total, jnp.sum(is_active, dtype=jnp.int32).astype(jnp.float64))


def matches(context: GatewayContext) -> Int[Array, "instance"]:
    """Prompt blocks in the router's index, 0 on inactive instances."""
    seen = context.snapshots
    return jnp.where(seen.is_active, seen.prefix_match_blocks, 0)


def leading_key(context: GatewayContext, blocks: Float[Array, ""]) -> Int[Array, ""]:
    """A number that two prompts share iff the same content holds the last of their first so many full blocks.

    A prompt whose blocks are its own up to there has a number of its own.
    """
    first = context.contents
    last = jnp.minimum(blocks.astype(jnp.int32), context.num_prompt_blocks) - 1
    holds = (first.start <= last) & (last < first.start + first.length)
    shared = jnp.sum(jnp.where(holds, first.content, 0), dtype=jnp.int32)
    own = context.request.tie_rank
    return jnp.where(jnp.any(holds), 2 * shared, 2 * own + 1)


def hashed_rank(context: GatewayContext, key: Int[Array, ""]) -> Int[Array, "instance"]:
    """The place of every instance in the order that the hash of `key` gives; inactive ones come last.

    Highest-random-weight hashing: each pair of a key and an instance has a draw, other on every seed. An
    instance that joins or leaves changes the order of no others.
    """
    is_active = context.snapshots.is_active
    draw = jax.random.uniform(
        jax.random.fold_in(context.run_key, key), is_active.shape, jnp.float64
    )
    draw = jnp.where(is_active, draw, 2.0)
    index = lax.iota(jnp.int32, draw.shape[0])
    is_before = (draw[None, :] < draw[:, None]) | (
        (draw[None, :] == draw[:, None]) & (index[None, :] < index[:, None])
    )
    return jnp.sum(is_before, axis=1, dtype=jnp.int32)


def at_rank(rank: Int[Array, "instance"], place: int) -> Int[Array, ""]:
    """The instance with this rank."""
    return lax.argmax(rank == place, 0, jnp.int32)


def first_by_rank(rank: Int[Array, "instance"], mask: Bool[Array, "instance"]) -> Int[Array, ""]:
    """The instance of the least rank among those of the mask; the least rank of all if there is none."""
    among = jnp.where(jnp.any(mask), mask, jnp.ones_like(mask))
    return lax.argmin(jnp.where(among, rank, LAST), 0, jnp.int32)

"""Routers by a hash of the prompt's head: two candidates, or a session's own order of the instances.

Sources: of `cached_of_two`, iteration 1 of the routing track (HCAR). Its code is lost, as is that of the consistent
hashing that it is compared with; the bound of `session_hashed` is that of V. Mirrokni, M. Thorup, M. Zadimoghaddam,
"Consistent Hashing with Bounded Loads", 2018.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from blis_jax.core.exact import exact_product, exact_quotient
from blis_jax.core.pytrees import pytree
from blis_jax.core.types import LAST
from blis_jax.lazy import jax, jnp, lax
from blis_jax.policies.contexts import GatewayContext
from blis_jax.policies.contract import NoState, routing_policy
from blis_jax.policies.numbers import number
from sweeps.strategies.policies.regimes import matches

if TYPE_CHECKING:
    from jaxtyping import Array, Bool, Float, Int


def leading_key(context: GatewayContext, blocks: Float[Array, ""]) -> Int[Array, ""]:
    """Return a number that is equal for two prompts if and only if they share the content with the last of their first
    `blocks` full blocks.

    A prompt that shares no such content has a number of its own.
    """
    first = context.contents
    last = jnp.minimum(blocks.astype(jnp.int32), context.num_prompt_blocks) - 1
    holds = (first.start <= last) & (last < first.start + first.length)
    shared = jnp.sum(jnp.where(holds, first.content, 0), dtype=jnp.int32)
    tie_rank = context.request.tie_rank
    return jnp.where(jnp.any(holds), 2 * shared, 2 * tie_rank + 1)


def hashed_rank(context: GatewayContext, key: Int[Array, ""]) -> Int[Array, "instance"]:
    """Return each instance's rank in the order that the hash of `key` gives; inactive instances come last.

    Highest-random-weight hashing: each pair of a key and an instance has a draw, which differs by seed. An instance
    that joins or leaves does not change the order of the others.
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
    """Return the instance with rank `place`."""
    return lax.argmax(rank == place, 0, jnp.int32)


def first_by_rank(rank: Int[Array, "instance"], mask: Bool[Array, "instance"]) -> Int[Array, ""]:
    """Return the lowest-ranked instance in the mask; the lowest-ranked of all if the mask is empty."""
    among = jnp.where(jnp.any(mask), mask, jnp.ones_like(mask))
    return lax.argmin(jnp.where(among, rank, LAST), 0, jnp.int32)


@pytree
class CachedOfTwoParams:
    """The blocks that are hashed, and the worth of a cached block in requests ahead."""

    prefix_blocks: Float[Array, ""] = number(
        1, "blocks", "leading prompt blocks whose content picks the two instances",
        low=1, high=2**30, is_whole=True, search=(1, 256), prior="log-uniform",
    )  # fmt: skip
    block_us: Float[Array, ""] = number(
        282.7, "µs", "prefill time that a cached block saves",
        low=0, search=(10, 5000), prior="log-uniform",
    )  # fmt: skip
    step_us: Float[Array, ""] = number(
        6910.4, "µs", "time of a step, by which one more request ahead delays",
        low=0, excludes_low=True, search=(500, 50_000), prior="log-uniform",
    )  # fmt: skip


@routing_policy(CachedOfTwoParams, is_random=True)
def cached_of_two(
    params: CachedOfTwoParams, state: NoState, context: GatewayContext
) -> tuple[Int[Array, ""], NoState]:
    """Choose of two instances hashed from the prompt's head the warmer one, unless its queue costs
    more than it saves.
    """
    rank = hashed_rank(context, leading_key(context, params.prefix_blocks))
    num_active = jnp.sum(context.snapshots.is_active, dtype=jnp.int32)
    first = at_rank(rank, 0)
    second = jnp.where(num_active > 1, at_rank(rank, 1), first)
    matched, load = matches(context), context.snapshots.effective_load
    is_second_warmer = matched[second] > matched[first]
    warm = jnp.where(is_second_warmer, second, first)
    cold = jnp.where(is_second_warmer, first, second)
    saved = (matched[warm] - matched[cold]).astype(jnp.float64)
    epsilon = exact_quotient(exact_product(saved, params.block_us), params.step_us)
    excess = (load[warm] - load[cold]).astype(jnp.float64)
    return jnp.where(excess > epsilon, cold, warm), state


@pytree
class SessionHashedParams:
    """The blocks that identify a session, and the load above its share that an instance may carry."""

    prefix_blocks: Float[Array, ""] = number(
        1, "blocks", "leading prompt blocks whose content names the session",
        low=1, high=2**30, is_whole=True, search=(1, 256), prior="log-uniform",
    )  # fmt: skip
    slack: Float[Array, ""] = number(
        1.25, "", "most load of an instance, as a multiple of the mean",
        low=1, search=(1, 4),
    )  # fmt: skip


@routing_policy(SessionHashedParams, is_random=True)
def session_hashed(
    params: SessionHashedParams, state: NoState, context: GatewayContext
) -> tuple[Int[Array, ""], NoState]:
    """Choose the first instance in the session's order whose load stays within the bound with this request."""
    seen = context.snapshots
    rank = hashed_rank(context, leading_key(context, params.prefix_blocks))
    count = jnp.sum(seen.is_active, dtype=jnp.int32).astype(jnp.float64)
    load = jnp.where(seen.is_active, seen.effective_load, 0)
    total = (jnp.sum(load, dtype=jnp.int32) + 1).astype(jnp.float64)
    # load + 1 <= ceil(slack * total / count), without the quotient's rounding
    is_open = exact_product(load.astype(jnp.float64), count) < exact_product(params.slack, total)
    return first_by_rank(rank, is_open & seen.is_active), state

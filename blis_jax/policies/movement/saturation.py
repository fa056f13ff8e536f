"""How many instances an autoscaler wants by the tokens in their KV caches: BLIS's analyzer and optimizer.

Source: `sim/cluster/saturation_analyzer.go` and `engine.go` of BLIS as of August 2026, after llm-d's workload variant
autoscaler. Sums are taken in the order of instances, then of kinds of GPU from the cheapest on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from blis_jax.core.exact import exact_product, exact_quotient
from blis_jax.lazy import jnp, lax

if TYPE_CHECKING:
    import jax
    from jaxtyping import Array, Bool, Float, Int


class Replicas(NamedTuple):
    """The instances that take requests, as the gateway has last seen them `[instance]`."""

    is_seen: Bool[Array, "instance"]  # takes requests, and its KV cache has been looked at
    kind: Int[Array, "instance"]
    capacity: Float[Array, "instance"]  # tokens
    demand: Float[Array, "instance"]  # tokens
    pending: Float[Array, ""]  # capacity of instances that still load, tokens


class Thresholds(NamedTuple):
    """When there are too few instances, and when too many."""

    kv_cache: jax.Array  # usable share of a KV cache
    scale_up: jax.Array  # share of the supply above which there are too few
    scale_down: jax.Array  # below which there may be too many


class Wanted(NamedTuple):
    """How many instances of which kind come, above 0, or go, below 0."""

    change: jax.Array
    kind: jax.Array


def wanted(
    seen: Replicas,
    limits: Thresholds,
    rank_up: Int[Array, "kind"],
    rank_down: Int[Array, "kind"],
) -> Wanted:
    """More of the cheapest kind if the demand is too high, fewer of the dearest if the rest could carry it."""
    usable = exact_product(seen.capacity, limits.kv_cache)
    num_kinds = rank_up.shape[0]
    supply = _by_kind(usable, seen, num_kinds)
    demand = _by_kind(seen.demand, seen, num_kinds)
    count = _by_kind(jnp.ones_like(usable), seen, num_kinds)
    all_supply, all_demand = _in_turn(supply, rank_up), _in_turn(demand, rank_up)
    pending = exact_product(seen.pending, limits.kv_cache)
    needed = exact_quotient(all_demand, limits.scale_up)
    required = needed - (all_supply + pending)
    carried = exact_quotient(all_demand, limits.scale_down)
    spare = all_supply - carried
    each = exact_quotient(supply, jnp.maximum(count, 1.0))
    may_go = (jnp.sum(count) > 1) & (spare > 0) & (all_supply - jnp.max(each) > carried)
    cheapest, dearest = _first(rank_up, count > 0), _first(rank_down, count > 0)
    more = jnp.where(
        each[cheapest] > 0, jnp.ceil(exact_quotient(required, _positive(each[cheapest]))), 1.0
    )
    fewer = jnp.floor(exact_quotient(spare, _positive(each[dearest])))
    fewer = jnp.clip(jnp.where(each[dearest] > 0, fewer, 1.0), 1.0, jnp.maximum(count[dearest], 1))
    grows = (required > 0) & jnp.any(count > 0)
    change = jnp.where(grows, jnp.maximum(more, 1.0), jnp.where(may_go, -fewer, 0.0))
    most = jnp.float64(2**31 - 1)
    return Wanted(
        jnp.clip(change, -most, most).astype(jnp.int32), jnp.where(grows, cheapest, dearest)
    )


def _positive(value: jax.Array) -> jax.Array:
    return jnp.where(value > 0, value, 1.0)


def _first(rank: Int[Array, "kind"], is_there: Bool[Array, "kind"]) -> jax.Array:
    return jnp.argmin(jnp.where(is_there, rank, rank.shape[0])).astype(jnp.int32)


def _by_kind(values: Float[Array, "instance"], seen: Replicas, num_kinds: int) -> jax.Array:
    """Sums of the seen instances' values `[kind]`, one after the other."""

    def add(row: jax.Array, total: jax.Array) -> jax.Array:
        return total.at[seen.kind[row]].add(jnp.where(seen.is_seen[row], values[row], 0.0))

    return lax.fori_loop(0, values.shape[0], add, jnp.zeros((num_kinds,), jnp.float64))


def _in_turn(values: Float[Array, "kind"], rank: Int[Array, "kind"]) -> jax.Array:
    """The sum over kinds, in the order of their ranks."""

    def add(place: jax.Array, total: jax.Array) -> jax.Array:
        return total + values[jnp.argmin(jnp.where(rank == place, 0, 1))]

    return lax.fori_loop(0, values.shape[0], add, jnp.float64(0.0))

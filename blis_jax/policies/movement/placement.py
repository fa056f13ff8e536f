"""The number of instances that BLIS's autoscaler wants, and their placement on nodes: its analyzer, optimizer and
actuator.

Source, as of August 2026: `sim/cluster/saturation_analyzer.go` and `engine.go`, after llm-d's workload variant
autoscaler; `direct_actuator.go`, `infra_placement.go`. Sums are taken in the order of instances, then of kinds of GPU
from the cheapest on. An instance is placed on the first node, in the order of pools, with enough free GPUs of the
wanted kind. An instance that is told to go takes no more requests, and frees its GPUs at its first event that leaves it
without work; without such an event it keeps its GPUs.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, NamedTuple

from blis_jax.core.exact import exact_product, exact_quotient
from blis_jax.core.outcome import Outcome
from blis_jax.core.pytrees import pytree
from blis_jax.core.types import LAST
from blis_jax.core.views import FleetParams, FleetView
from blis_jax.lazy import jnp, lax

if TYPE_CHECKING:
    import jax
    from jaxtyping import Array, Bool, Float, Int

# --- how many are wanted, by the tokens in KV caches ----------------------------------------------


class Replicas(NamedTuple):
    """The instances that accept requests, as the gateway has last seen them `[instance]`."""

    is_seen: Bool[Array, "instance"]  # takes requests, and its KV cache has been looked at
    kind: Int[Array, "instance"]
    capacity: Float[Array, "instance"]  # tokens
    demand: Float[Array, "instance"]  # tokens
    pending: Float[Array, ""]  # capacity of instances that still load, tokens


class Thresholds(NamedTuple):
    """The usable share of a KV cache, and the shares of the supply at which instances are added or removed."""

    kv_cache: jax.Array  # usable share of a KV cache
    scale_up: jax.Array  # share of the supply above which there are too few
    scale_down: jax.Array  # below which there may be too many


class Wanted(NamedTuple):
    """A wanted change: the kind of GPU, and the number of instances to add (above 0) or to remove (below 0)."""

    change: jax.Array
    kind: jax.Array


def wanted(
    seen: Replicas,
    limits: Thresholds,
    rank_up: Int[Array, "kind"],
    rank_down: Int[Array, "kind"],
) -> Wanted:
    """Return the wanted change: add the cheapest kind if demand is too high, remove the dearest if the rest
    suffices.
    """
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
    """Return the sums of the seen instances' values by kind `[kind]`, added in the order of instances."""

    def add(row: jax.Array, total: jax.Array) -> jax.Array:
        return total.at[seen.kind[row]].add(jnp.where(seen.is_seen[row], values[row], 0.0))

    return lax.fori_loop(0, values.shape[0], add, jnp.zeros((num_kinds,), jnp.float64))


def _in_turn(values: Float[Array, "kind"], rank: Int[Array, "kind"]) -> jax.Array:
    """Return the sum over kinds, added in the order of their ranks."""

    def add(place: jax.Array, total: jax.Array) -> jax.Array:
        return total + values[jnp.argmin(jnp.where(rank == place, 0, 1))]

    return lax.fori_loop(0, values.shape[0], add, jnp.float64(0.0))


# --- where new ones are placed, which ones go, and when a machine is free again -------------------


@pytree
class Placed:
    """Every instance ever placed `[instance]`; times in whole µs."""

    order: Int[Array, "instance"]  # number of its order from 1 on; 0: not ordered
    is_there: Bool[Array, "instance"]
    node: Int[Array, "instance"]
    ready_us: Float[Array, "instance"]  # when it takes requests, or took the first
    drained_us: Float[Array, "instance"]  # when it was told to go, infinity if never
    ends_us: Float[Array, "instance"]  # then known: the event that frees its GPUs
    is_over: Bool[Array, "instance"]  # its GPUs are free
    num_there: Int[Array, ""]
    num_orders: Int[Array, ""]  # orders that found no GPUs included


def nobody(rows: int) -> Placed:
    """Return the state without any instance, with room for `rows` instances."""
    never = jnp.full((rows,), jnp.inf)
    nothing, zero = jnp.zeros((rows,), jnp.int32), jnp.int32(0)
    is_not = jnp.zeros((rows,), bool)
    return Placed(nothing, is_not, nothing, never, never, never, is_not, zero, zero)


def is_up(placed: Placed, now: jax.Array) -> Bool[Array, "instance"]:
    """Return which instances accept requests at `now`, bool[instance]."""
    return placed.is_there & (placed.ready_us <= now) & jnp.isinf(placed.drained_us)


def is_loading(placed: Placed, now: jax.Array) -> Bool[Array, "instance"]:
    """Return which instances were ordered and do not yet accept requests at `now`, bool[instance]."""
    return placed.is_there & (placed.ready_us > now)


def first_ones(fleet: FleetParams, delay_us: Float[Array, "instance"]) -> Placed:
    """Return the initial instances, each on its node, ready after its delay."""
    placed = nobody(delay_us.shape[0])
    is_there = lax.iota(jnp.int32, delay_us.shape[0]) < fleet.num_first
    return dataclasses.replace(
        placed,
        is_there=is_there,
        node=fleet.first_node,
        ready_us=jnp.where(is_there, delay_us, jnp.inf),
        num_there=fleet.num_first,
    )


def freed(placed: Placed, view: FleetView, now: jax.Array) -> Placed:
    """Mark the instances that have gone for good: since they were told to go, an event has left them without work."""
    is_told = placed.drained_us <= now
    emptied = view.emptied_us.astype(jnp.float64) >= placed.drained_us
    is_over = placed.is_over | (is_told & (emptied | (placed.ends_us < now)))
    return dataclasses.replace(placed, is_over=is_over)


def with_more(
    placed: Placed,
    fleet: FleetParams,
    kind: jax.Array,
    wanted: jax.Array,
    now: jax.Array,
    delay_us: Float[Array, "instance"],
) -> tuple[Placed, jax.Array]:
    """Place up to `wanted` more instances of a kind, as many as there are GPUs; return the new state and the outcome, 0
    if the table has rows for all of them.

    `delay_us` has, for each row, the loading time of the instance placed in that row.
    """
    rows, wanted = placed.order.shape[0], jnp.maximum(wanted, 0)
    room = _room(placed, fleet, kind)
    until = jnp.cumsum(room, dtype=jnp.int32)
    num_new = jnp.minimum(wanted, jnp.where(fleet.has_nodes, until[-1], 0))
    place = lax.iota(jnp.int32, rows) - placed.num_there  # among the new ones
    is_new = (place >= 0) & (place < num_new)
    outcome = jnp.where(placed.num_there + num_new > rows, jnp.int32(Outcome.INSTANCES_FULL), 0)
    is_other = jnp.any(is_new & (fleet.row_kind != kind))
    outcome = jnp.where(is_other, jnp.int32(Outcome.OTHER_KIND), outcome)
    node = jnp.searchsorted(until, place, side="right").astype(jnp.int32)
    return dataclasses.replace(
        placed,
        order=jnp.where(is_new, placed.num_orders + place + 1, placed.order),
        is_there=placed.is_there | is_new,
        node=jnp.where(is_new, node, placed.node),
        ready_us=jnp.where(is_new, now + delay_us, placed.ready_us),
        num_there=placed.num_there + num_new,
        num_orders=placed.num_orders + jnp.where(fleet.has_nodes, wanted, 0),
    ), outcome


def _room(placed: Placed, fleet: FleetParams, kind: jax.Array) -> Int[Array, "node"]:
    """Return how many more instances of a kind fit on every node `[node]`."""
    holds = (placed.is_there & ~placed.is_over).astype(jnp.int32)
    used = jnp.zeros(fleet.node_gpus.shape, jnp.int32).at[placed.node].add(holds)
    free = fleet.node_gpus - used * fleet.gpus_each
    return jnp.where(fleet.node_kind == kind, free // fleet.gpus_each, 0)


def with_fewer(
    placed: Placed, view: FleetView, kind: jax.Array, wanted: jax.Array, now: jax.Array
) -> Placed:
    """Tell `wanted` instances of a kind to go, in the order of their names."""
    fleet = view.params
    may_go = is_up(placed, now) & (fleet.row_kind == kind)
    rank = jnp.where(may_go, fleet.drain_rank, LAST)
    before = jnp.sum(rank[None, :] < rank[:, None], axis=1, dtype=jnp.int32)
    goes = may_go & (before < wanted)
    # entries into the queue come before an event without effect
    is_idle_event = view.idle_event_us < view.queued_us
    event = jnp.where(view.is_sent, now, view.idle_event_us.astype(jnp.float64))
    ends = goes & ~view.has_work & (view.is_sent | is_idle_event)
    return dataclasses.replace(
        placed,
        drained_us=jnp.where(goes, now, placed.drained_us),
        ends_us=jnp.where(ends, event, placed.ends_us),
    )

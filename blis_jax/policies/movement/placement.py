"""Where new instances are placed, which ones go, and when a machine is free again: BLIS's actuator.

Source: `sim/cluster/direct_actuator.go` and `infra_placement.go` of BLIS as of August 2026. An instance takes the first
node, in the order of pools, whose GPUs are of the wanted kind and enough. One that goes takes no more requests, and
frees its GPUs with the first event of its own that leaves it without work; one that has no such event keeps them.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from blis_jax.core.fleet import FleetParams, FleetView
from blis_jax.core.outcome import Outcome
from blis_jax.core.types import LAST, pytree
from blis_jax.lazy import jnp, lax

if TYPE_CHECKING:
    import jax
    from jaxtyping import Array, Bool, Float, Int


@pytree
class Placed:
    """Every instance that was ever made `[instance]`; times in whole µs."""

    order: Int[Array, "instance"]  # number of its order from 1 on; 0: not ordered
    is_there: Bool[Array, "instance"]
    node: Int[Array, "instance"]
    ready_us: Float[Array, "instance"]  # when it takes requests, or took the first
    drained_us: Float[Array, "instance"]  # when it was told to go, infinity: it was not
    ends_us: Float[Array, "instance"]  # then known: the event that frees its GPUs
    is_over: Bool[Array, "instance"]  # its GPUs are free
    num_there: Int[Array, ""]
    num_orders: Int[Array, ""]  # orders that found no GPUs included


def nobody(rows: int) -> Placed:
    """No instance."""
    never = jnp.full((rows,), jnp.inf)
    nothing, zero = jnp.zeros((rows,), jnp.int32), jnp.int32(0)
    is_not = jnp.zeros((rows,), bool)
    return Placed(nothing, is_not, nothing, never, never, never, is_not, zero, zero)


def is_up(placed: Placed, now: jax.Array) -> Bool[Array, "instance"]:
    """Instances that take requests."""
    return placed.is_there & (placed.ready_us <= now) & jnp.isinf(placed.drained_us)


def is_loading(placed: Placed, now: jax.Array) -> Bool[Array, "instance"]:
    """Instances that were ordered and take no requests yet."""
    return placed.is_there & (placed.ready_us > now)


def first_ones(fleet: FleetParams, delay_us: Float[Array, "instance"]) -> Placed:
    """The instances to begin with, each on its node, ready after its delay."""
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
    """With those that have gone for good: an event since they were told to go has left them without work."""
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
    """So many more of a kind, as far as there are GPUs; and the outcome if the table has no rows for them, else 0.

    `delay_us` has the loading time of the instance that takes each row.
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
    """Instances that every node of the kind has GPUs for."""
    holds = (placed.is_there & ~placed.is_over).astype(jnp.int32)
    used = jnp.zeros(fleet.node_gpus.shape, jnp.int32).at[placed.node].add(holds)
    free = fleet.node_gpus - used * fleet.gpus_each
    return jnp.where(fleet.node_kind == kind, free // fleet.gpus_each, 0)


def with_fewer(
    placed: Placed, view: FleetView, kind: jax.Array, wanted: jax.Array, now: jax.Array
) -> Placed:
    """So many fewer of a kind, the least by name first."""
    fleet = view.params
    may_go = is_up(placed, now) & (fleet.row_kind == kind)
    rank = jnp.where(may_go, fleet.drain_rank, LAST)
    before = jnp.sum(rank[None, :] < rank[:, None], axis=1, dtype=jnp.int32)
    goes = may_go & (before < wanted)
    # what enters the queue comes before an event that changes nothing
    is_idle_event = view.idle_event_us < view.queued_us
    event = jnp.where(view.is_sent, now, view.idle_event_us.astype(jnp.float64))
    ends = goes & ~view.has_work & (view.is_sent | is_idle_event)
    return dataclasses.replace(
        placed,
        drained_us=jnp.where(goes, now, placed.drained_us),
        ends_us=jnp.where(ends, event, placed.ends_us),
    )

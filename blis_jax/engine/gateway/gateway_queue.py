"""The queue of the gateway (flow control): its numbers, its tables, and what one scan step changes in them.

What is done with them is in phases/flow_control.py. A mechanism without the queue has none of this in its program.
Several gateways have a queue each: the fields `OWN` have an axis `[gateway]` before their others then, and who is in
whose queue follows from the request's number.
"""

from __future__ import annotations

import dataclasses
import enum
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax import lax

from blis_jax.core.types import SLO_CLASSES, EngineShape, Mechanism, never, pytree

if TYPE_CHECKING:
    from jaxtyping import Array, Bool, Float, Int


class Place(enum.IntEnum):
    """Where the gateway has a request."""

    OUTSIDE = 0  # not yet there, or turned away by admission
    QUEUED = 1
    DISPATCHED = 2
    REJECTED = 3  # the queue was full
    SHED = 4  # it made room for a more urgent request
    EXPIRED = 5  # it waited too long
    EVICTED = 6  # its instance gave it up for a more urgent request
    CHOSEN = 7  # dispatched, and chosen to be given up


OWN = ("num_queued", "tick", "expiry", "has_band", "last_tenant")
"""Fields that each of several gateways has for itself."""


class Detector(enum.IntEnum):
    """What saturation is measured by."""

    NEVER = 0
    UTILIZATION = 1
    CONCURRENCY = 2


@pytree
class QueueParams:
    """The numbers of the queue, all traced; 0 stands for no limit."""

    detector: Int[Array, ""]  # see Detector
    queue_depth_threshold: Float[Array, ""]
    kv_threshold: Float[Array, ""]
    max_concurrency: Int[Array, ""]
    priority: Int[Array, "slo_class"]  # the band of each class; below 0: sheddable
    band_capacity: Int[Array, ""]
    max_depth: Int[Array, ""]
    sheds: Bool[Array, ""]
    usage_limit: Float[Array, ""]
    round_robin: Bool[Array, ""]
    by_deadline: Bool[Array, ""]
    target_us: Int[Array, "slo_class"]  # from entry to deadline; the largest number: none
    ttl_us: Int[Array, ""]
    tick_us: Int[Array, ""]


@pytree
class TenantBudgets:
    """What tenants may have at the instances, all traced; infinity where there is no bound."""

    limit: Float[Array, "tenant"]  # requests
    priority: Int[Array, "slo_class"]  # below 0: sheddable


@pytree
class Victims:
    """The requests that instances are to give up, in the order in which they were chosen."""

    order: Int[Array, "request"]  # a spare place at the end
    num_chosen: Int[Array, ""]
    num_gone: Int[Array, ""]
    due: Any  # when those that are left are given up


@pytree
class GatewayQueue:
    """The queue, with a spare row in the tables of requests."""

    place: Int[Array, "request"]  # see Place
    dispatched: Any  # clock[request], never() before
    order: Int[Array, "request"]  # the requests in order of dispatch
    num_dispatched: Int[Array, ""]
    num_queued: Int[Array, ""]
    tick: Any  # next attempt without an arrival, never() if none is due
    expiry: Any  # when the oldest request in the queue has waited too long, never() if none does
    has_band: Bool[Array, "slo_class"]  # classes that have come to the queue
    last_tenant: Int[Array, "slo_class"]  # served last in the band of each class, -1: none
    victims: Victims | None = None  # where instances give up requests
    ticked: Any = None  # when the latest tick was, -1: none yet; only where KV is reserved


@pytree
class QueueWrite:
    """What one scan step changes: up to three places of requests, the others' at the spare request."""

    request: Int[Array, "3"]  # that comes, that is shed, and that leaves the queue otherwise
    place: Int[Array, "3"]
    dispatched: Any  # when the last of them was dispatched, never() if it was not
    order_at: Int[Array, ""]  # its number in order of dispatch, the spare one if it was not
    num_dispatched: Int[Array, ""]
    num_queued: Int[Array, ""]
    tick: Any
    expiry: Any
    has_band: Bool[Array, "slo_class"]
    last_tenant: Int[Array, "slo_class"]
    victims: Victims | None
    ticked: Any = None


def empty_queue(shape: EngineShape, mechanism: Mechanism) -> GatewayQueue | None:
    """The queue before the first arrival; None where requests are routed as they are admitted."""
    if not mechanism.has_queue:
        return None
    clock, size, classes = shape.clock_dtype, shape.num_requests + 1, len(SLO_CLASSES)
    forever = jnp.asarray(never(clock), clock)
    queue = GatewayQueue(
        place=jnp.zeros((size,), jnp.int32),
        dispatched=jnp.full((size,), forever, clock),
        order=jnp.full((size,), shape.num_requests, jnp.int32),
        num_dispatched=jnp.int32(0),
        num_queued=jnp.int32(0),
        tick=forever,
        expiry=forever,
        has_band=jnp.zeros((classes,), bool),
        last_tenant=jnp.full((classes,), -1, jnp.int32),
        victims=_no_victims(shape, forever) if mechanism.evicts_in_flight else None,
        ticked=jnp.asarray(-1, clock) if mechanism.reserves_decode else None,
    )
    return _on_each(queue, mechanism.num_gateways)


def _on_each(queue: GatewayQueue, count: int) -> GatewayQueue:
    if count == 1:
        return queue
    own = {name: getattr(queue, name) for name in OWN}
    each: dict[str, Any] = {
        name: jnp.broadcast_to(one, (count, *jnp.shape(one))) for name, one in own.items()
    }
    return dataclasses.replace(queue, **each)


def _no_victims(shape: EngineShape, forever: jax.Array) -> Victims:
    spare = jnp.full((shape.num_requests + 1,), shape.num_requests, jnp.int32)
    return Victims(spare, jnp.int32(0), jnp.int32(0), forever)


def unchanged(queue: GatewayQueue | None) -> QueueWrite | None:
    """Nothing happens in the queue."""
    if queue is None:
        return None
    spare = jnp.int32(queue.place.shape[0] - 1)
    return QueueWrite(
        request=jnp.broadcast_to(spare, (3,)),
        place=jnp.zeros((3,), jnp.int32),
        dispatched=jnp.asarray(never(queue.dispatched.dtype), queue.dispatched.dtype),
        order_at=spare,
        num_dispatched=queue.num_dispatched,
        num_queued=queue.num_queued,
        tick=queue.tick,
        expiry=queue.expiry,
        has_band=queue.has_band,
        last_tenant=queue.last_tenant,
        victims=queue.victims,
        ticked=queue.ticked,
    )


def written(queue: GatewayQueue | None, change: QueueWrite | None) -> GatewayQueue | None:
    """The queue with the change in its places; of several for one request the last one stays."""
    if queue is None or change is None:
        return None

    def put(table: jax.Array, value: jax.Array, at: jax.Array) -> jax.Array:
        return lax.dynamic_update_slice(table, value[None], (at,))

    place = queue.place
    for one in range(3):
        place = put(place, change.place[one], change.request[one])
    return GatewayQueue(
        place=place,
        dispatched=put(queue.dispatched, change.dispatched, change.request[2]),
        order=put(queue.order, change.request[2], change.order_at),
        num_dispatched=change.num_dispatched,
        num_queued=change.num_queued,
        tick=change.tick,
        expiry=change.expiry,
        has_band=change.has_band,
        last_tenant=change.last_tenant,
        victims=change.victims,
        ticked=change.ticked,
    )

"""Several gateways before one cluster: each knows its own decisions, and of the others what the instances show.

Requests are assigned to the gateways in turn, by their number. Each gateway has its own policy states and its own
prefix index (unless the KV caches feed one for all), and counts only its own requests on the way to an instance. Looks
at the instances are shared by all. With one gateway nothing of this is in the compiled program.

The queue of a gateway (flow control) is below: its numbers, its tables, and the changes of one scan step. The functions
that use them are in phases/flow_control.py. Each of several gateways has a `Queue`, along a leading axis.
"""

from __future__ import annotations

import enum
import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import jax
import jax.numpy as jnp
from jax import lax

from blis_jax.core.columns import with_entry
from blis_jax.core.pytrees import pytree
from blis_jax.core.types import SLO_CLASSES, EngineShape, Mechanism, never
from blis_jax.policies.contract import PolicyStates
from blis_jax.tables.context import Context
from blis_jax.tables.joined import lane_of, queued_times
from blis_jax.tables.router import RouterCounts
from blis_jax.tables.state import Slot, State

if TYPE_CHECKING:
    from jaxtyping import Array, Bool, Float, Int, Real

T = TypeVar("T")
States = PolicyStates[object]  # of the gateway's policies


@dataclass(frozen=True)
class Gateways:
    """Several gateways; the policy states at the indices `common` are shared by all. See `OnlyGateway`."""

    count: int
    common: range

    def of(self, request: jax.Array) -> jax.Array:
        """Return the gateway that a request arrives at."""
        return lax.rem(request, jnp.int32(self.count))

    def own(self, leaf: jax.Array, gateway: jax.Array) -> jax.Array:
        """Return the part of one gateway of an array with an axis of gateways."""
        return lax.dynamic_index_in_dim(leaf, gateway, keepdims=False)

    def put(self, leaf: jax.Array, part: jax.Array, gateway: jax.Array) -> jax.Array:
        """Return the array with the part of one gateway replaced."""
        return lax.dynamic_update_index_in_dim(leaf, part, gateway, 0)

    def on_each(self, values: jax.Array) -> jax.Array:
        """Return the values repeated along a leading axis of gateways."""
        return jnp.broadcast_to(values, (self.count, *jnp.shape(values)))

    def first(self, values: jax.Array) -> jax.Array:
        """Return the earliest time of all gateways."""
        return jnp.min(values)

    def acting(self, whose: Callable[[], jax.Array]) -> jax.Array:
        """Return `whose()`, the gateway that acts."""
        return whose()

    def of_own(
        self, mask: Bool[Array, "*at"], gateway: jax.Array, request: jax.Array | None = None
    ) -> Bool[Array, "*at"]:
        """Return the mask limited to requests of one gateway; its entries are all requests if `request` is None."""
        every = lax.iota(jnp.int32, mask.shape[0]) if request is None else request
        return mask & (self.of(every) == gateway)

    def of_same(self, mask: jax.Array, others: jax.Array, request: jax.Array) -> jax.Array:
        """Return the mask limited to those `others` that are at the gateway of `request`."""
        return mask & (self.of(others) == self.of(request))

    def known(
        self,
        ctx: Context,
        state: State,
        now: jax.Array,
        counts: RouterCounts,
        num_rejected: jax.Array,
        request: jax.Array,
    ) -> tuple[RouterCounts, jax.Array]:
        """Return the counts at instances and of rejections as the request's gateway knows them, given those of all."""
        rows, gateway = ctx.shape.num_instances, self.of(request)
        times, sent = queued_times(state, rows), state.slot.numbers[Slot.REQUEST, :rows]
        is_mine = (times >= now) & (times < ctx.never) & (self.of(sent) == gateway)
        pending = jnp.sum(is_mine, axis=1, dtype=jnp.int32)
        lane, turned_away = lane_of(ctx, state), self.own(state[Rejections].count, gateway)
        is_latest = self.of(lane.next_admit) == gateway  # which the count of all has in it
        latest = jnp.where(is_latest, num_rejected - lane.num_rejected, 0)
        load = counts.batch + counts.queue + pending
        counted = counts._replace(pending=pending, load=load)
        return counted, turned_away + latest

    def first_states(self, place: int, state: T) -> T:
        """Return the first states of the gateways' policy with this index, given the state for one gateway."""
        each: T = state if place in self.common else jax.tree.map(self.on_each, state)
        return each

    def own_states(self, states: States, request: jax.Array) -> States:
        """Return the policies' states of the request's gateway."""
        return self._changed(functools.partial(self.own, gateway=self.of(request)), states)

    def with_own(self, states: States, new_states: States, request: jax.Array) -> States:
        """Return all gateways' states with those of the request's gateway replaced."""
        put = functools.partial(self.put, gateway=self.of(request))
        return self._changed(put, states, new_states)

    def _changed(self, change: Callable[..., jax.Array], *states: States) -> States:
        every = enumerate(zip(*states, strict=True))
        changed = (at[-1] if n in self.common else jax.tree.map(change, *at) for n, at in every)
        return PolicyStates(tuple(changed))

    def first_queues(self, queue: Queue) -> Queue:
        """Return the first queues of all gateways, given the queue of one."""
        each: Queue = jax.tree.map(self.on_each, queue)
        return each

    def own_queue(self, queues: Queue, gateway: jax.Array) -> Queue:
        """Return the queue of one gateway."""
        queue: Queue = jax.tree.map(functools.partial(self.own, gateway=gateway), queues)
        return queue

    def with_own_queue(self, queues: Queue, queue: Queue, gateway: jax.Array) -> Queue:
        """Return all queues with that of one gateway replaced."""
        new: Queue = jax.tree.map(functools.partial(self.put, gateway=gateway), queues, queue)
        return new


class OnlyGateway(Gateways):
    """A single gateway: everything belongs to it, and the program has no axis of gateways."""

    def of(self, request: jax.Array) -> jax.Array:
        """Return gateway 0."""
        return jnp.int32(0)

    def own(self, leaf: jax.Array, gateway: jax.Array) -> jax.Array:
        """Return the whole array."""
        return leaf

    def put(self, leaf: jax.Array, part: jax.Array, gateway: jax.Array) -> jax.Array:
        """Return the new part."""
        return part

    def on_each(self, values: jax.Array) -> jax.Array:
        """Return the values, without an axis of gateways."""
        return values

    first = on_each

    def acting(self, whose: Callable[[], jax.Array]) -> jax.Array:
        """Return gateway 0."""
        return jnp.int32(0)

    def of_own(
        self, mask: Bool[Array, "*at"], gateway: jax.Array, request: jax.Array | None = None
    ) -> Bool[Array, "*at"]:
        """Return the whole mask."""
        return mask

    def of_same(self, mask: jax.Array, others: jax.Array, request: jax.Array) -> jax.Array:
        """Return the whole mask."""
        return mask

    def known(
        self,
        ctx: Context,
        state: State,
        now: jax.Array,
        counts: RouterCounts,
        num_rejected: jax.Array,
        request: jax.Array,
    ) -> tuple[RouterCounts, jax.Array]:
        """Return the counts of all."""
        return counts, num_rejected


def gateways_of(mechanism: Mechanism) -> Gateways:
    """Return the rules for the gateways of a program."""
    kind = OnlyGateway if mechanism.num_gateways == 1 else Gateways
    return kind(mechanism.num_gateways, mechanism.common_places)


def index_column(ctx: Context, request: jax.Array, instance: jax.Array) -> jax.Array:
    """Return the column of an instance in the index of the request's gateway."""
    if ctx.mechanism.num_indices == 1:
        return instance
    return ctx.gateways.of(request) * jnp.int32(ctx.shape.num_instances) + instance


def own_columns(ctx: Context, table: jax.Array, request: jax.Array) -> jax.Array:
    """Return the columns of a table of the index that belong to the request's gateway, `[..., instance]`."""
    if ctx.mechanism.num_indices == 1:
        return table
    rows = ctx.shape.num_instances
    first = ctx.gateways.of(request) * jnp.int32(rows)
    return lax.dynamic_slice_in_dim(table, first, rows, axis=table.ndim - 1)


@pytree
class Rejections:
    """The number of requests that each of several gateways has rejected."""

    count: Int[Array, "gateway"]

    def after(self, ctx: Context, request: jax.Array) -> Rejections:
        """Return the counts with one more rejection at the request's gateway; the spare request changes nothing."""
        is_its = lax.iota(jnp.int32, ctx.gateways.count) == ctx.gateways.of(request)
        is_its = is_its & (request < ctx.shape.num_requests)
        return Rejections(self.count + is_its.astype(jnp.int32))


class Place(enum.IntEnum):
    """The place of a request at the gateway."""

    OUTSIDE = 0  # not yet there, or turned away by admission
    QUEUED = 1
    DISPATCHED = 2
    REJECTED = 3  # the queue was full
    SHED = 4  # it made room for a more urgent request
    EXPIRED = 5  # it waited too long
    EVICTED = 6  # its instance gave it up for a more urgent request
    CHOSEN = 7  # dispatched, and chosen to be given up


class Detector(enum.IntEnum):
    """The detector by which saturation is measured."""

    NEVER = 0
    UTILIZATION = 1
    CONCURRENCY = 2


@pytree
class QueueParams:
    """The numbers of the gateway's queue, all traced; 0 stands for no limit."""

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
    """The tenants' limits at the instances, all traced; infinity where there is no bound."""

    limit: Float[Array, "tenant"]  # requests
    priority: Int[Array, "slo_class"]  # below 0: sheddable


@pytree
class QueueVictims:
    """The requests that instances are to evict, in the order in which they were chosen."""

    order: Int[Array, "request"]  # a spare place at the end
    num_chosen: Int[Array, ""]
    num_gone: Int[Array, ""]
    due: Real[Array, ""]  # when those that are left are given up


@pytree
class Dispatches:
    """The place of each request at the gateway, and the time of its dispatch from the queue; a spare row included."""

    place: Int[Array, "*lane request"]  # see Place
    at: Real[Array, "*lane request"]  # clock, never() before


@pytree
class Queue:
    """The queue of each gateway, a linked list per class in order of arrival; the spare request stands for none."""

    num_queued: Int[Array, "*gateway slo_class"]
    first: Int[Array, "*gateway slo_class"]  # request
    last: Int[Array, "*gateway slo_class"]  # request
    tick: Real[Array, "*gateway"]  # next attempt without an arrival, never() if none is due
    # when the oldest request in the queue has waited too long, never() if none does
    expiry: Real[Array, "*gateway"]
    has_band: Bool[Array, "*gateway slo_class"]  # classes that have come to the queue
    last_tenant: Int[Array, "*gateway slo_class"]  # served last in the band of each class, -1: none


@pytree
class GatewayQueue:
    """The queues of all gateways, and the links between requests, with a spare row whose links have no meaning."""

    order: Int[Array, "request"]  # the requests in order of dispatch
    turn: Int[Array, "request"]  # the number of each in that order
    following: Int[Array, "request"]  # the next of a request's class in the queue
    previous: Int[Array, "request"]
    num_dispatched: Int[Array, ""]
    each: Queue


@pytree
class BeforePools:
    """The queue's notes for pools: only where KV is reserved."""

    ticked: Real[Array, ""]  # clock, the latest tick; -1: none yet
    num_again: Int[Array, ""]  # second routings


@pytree
class QueueWrite:
    """The queue's changes in one scan step: the places of up to three requests, and the spare request if unused."""

    request: Int[Array, "3"]  # that comes, that is shed, and that leaves the queue otherwise
    place: Int[Array, "3"]
    before: Int[Array, "3"]  # requests that others follow now, in the order of these changes
    behind: Int[Array, "3"]  # who follows each of them
    dispatched: Real[Array, ""]  # when the last of them was dispatched, never() if it was not
    order_at: Int[Array, ""]  # its number in order of dispatch, the spare one if it was not
    num_dispatched: Int[Array, ""]
    each: Queue


def empty_queue(shape: EngineShape, gateways: Gateways) -> tuple[Dispatches, GatewayQueue]:
    """Return the queue before the first arrival."""
    clock, size, classes = shape.clock_dtype, shape.num_requests + 1, len(SLO_CLASSES)
    forever = jnp.asarray(never(clock), clock)
    outside = jnp.zeros((size,), jnp.int32)
    dispatches = Dispatches(outside, jnp.full((size,), forever, clock))
    spare, nobody = (jnp.full((n,), shape.num_requests, jnp.int32) for n in (size, classes))
    queue = Queue(
        num_queued=jnp.zeros((classes,), jnp.int32),
        first=nobody,
        last=nobody,
        tick=forever,
        expiry=forever,
        has_band=jnp.zeros((classes,), bool),
        last_tenant=jnp.full((classes,), -1, jnp.int32),
    )
    each = gateways.first_queues(queue)
    return dispatches, GatewayQueue(spare, spare, spare, spare, jnp.int32(0), each)


def no_victims(shape: EngineShape) -> QueueVictims:
    """Return the table with no request to evict."""
    forever = jnp.asarray(never(shape.clock_dtype), shape.clock_dtype)
    spare = jnp.full((shape.num_requests + 1,), shape.num_requests, jnp.int32)
    return QueueVictims(spare, jnp.int32(0), jnp.int32(0), forever)


def unchanged(dispatches: Dispatches, queue: GatewayQueue) -> QueueWrite:
    """Return the write that changes nothing in the queue."""
    spare, clock = jnp.int32(dispatches.place.shape[0] - 1), dispatches.at.dtype
    return QueueWrite(
        request=jnp.broadcast_to(spare, (3,)),
        place=jnp.zeros((3,), jnp.int32),
        before=jnp.broadcast_to(spare, (3,)),
        behind=jnp.broadcast_to(spare, (3,)),
        dispatched=jnp.asarray(never(clock), clock),
        order_at=spare,
        num_dispatched=queue.num_dispatched,
        each=queue.each,
    )


def written(
    dispatches: Dispatches, queue: GatewayQueue, change: QueueWrite
) -> tuple[Dispatches, GatewayQueue]:
    """Return the queue with the change written; of several values for one request the last one stays."""
    place, following, previous = dispatches.place, queue.following, queue.previous
    for entry in range(3):
        before, behind = change.before[entry], change.behind[entry]
        following, previous = (
            with_entry(following, behind, before),
            with_entry(previous, before, behind),
        )
        place = with_entry(place, change.place[entry], change.request[entry])
    at = with_entry(dispatches.at, change.dispatched, change.request[2])
    spare = jnp.int32(dispatches.place.shape[0] - 1)
    whose = jnp.where(change.order_at < spare, change.request[2], spare)
    return Dispatches(place, at), GatewayQueue(
        order=with_entry(queue.order, change.request[2], change.order_at),
        turn=with_entry(queue.turn, change.order_at, whose),
        following=following,
        previous=previous,
        num_dispatched=change.num_dispatched,
        each=change.each,
    )

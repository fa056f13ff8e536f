"""The queue at the gateway: which requests wait, whether there is room, and which would be dispatched.

Each class has a linked list with its first and last request. Only round robin between tenants and deadlines need to
read all requests between them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jax import lax

from blis_jax.core.columns import as_int
from blis_jax.core.exact import exact_product, exact_quotient
from blis_jax.core.types import LAST, SLO_CLASSES
from blis_jax.tables.context import Context, count_of
from blis_jax.tables.gateways import Dispatches, GatewayQueue, Place, Queue, QueueParams
from blis_jax.tables.requests import Req, RequestTargets

if TYPE_CHECKING:
    from jaxtyping import Array, Bool, Int

    from blis_jax.core.groups import Rows

T = TypeVar("T")
NO_DEADLINE = jnp.iinfo(jnp.int64).max


class QueuedRequests(NamedTuple):
    """Some rows of the request table, with the fields that the queue distinguishes requests by."""

    number: Int[Array, "row"]
    is_queued: Bool[Array, "row"]
    tenant: Int[Array, "row"]
    slo_class: Int[Array, "row"]
    rows: Rows

    def first(self, mask: Bool[Array, "row"]) -> jax.Array:
        """Return the least request number in the mask, a large number if the mask is empty."""
        return jnp.min(jnp.where(mask, self.number, LAST))


class Link(NamedTuple):
    """Two neighbours of one class in the queue: `behind` follows `before`; the spare request stands for none."""

    before: jax.Array
    behind: jax.Array


@dataclass(frozen=True)
class Waiting:
    """The queue of a gateway during an event: at most one request has entered it, and some have left it."""

    ctx: Context
    dispatches: Dispatches
    queue: GatewayQueue  # before the event
    gateway: jax.Array
    num_queued: Int[Array, "slo_class"]
    oldest_of: Int[Array, "slo_class"]  # request, the spare one: none; likewise the next
    youngest_of: Int[Array, "slo_class"]
    entered: jax.Array
    left: tuple[jax.Array, ...] = ()
    links: tuple[Link, ...] = ()  # that the event has changed, in this order

    @classmethod
    def before(
        cls, ctx: Context, dispatches: Dispatches, queue: GatewayQueue, gateway: jax.Array
    ) -> Waiting:
        """Return the queue as it is before the event."""
        own = ctx.gateways.own_queue(queue.each, gateway)
        lists = own.num_queued, own.first, own.last
        return cls(ctx, dispatches, queue, gateway, *lists, ctx.spare_request)

    def having(self, request: jax.Array) -> Waiting:
        """Return the queue with a request appended at its end; the spare request changes nothing."""
        spare = self.ctx.spare_request
        is_it = (classes() == self.ctx.request(request).slo_class) & (request < spare)
        before = jnp.min(jnp.where(is_it, self.youngest_of, spare))
        return dataclasses.replace(
            self,
            num_queued=self.num_queued + as_int(is_it),
            oldest_of=jnp.where(is_it & (self.num_queued == 0), request, self.oldest_of),
            youngest_of=jnp.where(is_it, request, self.youngest_of),
            entered=request,
            links=(*self.links, Link(before, request)),
        )

    def without(self, request: jax.Array) -> Waiting:
        """Return the queue without a request; the spare request changes nothing."""
        spare = self.ctx.spare_request
        is_there = request < spare
        before, behind = self.queue.previous[request], self.queue.following[request]
        for link in self.links:
            before = jnp.where(link.behind == request, link.before, before)
            behind = jnp.where(link.before == request, link.behind, behind)
        before, behind = (jnp.where(is_there, one, spare) for one in (before, behind))
        is_it = (classes() == self.ctx.request(request).slo_class) & is_there
        is_first, is_last = self.oldest_of == request, self.youngest_of == request
        return dataclasses.replace(
            self,
            num_queued=self.num_queued - as_int(is_it),
            oldest_of=jnp.where(is_first, behind, self.oldest_of),
            youngest_of=jnp.where(is_last, before, self.youngest_of),
            left=(*self.left, request),
            links=(*self.links, Link(before, behind)),
        )

    def oldest(self, of: Bool[Array, "slo_class"]) -> jax.Array:
        """Return the oldest request of these classes, the spare request if none waits."""
        return jnp.min(jnp.where(of, self.oldest_of, self.ctx.spare_request))

    def youngest(self, of: Bool[Array, "slo_class"]) -> jax.Array:
        """Return the youngest request of these classes, a number below 0 if none waits."""
        return jnp.max(jnp.where(of & (self.num_queued > 0), self.youngest_of, -1))

    def fold(
        self, of: Bool[Array, "slo_class"], fold: Callable[[T, QueuedRequests], T], first: T
    ) -> T:
        """Fold the queued requests from the oldest of these classes to the youngest, see `Groups.between`."""

        def of_rows(so_far: T, rows: Rows) -> T:
            return fold(so_far, self._requests(rows))

        return self.ctx.between((self.oldest(of), self.youngest(of)), of_rows, first)

    def _requests(self, rows: Rows) -> QueuedRequests:
        table, place = rows.take(self.ctx.requests.table), rows.take(self.dispatches.place)
        is_queued = self.ctx.gateways.of_own(place == Place.QUEUED, self.gateway, rows.number)
        is_queued = is_queued | (rows.number == self.entered)
        for request in self.left:
            is_queued = is_queued & (rows.number != request)
        tenant, slo_class = table[:, Req.TENANT], table[:, Req.SLO_CLASS]
        return QueuedRequests(rows.number, is_queued & rows.is_in, tenant, slo_class, rows)


class Pick(NamedTuple):
    """The request that would be dispatched, whether it is, and the fields of the queue that change with it."""

    request: jax.Array
    is_due: jax.Array
    last_tenant: Int[Array, "slo_class"]  # served last in each band then
    has_urgent: jax.Array  # whether one that is not sheddable waits


class QueueEntry(NamedTuple):
    """The effect of an arrival on the queue: whether it enters, and whether it sheds a victim."""

    enters: jax.Array
    sheds: jax.Array
    victim: jax.Array


def queue_params(ctx: Context) -> QueueParams:
    """Return the numbers of the gateway's queue."""
    return ctx.params.cluster[QueueParams]


def classes() -> jax.Array:
    """Return the numbers of the SLO classes, `[slo_class]`."""
    return lax.iota(jnp.int32, len(SLO_CLASSES))


def entry_of(ctx: Context, waiting: Waiting, slo_class: jax.Array, asks: jax.Array) -> QueueEntry:
    """Decide whether an arrival finds room in its band and in the queue, or which less urgent request it sheds."""
    params, of_class = queue_params(ctx), waiting.num_queued
    band, num_queued = params.priority[slo_class], jnp.sum(of_class, dtype=jnp.int32)
    in_band = jnp.sum(jnp.where(params.priority == band, of_class, 0), dtype=jnp.int32)
    may_go = (of_class > 0) & (params.priority < 0)
    lowest = jnp.min(jnp.where(may_go, params.priority, jnp.int32(LAST)))
    is_band_full = (params.band_capacity > 0) & (in_band >= params.band_capacity)
    is_full = (params.max_depth > 0) & (num_queued >= params.max_depth)
    makes_room = params.sheds & (band > lowest)
    enters = asks & ~is_band_full & (~is_full | makes_room)
    sheds = enters & is_full
    youngest = waiting.youngest(params.priority == lowest)
    return QueueEntry(enters, sheds, jnp.where(youngest < 0, ctx.spare_request, youngest))


def _ceiling(ctx: Context, has_band: Bool[Array, "slo_class"], band: jax.Array) -> jax.Array:
    """Return the saturation below which a band is served; the more urgent the band, the higher."""
    priority, limit = queue_params(ctx).priority, queue_params(ctx).usage_limit
    same = has_band[None, :] & (priority[None, :] == priority[:, None])
    # one class for each band
    is_first = has_band & (jnp.argmax(same, axis=1).astype(jnp.int32) == classes())
    before = count_of(is_first & (priority > band)).astype(jnp.float64)
    others = (count_of(is_first) - 1).astype(jnp.float64)
    share = exact_quotient(exact_product(before, 1.0 - limit), jnp.maximum(others, 1.0))
    return jnp.where(others > 0, 1.0 - share, 1.0)


def pick(
    ctx: Context,
    queue: Queue,
    waiting: Waiting,
    has_band: Bool[Array, "slo_class"],
    saturation: jax.Array,
) -> Pick:
    """Return the request that would be dispatched next.

    More urgent bands have higher ceilings, so the most urgent band with a request decides.
    """
    params = queue_params(ctx)
    is_there = waiting.num_queued > 0
    band = jnp.max(jnp.where(is_there, params.priority, -jnp.int32(LAST)))
    of_band = params.priority == band
    oldest = waiting.oldest(of_band)
    tenant = jnp.where(
        params.round_robin,
        _next_tenant(params, queue, waiting, of_band),
        ctx.request(oldest).tenant,
    )
    is_asked = of_band & (params.round_robin | params.by_deadline)

    def fold(
        so_far: tuple[jax.Array, jax.Array, jax.Array], some: QueuedRequests
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Return the first request of the tenant in turn, the earliest deadline, and the request with that deadline."""
        first, least, soonest = so_far
        in_flow = some.is_queued & of_band[some.slo_class] & (some.tenant == tenant)
        deadline = jnp.where(in_flow, _deadlines(ctx, some), NO_DEADLINE)
        earliest = jnp.min(deadline)
        here = some.first(in_flow & (deadline == earliest))
        kept = jnp.where(least <= earliest, soonest, LAST)
        here = jnp.where(earliest <= least, here, LAST)
        nearest = jnp.minimum(least, earliest)
        return jnp.minimum(first, some.first(in_flow)), nearest, jnp.minimum(here, kept)

    nobody = jnp.int32(LAST), jnp.int64(NO_DEADLINE), jnp.int32(LAST)
    first, _, soonest = waiting.fold(is_asked, fold, nobody)
    chosen = jnp.where(params.round_robin, first, oldest)
    chosen = jnp.where(params.by_deadline, soonest, chosen)
    return Pick(
        request=jnp.minimum(chosen, ctx.spare_request),
        is_due=jnp.any(is_there) & (saturation < _ceiling(ctx, has_band, band)),
        last_tenant=jnp.where(of_band, tenant, queue.last_tenant),
        has_urgent=band >= 0,
    )


def _next_tenant(
    params: QueueParams, queue: Queue, waiting: Waiting, of_band: Bool[Array, "slo_class"]
) -> jax.Array:
    """Return the tenant in turn: the next after the last one served, or the first if that has nothing in the band."""
    last, none = jnp.max(jnp.where(of_band, queue.last_tenant, -1)), jnp.int32(LAST)

    def fold(
        so_far: tuple[jax.Array, jax.Array, jax.Array], some: QueuedRequests
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Return the first tenant, the first after the last one served, and whether the last one still waits."""
        in_band = some.is_queued & of_band[some.slo_class]
        here = jnp.where(in_band, some.tenant, none)
        first, following, has_last = so_far
        return (
            jnp.minimum(first, jnp.min(here)),
            jnp.minimum(following, jnp.min(jnp.where(some.tenant > last, here, none))),
            has_last | jnp.any(in_band & (some.tenant == last)),
        )

    nobody = none, none, jnp.array(False)
    first, following, has_last = waiting.fold(of_band & params.round_robin, fold, nobody)
    return jnp.where(has_last & (following < none), following, first)


def _deadlines(ctx: Context, some: QueuedRequests) -> Int[Array, "row"]:
    target = queue_params(ctx).target_us[some.slo_class]
    if RequestTargets in ctx.requests:
        targets_us = some.rows.take(ctx.requests[RequestTargets].us)
        target = jnp.where(targets_us > 0, targets_us, target)
    entered = some.rows.take(ctx.requests.arrival).astype(jnp.int64)
    entered = entered + ctx.params.cluster.admission_latency_us
    return jnp.where(target == NO_DEADLINE, NO_DEADLINE, entered + target)

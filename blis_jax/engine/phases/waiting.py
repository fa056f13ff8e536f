"""The queue at the gateway: what waits in it, whether there is room, and who would be dispatched.

The requests in the queue are read by groups: a queue may be long, and the run much longer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jax import lax

from blis_jax.core.exact import exact_product, exact_quotient
from blis_jax.core.types import LAST, SLO_CLASSES
from blis_jax.tables.context import Context, count_of
from blis_jax.tables.gateways import Dispatches, GatewayQueue, Place, QueueParams
from blis_jax.tables.requests import Req, RequestTargets

if TYPE_CHECKING:
    from jaxtyping import Array, Bool, Int

    from blis_jax.core.groups import Rows

T = TypeVar("T")
NO_DEADLINE = jnp.iinfo(jnp.int64).max


class QueuedRequests(NamedTuple):
    """Some requests as the queue tells them apart."""

    number: Int[Array, "row"]
    is_queued: Bool[Array, "row"]
    band: Int[Array, "row"]  # priority
    tenant: Int[Array, "row"]
    slo_class: Int[Array, "row"]
    rows: Rows

    def first(self, mask: Bool[Array, "row"]) -> jax.Array:
        """Return the least number of those in the mask, a large one if there is none."""
        return jnp.min(jnp.where(mask, self.number, LAST))


@dataclass(frozen=True)
class Waiting:
    """The queue of a gateway as an event has it so far: one request may have entered it, others left it."""

    ctx: Context
    dispatches: Dispatches
    gateway: jax.Array
    entered: jax.Array  # the spare request: none; likewise the next
    left: tuple[jax.Array, ...] = ()

    def fold(self, fold: Callable[[T, QueuedRequests], T], first: T) -> T:
        """Return `Groups.over` of the groups that have a request in the queue."""
        groups = self.ctx.groups
        comes = lax.iota(jnp.int32, groups.count) == groups.of(self.entered)

        def of_rows(so_far: T, rows: Rows) -> T:
            return fold(so_far, self._requests(rows))

        return self.ctx.over((self.dispatches.num_waiting > 0) | comes, of_rows, first)

    def _requests(self, rows: Rows) -> QueuedRequests:
        table, place = rows.take(self.ctx.requests.table), rows.take(self.dispatches.place)
        is_queued = self.ctx.gateways.of_own(place == Place.QUEUED, self.gateway, rows.number)
        is_queued = is_queued | (rows.number == self.entered)
        for request in self.left:
            is_queued = is_queued & (rows.number != request)
        slo_class = table[:, Req.SLO_CLASS]
        band = queue_params(self.ctx).priority[slo_class]
        return QueuedRequests(
            rows.number, is_queued & rows.is_in, band, table[:, Req.TENANT], slo_class, rows
        )


class Entering(NamedTuple):
    """What the queue is before a request enters it."""

    in_band: jax.Array  # requests in its band
    lowest: jax.Array  # the lowest band of sheddable ones, a large number: none
    youngest: jax.Array  # the last to come of that band, -1: none
    oldest: jax.Array  # the first of all, a large number: none


class QueueHeads(NamedTuple):
    """The most urgent band of a queue, and who and what tenants are in it; large numbers stand for none."""

    band: jax.Array
    oldest: jax.Array
    tenant: jax.Array  # of the oldest
    first_tenant: jax.Array
    next_tenant: jax.Array  # the first one after the tenant served last
    has_last: jax.Array  # whether that one has some


class Pick(NamedTuple):
    """The request that would be dispatched, whether it is, and what follows from it."""

    request: jax.Array
    is_due: jax.Array
    last_tenant: Int[Array, "slo_class"]  # served last in each band then
    has_urgent: jax.Array  # whether one that is not sheddable waits


class QueueEntry(NamedTuple):
    """The effect of an arrival on the queue: it enters or not, and may shed a request."""

    enters: jax.Array
    sheds: jax.Array
    victim: jax.Array


def queue_params(ctx: Context) -> QueueParams:
    """Return the numbers of the queue."""
    return ctx.params.cluster[QueueParams]


def classes() -> jax.Array:
    """Return the number of each class."""
    return lax.iota(jnp.int32, len(SLO_CLASSES))


def left_in_queue(
    so_far: tuple[jax.Array, jax.Array], some: QueuedRequests
) -> tuple[jax.Array, jax.Array]:
    """Count those in the queue, and find which came first."""
    count, oldest = so_far
    return count + count_of(some.is_queued), jnp.minimum(oldest, some.first(some.is_queued))


def entry_of(
    ctx: Context, waiting: Waiting, num_queued: jax.Array, slo_class: jax.Array, asks: jax.Array
) -> tuple[QueueEntry, jax.Array]:
    """Decide whether an arrival finds room in its band and in the queue, or which less urgent request
    makes room for it; return that and who came to the queue first, the spare request if nobody is there.
    """
    params, spare = queue_params(ctx), jnp.int32(ctx.shape.num_requests)
    band = params.priority[slo_class]

    def fold(so_far: Entering, some: QueuedRequests) -> Entering:
        may_go = some.is_queued & (some.band < 0)
        lowest = jnp.min(jnp.where(may_go, some.band, jnp.int32(LAST)))
        youngest = jnp.max(jnp.where(may_go & (some.band == lowest), some.number, -1))
        kept = jnp.where(so_far.lowest <= lowest, so_far.youngest, -1)
        youngest = jnp.maximum(jnp.where(lowest <= so_far.lowest, youngest, -1), kept)
        return Entering(
            so_far.in_band + count_of(some.is_queued & (some.band == band)),
            jnp.minimum(so_far.lowest, lowest),
            youngest,
            jnp.minimum(so_far.oldest, some.first(some.is_queued)),
        )

    nobody = Entering(jnp.int32(0), jnp.int32(LAST), jnp.int32(-1), jnp.int32(LAST))
    before = waiting.fold(fold, nobody)
    is_band_full = (params.band_capacity > 0) & (before.in_band >= params.band_capacity)
    is_full = (params.max_depth > 0) & (num_queued >= params.max_depth)
    makes_room = params.sheds & (band > before.lowest)
    enters = asks & ~is_band_full & (~is_full | makes_room)
    victim = jnp.where(before.youngest < 0, spare, before.youngest)
    return QueueEntry(enters, enters & is_full, victim), jnp.minimum(before.oldest, spare)


def _ceiling(ctx: Context, has_band: Bool[Array, "slo_class"], band: jax.Array) -> jax.Array:
    """The saturation below which a band is served; the more urgent the band, the higher."""
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
    queue: GatewayQueue,
    waiting: Waiting,
    has_band: Bool[Array, "slo_class"],
    saturation: jax.Array,
) -> Pick:
    """Return the request that would be dispatched.

    Ceilings fall with the bands, so the first band with a request decides.
    """
    params, spare = queue_params(ctx), jnp.int32(ctx.shape.num_requests)
    heads = _heads(params, queue, waiting)
    following = jnp.where(
        heads.has_last & (heads.next_tenant < LAST), heads.next_tenant, heads.first_tenant
    )
    tenant = jnp.where(params.round_robin, following, heads.tenant)

    def fold(
        so_far: tuple[jax.Array, jax.Array, jax.Array], some: QueuedRequests
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        first, least, soonest = so_far
        in_flow = some.is_queued & (some.band == heads.band) & (some.tenant == tenant)
        deadline = jnp.where(in_flow, _deadlines(ctx, some), NO_DEADLINE)
        earliest = jnp.min(deadline)
        here = some.first(in_flow & (deadline == earliest))
        kept = jnp.where(least <= earliest, soonest, LAST)
        here = jnp.where(earliest <= least, here, LAST)
        nearest = jnp.minimum(least, earliest)
        return jnp.minimum(first, some.first(in_flow)), nearest, jnp.minimum(here, kept)

    nobody = jnp.int32(LAST), jnp.int64(NO_DEADLINE), jnp.int32(LAST)
    first, _, soonest = waiting.fold(fold, nobody)
    of_band = params.priority == heads.band
    ceiling = _ceiling(ctx, has_band, heads.band)
    return Pick(
        request=jnp.minimum(jnp.where(params.by_deadline, soonest, first), spare),
        is_due=(heads.oldest < LAST) & (saturation < ceiling),
        last_tenant=jnp.where(of_band, tenant, queue.last_tenant),
        has_urgent=heads.band >= 0,
    )


def _heads(params: QueueParams, queue: GatewayQueue, waiting: Waiting) -> QueueHeads:
    same = params.priority[None, :] == params.priority[:, None]
    last_of = jnp.max(jnp.where(same, queue.last_tenant[None, :], -1), axis=1)

    def fold(so_far: QueueHeads, some: QueuedRequests) -> QueueHeads:
        band = jnp.max(jnp.where(some.is_queued, some.band, -jnp.int32(LAST)))
        in_band, last = some.is_queued & (some.band == band), last_of[some.slo_class]
        oldest = some.first(in_band)

        def first_of(mask: Bool[Array, "row"]) -> jax.Array:
            return jnp.min(jnp.where(in_band & mask, some.tenant, jnp.int32(LAST)))

        here = QueueHeads(
            band,
            oldest,
            first_of(some.number == oldest),
            first_of(in_band),
            first_of(some.tenant > last),
            jnp.any(in_band & (some.tenant == last)),
        )
        is_older = (so_far.oldest <= here.oldest) & (so_far.band == band)
        both = QueueHeads(
            band,
            jnp.minimum(so_far.oldest, here.oldest),
            jnp.where(is_older, so_far.tenant, here.tenant),
            jnp.minimum(so_far.first_tenant, here.first_tenant),
            jnp.minimum(so_far.next_tenant, here.next_tenant),
            so_far.has_last | here.has_last,
        )
        merged = jax.tree.map(lambda a, b: jnp.where(so_far.band == band, a, b), both, here)
        return jax.tree.map(lambda a, b: jnp.where(so_far.band > band, a, b), so_far, merged)

    none = jnp.int32(LAST)
    return waiting.fold(fold, QueueHeads(-none, none, none, none, none, jnp.array(False)))


def _deadlines(ctx: Context, some: QueuedRequests) -> Int[Array, "row"]:
    target = queue_params(ctx).target_us[some.slo_class]
    if RequestTargets in ctx.requests:
        targets_us = some.rows.take(ctx.requests[RequestTargets].us)
        target = jnp.where(targets_us > 0, targets_us, target)
    entered = some.rows.take(ctx.requests.arrival).astype(jnp.int64)
    entered = entered + ctx.params.cluster.admission_latency_us
    return jnp.where(target == NO_DEADLINE, NO_DEADLINE, entered + target)

"""The rules of pools at the gateway and between steps: a value of the context, chosen when a program is built.

Without pools a request is served by the instance to which it is routed. As in February, its KV moves from a prefill to
a decode pool; or, as in August, both instances are chosen at the routing and KV is reserved, see reservation.py.

A split request waits in the gateway's queue once, as a whole. Its parts are routed in the order of dispatch, and a tick
of the queue comes after the transfers that end in its microsecond. Requests of tenants above their share are rejected
at the same place, whatever the admission policy. Source: BLIS as of August 2026, `sim/cluster/cluster.go` and
`pd_events.go`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp

from blis_jax.core.types import LAST, Mechanism, never
from blis_jax.engine.calendar import EventKind
from blis_jax.engine.phases.departures.hand_over import STAYING, HandingOver, Splitting, Staying
from blis_jax.engine.phases.departures.reservation import (
    begin_transfer,
    encoded,
    in_role,
    or_split,
    ranks_in_queue,
)
from blis_jax.engine.phases.snapshot import (
    behind_transfers,
    comes_with_kv,
    in_pool,
    num_on_their_way,
)
from blis_jax.policies.reading import seen_by
from blis_jax.policies.seeds import RandomSource
from blis_jax.tables.context import Context, count_of
from blis_jax.tables.gateways import BeforePools, GatewayQueue, States, TenantBudgets
from blis_jax.tables.joined import lane_of, places_of, queued_times
from blis_jax.tables.journeys import Journey, Journeys, Reservation, Reservations
from blis_jax.tables.requests import PartRank, PartRanks, Req
from blis_jax.tables.state import Resident, Slot, State

if TYPE_CHECKING:
    from jaxtyping import Array, Bool

    from blis_jax.core.groups import Rows
    from blis_jax.engine.phases.decisions import Decisions
    from blis_jax.policies.contexts import GatewayContext
    from blis_jax.policies.contract import Policy
    from blis_jax.tables.context import Context
    from blis_jax.tables.writes import Writes

    Deadline = tuple[jax.Array, jax.Array, tuple[jax.Array, ...]]
    Routed = Callable[[], Writes]

_TARGET = Reservation.columns.TARGET

# --- KV is handed over ----------------------------------------------------------------------------


def _in_pool(
    ctx: Context, state: State, context: GatewayContext, source: RandomSource, request: jax.Array
) -> GatewayContext:
    """Return the context with only the request's pool active; if the pool has no active instance, with all active."""
    (policy, _), seen = ctx.mechanism.at_gateway("hand_over"), context.snapshots
    if policy.pool is None:
        return dataclasses.replace(context, is_decode=context.computed_tokens > 0)
    pool = policy.pool(ctx.params.policy.hand_over, seen_by(policy, context))
    is_mine = seen.is_active & pool.instances
    is_mine = jnp.where(jnp.any(is_mine), is_mine, seen.is_active)
    snapshots = dataclasses.replace(seen, is_active=is_mine)
    return dataclasses.replace(context, snapshots=snapshots, is_decode=pool.is_decode)


# --- KV is reserved -------------------------------------------------------------------------------


def _in_role(
    ctx: Context, state: State, context: GatewayContext, source: RandomSource, request: jax.Array
) -> GatewayContext:
    is_decode = state[Reservations].of(request).target < 0
    return context if source == RandomSource.ADMISSION else in_role(context, is_decode)


def _may_take(ctx: Context, state: State, request: jax.Array, is_active: jax.Array) -> jax.Array:
    is_decode = state[Reservations].of(request).target < 0
    return in_pool(is_active, ctx.params.cluster.roles[: is_active.shape[0]], is_decode)


def _behind_last(ctx: Context, state: State, now: jax.Array, policy: Policy, place: int) -> State:
    """Return the state after the transfers that end now, if the cluster policy comes last; else unchanged."""
    if policy.comes_last is None:
        return state
    is_last = policy.comes_last(ctx.params.policy.cluster, state.gateway[place])
    return behind_transfers(ctx, state, now, is_last)


def _next_part(ctx: Context, state: State) -> jax.Array:
    """Return the next request to route in the prefill pool, in order of dispatch; else the one whose transfer starts
    next, that with the least id as a text.
    """
    journeys = state[Journeys]
    now = jnp.min(journeys.first_due)

    def least(best: tuple[jax.Array, jax.Array], rows: Rows) -> tuple[jax.Array, jax.Array]:
        """Return the least rank among the requests that are due, and the request that has it."""
        due = rows.take(journeys.times)[:, Journey.time_columns.DUE]
        has_kv = rows.take(journeys.numbers)[:, Journey.columns.COMPUTED] > 0
        text = rows.take(ctx.requests[PartRanks].table)[:, PartRank.PREFILL_TEXT]
        turn = rows.take(state[GatewayQueue].turn) if GatewayQueue in state else rows.number
        rank = jnp.where(has_kv, text + jnp.int32(ctx.shape.num_requests), turn)
        rank = jnp.where((due == now) & rows.is_in, rank, LAST)
        first = jnp.argmin(rank)
        is_less = rank[first] < best[0]
        return jnp.minimum(rank[first], best[0]), jnp.where(is_less, rows.number[first], best[1])

    is_open = (journeys.first_due == now) & (now < ctx.never)
    return ctx.over(is_open, least, (jnp.int32(LAST), jnp.int32(0)))[1]


def _moved(
    ctx: Context, state: State, request: jax.Array, now: jax.Array, routed: Routed
) -> Writes:
    has_kv = state[Journeys].of(request).computed > 0
    return ctx.when(has_kv, lambda: begin_transfer(ctx, state, request, now), routed)


def _deadline_of_part(
    ctx: Context, state: State, time: jax.Array, request: jax.Array, is_there: jax.Array
) -> Deadline:
    """Return the next deadline; a request whose KV is on its way is given up no earlier than the KV arrives."""
    rank, spare = _ranks(ctx, state), ctx.spare_request
    queued = queued_times(state, ctx.shape.num_instances)
    is_coming = (rank < spare) & (queued < ctx.never) & is_there
    is_late = is_coming & (time < queued)
    time = jnp.where(is_coming & (time < ctx.never), jnp.maximum(time, queued), time)
    least = jnp.min(time)
    is_overdue = jnp.any(is_late & (time == least))
    is_next = (time == least) & (is_late | ~is_overdue)
    first = jnp.min(jnp.where(is_next, rank, jnp.int32(LAST)))
    return least, jnp.min(jnp.where(is_next & (rank == first), request, spare)), (is_overdue,)


def _part_has_come(ctx: Context, row: Resident, now: jax.Array) -> jax.Array:
    is_first = row.queue_rank < ctx.shape.num_requests
    return (row.queued < now) | ((row.queued == now) & is_first)


# --- all of it ------------------------------------------------------------------------------------


def _deadline(
    ctx: Context, state: State, time: jax.Array, request: jax.Array, is_there: jax.Array
) -> Deadline:
    least, rank, spare = jnp.min(time), _ranks(ctx, state), ctx.spare_request
    first = jnp.min(jnp.where(time == least, rank, jnp.int32(LAST)))
    return least, jnp.min(jnp.where((time == least) & (rank == first), request, spare)), ()


def _ranks(ctx: Context, state: State) -> jax.Array:
    return state.slot.numbers[Slot.QUEUE_RANK, : ctx.shape.num_instances]


def _own_rank(ctx: Context, state: State, request: jax.Array) -> jax.Array:
    return state[GatewayQueue].turn[request]


def _first_due(ctx: Context, state: State) -> jax.Array:
    journeys = state[Journeys]
    rows = ctx.groups.rows(jnp.argmin(journeys.first_due).astype(jnp.int32))
    due = jnp.where(rows.is_in, rows.take(journeys.times)[:, Journey.time_columns.DUE], ctx.never)
    return rows.number[jnp.argmin(due)]


@dataclass(frozen=True)
class Pools:
    """Hold the functions of a mechanism's pools; the defaults keep requests on the instance of their routing."""

    steps: Staying = STAYING  # what steps do for requests that move on
    holds_waiting: bool = False  # a request that waits may hold blocks
    # the context of a decision, in which only instances of the request's pool are active
    seen: Callable[..., GatewayContext] = lambda ctx, state, context, source, request: context
    # a request placed on the chosen instance, or not yet: `or_split`
    placed: Callable[..., Decisions] = lambda ctx, state, base, placed, routed: placed
    # the gateway's policies once a request is also routed in the encode pool: `encoded`
    encoded: Callable[..., States] = lambda ctx, state, gateway, request, context: gateway
    # from a routing to the instance's queue
    delay: Callable[[GatewayContext, jax.Array], jax.Array] = lambda context, delay: delay
    # among others of one arrival, and among those queued in one microsecond
    ranks: Callable[..., tuple[jax.Array, jax.Array]] = lambda ctx, request, context: (
        context.request.tie_rank,
        context.request.queue_rank,
    )
    # the latter of the request dispatched as this number, and of one that has left an instance
    rank_of_dispatched: Callable[..., jax.Array] = lambda ctx, state, number: number
    rank_again: Callable[[Context, State, jax.Array], jax.Array] = _own_rank
    # which of the active instances a request may be routed to
    may_take: Callable[..., Bool[Array, "instance"]] = lambda ctx, state, request, active: active
    # what the router counts of the requests at each instance
    load: Callable[..., jax.Array] = lambda ctx, state, load, now: load
    # which requests on their way an instance waits for that was told to go
    is_coming: Callable[..., Bool[Array, "instance slot"]] = lambda ctx, state, coming: coming
    # the state as the cluster policy sees it, whose own state is at this place
    at_change: Callable[..., State] = lambda ctx, state, now, policy, place: state
    # whose transfer ends first; of several, the one that arrived first
    next_to_move: Callable[[Context, State], jax.Array] = _first_due
    # what the end of its transfer changes
    moved: Callable[..., Writes] = lambda ctx, state, request, now, routed: routed()
    # when the next request is given up, which, and with reserved KV, whether its time was up before that came
    deadline: Callable[[Context, State, jax.Array, jax.Array, jax.Array], Deadline] = _deadline
    # whether a request has come to the queue of its instance
    has_come: Callable[..., jax.Array] = lambda ctx, row, now: row.queued < now
    # which of the requests at instances the gateway's queue may evict
    may_be_evicted: Callable[..., Bool[Array, "..."]] = lambda state, request: request >= 0


ONE_POOL = Pools()
HANDED_OVER = Pools(
    HandingOver(),
    seen=_in_pool,
    # its KV is there, and it has been tokenized
    delay=lambda context, delay: jnp.where(context.computed_tokens > 0, 0.0, delay),
)
RESERVED = Pools(
    Splitting(),
    holds_waiting=True,
    seen=_in_role,
    placed=or_split,
    ranks=lambda ctx, request, context: ranks_in_queue(ctx, request, context.is_decode),
    rank_of_dispatched=lambda ctx, state, number: rank_behind_queue(ctx, state),
    rank_again=lambda ctx, state, request: rank_behind_queue(ctx, state),
    may_take=_may_take,
    load=lambda ctx, state, load, now: load - num_on_their_way(ctx, state, now),
    is_coming=lambda ctx, state, is_coming: (
        is_coming & ~comes_with_kv(ctx, state, ctx.shape.num_instances)
    ),
    at_change=_behind_last,
    next_to_move=_next_part,
    moved=_moved,
    deadline=_deadline_of_part,
    has_come=_part_has_come,
    # BLIS keeps only whole requests in mind for an eviction
    may_be_evicted=lambda state, request: state[Reservations].numbers[request, _TARGET] < 0,
)


ENCODED_AND_RESERVED = dataclasses.replace(RESERVED, encoded=encoded)


def pools_of(mechanism: Mechanism) -> Pools:
    """Return the pool rules of a mechanism."""
    kinds = (
        (ONE_POOL, True),
        (HANDED_OVER, mechanism.hand_over is not None),
        (RESERVED, mechanism.reserves_decode),
        (ENCODED_AND_RESERVED, mechanism.reserves_decode and mechanism.encodes),
    )
    return [pools for pools, is_so in kinds if is_so][-1]


def with_tick(state: State, now: jax.Array, kind: jax.Array) -> State:
    """Return the state with `now` noted if a tick is due, where the state keeps the times of ticks."""
    if BeforePools not in state:
        return state
    before = state[BeforePools]
    ticked = jnp.where(kind == EventKind.TICK, now, before.ticked)
    return state.having(dataclasses.replace(before, ticked=ticked))


def rank_behind_queue(ctx: Context, state: State) -> jax.Array:
    """Return the rank of the next routed request among those that enter an instance's queue in one microsecond.

    The rank counts all routings so far, first and second ones; ranks of transfers are below all of these.
    """
    num_routed = lane_of(ctx, state).next_route + state[BeforePools].num_again
    return ctx.spare_request + num_routed


def is_between(reserved: Reservations, request: jax.Array, now: jax.Array) -> jax.Array:
    """Return which requests have their prompt computed, but no finished transfer: it lasts, or was dropped."""
    ends = reserved.times[request, 0]
    is_coming = (ends >= now) & (ends < never(ends.dtype))
    return is_coming | (reserved.numbers[request, Reservation.columns.IS_DROPPED] == 1)


def is_over_budget(ctx: Context, state: State, request: jax.Array, now: jax.Array) -> jax.Array:
    """Return whether a sheddable request's tenant has more requests at the instances than its share.

    A request counts from its routing until it completes, is dropped or gives up; a split request does not count between
    the end of its prompt and the end of its transfer.
    """
    budgets, rows = ctx.params.cluster[TenantBudgets], ctx.shape.num_instances
    fixed, columns = ctx.request(request), state.slot.numbers[:, :rows]
    is_there = (columns[Slot.REQUEST] >= 0) & (columns[Slot.TENANT] == fixed.tenant)
    if Reservations in state:
        is_there = is_there & ~is_between(
            state[Reservations], ctx.row_of(columns[Slot.REQUEST]), now
        )
    count = count_of(is_there)
    if Journeys in state:
        count = count + _num_moving(ctx, state, fixed.tenant)
    count = count.astype(jnp.float64)
    last = jnp.int32(budgets.limit.shape[0] - 1)
    limit = budgets.limit[jnp.minimum(fixed.tenant, last)]
    is_sheddable = budgets.priority[fixed.slo_class] < 0
    over: jax.Array = is_sheddable & (fixed.tenant <= last) & (count > limit)
    return over


def _num_moving(ctx: Context, state: State, tenant: jax.Array) -> jax.Array:
    """Return how many requests of a tenant have left an instance and are still to be routed to the next."""
    journeys = state[Journeys]

    def count(so_far: jax.Array, rows: Rows) -> jax.Array:
        is_moving = rows.take(journeys.times)[:, Journey.time_columns.DUE] < ctx.never
        is_mine = rows.take(ctx.requests.table)[:, Req.TENANT] == tenant
        has_place = rows.take(places_of(state)) >= 0
        return so_far + count_of(is_moving & is_mine & has_place & rows.is_in)

    return ctx.over(journeys.first_due < ctx.never, count, jnp.int32(0))

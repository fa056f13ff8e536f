"""What waits and preemptions leave in the records: each time that a request is scheduled begins a life.

An evicted request starts again with its prompt, but the inter-token latencies of its earlier lives stay recorded, and
so does its first token until a later life overwrites it. Waits at the gateway and early departures from instances are
read off the engine's tables too. `xp` is numpy, or JAX in a compiled call.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from blis_jax.core.arrays import clipped, replaced, sums
from blis_jax.core.types import never
from blis_jax.records.record import Status
from blis_jax.tables.blocks import PASSED_OVER, Eviction, Life
from blis_jax.tables.gateways import Dispatches, Place
from blis_jax.tables.journeys import (
    ORPHANED,
    Exits,
    FirstRoutings,
    Journey,
    Orders,
    PaidTime,
    paid_until,
)
from blis_jax.tables.raw import BlockRecords
from blis_jax.tables.state import Dyn, Inst, InstTime, Log, LogTime

if TYPE_CHECKING:
    from types import ModuleType

    from jaxtyping import Bool, Int

    from blis_jax.core.arrays import Values
    from blis_jax.core.types import ClusterParams
    from blis_jax.tables.raw import Raw


_AT_GATEWAY = {
    Place.QUEUED: Status.IN_GATEWAY,
    Place.REJECTED: Status.QUEUE_FULL,
    Place.SHED: Status.SHED,
    Place.EXPIRED: Status.EXPIRED,
    Place.EVICTED: Status.EVICTED,
}
_DISPATCHED = (Place.DISPATCHED, Place.EVICTED, Place.CHOSEN)


@dataclass(frozen=True)
class Timeouts:
    """The time from arrival after which each request gives up, µs; present only if some request has such a time."""

    timeout_us: Int[np.ndarray, "request"]


def gateway_waits(
    raw: Raw, routed_us: Values, latency_us: Values, xp: ModuleType = np
) -> tuple[Any, dict[str, Values]]:
    """Return when each request is routed, and, if the gateway has a queue, the column `gateway_wait_us`.

    The column is the wait at the gateway before routing, −1 if the request was not dispatched.

    Args:
        raw: the run's tables.
        routed_us: when each request would be routed without a wait `[request]`.
        latency_us: time from dispatch to routing.
        xp: numpy or JAX.
    """
    if Dispatches not in raw:
        return routed_us, {}
    dispatches, size = raw[Dispatches], len(routed_us)
    is_dispatched = xp.isin(dispatches.place[:size], np.array(_DISPATCHED))
    wait = dispatches.at[:size].astype(routed_us.dtype) + latency_us - routed_us
    waits = {"gateway_wait_us": xp.where(is_dispatched, wait, -1)}
    return routed_us + xp.where(is_dispatched, wait, 0), waits


def routed_later(raw: Raw, routed_us: Values, xp: ModuleType = np) -> Values:
    """Return when each request is routed, given the times `routed_us` for a cluster with an instance always up."""
    if FirstRoutings not in raw:
        return routed_us
    routed_at = raw[FirstRoutings].at[: len(routed_us)]
    is_later = (routed_at != never(routed_at.dtype)) & (routed_at > routed_us)
    return xp.where(is_later, routed_at.astype(routed_us.dtype), routed_us)


def final_status(raw: Raw, dyn: Values, status: Values, xp: ModuleType = np) -> Values:
    """Return the status of each request; `status` leaves out waits at the gateway and requests that give up."""
    size = len(dyn)
    if Exits in raw:
        scheduled = dyn[:, Dyn.NUM_SCHEDULED]
        is_late = (scheduled < 0) & (scheduled % 2 == 0)  # its time was up before it was queued
        has_left = (raw[Exits].step_index[:size] != 0) | is_late
        status = xp.where(has_left, int(Status.TIMED_OUT), status)
    for place, left in _AT_GATEWAY.items() if Dispatches in raw else ():
        status = xp.where(raw[Dispatches].place[:size] == place, int(left), status)
    return status


def orphaned_us(
    raw: Raw, rows: int, time_type: np.dtype | type[np.number], xp: ModuleType = np
) -> Any:
    """Return when each instance was due to begin a step but had no request left, µs; 0: not since its last step."""
    if Exits not in raw:
        return 0
    busy_until = raw.inst_time[InstTime.BUSY_UNTIL, :rows].astype(time_type)
    return xp.where(raw[Exits].keeps_batch[:rows] == ORPHANED, busy_until, 0)


@dataclass(frozen=True)
class Lives:
    """The lives of a run's requests, one entry per request unless a shape says otherwise; times in µs."""

    evictions: Int[np.ndarray, "preemption column"]
    is_eviction: Bool[np.ndarray, "preemption"]  # else the row is there for its room alone
    num_itl: Int[np.ndarray, "preemption"]  # latencies recorded in the life that ended
    is_forgotten: Bool[np.ndarray, "preemption"]  # the profile has dropped these latencies
    num_preempted: Int[np.ndarray, "request"]
    # from the queue; not the one that follows a hand-over
    num_scheduled: Values
    scheduled_record: Values  # step record of the latest of these
    num_handed: Values | int  # 1 once it goes on elsewhere after a hand-over, else 0
    in_batch: Bool[np.ndarray, "request"]  # or completed: the current life was not ended
    in_decode: Bool[np.ndarray, "request"]  # of those in the batch
    token_record: Values  # step record of the first token, -1: none
    token_scheduled: Int[np.ndarray, "request"]  # record in which that token's life was scheduled
    is_current_token: Bool[np.ndarray, "request"]  # it was recorded in the current life
    past_num_itl: Int[np.ndarray, "request"]  # latencies recorded in earlier lives
    past_itl_us: Int[np.ndarray, "request"]  # and their sum, without output processing
    # time of steps since the first token in which the request got nothing
    passed_over_us: Values | int
    preempted_service_us: Int[np.ndarray, "request"]  # in the batch before the token's life


def lives_of(raw: Raw, dyn: Values, log: Values, log_time: Values, xp: ModuleType = np) -> Lives:
    """Derive the lives of one run from its raw tables, int64; without preemptions each request has one life.

    In a compiled call (`xp` is JAX) `evictions` has as many rows as the table of preemptions has room for.
    """
    n = len(dyn)
    evictions, is_eviction, passed_over_us = _eviction_rows(raw, dyn, log_time, xp)
    request = xp.where(is_eviction, evictions[:, Eviction.REQUEST], -1)
    of = xp.maximum(request, 0)
    num_preempted = sums(request, is_eviction, n)
    scheduled = dyn[:, Dyn.NUM_SCHEDULED]
    in_batch = scheduled > num_preempted
    in_decode = in_batch & (dyn[:, Dyn.TOKEN_INDEX] > 0)
    in_decode &= dyn[:, Dyn.TOKEN_INDEX] >= dyn[:, Dyn.SCHEDULED_INDEX]
    current = xp.where(in_decode, dyn[:, Dyn.TOKEN_RECORD], -1)
    token_record = (
        xp.asarray(raw[BlockRecords].life)[:n, Life.FIRST_TOKEN].astype(np.int64) - 1
        if BlockRecords in raw
        else current
    )
    is_forgotten = is_eviction & (evictions[:, Eviction.DECODE_RECORD] < 0)
    num_itl, itl_us = _ended(evictions, log, log_time, xp)
    # where latencies are forgotten, the life's first token is reported until there is another
    begun = abs(evictions[:, Eviction.DECODE_RECORD]) - 1
    token = xp.where(is_forgotten, begun, evictions[:, Eviction.FIRST_TOKEN] - 1)
    is_its = is_eviction & (token >= 0) & (token == token_record[of])
    is_its &= token == begun
    token_scheduled = replaced(
        dyn[:, Dyn.SCHEDULED_RECORD], request, is_its, evictions[:, Eviction.SCHEDULED_RECORD]
    )
    is_before = evictions[:, Eviction.RECORD] <= token_scheduled[of]
    spent = xp.zeros(len(evictions), np.int64)
    if len(log):
        start = log_time[:, LogTime.START]
        last = len(log) - 1
        spent = start[xp.minimum(evictions[:, Eviction.RECORD], last)]
        spent = spent - start[xp.minimum(evictions[:, Eviction.SCHEDULED_RECORD], last)]
    return Lives(
        evictions=evictions,
        is_eviction=is_eviction,
        num_itl=num_itl,
        is_forgotten=is_forgotten,
        num_preempted=num_preempted,
        num_scheduled=times_scheduled(scheduled, xp),
        scheduled_record=dyn[:, Dyn.SCHEDULED_RECORD],
        num_handed=0,
        in_batch=in_batch,
        in_decode=in_decode,
        token_record=token_record,
        token_scheduled=token_scheduled,
        is_current_token=(token_record >= 0) & (token_record == current),
        past_num_itl=sums(request, xp.where(is_forgotten, 0, num_itl), n),
        past_itl_us=sums(request, xp.where(is_forgotten, 0, itl_us), n),
        passed_over_us=passed_over_us,
        preempted_service_us=sums(request, xp.where(is_before, spent, 0), n),
    )


def times_scheduled(column: Values, xp: ModuleType = np) -> Values:
    """Decode the column NUM_SCHEDULED: return how often each request was scheduled.

    The column has −1 − 2 n for a request dropped after n times, and one less if the request timed out.
    """
    return xp.where(column < 0, (-1 - column) // 2, column)


def _eviction_rows(raw: Raw, dyn: Values, log_time: Values, xp: ModuleType) -> tuple[Any, Any, Any]:
    """Return the rows of preemptions, which of them are not padding, and each request's time passed over."""
    if BlockRecords not in raw:
        return xp.zeros((0, len(Eviction)), np.int64), xp.zeros(0, bool), 0
    evictions, is_entry = raw[BlockRecords].rows(xp)
    is_over = is_entry & (evictions[:, Eviction.SCHEDULED_RECORD] == PASSED_OVER)
    is_eviction = is_entry & (evictions[:, Eviction.SCHEDULED_RECORD] >= 0)
    passed_over_us = _passed_over(evictions, is_over, dyn, log_time, xp)
    if xp is np:  # only preemptions have rows
        evictions, is_eviction = evictions[is_eviction], is_eviction[is_eviction]
    return evictions, is_eviction, passed_over_us


def moved(
    lives: Lives, journey: Journey, xp: ModuleType, is_reserved: bool, keeps_first: bool
) -> Lives:
    """Return the lives, corrected for requests that moved after their first token to another instance.

    If KV is reserved, a request that arrives with it counts as if its first token were in the step before. With
    `keeps_first` the first token of an earlier life counts, even if a later life was handed over.
    """
    is_elsewhere = journey.first_record >= 0
    # times in a batch that have ended without an eviction
    in_batch = lives.in_batch & (lives.num_scheduled > lives.num_preempted + journey.ended)
    has_joined = is_elsewhere & in_batch & (journey.joined_record == lives.scheduled_record)
    has_joined = has_joined.astype(np.int64)
    # a life that began with its KV has a latency in its first step, too
    request = xp.where(lives.is_eviction, lives.evictions[:, Eviction.REQUEST], -1)
    began = journey.joined_record[xp.maximum(request, 0)]
    more = lives.is_eviction & (began == lives.evictions[:, Eviction.SCHEDULED_RECORD])
    more = (more & (lives.evictions[:, Eviction.DECODE_RECORD] > 0)).astype(np.int64)
    has_other = is_elsewhere  # its first token was made in the life that was handed over
    if keeps_first:
        has_other = is_elsewhere & (lives.token_record == journey.first_record)
    return dataclasses.replace(
        lives,
        num_itl=lives.num_itl + more,
        num_scheduled=lives.num_scheduled - journey.joins,
        # preemptions before a hand-over are not told from those after it
        preempted_service_us=xp.where(is_elsewhere, 0, lives.preempted_service_us),
        past_num_itl=lives.past_num_itl
        + journey.past_itl
        + sums(request, more, len(lives.in_batch)),
        scheduled_record=xp.where(is_elsewhere, journey.scheduled_record, lives.scheduled_record),
        num_handed=0 if is_reserved else has_joined,
        in_batch=in_batch,
        in_decode=(lives.in_decode | (is_reserved & (has_joined > 0))) & in_batch,
        token_record=xp.where(has_other, journey.first_record, lives.token_record),
        token_scheduled=xp.where(has_other, journey.scheduled_record, lives.token_scheduled),
        is_current_token=lives.is_current_token & ~is_elsewhere,
    )


def _passed_over(
    evictions: Values, is_over: Values, dyn: Values, log_time: Values, xp: ModuleType
) -> Any:
    """Return the time of the steps that passed each request over in its current life."""
    if not len(evictions) or not len(log_time):
        return 0
    request = xp.where(is_over, evictions[:, Eviction.REQUEST], 0)
    record = xp.minimum(evictions[:, Eviction.RECORD], len(log_time) - 1)
    is_current = is_over & (evictions[:, Eviction.RECORD] > dyn[request, Dyn.TOKEN_RECORD])
    is_current &= evictions[:, Eviction.RECORD] > dyn[request, Dyn.SCHEDULED_RECORD]
    spent = xp.where(is_current, log_time[record, LogTime.DURATION], 0)
    return sums(xp.where(is_over, request, -1), spent, len(dyn))


def _ended(evictions: Values, log: Values, log_time: Values, xp: ModuleType) -> tuple[Any, Any]:
    """Return number and sum, µs, of the latencies of each ended life, from its first token to its eviction."""
    if not len(evictions) or not len(log):
        nothing = xp.zeros(len(evictions), np.int64)
        return nothing, nothing
    last = len(log) - 1
    decode_record = xp.abs(evictions[:, Eviction.DECODE_RECORD])
    has_decode = decode_record > 0
    began = clipped(decode_record - 1, last)
    ended = xp.minimum(evictions[:, Eviction.RECORD], last)
    total = log_time[:, LogTime.TOTAL_DURATION]
    step_us = log[ended, Log.NUM_STEPS] * log_time[ended, LogTime.DURATION]
    count = evictions[:, Eviction.INDEX] - 1 - evictions[:, Eviction.DECODE_INDEX]
    spent = total[ended] - step_us - total[began]
    return xp.where(has_decode, count, 0), xp.where(has_decode, spent, 0)


def num_instances(raw: Raw, cluster: ClusterParams) -> Values:
    """Return the number of instances of the cluster, including those created during the run."""
    made = (raw[Orders].number > 0).sum() if Orders in raw else 0
    return cluster.num_instances + made


def paid_us(raw: Raw, cluster: ClusterParams, ended_us: Values, xp: ModuleType = np) -> Any:
    """Return the time for which each instance is paid, µs `[instance]`, up to the last event on any instance.

    Args:
        raw: the engine's tables.
        cluster: its numbers, `ClusterParams`.
        ended_us: the latest event of every instance, `[instance]`.
        xp: numpy, or JAX in a compiled call.
    """
    rows, end = len(ended_us), xp.max(ended_us)
    is_there = xp.arange(rows) < num_instances(raw, cluster)
    if PaidTime not in raw:
        return xp.where(is_there, end, 0)
    paid = raw[PaidTime]

    def wide(times: Values) -> Any:
        return xp.asarray(times).astype(ended_us.dtype)

    so_far = PaidTime(paid.is_held[:rows], wide(paid.paid_us[:rows]), wide(paid.until))
    busy_until = wide(raw.inst_time[InstTime.BUSY_UNTIL, :rows])
    end = xp.maximum(end, so_far.until)
    total = paid_until(so_far, raw.inst[Inst.LOAD, :rows], busy_until, end, xp)
    return xp.where(is_there, total, 0)

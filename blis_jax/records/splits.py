"""The columns that hand-overs and stops of instances add to request records, and the parts of split requests.

A request is split if its prompt is computed on another instance, in BLIS's revision of August 2026.
Source: `projectPDMetrics` in `sim/cluster/cluster.go`. Times of the prefill part stand for the scheduling delay, those
of the decode part for E2E, and TTFT is the decode part's scheduling delay with its first inter-token latency.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from blis_jax.core.arrays import maxima
from blis_jax.core.types import never
from blis_jax.core.views import AnswerCuts
from blis_jax.lazy import jax
from blis_jax.records.record import Status
from blis_jax.records.stays import Timeouts
from blis_jax.tables.blocks import PASSED_OVER, Eviction
from blis_jax.tables.journeys import Journey, Reservation
from blis_jax.tables.raw import BlockRecords
from blis_jax.tables.state import Dyn, Log, LogTime

if TYPE_CHECKING:
    from blis_jax.core.arrays import Values
    from blis_jax.records.observation import Observation
    from blis_jax.records.record import InstanceRecords, RequestRecords

    Columns = dict[str, Any]


def is_on_its_way(journey: Journey, clock: np.dtype) -> Values:
    """Return which requests have left one instance and are not yet routed to another `[request]`."""
    return journey.due != never(clock)


def has_moved(journey: Journey) -> Values:
    """Return which requests ran on several instances, or have attempts that no longer count `[request]`."""
    return (journey.first_record >= 0) | (journey.restarts > 0)


def left_preempted(
    requests: RequestRecords, instances: InstanceRecords, is_there: bool = False
) -> Any:
    """Return which requests may have been preempted on an instance before it went down `[request]`.

    Only requests in flight or dropped are considered; with `is_there` all requests.
    """
    was_down: Any = (instances.times_down > 0).any(axis=-1)
    status = requests.status
    is_away = is_there | (status == Status.IN_FLIGHT) | (status == Status.DROPPED)
    return was_down[..., None] & is_away & (requests.preemptions > 0)


def after_moves(seen: Observation) -> Columns:
    """Return the columns `transfer_us`, `handed_wait_us` (both −1 if not ended), `hand_overs` and `restarts`."""
    xp, nothing = seen.xp, np.full(seen.num_requests, -1)
    if Journey not in seen:
        none = np.zeros(seen.num_requests, np.int64)
        times = {"transfer_us": nothing, "handed_wait_us": nothing}
        return times | {"hand_overs": none, "restarts": none}
    journey = seen[Journey]
    has_come = (journey.first_record >= 0) & ~is_on_its_way(journey, journey.times.dtype)
    left = seen.ends(xp.maximum(journey.first_record, 0))
    transfer = journey.transfer.astype(left.dtype)
    wait = seen.starts(xp.maximum(journey.joined_record, 0)) - left - transfer
    return {
        "transfer_us": xp.where(has_come, transfer, nothing),
        "handed_wait_us": xp.where(has_come & (journey.joined_record >= 0), wait, nothing),
        "hand_overs": (journey.first_record >= 0).astype(np.int64),
        "restarts": journey.restarts.astype(np.int64),
    }


@dataclass(frozen=True)
class SplitRecords:
    """One entry per request; times in µs, -1 where it never happened, and for requests that were not split."""

    is_split: np.ndarray
    prefill_instance: np.ndarray
    prefill_sched_delay_us: np.ndarray
    # end of the step that computed its prompt, output processing included, less arrival
    prefill_ttft_us: np.ndarray
    prefill_left_us: np.ndarray  # absolute end of that step
    transfer_at_us: np.ndarray  # absolute start of that step, which begins the transfer
    decode_instance: np.ndarray  # where its tokens are made, or would have been
    decode_sched_delay_us: np.ndarray
    # only where an eviction made the decode instance compute the prompt again; kept over a further eviction
    decode_ttft_us: np.ndarray
    # of the part alone: from its scheduling, or from the arrival where it has a TTFT
    decode_e2e_us: np.ndarray
    # completed, dropped for want of KV, or given up by the decode instance: others have no latencies in BLIS's figures
    is_ended: np.ndarray


def has_joined(dyn: Values, journey: Journey) -> Values:
    """Return whether the current life of each request began with its KV."""
    return (journey.joins > 0) & (journey.joined_record == dyn[:, Dyn.SCHEDULED_RECORD])


def answer_lens(seen: Observation) -> Values | None:
    """Return the output tokens that requests make: fewer than asked for if the decode instance cuts them short.

    None if no instance cuts outputs.
    """
    if AnswerCuts not in seen.cluster or Reservation not in seen:
        return None
    reserved, cuts_at, xp = seen[Reservation], seen.cluster[AnswerCuts].at, seen.xp
    room = xp.asarray(cuts_at)[xp.maximum(reserved.target, 0)] - seen.input_len + 1
    most = xp.where(reserved.target >= 0, xp.maximum(room, 2), seen.output_len)
    return xp.minimum(seen.output_len, most)


def last_position(seen: Observation, output_len: Values) -> Values:
    """Return the progress of each request at completion, in tokens.

    A request that arrives with its KV makes at least one token in a step of its own.
    """
    final = seen.input_len + seen.xp.maximum(output_len, 1) - 1
    if Reservation not in seen:
        return final
    is_later = has_joined(seen.dyn, seen[Journey])
    return seen.xp.where(is_later, seen.xp.maximum(final, seen.input_len + 1), final)


def first_latencies(seen: Observation, joined: Values) -> Values:
    """Return the duration of the step that made each request's first inter-token latency, −1 if none was made."""
    xp, log = seen.xp, seen.log
    if not len(log):
        return np.full(seen.num_requests, -1)
    in_its_step = seen.time_of(LogTime.DURATION, seen.record_of(Dyn.SCHEDULED_RECORD))
    index = _first_after(seen, log[seen.record_of(Dyn.TOKEN_RECORD), Log.LAST_INDEX])
    entry = seen.entry_at(index)
    later = seen.time_of(LogTime.DURATION, entry)
    is_there = (log[entry, Log.INSTANCE] == seen.instance) & seen.lives.in_decode
    is_there = is_there & (log[entry, Log.LAST_INDEX] >= index)
    return xp.where(joined, in_its_step, xp.where(is_there, later, -1))


def _first_after(seen: Observation, token: Values) -> Values:
    """Return the first step after step `token` in which each request got a token, not passed over."""
    xp, first = seen.xp, token + 1
    if BlockRecords not in seen.raw:
        return first
    rows, is_entry = seen.raw[BlockRecords].rows(xp, whole=True)
    is_over = (rows[:, Eviction.SCHEDULED_RECORD] == PASSED_OVER) & is_entry
    request = xp.where(is_over, rows[:, Eviction.REQUEST], 0)
    is_current = is_over & (rows[:, Eviction.RECORD] > seen.dyn[request, Dyn.TOKEN_RECORD])
    # such rows come in order of steps, so one look at each finds all that follow each other
    numbers = xp.where(is_current, rows[:, Eviction.INDEX], -1)
    if xp is np:
        for row in np.flatnonzero(is_current):
            first[request[row]] += numbers[row] == first[request[row]]
        return first

    def look(first: Any, row: Any) -> tuple[Any, None]:
        of, number = row
        return first.at[of].add((number == first[of]).astype(first.dtype)), None

    return jax.lax.scan(look, first, (request, numbers))[0]


def _token_before(seen: Observation, journey: Journey) -> Values:
    """Return the step record of the first token in the last evicted life that recomputed its prompt; -1: none.

    BLIS reports this token until a later life has one.
    """
    lives, xp = seen.lives, seen.xp
    request = xp.where(lives.is_eviction, lives.evictions[:, Eviction.REQUEST], -1)
    joined = journey.joined_record[xp.maximum(request, 0)]
    is_again = (joined >= 0) & (lives.evictions[:, Eviction.SCHEDULED_RECORD] > joined)
    token = xp.where(is_again, abs(lives.evictions[:, Eviction.DECODE_RECORD]), 0)
    return maxima(request, token, seen.num_requests) - 1


def split_records(seen: Observation, status: Values, columns: Columns) -> SplitRecords:
    """Return the records of the parts; `columns` are the request columns as if no request were split."""
    xp, journey, reserved = seen.xp, seen[Journey], seen[Reservation]
    is_split: Any = reserved.target >= 0
    has_left = is_split & (journey.came_from >= 0)
    nothing = xp.full(seen.num_requests, -1)

    def of(mask: Values, values: Values) -> np.ndarray:
        return xp.where(mask, values, nothing)

    joined = has_joined(seen.dyn, journey) & seen.lives.in_batch
    is_scheduled = has_left & (journey.joins > 0) & (seen.dyn[:, Dyn.NUM_SCHEDULED] > 0)
    delay = seen.starts(seen.dyn[:, Dyn.SCHEDULED_RECORD]) - seen.arrival
    prefill_output = seen.output_time[xp.maximum(seen.first_instance, 0)]
    left = seen.ends(xp.maximum(journey.first_record, 0))
    is_done = status == Status.COMPLETED
    token = xp.where(
        ~joined & seen.lives.in_decode, seen.dyn[:, Dyn.TOKEN_RECORD], _token_before(seen, journey)
    )
    own_ttft = is_scheduled & (token >= 0)
    output = seen.output_time[xp.maximum(seen.instance, 0)]
    ttft = seen.ends(token) + output - seen.arrival
    latencies = columns["e2e_us"] - columns["ttft_us"]
    in_first = seen.time_of(LogTime.DURATION, seen.record_of(Dyn.SCHEDULED_RECORD))
    e2e = xp.where(joined, latencies + in_first, latencies + ttft)
    dropped = reserved.is_dropped == 1
    return SplitRecords(
        is_split=is_split,
        prefill_instance=of(is_split, seen.first_instance),
        prefill_sched_delay_us=of(is_split, columns["sched_delay_us"]),
        prefill_ttft_us=of(has_left, left + prefill_output - seen.arrival),
        prefill_left_us=of(has_left, left),
        transfer_at_us=of(has_left, seen.starts(xp.maximum(journey.first_record, 0))),
        decode_instance=of(is_split, reserved.target),
        decode_sched_delay_us=of(is_scheduled, delay),
        decode_ttft_us=of(own_ttft, ttft),
        decode_e2e_us=of(is_split & is_done, e2e),
        is_ended=~is_split | is_done | dropped | (has_left & (status == Status.TIMED_OUT)),
    )


def with_parts(seen: Observation, columns: Columns, splits: SplitRecords) -> Columns:
    """Return the request columns, with the entries of split requests assembled from their parts."""
    xp, journey, reserved = seen.xp, seen[Journey], seen[Reservation]
    is_split, joined = splits.is_split, has_joined(seen.dyn, journey) & seen.lives.in_batch
    has_left = splits.transfer_at_us >= 0
    dropped = reserved.is_dropped == 1
    decode_us = splits.decode_e2e_us
    e2e = xp.where(splits.decode_ttft_us >= 0, decode_us, decode_us + splits.decode_sched_delay_us)
    e2e = xp.where(dropped, _dropped_at_us(seen, splits) - seen.arrival, e2e)
    is_late = has_left & splits.is_ended & ~dropped & (decode_us < 0)
    if Timeouts in seen:
        e2e = xp.where(is_late, seen[Timeouts].timeout_us, e2e)
    has_e2e = dropped | is_late | (decode_us >= 0)
    first = first_latencies(seen, joined)
    output = seen.output_time[xp.maximum(seen.instance, 0)]
    has_first = has_left & (first >= 0) & (splits.decode_sched_delay_us >= 0)
    has_first = has_first & (joined | seen.lives.in_decode)
    ttft = splits.decode_sched_delay_us + first + output
    ttft = xp.where(has_first, ttft, splits.prefill_ttft_us)
    wait = columns["handed_wait_us"] + (splits.prefill_left_us - splits.transfer_at_us)
    has_wait = has_left & (journey.joined_record >= 0) & ~dropped
    step = columns["token_step_idx"]
    has_come = reserved.ends <= seen.horizon
    changed = {
        "transfer_us": xp.where(has_come, columns["transfer_us"], -1),
        "ttft_us": ttft,
        "e2e_us": xp.where(has_e2e, e2e, -1),
        "handed_wait_us": xp.where(has_wait, wait, -1),
        "token_step_idx": xp.where(joined & (step >= 0), step + 1, step),
        "ttft_parts_us": _parts(seen, splits, ttft, first, has_first),
    }
    kept = {name: columns[name] for name in changed}
    for name, values in changed.items():
        mask = is_split[:, None] if values.ndim > 1 else is_split
        kept[name] = xp.where(mask, values, columns[name])
    handed = xp.where(has_left, splits.transfer_at_us - seen.arrival, -1)
    return columns | kept | {"handed_us": handed}


def _dropped_at_us(seen: Observation, splits: SplitRecords) -> Values:
    """Return when KV was dropped, µs: at the transfer's end if the instance was stopping, else at its start."""
    reserved = seen[Reservation]
    ends = reserved.ends.astype(splits.transfer_at_us.dtype)
    has_ended = reserved.ends < never(reserved.ends.dtype)
    return seen.xp.where(has_ended, ends, splits.transfer_at_us)


def _parts(
    seen: Observation, splits: SplitRecords, ttft: Values, first: Values, has_first: Values
) -> Values:
    """Split the TTFT of split requests into `TTFT_PARTS`; the transfer and the wait for it belong to waiting."""
    xp = seen.xp
    scheduled = splits.prefill_sched_delay_us + seen.arrival
    last = xp.where(has_first, splits.transfer_at_us, splits.prefill_left_us)
    compute = last - scheduled + xp.where(has_first, first, 0)
    instance = xp.where(has_first, seen.instance, seen.first_instance)
    output = seen.output_time[xp.maximum(instance, 0)]
    nothing = xp.zeros(seen.num_requests, np.int64)
    return seen.ttft_parts(ttft, nothing, compute, nothing, output)

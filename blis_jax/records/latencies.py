"""Inter-token latencies that are in no step record: over preemptions and transfers, and August's sums by request.

Where output is kept over a preemption, as in vLLM, the next latency lasts from the step that evicts the request to the
end of the step in which prompt and earlier tokens are computed again. After a hand-over, the next latency holds the
transfer, the wait for a batch and a step. Latencies of attempts ended by the stop of an instance are left out, since
TTFT is that of the last attempt. For every completed request the latencies then sum to E2E less TTFT.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from blis_jax.core.arrays import clipped, sums
from blis_jax.core.views import AfterDecode
from blis_jax.lazy import jax
from blis_jax.records.record import Status
from blis_jax.records.splits import has_joined, has_moved
from blis_jax.tables.blocks import CUT_OFF, PASSED_OVER, Eviction
from blis_jax.tables.journeys import Journey, Reservation
from blis_jax.tables.raw import BlockRecords
from blis_jax.tables.state import Dyn, Log, LogTime

if TYPE_CHECKING:
    from types import ModuleType

    from jaxtyping import Int

    from blis_jax.core.arrays import Values
    from blis_jax.records.observation import Observation
    from blis_jax.records.record import RunRecord
    from blis_jax.records.splits import SplitRecords


def gaps_us(seen: Observation) -> Int[np.ndarray, "preemption"]:
    """Return the time from each preemption to the request's next token, µs, without output processing.

    -1 for no latency: the request had no token yet, is preempted again before its next token, or the run ended first.
    Only for profiles that keep outputs.
    """
    xp = seen.xp
    rows, is_entry = seen.raw[BlockRecords].rows(xp)
    is_cut = is_entry & (rows[:, Eviction.SCHEDULED_RECORD] == CUT_OFF)
    decode = rows[:, Eviction.DECODE_RECORD]
    ends = is_cut | (is_entry & (decode > 0))
    of = xp.where(is_entry, rows[:, Eviction.REQUEST], 0)
    current = xp.where(seen.lives.in_decode, seen.dyn[:, Dyn.TOKEN_RECORD], -1)
    token = _next_tokens(of, decode - 1, ends, current, xp)
    spent = seen.ends(token) - seen.starts(rows[:, Eviction.RECORD])
    is_eviction = is_entry & (rows[:, Eviction.SCHEDULED_RECORD] >= 0)
    gaps = xp.where((token >= 0) & is_eviction, spent, -1)
    return gaps[is_eviction] if xp is np else gaps  # in numpy only preemptions have rows


def num_resumed(seen: Observation, gaps: Values) -> Values:
    """Return how many of the latencies `gaps`, of `gaps_us`, each request has."""
    of = seen.xp.where(seen.lives.is_eviction, seen.lives.evictions[:, Eviction.REQUEST], -1)
    return sums(of, (gaps >= 0).astype(np.int64), seen.num_requests)


def resumed_latencies(record: RunRecord) -> Int[np.ndarray, "request"]:
    """Return how many latencies of each request span a preemption, so are in no step record."""
    evictions, size = record.preemptions, len(record.requests.status)
    if evictions.gap_us is None:
        return np.zeros(size, np.int64)
    return np.bincount(evictions.request[evictions.gap_us >= 0], minlength=size)


def _next_tokens(
    of: Values, token: Values, ends: Values, upcoming: Values, xp: ModuleType
) -> Values:
    """Return for each ended life the step record of the request's next first token, -1 for none; rows in order of time.

    `ends` marks the rows whose life has a first token, `token`, or after which no token follows.
    """
    if xp is np:
        following, upcoming = np.full(len(of), -1, np.int64), upcoming.copy()
        for row in np.flatnonzero(ends)[::-1]:
            following[row] = upcoming[of[row]]
            upcoming[of[row]] = token[row]
        return following

    def look(upcoming: Any, row: Any) -> tuple[Any, Any]:
        of, token, ends = row
        following = upcoming[of]
        return upcoming.at[of].set(xp.where(ends, token, following)), xp.where(ends, following, -1)

    return jax.lax.scan(look, upcoming, (of, token, ends), reverse=True)[1]


def are_own(seen: Observation) -> bool:
    """Return whether this module counts the latencies: requests move between instances, but not by August's rules."""
    return Journey in seen and Reservation not in seen and not seen.rules.turns_away


def counts_of_completed(seen: Observation) -> Int[np.ndarray, "record"] | None:
    """Count the latencies of completed requests in each step record, without latencies over a transfer.

    None if the counts follow from the log itself (`step_records.completed_itl_counts`), which needs that no request
    moves and no step passes a member of the batch over. In a compiled call a request passed over counts as if it had
    begun that many steps later.
    """
    if not len(seen.log):
        return None
    is_done = seen.status == int(Status.COMPLETED)
    token, finish = seen.dyn[:, Dyn.TOKEN_RECORD], seen.dyn[:, Dyn.FINISH_RECORD] - 1
    if are_own(seen):
        again = np.int64(seen.defects.double_last_latency)
        twice = sums(
            seen.xp.where(is_done, finish, -1), seen.xp.where(is_done, again, 0), len(seen.log)
        )
        return (
            _of_spans(seen, [(is_done, token, finish, 0), *_earlier_lives(seen, is_done)]) + twice
        )
    over = _passed_over(seen)
    if not len(over):
        return None
    scheduled, joined = seen.dyn[:, Dyn.SCHEDULED_RECORD], np.zeros_like(is_done)
    if Journey in seen:
        joined = has_joined(seen.dyn, seen[Journey])
    began = np.where(joined, scheduled, token)
    at_once = np.bincount(scheduled[is_done & joined], minlength=len(seen.log))
    request, record = over[:, Eviction.REQUEST], over[:, Eviction.RECORD]
    is_it = is_done[request] & (record > began[request] - joined[request])
    missed = np.bincount(record[is_it], minlength=len(seen.log))
    return _of_spans(seen, [(is_done, began, finish, 0)]) + at_once - missed


def _of_spans(
    seen: Observation, spans: list[tuple[Values, Values, Values, int]]
) -> Int[np.ndarray, "record"]:
    """Count the latencies of spans in each step record: one in each step after a span's first record, up to its last.

    Each span is (whether it counts, its first record, its last record, by how many records it ends earlier).
    """
    xp, log, size = seen.xp, seen.log, len(seen.log)
    record = xp.arange(size)
    group = xp.where(log[:, Log.NUM_STEPS] > 0, log[:, Log.INSTANCE], seen.num_instances)
    place = xp.argsort(xp.argsort(group * size + record))
    change = xp.zeros(size, np.int64)
    for is_one, began, ended, before in spans:
        first = xp.where(is_one, place[clipped(began, size - 1)], -1)
        last = xp.where(is_one, place[clipped(ended, size - 1)] - before, -1)
        units = xp.ones(len(is_one), np.int64)
        change = change + sums(first, units, size) - sums(last, units, size)
    begun = xp.cumsum(change) - change
    return begun[place] * log[:, Log.NUM_STEPS]


def _passed_over(seen: Observation) -> Int[np.ndarray, "row column"]:
    """Return the rows of steps that passed a member of the batch over; none in a compiled call."""
    if seen.xp is not np or BlockRecords not in seen.raw:
        return np.zeros((0, len(Eviction)), np.int64)
    rows, _ = seen.raw[BlockRecords].rows(np)
    return rows[rows[:, Eviction.SCHEDULED_RECORD] == PASSED_OVER]


def _earlier_lives(seen: Observation, is_done: Values) -> list[tuple[Values, Values, Values, int]]:
    """Return the lives that an eviction ended and whose latencies count, as spans for `_of_spans`.

    If outputs are kept, these are the lives since the output was last lost; else all lives of requests that did not
    move, since a moved request makes its tokens again between its first and its last one.
    """
    xp = seen.xp
    if BlockRecords not in seen.raw:
        return []
    rows, is_entry = seen.raw[BlockRecords].rows(xp, whole=True)
    of = xp.where(is_entry, rows[:, Eviction.REQUEST], 0)
    began = rows[:, Eviction.DECODE_RECORD]
    scheduled = rows[:, Eviction.SCHEDULED_RECORD]
    is_life = is_entry & (scheduled >= 0) & (began > 0) & is_done[of]
    is_lost = _are_lost(seen, rows) if seen.keeps_output else has_moved(seen[Journey])[of]
    is_life = is_life & ~is_lost
    return [(is_life, began - 1, rows[:, Eviction.RECORD], 1)]


def lost_lives(seen: Observation) -> Values | None:
    """Return which preemptions were in an attempt whose output was lost; None if no output can be lost."""
    if not (seen.keeps_output and are_own(seen)):
        return None
    return _are_lost(seen, seen.lives.evictions)


def _are_lost(seen: Observation, evictions: Values) -> Values:
    """Return which evictions came before the first token that counts, so lost their attempt's output."""
    first_us = seen.ends(seen.lives.token_record)
    of = clipped(evictions[:, Eviction.REQUEST], seen.num_requests - 1)
    return seen.starts(evictions[:, Eviction.RECORD]) < first_us[of]


def over_transfers(
    seen: Observation, columns: dict[str, Values], steps: Values, output_time: Values
) -> Int[np.ndarray, "request"] | None:
    """Return the inter-token latency that holds each completed request's transfer, µs; -1 for no transfer.

    None in a run in which requests do not move, or move by August's rules. The latency ends with the step in which the
    request joins a batch; if an eviction has since discarded the tokens, with the first token made again. `steps`
    counts steps after the last first token.
    """
    if not are_own(seen):
        return None
    xp, journey = seen.xp, seen[Journey]
    has_joined = (journey.first_record >= 0) & (journey.joined_record >= 0)
    is_it = has_joined & (seen.status == int(Status.COMPLETED))
    if not seen.keeps_output:
        last, _, total = seen.last_steps
        again = np.int64(seen.defects.double_last_latency)
        others = (
            total + (steps - seen.lives.num_handed) * output_time + again * (last + output_time)
        )
        latency = columns["e2e_us"] - columns["ttft_us"] - others
    else:
        joined = journey.joined_record
        first = journey.first_record
        latency = seen.ends(joined) - seen.ends(first) + output_time
    return xp.where(is_it, latency, -1)


def latency_sums(
    seen: Observation, columns: Mapping[str, Any], splits: SplitRecords | None
) -> Int[np.ndarray, "request"] | None:
    """Return the sum of the latencies that each request has recorded since its last first token, µs.

    For a split request it is the sum over its decode part, the first token's included; 0 if that part has not
    completed. The time that BLIS adds to E2E after the last token is not included. None in a compiled call, and before
    August.

    Args:
        seen: one run.
        columns: the columns of its `RequestRecords`, E2E and TTFT as they are reported.
        splits: the parts of split requests; None if the run reserves no KV.
    """
    if seen.xp is not np or not seen.rules.has_order:
        return None
    is_done = columns["status"] == Status.COMPLETED
    sums = columns["e2e_us"] - columns["ttft_us"] - _after_decode(seen)
    is_open = ~is_done & (columns["token_step_idx"] >= 0)
    if splits is not None:
        of_part = splits.decode_e2e_us - np.maximum(splits.decode_ttft_us, 0) - _after_decode(seen)
        sums = np.where(splits.is_split, of_part, sums)
        is_open = is_open & ~splits.is_split
    so_far = _so_far(seen) if is_open.any() else 0
    return np.where(is_done, sums, np.where(is_open, so_far, 0))


def _after_decode(seen: Observation) -> Values | int:
    if AfterDecode not in seen.cluster:
        return 0
    after = seen.cluster[AfterDecode].us
    return np.where(seen.output_len > 0, np.asarray(after)[np.maximum(seen.instance, 0)], 0)


def _so_far(seen: Observation) -> Int[np.ndarray, "request"]:
    """Return the latency sums of requests in decode, up to their instance's last step or their early departure."""
    log, times = seen.log, seen.log_time

    def up_to(index: Values) -> Values:
        """Return the total duration of the steps of each request's instance up to the step `index`."""
        at = seen.entry_at(index)
        later = log[at, Log.LAST_INDEX] - index
        return times[at, LogTime.TOTAL_DURATION] - later * times[at, LogTime.DURATION]

    first, last = seen.dyn[:, Dyn.TOKEN_INDEX], seen.index_left_at()
    num_steps = last - first - _times_passed_over(seen)
    output = seen.output_time[np.maximum(seen.instance, 0)]
    return up_to(last) - up_to(first) - seen.lives.passed_over_us + num_steps * output


def _times_passed_over(seen: Observation) -> Values:
    """Return how many steps have passed each request over since its first token."""
    over = _passed_over(seen)
    request = over[:, Eviction.REQUEST]
    is_current = over[:, Eviction.RECORD] > seen.dyn[request, Dyn.TOKEN_RECORD]
    return np.bincount(request[is_current], minlength=seen.num_requests)

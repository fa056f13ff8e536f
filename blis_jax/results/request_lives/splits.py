"""What BLIS's revision of August 2026 reports of requests whose prompt was computed on another instance.

Source: `projectPDMetrics` in `sim/cluster/cluster.go`. Times of the prefill part stand for the scheduling delay, those
of the decode part for E2E, and TTFT is the decode part's scheduling delay with its first inter-token latency.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from blis_jax.engine.state import Dyn, Log, LogTime
from blis_jax.engine.tables.journeys import Reservation
from blis_jax.memory.block_tables.blocks import PASSED_OVER, Eviction
from blis_jax.results.records import TTFT_PARTS, Status

if TYPE_CHECKING:
    from blis_jax.engine.tables.journeys import Journey
    from blis_jax.results.from_tables import Observation

    Columns = dict[str, Any]
    Array = Any


@dataclass(frozen=True)
class SplitRecords:
    """One entry per request; times in µs, -1 where it never happened, and for requests that were not split."""

    is_split: Array
    prefill_instance: Array
    prefill_sched_delay_us: Array
    prefill_ttft_us: (
        Array  # end of the step that computed its prompt, output processing included, less arrival
    )
    prefill_left_us: Array  # absolute end of that step
    transfer_at_us: Array  # absolute start of that step, which begins the transfer
    decode_instance: Array  # where its tokens are made, or would have been
    decode_sched_delay_us: Array
    decode_ttft_us: (
        Array  # only where an eviction made the decode instance compute the prompt again
    )
    decode_e2e_us: (
        Array  # of the part alone: from its scheduling, or from the arrival where it has a TTFT
    )
    # completed, dropped for want of KV, or given up by the decode instance: others have no latencies in BLIS's figures
    is_ended: Array


def reservations(raw: Any, num_requests: int) -> Reservation | None:
    """What was reserved for each request, None where KV is not reserved."""
    if raw.reserved is None:
        return None
    return Reservation(raw.reserved[:num_requests], raw.reserved_time[:num_requests])


def has_joined(dyn: Any, journey: Journey) -> Any:
    """Whether the current life of each request began with its KV."""
    return (journey.joins > 0) & (journey.joined_record == dyn[:, Dyn.SCHEDULED_RECORD])


def last_position(seen: Observation, final: Array) -> Array:
    """The progress of each request once it has completed: what comes with its KV makes a token in a step of its own."""
    if seen.reserved is None or seen.journey is None:
        return final
    is_later = has_joined(seen.dyn, seen.journey)
    return seen.xp.where(is_later, seen.xp.maximum(final, seen.input_len + 1), final)


def first_latencies(seen: Observation, joined: Array) -> Array:
    """Duration of the step that made each request's first inter-token latency, -1 if none was made."""
    xp, log = seen.xp, seen.log
    if not len(log):
        return np.full(seen.num_requests, -1)
    in_its_step = seen._log_time(LogTime.DURATION, seen._at(Dyn.SCHEDULED_RECORD))
    span = seen.xp.max(log[:, Log.LAST_INDEX]) + 2
    place = log[:, Log.INSTANCE] * span + log[:, Log.LAST_INDEX]
    order = xp.argsort(place)
    token = log[seen._at(Dyn.TOKEN_RECORD), Log.LAST_INDEX]
    wanted = xp.maximum(seen.instance, 0) * span + _first_after(seen, token)
    at = xp.minimum(xp.searchsorted(place[order], wanted), len(log) - 1)
    later = seen._log_time(LogTime.DURATION, order[at])
    is_there = log[order[at], Log.INSTANCE] == seen.instance
    is_there = is_there & (place[order[at]] >= wanted) & seen.lives.in_decode
    return xp.where(joined, in_its_step, xp.where(is_there, later, -1))


def _first_after(seen: Observation, token: Array) -> Array:
    """Number of the first step after a token's in which each request got one; it may be passed over before."""
    xp, first = seen.xp, token + 1
    if seen.raw.life is None:
        return first
    rows = seen.raw.evictions[:-1].astype(np.int64)
    is_over = rows[:, Eviction.SCHEDULED_RECORD] == PASSED_OVER
    is_over = is_over & (xp.arange(len(rows)) < seen.raw.num_evictions)
    request = xp.where(is_over, rows[:, Eviction.REQUEST], 0)
    is_current = is_over & (rows[:, Eviction.RECORD] > seen.dyn[request, Dyn.TOKEN_RECORD])
    # such rows come in order of steps, so one look at each finds all that follow each other
    numbers = xp.where(is_current, rows[:, Eviction.INDEX], -1)
    if xp is np:
        for row in np.flatnonzero(is_current):
            first[request[row]] += numbers[row] == first[request[row]]
        return first
    import jax

    def look(first: Any, one: Any) -> tuple[Any, None]:
        of, number = one
        return first.at[of].add((number == first[of]).astype(first.dtype)), None

    return jax.lax.scan(look, first, (request, numbers))[0]


def split_records(seen: Observation, status: Array, columns: Columns) -> SplitRecords:
    """What happened to the parts; `columns` are those of requests that are not split."""
    xp, journey, reserved = seen.xp, seen.journey, seen.reserved
    assert journey is not None and reserved is not None
    is_split = reserved.target >= 0
    has_left = is_split & (journey.came_from >= 0)
    nothing = xp.full(seen.num_requests, -1)

    def of(mask: Array, values: Array) -> Array:
        return xp.where(mask, values, nothing)

    joined = has_joined(seen.dyn, journey) & seen.lives.in_batch
    is_scheduled = has_left & (journey.joins > 0) & (seen.dyn[:, Dyn.NUM_SCHEDULED] > 0)
    delay = seen._starts(seen.dyn[:, Dyn.SCHEDULED_RECORD]) - seen.arrival
    prefill_output = seen.output_time[xp.maximum(seen.first_instance, 0)]
    left = seen.ends(xp.maximum(journey.first_record, 0))
    is_done = status == Status.COMPLETED
    own_ttft = is_scheduled & ~joined & seen.lives.in_decode
    output = seen.output_time[xp.maximum(seen.instance, 0)]
    ttft = seen.ends(seen.dyn[:, Dyn.TOKEN_RECORD]) + output - seen.arrival
    latencies = columns["e2e_us"] - columns["ttft_us"]
    in_first = seen._log_time(LogTime.DURATION, seen._at(Dyn.SCHEDULED_RECORD))
    e2e = xp.where(joined, latencies + in_first, latencies + ttft)
    dropped = reserved.is_dropped == 1
    return SplitRecords(
        is_split=is_split,
        prefill_instance=of(is_split, seen.first_instance),
        prefill_sched_delay_us=of(is_split, columns["sched_delay_us"]),
        prefill_ttft_us=of(has_left, left + prefill_output - seen.arrival),
        prefill_left_us=of(has_left, left),
        transfer_at_us=of(has_left, seen._starts(xp.maximum(journey.first_record, 0))),
        decode_instance=of(is_split, reserved.target),
        decode_sched_delay_us=of(is_scheduled, delay),
        decode_ttft_us=of(own_ttft, ttft),
        decode_e2e_us=of(is_split & is_done, e2e),
        is_ended=~is_split | is_done | dropped | (has_left & (status == Status.TIMED_OUT)),
    )


def with_parts(seen: Observation, columns: Columns, splits: SplitRecords) -> Columns:
    """The columns of requests with those of split requests put together from their parts."""
    xp, journey = seen.xp, seen.journey
    assert journey is not None and seen.reserved is not None
    is_split, joined = splits.is_split, has_joined(seen.dyn, journey) & seen.lives.in_batch
    has_left = splits.transfer_at_us >= 0
    dropped = seen.reserved.is_dropped == 1
    own = splits.decode_e2e_us
    e2e = xp.where(splits.decode_ttft_us >= 0, own, own + splits.decode_sched_delay_us)
    e2e = xp.where(dropped, splits.transfer_at_us - seen.arrival, e2e)
    is_late = has_left & splits.is_ended & ~dropped & (own < 0)
    if seen.timeout_us is not None:
        e2e = xp.where(is_late, seen.timeout_us, e2e)
    has_e2e = dropped | is_late | (own >= 0)
    first = first_latencies(seen, joined)
    output = seen.output_time[xp.maximum(seen.instance, 0)]
    has_first = has_left & (first >= 0) & (splits.decode_sched_delay_us >= 0)
    has_first = has_first & (joined | seen.lives.in_decode)
    ttft = splits.decode_sched_delay_us + first + output
    ttft = xp.where(has_first, ttft, splits.prefill_ttft_us)
    wait = columns["handed_wait_us"] + (splits.prefill_left_us - splits.transfer_at_us)
    has_wait = has_left & (journey.joined_record >= 0) & ~dropped
    step = columns["token_step_idx"]
    changed = {
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


def _parts(
    seen: Observation, splits: SplitRecords, ttft: Array, first: Array, has_first: Array
) -> Array:
    """TTFT in `TTFT_PARTS`: the transfer and the wait for it are part of the waiting."""
    xp, n = seen.xp, seen.num_requests
    delays = [
        xp.zeros(n, np.int64) + seen.cluster.admission_latency_us,
        xp.zeros(n, np.int64) + seen.cluster.routing_latency_us,
        seen.queueing_us,
    ]
    scheduled = splits.prefill_sched_delay_us + seen.arrival
    last = xp.where(has_first, splits.transfer_at_us, splits.prefill_left_us)
    compute = last - scheduled + xp.where(has_first, first, 0)
    instance = xp.where(has_first, seen.instance, seen.first_instance)
    output = seen.output_time[xp.maximum(instance, 0)]
    nothing = xp.zeros(n, np.int64)
    waiting = ttft - sum(delays) - compute - output
    parts = [*delays, waiting, nothing, compute, nothing, output]
    assert len(parts) == len(TTFT_PARTS)
    return xp.where((ttft >= 0)[:, None], xp.stack(parts, axis=1), -1)

"""Stretches of an instance's steps in which the order of events in one microsecond, a tie, matters.

A stretch begins at a step at whose start BLIS's event heap holds nothing but that step, so nothing earlier matters, and
ends after the tied events. Most runs have few ties among millions of steps.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from blis_jax.tables.state import Log, LogTime
from blis_jax.workload.table import NEVER_US

if TYPE_CHECKING:
    from types import ModuleType

    from jaxtyping import Bool, Int

    from blis_jax.core.arrays import Values
    from blis_jax.core.types import ClusterParams


@dataclass(frozen=True)
class InstanceHistory:
    """The log of one instance in order of execution; a row stands for one step or several equal ones."""

    requests: Int[np.ndarray, "request"]  # routed to it, in order of routing
    routed_us: Int[np.ndarray, "request"]
    queued_us: Int[np.ndarray, "request"]
    start_us: Int[np.ndarray, "row"]  # of the row's first step
    duration_us: Int[np.ndarray, "row"]  # of one step
    num_steps: Int[np.ndarray, "row"]
    preempted: Int[np.ndarray, "row"]  # requests evicted in the first of its steps
    scheduled: Int[np.ndarray, "row"]  # requests that entered the batch in the first
    completed: Int[np.ndarray, "row"]  # requests completed by the last
    continues: Bool[np.ndarray, "row"]  # whether the last step scheduled its successor


def entry_times(
    cluster: ClusterParams,
    arrival: Values,
    input_len: Values,
    instance: Values,
    xp: ModuleType = np,
) -> tuple[Any, Any]:
    """Return when each request is routed, and how long it then takes to enter the wait queue, µs.

    Args:
        cluster: the cluster's numbers.
        arrival: `[request]`, µs, of the type that the results have.
        input_len: `[request]`, tokens.
        instance: the instance of each request `[request]`; negative if it is not routed.
        xp: numpy, or JAX in a compiled call.
    """
    routed = arrival + xp.asarray(cluster.admission_latency_us + cluster.routing_latency_us).astype(
        arrival.dtype
    )
    alpha = xp.asarray(cluster.alpha)[xp.maximum(instance, 0)]
    delay = alpha[:, 0] + alpha[:, 1] * input_len.astype(np.float64)
    return routed, delay.astype(arrival.dtype)


def histories(
    log: Int[np.ndarray, "record column"],
    log_time: Int[np.ndarray, "record time"],
    evicted: Int[np.ndarray, "eviction"],
    instance: Int[np.ndarray, "request"],
    entries: tuple[Int[np.ndarray, "request"], Int[np.ndarray, "request"]],
    num_instances: int,
) -> list[InstanceHistory]:
    """Return the history of every instance.

    Args:
        log: the step records.
        log_time: their times, µs.
        evicted: for each preemption the index of its record in the log.
        instance: the instance of each request; negative if it was not routed.
        entries: when each request was routed and queued, µs.
        num_instances: the number of instances of the cluster.
    """
    routed_us, queued_us = entries
    # small ones sort faster
    places = log[:, Log.INSTANCE].astype(np.min_scalar_type(num_instances))
    order = np.argsort(places, kind="stable")
    bounds = np.searchsorted(places[order], np.arange(num_instances + 1)).tolist()

    def read(table: np.ndarray, column: int) -> np.ndarray:
        return table[:, column][order].astype(np.promote_types(table.dtype, np.int64))

    start, duration = (read(log_time, column) for column in (LogTime.START, LogTime.DURATION))
    completed = read(log, Log.NUM_COMPLETED)
    left = read(log, Log.RUNNING) - completed + read(log, Log.WAITING)
    num_steps, scheduled = read(log, Log.NUM_STEPS), read(log, Log.NUM_SCHEDULED)
    preempted = np.bincount(evicted, minlength=len(log))[order]
    histories_of_instances = []
    for place, (first, last) in enumerate(itertools.pairwise(bounds)):
        rows, chosen = slice(first, last), np.flatnonzero(instance == place)
        histories_of_instances.append(
            InstanceHistory(
                requests=chosen,
                routed_us=routed_us[chosen],
                queued_us=queued_us[chosen],
                start_us=start[rows],
                duration_us=duration[rows],
                num_steps=num_steps[rows],
                preempted=preempted[rows],
                scheduled=scheduled[rows],
                completed=completed[rows],
                continues=left[rows] > 0,
            )
        )
    return histories_of_instances


NONE = np.zeros(0, np.int64)


@dataclass(frozen=True)
class Stretch:
    """Single steps around tied events, and the requests that enter the wait queue during them."""

    is_quiet_first: bool  # its first step is alone in the heap; otherwise the run begins here
    tied_us: Int[np.ndarray, "tie"]
    requests: Int[np.ndarray, "request"]
    routed_us: Int[np.ndarray, "request"]
    queued_us: Int[np.ndarray, "request"]
    step_start_us: Int[np.ndarray, "step"]
    step_duration_us: Int[np.ndarray, "step"]
    step_preempted: Int[np.ndarray, "step"]
    step_scheduled: Int[np.ndarray, "step"]
    step_completed: Int[np.ndarray, "step"]
    step_continues: Bool[np.ndarray, "step"]


def stretches(
    history: InstanceHistory,
    from_us: int = 0,
    before_us: int = NEVER_US,
    assumed_us: Int[np.ndarray, "time"] = NONE,
) -> Iterator[Stretch]:
    """Yield the stretches of an instance around its ties in [`from_us`, `before_us`).

    `assumed_us` are further times at which the order matters, since the run assumed one.
    """
    tied = np.union1d(tied_us(history), assumed_us)
    tied = tied[(tied >= from_us) & (tied < before_us)]
    if not len(tied):
        return
    rows = _last_steps_apart(history)
    quiet = quiet_rows(rows)
    place = np.searchsorted(rows.start_us[quiet], tied) - 1
    first = (
        np.where(place >= 0, quiet[np.maximum(place, 0)], -1)
        if len(quiet)
        else np.full(len(tied), -1)
    )
    last = np.searchsorted(rows.start_us, tied, side="right")  # behind the last row that has begun
    # stretches that touch are one, since the first step of the later one is executed by the earlier
    reached = np.maximum.accumulate(last)
    is_new = np.append(True, first[1:] >= reached[:-1])
    for ties in np.split(np.arange(len(tied)), np.flatnonzero(is_new)[1:]):
        yield _stretch(rows, int(first[ties[0]]), int(reached[ties[-1]]), tied[ties])


def tied_us(history: InstanceHistory) -> Int[np.ndarray, "tie"]:
    """Return the times of ties: several requests enter the queue, or one enters just when a step follows another."""
    starts, steps, spans = history.start_us, history.num_steps, history.duration_us
    times, counts = np.unique(history.queued_us, return_counts=True)
    if not len(starts):
        return times[counts > 1]
    at = np.maximum(np.searchsorted(starts, times, side="right") - 1, 0)
    place, rest = np.divmod(times - starts[at], np.maximum(spans[at], 1))
    is_inner = (rest == 0) & (place > 0) & (place < steps[at])
    begins = times[starts[at] == times]
    ends = (starts + steps * spans)[history.continues]
    place = np.minimum(np.searchsorted(begins, ends), max(len(begins) - 1, 0))
    follows = ends[begins[place] == ends] if len(begins) else begins
    return times[is_inner | np.isin(times, follows) | (counts > 1)]


def _last_steps_apart(history: InstanceHistory) -> InstanceHistory:
    """Return the history with the last of several equal steps split off into a row of its own."""
    is_split = history.num_steps > 1
    parts = 1 + is_split
    of = np.repeat(np.arange(len(parts)), parts)
    is_last = np.cumsum(parts)[of] - 1 == np.arange(len(of))
    is_first = ~is_last | ~is_split[of]
    before = history.num_steps[of] - 1
    shift = np.where(is_last, before * history.duration_us[of], 0)
    return InstanceHistory(
        requests=history.requests,
        routed_us=history.routed_us,
        queued_us=history.queued_us,
        start_us=history.start_us[of] + shift,
        duration_us=history.duration_us[of],
        num_steps=np.where(is_last, 1, before),
        preempted=np.where(is_first, history.preempted[of], 0),
        scheduled=np.where(is_first, history.scheduled[of], 0),
        completed=np.where(is_last, history.completed[of], 0),
        continues=~is_last | history.continues[of],
    )


def quiet_rows(history: InstanceHistory) -> Int[np.ndarray, "quiet"]:
    """Return, in order, the rows at whose start the heap holds nothing but the row's first step."""
    starts = history.start_us
    if not len(starts):
        return np.zeros(0, np.int64)
    ends = starts + history.num_steps * history.duration_us
    follows = np.maximum.accumulate(np.where(history.continues, ends, -1))[:-1] == starts[1:]
    marks = np.maximum.accumulate(np.where(history.completed > 0, ends, -1))[:-1] < starts[1:]
    is_alone = (starts[1:] > starts[:-1]) & np.append(starts[2:] > starts[1:-1], True)
    routed = np.searchsorted(np.sort(history.routed_us), starts, side="right")
    queued = np.searchsorted(np.sort(history.queued_us), starts, side="left")
    is_quiet = np.append(False, follows & marks & is_alone) & (routed == queued)
    return np.flatnonzero(is_quiet)


def _stretch(
    rows: InstanceHistory, first: int, behind: int, tied: Int[np.ndarray, "tie"]
) -> Stretch:
    """Return the rows `first` (negative: from the beginning of the run) to `behind`, exclusive, as single steps."""
    begin = max(first, 0)
    steps = rows.num_steps[begin:behind]
    of = np.repeat(np.arange(begin, behind), steps)
    offset = np.arange(len(of)) - np.repeat(np.cumsum(steps) - steps, steps)
    is_first, is_last = offset == 0, offset == rows.num_steps[of] - 1
    since = int(rows.start_us[first]) if first >= 0 else -1
    # a request that enters after the last tie may be routed, and so pushed, before it
    entering = (rows.routed_us > since) & (rows.routed_us <= tied[-1])
    return Stretch(
        is_quiet_first=first >= 0,
        tied_us=tied,
        requests=rows.requests[entering],
        routed_us=rows.routed_us[entering],
        queued_us=rows.queued_us[entering],
        step_start_us=rows.start_us[of] + offset * rows.duration_us[of],
        step_duration_us=rows.duration_us[of],
        step_preempted=np.where(is_first, rows.preempted[of], 0),
        step_scheduled=np.where(is_first, rows.scheduled[of], 0),
        step_completed=np.where(is_last, rows.completed[of], 0),
        step_continues=~is_last | rows.continues[of],
    )

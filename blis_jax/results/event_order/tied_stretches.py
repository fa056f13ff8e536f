"""Where the order of events of one microsecond matters on an instance, and the steps around it.

A stretch begins at a step at whose start the reference's heap holds nothing but that step, so nothing earlier
matters, and ends past the events of one microsecond. Most runs have few such events among millions of steps.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from blis_jax.results.event_order.histories import InstanceHistory
from blis_jax.workload.table import NEVER_US

if TYPE_CHECKING:
    from jaxtyping import Bool, Int

NONE = np.zeros(0, np.int64)


@dataclass(frozen=True)
class Stretch:
    """Steps one by one around events of one microsecond, and the requests that enter the queue meanwhile."""

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
    """The stretches of an instance in which the order of events from one time to before another matters.

    It also matters at `assumed_us`: times at which the run took an order for granted.
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
    """Times at which the order matters: several requests queued, or one as a step follows on another."""
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
    """The same history, in which the last of several equal steps has a row of its own."""
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
    """Rows at whose start the heap holds nothing but the row's first step, in order."""
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
    """Rows from the first, or from the beginning of the run, to the one before `behind`, step by step."""
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

"""Which of several events of one microsecond BLIS executes first on an instance.

BLIS keeps an instance's events in a binary heap ordered by time alone, so the order of equal times follows from the
heap's history. The heap's history follows from the run's record: arrivals at the instance, queue times, steps and how
many requests each scheduled and finished. A run is replayed until the heap contradicts the order that the engine used;
the contradiction is corrected and the engine runs again. Only stretches around events of one microsecond are replayed,
see tied_stretches.py.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from blis_jax.records.tied_stretches import InstanceHistory, Stretch, stretches
from blis_jax.workload.table import NEVER_US

ARRIVAL, QUEUED, STEP, NOTHING = range(4)
Event = tuple[int, int, int]  # time, kind, request


class EventHeap:
    """Array heap with sift-up on push and sift-down on pop; only times are compared, strictly."""

    def __init__(self) -> None:
        """Begin with an empty heap."""
        self._items: list[Event] = []

    def __len__(self) -> int:
        """Return the number of events."""
        return len(self._items)

    def push(self, event: Event) -> None:
        """Add an event."""
        items = self._items
        items.append(event)
        child = len(items) - 1
        while child > 0:
            parent = (child - 1) // 2
            if items[child][0] >= items[parent][0]:
                break
            items[child], items[parent] = items[parent], items[child]
            child = parent

    def peek(self) -> int:
        """Return the time of the next event."""
        return self._items[0][0]

    def pop(self) -> Event:
        """Remove and return the next event."""
        items = self._items
        last = len(items) - 1
        items[0], items[last] = items[last], items[0]
        parent = 0
        while (child := 2 * parent + 1) < last:
            if child + 1 < last and items[child + 1][0] < items[child][0]:
                child += 1
            if items[child][0] >= items[parent][0]:
                break
            items[child], items[parent] = items[parent], items[child]
            parent = child
        return items.pop()


@dataclass
class TieOrder:
    """The order of one run's requests that the engine uses, which is corrected in place."""

    queue_rank: np.ndarray
    after_steps: np.ndarray  # negative: never verified


class _Contradiction(Exception):
    pass


class _Replay:
    """Replays one instance's heap over a stretch, and compares its order of events with the engine's."""

    def __init__(self, history: Stretch, order: TieOrder) -> None:
        self.history, self.order = history, order
        self.heap = EventHeap()
        self.next_step = 0
        self.has_successor = False
        self.steps_at, self.tick = 0, -1
        self.next_arrival = 0
        marks = history.step_preempted + history.step_scheduled + history.step_completed
        self.eventful = np.flatnonzero((marks > 0) | ~history.step_continues)
        self.waiting_at: dict[int, list[int]] = {}
        for request, time in zip(history.requests, history.queued_us, strict=True):
            self.waiting_at.setdefault(int(time), []).append(int(request))
        self.queued = dict(zip(history.requests.tolist(), history.queued_us.tolist(), strict=True))
        if history.is_quiet_first:
            self.heap.push((int(history.step_start_us[0]), STEP, -1))
            self.has_successor = True

    def run(self) -> None:
        """Replay past every tie of the stretch; raise _Contradiction at the first event in another order."""
        for time in self.history.tied_us.tolist():
            if not self._run_past(time):
                return

    def _run_past(self, until: int) -> bool:
        """Execute all events up to a time; return whether the record goes on after it."""
        routed, requests = self.history.routed_us, self.history.requests
        while True:
            is_left = self.next_arrival < len(routed)
            arrival = int(routed[self.next_arrival]) if is_left else NEVER_US
            # a request that is routed now is pushed before the events of that microsecond are executed
            if len(self.heap) and self.heap.peek() < arrival:
                if self.heap.peek() > until:
                    return True
                if not self._execute():
                    return False
            elif is_left and arrival <= until:
                self.heap.push((arrival, ARRIVAL, int(requests[self.next_arrival])))
                self.next_arrival += 1
            else:
                return True

    def _execute(self) -> bool:
        time, kind, request = self.heap.pop()
        if time != self.tick:
            self.tick, self.steps_at = time, 0
        if kind == ARRIVAL:
            self.heap.push((self.queued[request], QUEUED, request))
        elif kind == QUEUED:
            self._enter(time, request)
        elif kind == STEP:
            return self._step(time)
        return True

    def _enter(self, time: int, request: int) -> None:
        order, peers = self.order, self.waiting_at[time]
        peers.remove(request)
        before = max(int(order.after_steps[request]), 0)
        if before > self.steps_at:
            order.after_steps[request] = self.steps_at
            raise _Contradiction
        rank = order.queue_rank
        earlier = [r for r in peers if rank[r] < rank[request]]
        earlier = [r for r in earlier if max(int(order.after_steps[r]), 0) <= before]
        if earlier:
            ranks = sorted([int(rank[r]) for r in earlier] + [int(rank[request])])
            rank[request] = ranks[0]
            for peer, value in zip(sorted(earlier, key=lambda r: rank[r]), ranks[1:], strict=True):
                rank[peer] = value
            raise _Contradiction
        order.after_steps[request] = before
        if not self.has_successor:
            self.heap.push((time, STEP, -1))

    def _skipped(self) -> int:
        """Return the next step to execute: steps that leave the heap unchanged are skipped, up to the next arrival."""
        starts, first = self.history.step_start_us, self.next_step
        if len(self.heap) or first + 1 >= len(starts):
            return first
        place = int(np.searchsorted(self.eventful, first))
        last = int(self.eventful[place]) if place < len(self.eventful) else len(starts) - 1
        if last <= first + 1:
            return last
        routed = self.history.routed_us
        is_left = self.next_arrival < len(routed)
        until = int(routed[self.next_arrival]) if is_left else NEVER_US
        return max(min(last, int(np.searchsorted(starts, until)), len(starts) - 1), first)

    def _step(self, time: int) -> bool:
        history, index = self.history, self.next_step
        if (later := self._skipped()) > index:
            self.next_step, self.has_successor = later, True
            self.heap.push((int(history.step_start_us[later]), STEP, -1))
            return True
        early = [
            r
            for r in self.waiting_at.get(time, [])
            if max(int(self.order.after_steps[r]), 0) <= self.steps_at
        ]
        if early:
            for request in early:
                self.order.after_steps[request] = self.steps_at + 1
            raise _Contradiction
        if index >= len(history.step_start_us):
            return False  # past the horizon
        self.next_step += 1
        self.steps_at += 1
        end = time + int(history.step_duration_us[index])
        marks = int(history.step_preempted[index]) + int(history.step_scheduled[index])
        for _ in range(marks):
            self.heap.push((time, NOTHING, -1))
        for _ in range(int(history.step_completed[index])):
            self.heap.push((end, NOTHING, -1))
        self.has_successor = bool(history.step_continues[index])
        if self.has_successor:
            self.heap.push((end, STEP, -1))
        return True


def correct(
    histories: Iterable[InstanceHistory],
    order: TieOrder,
    from_us: int = 0,
    before_us: int = NEVER_US,
) -> bool:
    """Verify the order of events in [`from_us`, `before_us`); return whether the engine's order was right.

    If not, the first contradiction of each instance has been corrected in `order`.
    """
    is_true = True
    for history in histories:
        try:
            # a step that was assumed to come first, on another instance perhaps, must be there
            assumed = history.queued_us[order.after_steps[history.requests] > 0]
            for stretch in stretches(history, from_us, before_us, assumed):
                _Replay(stretch, order).run()
        except _Contradiction:
            is_true = False
    return is_true

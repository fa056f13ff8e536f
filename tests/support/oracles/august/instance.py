"""An instance of August 2026 that takes requests as they are routed to it, whole or in parts, in plain Python.

Its batches, steps and blocks are those of `mirrored_oracle.Instance`. Here are its events, KV that comes from
elsewhere, and requests that the gateway takes back.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.support.oracles.mirrored_oracle import (
    COMPLETED,
    DROPPED,
    IN_FLIGHT,
    NEVER,
    RUNNING,
    TIMED_OUT,
    WAITING,
    Asker,
    Instance,
)

__all__ = ["COMPLETED", "DROPPED", "IN_FLIGHT", "NEVER", "RUNNING", "TIMED_OUT", "WAITING"]
__all__ += ["Part", "PoolInstance"]
EVICTED = -1


@dataclass(eq=False)
class Part(Asker):
    """A request on an instance: the whole of it, its prompt alone, or its tokens alone."""

    tenant: int = 0
    comes_with_kv: bool = False
    queued_at: int = -1
    first_sched: int = -1
    last_sched: int = -1
    scheduled_step: int = -1
    finished_step: int = -1
    completed_at: int = -1
    post: int = 0

    @staticmethod
    def of(given: dict[str, Any], tenant: int, **changes: Any) -> Part:
        return Part(**(given | changes), tenant=tenant)


class PoolInstance(Instance):
    """One instance and its events, in order of time, kind and creation."""

    on_done: Callable[[Part], None]

    def __init__(self, flags: Any) -> None:
        super().__init__(flags)
        self.entries: list[tuple[int, int, Part]] = []  # when they come to the queue
        self.deadlines: list[tuple[int, int, Part]] = []
        self.num_ended = self.num_deadlines = 0
        self.now = 0

    def next_time(self) -> int:
        queued = self.entries[0][0] if self.entries else NEVER
        late = self.deadlines[0][0] if self.deadlines else NEVER
        return min(queued, self.next_step, late)

    def process(self) -> None:
        """The next event: who comes to the queue, a step, or who gives up."""
        self.now = now = self.next_time()
        if self.entries and self.entries[0][0] == now:
            self._enqueue(heapq.heappop(self.entries)[2], now)
        elif self.next_step == now:
            self.step(now)
        else:
            part = heapq.heappop(self.deadlines)[2]
            is_there = part.status in (WAITING, RUNNING)
            self.time_out(part)
            if is_there:
                self._end(part)
                if not self.batch and self.queue and self.next_step == NEVER:
                    self.next_step = now

    def inject(self, part: Part, now: int, number: int) -> None:
        """A request that the gateway has routed here; `number` counts such requests."""
        heapq.heappush(self.entries, (now + self.queueing, number, part))

    def _enqueue(self, part: Part, now: int) -> None:
        part.queued_at = now
        self.enqueue(part, now)
        if part.status == WAITING:
            self._watch(part)
        else:
            self._end(part)

    def _watch(self, part: Part) -> None:
        if part.deadline <= self.flags["horizon"]:
            self.num_deadlines += 1
            heapq.heappush(self.deadlines, (part.deadline, self.num_deadlines, part))

    def _end(self, part: Part) -> None:
        self.num_ended += 1
        self.on_done(part)

    def reserve(self, part: Part) -> bool:
        """Blocks for a whole prompt whose KV is on its way here."""
        is_there = self.kv.allocate(part, 0, part.input_len, [])
        part.progress = part.input_len if is_there else 0
        return is_there

    def enqueue_decode(self, part: Part, now: int) -> None:
        """Its KV is here."""
        part.status = WAITING
        self.queue.append(part)
        self._watch(part)
        if not self.batch and self.next_step == NEVER:
            self.next_step = now

    def evict(self, part: Part) -> bool:
        """The gateway takes a request back; whether it was here."""
        if part not in self.queue and part not in self.batch:
            return False
        (self.queue if part in self.queue else self.batch).remove(part)
        self.kv.release(part)
        part.status = EVICTED
        return True

    def room_for(self, one: Any) -> tuple[int, int] | None:
        """KV that has come needs room for one token, also after it was given up."""
        found = super().room_for(one) if not one.comes_with_kv else None
        if one.comes_with_kv and self.kv.allocate(one, one.progress, one.progress + 1, []):
            found = one.progress, 1
        if found is not None:
            one.last_sched, one.scheduled_step = self.now, len(self.steps) + 1
            one.first_sched = self.now if one.first_sched < 0 else one.first_sched
        return found

    def completes(self, one: Any, now: int, duration: int) -> bool:
        if not super().completes(one, now, duration):
            return False
        one.finished_step, one.completed_at = len(self.steps), now + duration
        one.post = self.post if one.output_len else 0
        self._end(one)
        return True

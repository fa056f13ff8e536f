"""Instances of August 2026 that load LoRA adapters, in plain Python: one load at a time, for the head of the queue.

Batches, steps and blocks are those of `mirrored_oracle.Instance`. Nothing of the engine is used here.
"""

from __future__ import annotations

import heapq
from collections import Counter, OrderedDict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tests.support.oracles.mirrored_oracle import NEVER, RUNNING, WAITING, Asker, Instance


@dataclass(frozen=True)
class Declared:
    """An adapter: how long it takes to load, its rank, and what a step takes longer for each in its batch."""

    load_us: int
    rank: int
    share: float


class Loader(Instance):
    """An instance with room for some adapters; requests name one by its place, or -1."""

    def __init__(
        self,
        flags: Mapping[str, Any],
        declared: Sequence[Declared],
        capacity: int,
        named: Sequence[int],
        by_length: bool = False,
    ) -> None:
        super().__init__(flags)
        self.declared, self.capacity, self.named = declared, capacity, named
        self.by_length = by_length
        self.resident: OrderedDict[int, None] = OrderedDict()  # the one used longest ago first
        self.holders: set[Asker] = set()  # each has a pin on its adapter
        self.loading, self.loaded_at = -1, NEVER
        self.loads: Counter[int] = Counter()
        self.losses: Counter[int] = Counter()
        self.blocked = 0
        base = self.step_us
        self.step_us = lambda *given: self.lengthened(base(*given))

    def lengthened(self, base: int) -> int:
        """The step with what the adapters of its members cost."""
        used = {self.named[one.index] for one in self.batch if one.new} - {-1}
        if not used:
            return base
        largest = max(used, key=lambda one: self.declared[one].rank)
        factor = 1.0 + self.declared[largest].share * len(used)
        return base if factor <= 1.0 else max(1, int(base * factor))

    def is_cold(self, one: Asker) -> bool:
        return self.named[one.index] >= 0 and self.named[one.index] not in self.resident

    def look_at_head(self, now: int) -> None:
        """Begin to load the adapter of the queue's head, if it can be."""
        if self.loading >= 0 or not self.queue or not self.is_cold(self.queue[0]):
            return
        pinned = {self.named[one.index] for one in self.holders}
        if len(self.resident) >= self.capacity:
            free = [one for one in self.resident if one not in pinned]
            if not free:
                self.blocked += 1
                return
            del self.resident[free[0]]
            self.losses[free[0]] += 1
        self.loading = self.named[self.queue[0].index]
        self.loaded_at = now + self.declared[self.loading].load_us

    def loaded(self, now: int) -> None:
        """The adapter on its way has come."""
        self.resident[self.loading] = None
        self.loads[self.loading] += 1
        self.loading, self.loaded_at = -1, NEVER
        if self.queue and self.next_step == NEVER:
            self.next_step = now

    def step(self, now: int) -> None:
        self.now = now
        super().step(now)
        if not self.batch and self.loading >= 0:
            self.next_step = NEVER

    def form(self) -> list[Asker]:
        if self.by_length:
            self.queue = deque(
                sorted(self.queue, key=lambda one: (one.input_len, one.arrival, str(one.index)))
            )
        self.look_at_head(self.now)
        admitted = super().form()
        for one in admitted:
            if self.named[one.index] >= 0:
                self.resident.move_to_end(self.named[one.index])
                self.holders.add(one)
        return admitted

    def room_for(self, one: Asker) -> tuple[int, int] | None:
        return None if self.is_cold(one) else super().room_for(one)

    def completes(self, one: Asker, now: int, duration: int) -> bool:
        is_done = super().completes(one, now, duration)
        if is_done:
            self.holders.discard(one)
        return is_done

    def time_out(self, one: Asker) -> None:
        is_there = one.status in (WAITING, RUNNING)
        super().time_out(one)
        self.holders.discard(one)
        if is_there and not self.batch and self.queue and self.next_step == NEVER:
            self.next_step = one.deadline


def run(instances: Sequence[Loader], askers: Sequence[Asker], horizon: int) -> None:
    """Requests go to the instances in turn; each instance runs to its end, or to the horizon."""
    for number, instance in enumerate(instances):
        mine = askers[number :: len(instances)]
        entries = [(one.arrival + instance.queueing, at) for at, one in enumerate(mine)]
        late = [(one.deadline, at) for at, one in enumerate(mine) if one.deadline < NEVER]
        heapq.heapify(entries)
        heapq.heapify(late)
        while True:
            queued, gone = (times[0][0] if times else NEVER for times in (entries, late))
            now = min(queued, gone, instance.loaded_at, instance.next_step)
            if now == NEVER or now > horizon:
                break
            if queued == now:
                instance.enqueue(mine[heapq.heappop(entries)[1]], now)
            elif instance.loaded_at == now:
                instance.loaded(now)
            elif instance.next_step == now:
                instance.step(now)
            else:
                instance.time_out(mine[heapq.heappop(late)[1]])

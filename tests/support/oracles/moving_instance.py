"""Instances of the moving oracle: they hand requests over, and they may fail, any number of times."""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tests.support.oracles import oracle
from tests.support.oracles.oracle import Config, FormedBatch, Instance, Request

if TYPE_CHECKING:
    from tests.support.oracles.moving_oracle import MovingCluster

LOST = 6
FINISHED_THERE, COMPUTED_AGAIN, LOST_FOR_GOOD = range(3)


class Events:
    """Events of an instance by time, requests before steps, and no more of a request or of steps once cancelled."""

    def __init__(self) -> None:
        self.entries: list[tuple[int, int, int, Any, Callable[[], None]]] = []
        self.num_pushed = 0
        self.rank_of: Callable[[Request], int] = lambda request: request.index

    def next_time_us(self) -> float:
        return self.entries[0][0] if self.entries else math.inf

    def push(self, time_us: int, action: Callable[[], None]) -> None:
        owner = getattr(action, "args", (None,))[0]
        if action is oracle.no_operation:
            return
        rank = 0 if isinstance(owner, Request) else 1
        order = self.rank_of(owner) if isinstance(owner, Request) else self.num_pushed
        self.num_pushed += 1
        entry = (time_us, rank, order, owner, action)
        at = bisect.bisect([each[:3] for each in self.entries], entry[:3])
        self.entries.insert(at, entry)

    def pop(self) -> tuple[int, Callable[[], None]]:
        entry = self.entries.pop(0)
        return entry[0], entry[4]

    def cancel(self, request: Request | None) -> None:
        """Forget what is to come of the request, or of all steps."""
        self.entries = [each for each in self.entries if each[3] is not request]

    def next_step_us(self) -> float:
        return min((each[0] for each in self.entries if each[1] == 1), default=math.inf)


@dataclass
class Journey:
    """What moving has done to a request."""

    came_from: int = -1
    has_kv: bool = False  # its prompt was computed elsewhere, and its KV comes along
    is_handed: bool = False
    has_joined: bool = False
    scheduled_us: int = -1  # the latest time since the hand-over
    due_us: float = math.inf
    transfer_us: int = -1
    left_us: int = -1
    handed_wait_us: int = -1
    restarts: int = 0
    joins: int = 0  # times that it joined a batch with its KV


class Former(oracle.BatchFormer):
    """Admits requests that come with their KV: the whole prompt is stored, and one token is counted."""

    journeys: dict[int, Journey]

    def _admit(self, batch: FormedBatch, request: Request) -> bool:
        if not self.journeys[request.index].has_kv:
            return super()._admit(batch, request)
        hits = self.kv.gpu.cached_prefix(request)
        request.progress_index = 0  # for the memory: a prompt
        start = len(hits) * self.block_size
        is_granted = self.kv.allocate(request, start, request.input_len, hits)
        request.progress_index = request.input_len
        if not is_granted:
            return False
        batch.slots.append(request)
        batch.size += 1
        batch.budget -= 1
        batch.newly_scheduled.append(request)
        request.status = oracle.RUNNING
        request.num_new_tokens = 1
        request.computed = request.input_len
        return True


class MovingInstance(Instance):
    """An instance that may hand requests over, and may fail."""

    def __init__(self, config: Config, profile: str, cluster: MovingCluster, number: int) -> None:
        super().__init__(config, profile)
        self.config, self.cluster, self.number = config, cluster, number
        self.former = Former(config, self.kv)
        self.former.journeys = cluster.journeys
        self.events: Any = Events()
        has_pools = config["hand-over-policy"] == "pools"
        self.role = config.get("role", "both") if has_pools else "both"
        self.is_up, self.stop_at = True, math.inf
        # whether a step that finds nobody is left out, unless the batch's last member was evicted
        self.has_orphans = self.keeps_batch = False

    def next_time_us(self) -> float:
        return min(self.events.next_time_us(), self.stop_at)

    def process_next_event(self) -> None:
        if self.stop_at <= self.events.next_time_us():
            self.clock_us = int(self.stop_at)
            self._stop()
            return
        super().process_next_event()

    def _arrive(self, request: Request) -> None:
        if self.cluster.journeys[request.index].has_kv:
            self._enqueue(request)
        else:
            super()._arrive(request)

    def _enqueue(self, request: Request) -> None:
        first = request.queued_at_us
        super()._enqueue(request)
        if request.status == oracle.DROPPED:  # in no queue, wherever it was on its way to before
            request.queued_at_us = -1
        elif first >= 0:
            request.queued_at_us = first

    def _record_scheduled(self, request: Request) -> None:
        journey = self.cluster.journeys[request.index]
        if not journey.has_kv:
            delay_us = request.sched_delay_us
            super()._record_scheduled(request)
            if journey.is_handed:  # preempted after the hand-over
                journey.scheduled_us = self.clock_us
                request.sched_delay_us = delay_us
            return
        journey.has_kv, journey.has_joined, journey.scheduled_us = False, True, self.clock_us
        journey.joins += 1
        journey.handed_wait_us = self.clock_us - journey.left_us - journey.transfer_us
        request.scheduled_step_idx = len(self.steps) + 1

    def _step(self) -> None:
        is_empty = not (self.batch or self.queue or self.keeps_batch)
        self.keeps_batch = False
        if self.has_orphans and is_empty and self.is_step_scheduled:
            self.is_step_scheduled = False  # it was scheduled for somebody who has been evicted
            return
        self._form_batch()
        has_decode = self.cluster.has_decode_instance()
        duration_us = self._step_time_us()
        newly = [each for each in self.batch if each.in_prefill]
        for request in self.batch:
            self._advance(request, duration_us)
        self._record_step(duration_us)
        stays = []
        for request in self.batch:
            moved = self.cluster.journeys[request.index].is_handed  # once in an attempt
            has_first = request in newly and request.progress_index == request.input_len
            if request.progress_index == request.final_progress:
                self._complete(request, duration_us)
            elif has_first and not moved and self.role == "prefill" and has_decode:
                self.kv.release(request)
                self.cluster.hand_over(request, self.number, self.clock_us + duration_us)
            else:
                stays.append(request)
        self._check_livelock(stays)
        self.batch = stays
        self.is_step_scheduled = bool(self.batch or self.queue)
        if self.is_step_scheduled:
            self.events.push(self.clock_us + duration_us, self._step)

    def _advance(self, request: Request, duration_us: int) -> None:
        """The first token of a request that was handed over stays the one that was made first."""
        ttft_us = request.ttft_us
        super()._advance(request, duration_us)
        if self.cluster.journeys[request.index].is_handed:
            request.ttft_us = ttft_us

    def _complete(self, request: Request, duration_us: int) -> None:
        super()._complete(request, duration_us)
        journey, output_us = self.cluster.journeys[request.index], self.output_processing_us
        if journey.is_handed or journey.restarts:
            whole = self.clock_us + duration_us - request.arrival_us
            tokens = max(request.output_len, 1)
            request.e2e_us = whole + tokens * output_us + duration_us + output_us

    def fail(self, now: int, running: int, delay_us: int) -> None:
        """The queue leaves; what runs leaves when the step in progress has ended, unless it is finished."""
        self.is_up = False
        entries = [each for each in self.events.entries if isinstance(each[3], Request)]
        for time_us, _, _, request, _ in entries:  # the record has when it would have been queued
            if request.queued_at_us < 0:
                request.queued_at_us = time_us
        for request in [*self.queue, *(each[3] for each in entries)]:
            self.events.cancel(request)
            journey = self.cluster.journeys[request.index]
            is_preempted = journey.is_handed and not journey.has_kv
            if is_preempted or (journey.has_kv and running != FINISHED_THERE):
                self._restart(request, journey)
            elif (
                not journey.has_kv
            ):  # it may have been preempted: nothing of its own is found again
                self.cluster.rename(request)
                request.ttft_us = -1
            journey.came_from = self.number if journey.came_from < 0 else journey.came_from
            journey.due_us, request.status = now + delay_us, oracle.IN_FLIGHT
        self.queue, self.num_pending = [], 0
        next_step = self.events.next_step_us()
        if running != FINISHED_THERE and (self.batch or next_step < math.inf):
            self.stop_at = max(now, next_step) if next_step < math.inf else now
            self.is_lost, self.delay_us = running == LOST_FOR_GOOD, delay_us

    def _restart(self, request: Request, journey: Journey) -> None:
        if journey.has_joined:
            request.sched_delay_us = journey.scheduled_us - request.arrival_us
        request.ttft_us, request.progress_index, request.computed = -1, 0, 0
        self.cluster.rename(request)
        kept = {"came_from": journey.came_from, "joins": journey.joins}
        fresh = Journey(restarts=journey.restarts + 1, **kept)
        self.cluster.journeys[request.index].__dict__.update(fresh.__dict__)

    def _stop(self) -> None:
        now, self.stop_at = self.clock_us, math.inf
        for request in self.batch:
            self.kv.release(request)
            journey = self.cluster.journeys[request.index]
            self._restart(request, journey)
            journey.came_from = self.number if journey.came_from < 0 else journey.came_from
            request.status = LOST if self.is_lost else oracle.IN_FLIGHT
            journey.due_us = math.inf if self.is_lost else now + self.delay_us
        self.batch, self.is_step_scheduled = [], False
        self.events.cancel(None)
        self.cool()
        if self.queue:  # it has come up again in the meantime
            self.is_step_scheduled = True
            self.events.push(now, self._step)

    def cool(self) -> None:
        """Nothing is cached any more; counters go on."""
        before, self.kv = self.kv, oracle.KvStore(self.config)
        self.former.kv = self.kv
        self.kv.gpu.hits, self.kv.gpu.misses = before.gpu.hits, before.gpu.misses
        self.kv.gpu.events = before.gpu.events
        if self.kv.gpu.events is not None:
            self.kv.gpu.events.emptied()

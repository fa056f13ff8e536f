"""The oracle with roles, transfers and an outage: instances hand requests over, and one of them may fail.

These parts are ours, so ties of one microsecond follow the engine's rule and not the reference's heap: changes of the
cluster, then decisions, then requests that are routed again, then instances by index; on an instance requests enter the
queue, in order of arrival, before it steps.
"""

import bisect
import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.support.oracles import oracle
from tests.support.oracles.oracle import Config, FormedBatch, Instance, Request, Snapshot

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
    joined_us: int = -1
    due_us: float = math.inf
    transfer_us: int = -1
    left_us: int = -1
    handed_wait_us: int = -1
    restarts: int = 0


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

    def __init__(self, config: Config, profile: str, cluster: "MovingCluster", number: int) -> None:
        super().__init__(config, profile)
        self.config, self.cluster, self.number = config, cluster, number
        self.former = Former(config, self.kv)
        self.former.journeys = cluster.journeys
        self.events: Any = Events()
        has_pools = config["hand-over-policy"] == "pools"
        self.role = config.get("role", "both") if has_pools else "both"
        self.is_up, self.stop_at = True, math.inf

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
        if first >= 0:
            request.queued_at_us = first

    def _record_scheduled(self, request: Request) -> None:
        journey = self.cluster.journeys[request.index]
        if not journey.has_kv:
            delay_us = request.sched_delay_us
            super()._record_scheduled(request)
            if journey.is_handed:  # preempted after the hand-over
                request.sched_delay_us = delay_us
            return
        journey.has_kv, journey.has_joined, journey.joined_us = False, True, self.clock_us
        journey.handed_wait_us = self.clock_us - journey.left_us - journey.transfer_us
        request.scheduled_step_idx = len(self.steps) + 1

    def _step(self) -> None:
        self._form_batch()
        has_decode = self.cluster.has_decode_instance()
        duration_us = self._step_time_us()
        newly = [each for each in self.batch if each.in_prefill]
        for request in self.batch:
            self._advance(request, duration_us)
        self._record_step(duration_us)
        stays = []
        for request in self.batch:
            has_first = request in newly and request.progress_index == request.input_len
            if request.progress_index == request.final_progress:
                self._complete(request, duration_us)
            elif has_first and self.role == "prefill" and has_decode:
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
            if journey.has_kv and running != FINISHED_THERE:
                self._restart(request, journey)
            journey.came_from = self.number if journey.came_from < 0 else journey.came_from
            journey.due_us, request.status = now + delay_us, oracle.IN_FLIGHT
        self.queue, self.num_pending = [], 0
        next_step = self.events.next_step_us()
        if running != FINISHED_THERE and (self.batch or next_step < math.inf):
            self.stop_at = max(now, next_step) if next_step < math.inf else now
            self.is_lost, self.delay_us = running == LOST_FOR_GOOD, delay_us

    def _restart(self, request: Request, journey: Journey) -> None:
        if journey.has_joined:
            request.sched_delay_us = journey.joined_us - request.arrival_us
        request.ttft_us, request.progress_index, request.computed = -1, 0, 0
        self.cluster.rename(request)
        fresh = Journey(came_from=journey.came_from, restarts=journey.restarts + 1)
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

    def cool(self) -> None:
        """Nothing is cached any more; counters go on."""
        before, self.kv = self.kv, oracle.KvStore(self.config)
        self.former.kv = self.kv
        self.kv.gpu.hits, self.kv.gpu.misses = before.gpu.hits, before.gpu.misses


class Turn:
    """Round-robin or least-loaded among some instances."""

    def __init__(self, policy: str) -> None:
        self.policy, self.count = policy, 0

    def choose(self, snapshots: list[Snapshot], among: list[int]) -> int:
        self.count += 1
        if self.policy == "round-robin":
            return among[(self.count - 1) % len(among)]
        return min(among, key=lambda number: (snapshots[number].load, number))


class MovingCluster(oracle.Cluster):
    """Routing in pools, transfers, and the outage of one instance."""

    def __init__(self, requests: list[Request], config: Config, profile: str) -> None:
        super().__init__(requests, config, profile)
        self.config = config
        self.journeys = {request.index: Journey() for request in requests}
        each = oracle.instance_configs(config)
        self.instances: Any = [
            MovingInstance(one, profile, self, number) for number, one in enumerate(each)
        ]
        for observer, instance in zip(self.observers, self.instances, strict=True):
            observer.instance = instance
        self.requests, self.num_renamed = requests, -(2**40)
        self.num_users = Counter(key for request in requests for key in request.prompt_keys)
        self.turn = Turn(config["routing-policy"])
        own = config["decode-routing-policy"]
        self.decode_turn = self.turn if own == "same" else Turn(own)
        self.changes: list[tuple[int, bool]] = []
        if config["cluster-policy"] == "outage-at":
            begin = config["outage-at-time-s"]
            end = begin + config["outage-at-lasting-s"]
            self.changes = [(int(begin * 1e6), True), (int(end * 1e6), False)]

    def rename(self, request: Request) -> None:
        """New tokens in place of its own: the blocks of an attempt that has ended are not found again."""
        size = self.config["block-size-in-tokens"]
        num_own = sum(self.num_users[key] == 1 for key in request.prompt_keys)
        begin = (len(request.prompt_keys) - num_own) * size
        self.num_renamed -= len(request.tokens) - begin
        first = self.num_renamed
        request.tokens[begin:] = range(first, first + len(request.tokens) - begin)
        request.prompt_keys = request.tokens[size - 1 : request.input_len : size]
        self.num_users.update(request.prompt_keys[len(request.prompt_keys) - num_own :])

    def has_decode_instance(self) -> bool:
        return any(one.is_up and one.role != "prefill" for one in self.instances)

    def run(self) -> None:
        while True:
            self.cluster_now = min((self._next(kind) for kind in range(3)), default=math.inf)
            work = min(self._next(1), self._next(2))
            earliest = min(self.instances, key=lambda instance: instance.next_time_us())
            instance_time = earliest.next_time_us()
            if min(work, instance_time) == math.inf:
                return
            now = min(self.cluster_now, instance_time)
            if now == math.inf or now > self.horizon_us:
                return
            if self.cluster_now <= instance_time:
                kind = next(kind for kind in range(3) if self._next(kind) == now)
                (self._change, self._decide, self._route_again)[kind](int(now))
            else:
                earliest.process_next_event()

    def _next(self, kind: int) -> float:
        """When the next change, decision, or routing of a request that has moved is due."""
        change = self.changes[0][0] if self.changes else math.inf
        if kind == 0:
            return change
        is_blocked = not any(one.is_up for one in self.instances)
        if kind == 2:
            due = min((one.due_us for one in self.journeys.values()), default=math.inf)
            return due if due == math.inf else self._not_before(due, is_blocked, change)
        if not self.events:
            return math.inf
        time_us, stage = self.events[0][:2]
        return self._not_before(time_us, is_blocked, change) if stage == 2 else time_us

    def _not_before(self, time_us: float, is_blocked: bool, change: float) -> float:
        return max(time_us, change if is_blocked else self.last_us)

    last_us = 0

    def _change(self, now: int) -> None:
        self.last_us = now
        _, fails = self.changes.pop(0)
        number = self.config["outage-at-instance"]
        if number >= len(self.instances):
            return
        one = self.instances[number]
        if fails:
            delay_us = int(self.config["outage-at-reroute-ms"] * 1e3)
            one.fail(now, self.config["outage-at-running"], delay_us)
        else:
            one.is_up = True
            if one.load == 0:
                one.cool()

    def _decide(self, now: int) -> None:
        _, stage, _, request = oracle.heapq.heappop(self.events)
        self.last_us = now
        self.stages[stage](request, now)

    def _route_again(self, now: int) -> None:
        self.last_us = now
        due = min(one.due_us for one in self.journeys.values())
        index = next(index for index, one in self.journeys.items() if one.due_us == due)
        self.journeys[index].due_us = math.inf
        self._route(self.requests[index], now)

    def _route(self, request: Request, now: int) -> None:
        snapshots, config = self._look(now), self.config
        journey = self.journeys[request.index]
        up = [number for number, one in enumerate(self.instances) if one.is_up]
        is_decode = journey.has_kv
        among = up
        if config["hand-over-policy"] == "pools":
            prefill = [n for n in up if self.instances[n].role == "prefill"]
            least = min((snapshots[n].load for n in prefill), default=2**31 - 1)
            is_long = request.input_len > config["pools-split-above-tokens"]
            has_room = least <= config["pools-split-within-load"]
            is_decode = journey.has_kv or not (is_long and has_room)
            without = "prefill" if is_decode else "decode"
            among = [n for n in up if self.instances[n].role != without] or up
        turn = self.decode_turn if is_decode else self.turn
        self.router_views[request.index] = (snapshots, None)
        request.instance = turn.choose(snapshots, among)
        self.instances[request.instance].inject(request, now)

    def hand_over(self, request: Request, number: int, start: int) -> None:
        config, journey = self.config, self.journeys[request.index]
        transfer = request.input_len * config["pools-kv-bytes-per-token"]
        transfer = transfer / (config["pools-link-gb-per-s"] * 1e3)
        others = sum(
            start < one.due_us < math.inf and one.has_kv and self.requests[index].instance == number
            for index, one in self.journeys.items()
        )
        length = int(config["pools-link-latency-us"] + transfer)
        if config["pools-share-link"]:
            length += others * int(transfer)
        journey.has_kv = journey.is_handed = True
        journey.came_from = number if journey.came_from < 0 else journey.came_from
        journey.due_us, journey.transfer_us, journey.left_us = start + length, length, start
        request.status = oracle.IN_FLIGHT


def simulate(
    workload: Mapping[str, np.ndarray],
    config: Config,
    cluster_of: Callable[[list[Request], Config, str], MovingCluster] = MovingCluster,
) -> oracle.OracleResult:
    """A run with what moving adds to the requests' arrays."""
    kept: list[MovingCluster] = []

    def make(requests: list[Request], config: Config, profile: str) -> MovingCluster:
        kept.append(cluster_of(requests, config, profile))
        return kept[0]

    result = oracle.simulate(workload, config, cluster_of=make)
    journeys = list(kept[0].journeys.values())
    result.requests["transfer_us"] = np.array(
        [one.transfer_us if one.due_us == math.inf else -1 for one in journeys]
    )
    for name in ("handed_wait_us", "restarts"):
        result.requests[name] = np.array([getattr(one, name) for one in journeys])
    is_between = [one.has_kv for one in journeys]  # in no batch: the record says progress 0
    result.requests["progress_index"][is_between] = 0
    result.requests["hand_overs"] = np.array([int(one.is_handed) for one in journeys])
    return result

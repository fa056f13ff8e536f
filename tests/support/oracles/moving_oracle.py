"""The oracle with roles, transfers and outages: instances hand requests over, and any of them may fail.

These parts are ours, so ties of one microsecond follow the engine's rule and not the reference's heap: changes of the
cluster, then decisions, then requests that are routed again, then instances by index; on an instance requests enter the
queue, in order of arrival, before it steps.
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tests.support.oracles import oracle
from tests.support.oracles.moving_instance import Journey, MovingInstance
from tests.support.oracles.oracle import Config, Request, Snapshot

Change = tuple[int, dict[int, int]]
"""(time, what becomes of running requests by instance): one that is up fails, one that is down comes up."""


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
    """Routing in pools, transfers, and outages of any instances."""

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
        self.changes: list[Change] = list(config.get("changes", ()))
        if config["cluster-policy"] == "outage-at":
            begin = config["outage-at-time-s"]
            end = begin + config["outage-at-lasting-s"]
            one = {config["outage-at-instance"]: config["outage-at-running"]}
            self.changes = [(int(begin * 1e6), one), (int(end * 1e6), one)]
        kind = "outages" if config["cluster-policy"] == "outages" else "outage-at"
        self.reroute_us = int(config[f"{kind}-reroute-ms"] * 1e3)

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
        return min((self._decision(one)[0] for one in self.events), default=math.inf)

    def _decision(self, event: tuple[int, int, int, Request]) -> tuple[float, int, int]:
        """When a decision is made and its place among those of that time; a routing waits for an instance."""
        time_us, stage, created, _ = event
        if stage < 2:
            return time_us, stage, created
        change = self.changes[0][0] if self.changes else math.inf
        is_blocked = not any(one.is_up for one in self.instances)
        return self._not_before(time_us, is_blocked, change), stage, created

    def _not_before(self, time_us: float, is_blocked: bool, change: float) -> float:
        return max(time_us, change if is_blocked else self.last_us)

    last_us = 0

    def _change(self, now: int) -> None:
        self.last_us = now
        _, changing = self.changes.pop(0)
        for number, running in changing.items():
            if number >= len(self.instances):
                continue
            one = self.instances[number]
            if one.is_up:
                one.fail(now, running, self.reroute_us)
                continue
            one.is_up = True
            if one.load == 0:
                one.cool()

    def _decide(self, now: int) -> None:
        event = min(self.events, key=self._decision)
        self.events.remove(event)
        oracle.heapq.heapify(self.events)
        _, stage, _, request = event
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
        self.rename(request)


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

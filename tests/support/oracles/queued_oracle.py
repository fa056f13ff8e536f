"""The moving oracle behind the gateway's queue: what may move waits there before it is routed for the first time.

At one time the order is: changes of the cluster, entries, first routings, requests that move, those that are evicted,
one that has waited too long, and a tick. An entry and a tick try to dispatch one request each.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from tests.support.oracles import moving_oracle, oracle
from tests.support.oracles.moving_oracle import MovingCluster
from tests.support.oracles.oracle import Config, Request
from tests.support.oracles.plain_queue import NOBODY, PlainQueue, Waiting

PRIORITIES = (3, 4, 3, -2, -1, -3)  # of no class, critical, standard, sheddable, batch, background
QUEUE_FULL, SHED, EXPIRED, EVICTED, IN_GATEWAY = 7, 8, 9, 10, 11


class QueuedCluster(MovingCluster):
    """Requests wait at the gateway until the instances that are up have room."""

    def __init__(self, requests: list[Request], config: Config, profile: str) -> None:
        super().__init__(requests, config, profile)
        self.queue = PlainQueue(
            config["per-band-capacity"],
            config["max-gateway-queue-depth"],
            config["queue-shedding"],
            config["usage-limit-threshold"],
        )
        self.tick, self.rank = math.inf, {request.index: 2**30 for request in requests}
        self.entered_us = [one.arrival_us + self.admission_latency_us for one in requests]
        self.wait_us = dict.fromkeys(self.rank, -1)
        self.chosen: list[Request] = []  # to be evicted at the end of this microsecond
        for instance in self.instances:
            instance.events.rank_of = lambda request: self.rank[request.index]

    def _decide_admission(self, request: Request, now: int) -> None:
        request.admitted = 1
        one = Waiting(request.index, PRIORITIES[request.slo_class], 0, request.slo_class)
        enters, victim = self.queue.enter(one)
        request.status = IN_GATEWAY if enters else QUEUE_FULL
        if victim != NOBODY:
            self.requests[victim].status = SHED
        if enters:
            self._attempt(now)

    def _attempt(self, now: int) -> None:
        if self.tick == math.inf:
            self.tick = now + self.config["dispatch-tick-interval"]
        saturation = self._saturation(now)
        number = self.queue.dispatch(saturation, self.entered_us)
        if number == NOBODY:
            if self.config.get("in-flight-eviction", False) and saturation >= 1:
                self._choose_victim()
            return
        self.rank[number] = sum(rank < 2**30 for rank in self.rank.values())
        self.wait_us[number] = now - self.entered_us[number]
        self.requests[number].status = oracle.IN_FLIGHT
        self._push(now + self.routing_latency_us, 2, self.requests[number])

    def _choose_victim(self) -> None:
        """The least urgent sheddable request that waits or runs somewhere, of several the one dispatched last."""
        there = [
            request
            for one in self.instances
            if one.is_up and one.stop_at == math.inf
            for request in (*one.queue, *one.batch)
            if PRIORITIES[request.slo_class] < 0 and request not in self.chosen
        ]
        if there and any(one.priority >= 0 for one in self.queue.queued):
            least = min(there, key=lambda one: (PRIORITIES[one.slo_class], -self.rank[one.index]))
            self.chosen.append(least)

    def _evict(self, now: int) -> None:
        """A step in progress goes on without the request; one that finds nobody is made, empty."""
        self.last_us = now
        request = self.chosen.pop(0)
        instance = self.instances[request.instance]
        if request in instance.batch:
            instance.batch.remove(request)
            instance.kv.release(request)
        else:
            instance.queue.remove(request)
        request.status = EVICTED

    def _saturation(self, now: int) -> float:
        detector, config = self.config["saturation-detector"], self.config
        if detector == "never":
            return 0.0
        up = [
            one for one, place in zip(self._look(now), self.instances, strict=True) if place.is_up
        ]
        if not up:
            return 1.0
        if detector == "concurrency":
            return sum(one.load for one in up) / (len(up) * config["max-concurrency"])
        depth, kv = config["queue-depth-threshold"], config["kv-cache-util-threshold"]
        return sum(max(one.queue_depth / depth, one.utilization / kv) for one in up) / len(up)

    def _expiry(self) -> float:
        ttl, queued = self.config["request-ttl"], self.queue.queued
        oldest = min((one.number for one in queued), default=None)
        return math.inf if oldest is None or not ttl else self.entered_us[oldest] + ttl

    def _next_of_queue(self) -> float:
        return min(self._expiry(), self.tick)

    def _act_of_queue(self, now: int) -> None:
        self.last_us = now
        if self._expiry() == now:
            oldest = min(self.queue.queued, key=lambda one: one.number)
            self.queue.queued.remove(oldest)
            self.requests[oldest.number].status = EXPIRED
            return
        waits, self.tick = bool(self.queue.queued), math.inf
        if waits:
            self._attempt(now)
        self.tick = now + self.config["dispatch-tick-interval"] if self.queue.queued else math.inf

    def run(self) -> None:
        while True:
            evicts = self.last_us if self.chosen else math.inf
            kinds = [self._next(0), self._next(1), self._next(2), evicts, self._next_of_queue()]
            earliest = min(self.instances, key=lambda instance: instance.next_time_us())
            instance_time = earliest.next_time_us()
            if min(*kinds[1:], instance_time) == math.inf:
                return
            cluster = min(kinds)
            now = min(cluster, instance_time)
            if now > self.horizon_us:
                return
            if cluster <= instance_time:
                acts = self._change, self._decide, self._route_again, self._evict
                (*acts, self._act_of_queue)[kinds.index(now)](int(now))
            else:
                earliest.process_next_event()


def simulate(workload: Mapping[str, np.ndarray], config: Config) -> oracle.OracleResult:
    """A run with what moving and waiting add to the requests' arrays."""
    kept: list[QueuedCluster] = []

    def make(*given: Any) -> QueuedCluster:
        kept.append(QueuedCluster(*given))
        return kept[0]

    result = moving_oracle.simulate(workload, config, make)
    waits = kept[0].wait_us
    result.requests["gateway_wait_us"] = np.array([waits[at] for at in sorted(waits)])
    return result

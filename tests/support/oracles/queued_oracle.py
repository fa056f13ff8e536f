"""The moving oracle behind the gateway's queue: what may move waits there before it is routed for the first time.

At one time the order is: changes of the cluster, entries, first routings, requests that move, those that are evicted,
one that has waited too long, and a tick. An entry and a tick try to dispatch one request each. Of several gateways each
has a queue of its own; of those that have an expiry or a tick at one time, the first one is first.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from tests.support.oracles import moving_oracle, oracle
from tests.support.oracles.moving_oracle import MovingCluster, Turn
from tests.support.oracles.oracle import Config, Request, Snapshot
from tests.support.oracles.plain_queue import NOBODY, PlainQueue, Waiting

PRIORITIES = (3, 4, 3, -2, -1, -3)  # of no class, critical, standard, sheddable, batch, background
CLASSES = ("", "critical", "standard", "sheddable", "batch", "background")
QUEUE_FULL, SHED, EXPIRED, EVICTED, IN_GATEWAY = 7, 8, 9, 10, 11


def targets_of(config: Config) -> dict[int, int] | None:
    """Time to dispatch by class, µs; None where the queue does not go by it."""
    if config.get("dispatch-order", "fifo") != "slo-deadline":
        return None
    pairs = (pair.split("=") for pair in config["slo-targets"].split(","))
    return {CLASSES.index(name): int(target) for name, target in pairs}


class Gateway:
    """A gateway: its queue, when it next looks at it, and its routers."""

    def __init__(self, number: int, config: Config) -> None:
        self.number = number
        self.queue = PlainQueue(
            config["per-band-capacity"],
            config["max-gateway-queue-depth"],
            config["queue-shedding"],
            config["usage-limit-threshold"],
            config.get("fairness-policy", "global-strict") == "round-robin",
            targets_of(config),
        )
        self.tick = math.inf
        self.turn = Turn(config["routing-policy"])
        own = config["decode-routing-policy"]
        self.decode_turn = self.turn if own == "same" else Turn(own)


class QueuedCluster(MovingCluster):
    """Requests wait at their gateway until the instances that are up have room."""

    def __init__(self, requests: list[Request], config: Config, profile: str) -> None:
        super().__init__(requests, config, profile)
        self.gateways = [Gateway(at, config) for at in range(config.get("num-gateways", 1))]
        self.rank = {request.index: 2**30 for request in requests}
        self.entered_us = [one.arrival_us + self.admission_latency_us for one in requests]
        self.wait_us = dict.fromkeys(self.rank, -1)
        self.chosen: list[Request] = []  # to be evicted at the end of this microsecond
        self.was_chosen: list[Request] = []
        self.moves = config["cluster-policy"] != "none" or config["hand-over-policy"] != "none"
        self.moves = self.moves or bool(self.changes)
        for instance in self.instances:
            instance.events.rank_of = lambda request: self.rank[request.index]
            instance.has_orphans = not self.moves and config.get("in-flight-eviction", False)

    def _gateway_of(self, request: Request) -> Gateway:
        return self.gateways[request.index % len(self.gateways)]

    def _look(self, now: int) -> list[Snapshot]:
        """What the gateway whose turn it is sees: of requests in flight, its own."""
        seen = super()._look(now)
        if len(self.gateways) == 1:
            return seen
        loads = []
        for one, place in zip(seen, self.instances, strict=True):
            sent = [each[3] for each in place.events.entries if isinstance(each[3], Request)]
            mine = sum(self._gateway_of(request) is self.acting for request in sent)
            loads.append(one.queue_depth + one.batch_size + mine)
        return [one._replace(load=load) for one, load in zip(seen, loads, strict=True)]

    def _route(self, request: Request, now: int) -> None:
        self.acting = self._gateway_of(request)
        self.turn, self.decode_turn = self.acting.turn, self.acting.decode_turn
        super()._route(request, now)

    def _decide_admission(self, request: Request, now: int) -> None:
        request.admitted = 1
        gateway = self._gateway_of(request)
        band, tenant = PRIORITIES[request.slo_class], int(self.config["tenant"][request.index])
        one = Waiting(request.index, band, tenant, request.slo_class)
        enters, victim = gateway.queue.enter(one)
        request.status = IN_GATEWAY if enters else QUEUE_FULL
        if victim != NOBODY:
            self.requests[victim].status = SHED
        if enters:
            self._attempt(gateway, now)

    def _attempt(self, gateway: Gateway, now: int) -> None:
        if gateway.tick == math.inf:
            gateway.tick = now + self.config["dispatch-tick-interval"]
        saturation = self._saturation(gateway, now)
        number = gateway.queue.dispatch(saturation, self.entered_us)
        if number == NOBODY:
            if self.config.get("in-flight-eviction", False) and saturation >= 1:
                self._choose_victim(gateway)
            return
        self.rank[number] = sum(rank < 2**30 for rank in self.rank.values())
        self.wait_us[number] = now - self.entered_us[number]
        self.requests[number].status = oracle.IN_FLIGHT
        self._push(now + self.routing_latency_us, 2, self.requests[number])

    def _choose_victim(self, gateway: Gateway) -> None:
        """The gateway's least urgent sheddable request that waits or runs somewhere, or the latest of several."""
        there = [
            request
            for one in self.instances
            if one.is_up and one.stop_at == math.inf
            for request in (*one.queue, *one.batch)
        ]
        if not self.moves:  # as in BLIS also one on its way, which then stays
            there += [each[3] for one in self.instances for each in one.events.entries if each[3]]
        there = [
            request
            for request in there
            if PRIORITIES[request.slo_class] < 0
            and request not in self.was_chosen
            and self._gateway_of(request) is gateway
        ]
        if there and any(one.priority >= 0 for one in gateway.queue.queued):
            least = min(there, key=lambda one: (PRIORITIES[one.slo_class], -self.rank[one.index]))
            self.chosen.append(least)
            self.was_chosen.append(least)

    def _evict(self, now: int) -> None:
        """A step in progress goes on without the request."""
        self.last_us = now
        request = self.chosen.pop(0)
        instance = self.instances[request.instance]
        if request in instance.batch:
            instance.batch.remove(request)
            instance.kv.release(request)
            instance.keeps_batch = not instance.batch
        elif request in instance.queue:
            instance.queue.remove(request)
        else:
            return
        request.status = EVICTED

    def _saturation(self, gateway: Gateway, now: int) -> float:
        detector, config = self.config["saturation-detector"], self.config
        self.acting = gateway
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

    def _expiry(self, gateway: Gateway) -> float:
        ttl, queued = self.config["request-ttl"], gateway.queue.queued
        oldest = min((one.number for one in queued), default=None)
        return math.inf if oldest is None or not ttl else self.entered_us[oldest] + ttl

    def _next_of_queue(self) -> float:
        return min(min(self._expiry(one), one.tick) for one in self.gateways)

    def _act_of_queue(self, now: int) -> None:
        self.last_us = now
        for one in self.gateways:
            if self._expiry(one) == now:
                oldest = min(one.queue.queued, key=lambda each: each.number)
                one.queue.queued.remove(oldest)
                self.requests[oldest.number].status = EXPIRED
                return
        one = next(each for each in self.gateways if each.tick == now)
        waits, one.tick = bool(one.queue.queued), math.inf
        if waits:
            self._attempt(one, now)
        one.tick = now + self.config["dispatch-tick-interval"] if one.queue.queued else math.inf

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

    result = moving_oracle.simulate(workload, {**config, "tenant": workload["tenant"]}, make)
    waits = kept[0].wait_us
    result.requests["gateway_wait_us"] = np.array([waits[at] for at in sorted(waits)])
    return result

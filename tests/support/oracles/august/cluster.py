"""A cluster of BLIS as of August 2026 in plain Python: its pools, its gateway's queue, and both together.

Written from `sim/cluster/cluster.go`, `cluster_event.go`, `pd_events.go` and `eviction_tracker.go`. It takes one event
at a time, in order of time, priority and creation, and has nothing of the engine. It is equal to the recorded runs with
either of the two (`test_recorded.py`); what it says of both together is read off the source.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.support.oracles.august.instance import COMPLETED, NEVER, TIMED_OUT, Part, PoolInstance
from tests.support.oracles.august.router import Router, Seen
from tests.support.oracles.plain_queue import NOBODY, PlainQueue, Waiting

PREFILL, DECODE, BOTH, ENCODE, IDLE = "prefill", "decode", "both", "encode", "idle"
# what a recording calls where a request has ended
REJECTED, IN_FLIGHT, QUEUE_FULL, SHED, EXPIRED, EVICTED = 1, 5, 7, 8, 9, 10
IN_GATEWAY, DROPPED_AT_DECODE, IN_TRANSFER = 12, 13, 14
ARRIVAL, ADMISSION, ROUTING, SECOND, EVICTION, TRANSFER, OVER, EXPIRY, TICK = (
    *range(3), 4, 5, 5, 6, 6, 7,
)  # fmt: skip


@dataclass(eq=False)
class Whole:
    """One request of the workload."""

    index: int
    given: dict[str, Any]  # of a part: arrival, lengths, tokens, class, deadline
    tenant: int
    band: int
    has_media: bool = False
    status: int = IN_FLIGHT
    enqueued: int = 0
    dispatched: int = 0
    turn: int = -1  # of its dispatch
    whole: Part | None = None
    prefill: Part | None = None
    decode: Part | None = None
    instance: int = -1
    routed_to: int = -1  # prefill
    completed: int = 0  # of a split request; 0: not
    times: dict[str, int] = field(default_factory=dict)


class Endless(Exception):
    """A run that goes on: KV that waits for its turn may leave no room for the one that has it."""


class Cluster:
    """The control plane and the instances, to the end or to the horizon."""

    def __init__(
        self,
        requests: list[Whole],
        config: Mapping[str, Any],
        instances: list[PoolInstance],
        routers: Mapping[str, Router],
    ) -> None:
        self.requests, self.config, self.instances = requests, config, instances
        self.routers, self.pools = routers, config["roles"] is not None
        count = len(instances)
        self.roles = config["roles"] or [BOTH] * count
        self.events: list[tuple[int, int, int, Callable[[int], None]]] = []
        self.created, self.placed = 0, 0
        self.in_flight = [0] * count
        self.seen = [Seen(number) for number in range(count)]
        self.looked, self.copied = 0, 0
        self.copies: list[set[Any]] = [set() for _ in instances]
        self.held: dict[int, int] = {}
        self.transfers = 0
        self.pending: list[tuple[Whole, Part]] = []
        self.decoding: list[tuple[Whole, Part]] = []
        self.queue, self.ticks = None, False
        self.tracked: list[Whole] = []
        self.num_dispatched = 0
        if config["flow-control"]:
            self.queue = PlainQueue(
                config["per-band-capacity"],
                config["max-gateway-queue-depth"],
                config["queue-shedding"],
                config["usage-limit-threshold"],
                config["fairness-policy"] == "round-robin",
                config["targets"],
            )
        for instance in instances:
            instance.on_done = self._done
        for one in requests:
            self._push(one.given["arrival"], ARRIVAL, lambda now, one=one: self._arrive(one, now))

    def _push(self, time: int, priority: int, action: Callable[[int], None]) -> None:
        self.created += 1
        heapq.heappush(self.events, (time, priority, self.created, action))

    def run(self, most_events: int = 10**9) -> None:
        """To the end.

        Raises:
            Endless: it has not come after so many events.
        """
        for _ in range(most_events):
            cluster = self.events[0][0] if self.events else NEVER
            number = min(range(len(self.instances)), key=lambda at: self.instances[at].next_time())
            now = min(cluster, self.instances[number].next_time())
            if now == NEVER or now > self.config["horizon"]:
                return
            if cluster == now:
                heapq.heappop(self.events)[3](now)
                continue
            instance = self.instances[number]
            before = instance.num_ended
            instance.process()
            self.in_flight[number] = max(self.in_flight[number] - instance.num_ended + before, 0)
            if self.pools:
                self._look_for_ends(number, now)
        raise Endless

    # --- what becomes known of the parts ---------------------------------------------------------

    def _look_for_ends(self, number: int, now: int) -> None:
        done = [
            (f"request_{one.index}_prefill", one, part)
            for one, part in self.pending
            if one.routed_to == number and part.status == COMPLETED
        ]
        for _, one, part in sorted(done, key=lambda found: found[0]):
            self.pending.remove((one, part))
            one.times["prefill complete"] = now
            self._push(now, TRANSFER, lambda now, one=one: self._begin_transfer(one, now))
        for one, part in list(self.decoding):
            if one.instance == number and part.status in (COMPLETED, TIMED_OUT):
                self.decoding.remove((one, part))
                is_done = part.status == COMPLETED
                one.completed = now + (self.instances[number].post if is_done else 0)

    def _done(self, part: Part) -> None:
        self._hold(part.tenant, -1)
        self.tracked = [one for one in self.tracked if one.whole is not part]

    def _hold(self, tenant: int, more: int) -> None:
        self.held[tenant] = max(self.held.get(tenant, 0) + more, 0)

    # --- what the router sees --------------------------------------------------------------------

    def _look(self, now: int) -> list[Seen]:
        """All instances, whatever their pool, with signals as old as they are."""
        delay, interval = self.config["cache-signal-delay"], self.config["refresh"]
        if delay > 0 and now - self.copied >= delay:
            self.copies = [set(one.kv.table) for one in self.instances]
            self.copied = now
        if interval == 0 or now - self.looked >= interval:
            self.looked = now
            for seen, one in zip(self.seen, self.instances, strict=True):
                seen.queued, seen.batch = len(one.queue), len(one.batch)
                seen.used = one.kv.used / one.kv.total
        for seen, count in zip(self.seen, self.in_flight, strict=True):
            seen.in_flight = count
        return self.seen

    def _of_pool(self, now: int, pool: str) -> list[Seen]:
        every = self._look(now)
        if not self.pools:
            return every
        return [one for one in every if (self.roles[one.number] in (pool, BOTH) and pool != ENCODE) or
                self.roles[one.number] == pool == ENCODE]  # fmt: skip

    def _hits(self, one: Whole, number: int) -> int:
        """Leading full blocks of the prompt in the copy of the instance's cache, or in the cache itself."""
        instance = self.instances[number]
        live = self.config["cache-signal-delay"] <= 0
        table = instance.kv.table if live else self.copies[number]
        count, before = 0, None
        size, tokens = instance.kv.size, one.given["tokens"]
        for place in range(one.given["input_len"] // size):
            before = instance.kv.chain(before, tokens[place * size : (place + 1) * size])
            if before not in table:
                break
            count += 1
        return count

    def _route(self, one: Whole, now: int, pool: str, router: str) -> int:
        seen = self._of_pool(now, pool)
        return self.routers[router].choose(seen, lambda number: self._hits(one, number))

    # --- arrival, admission, the queue -----------------------------------------------------------

    def _arrive(self, one: Whole, now: int) -> None:
        after = now + self.config["admission-latency"]
        self._push(after, ADMISSION, lambda now: self._admit(one, now))

    def _is_over_budget(self, one: Whole) -> bool:
        share = self.config["budgets"].get(one.tenant)
        if share is None or one.band >= 0:
            return False
        capacity = len(self.instances) * self.config["max-num-running-reqs"]
        return self.held.get(one.tenant, 0) > share * float(capacity)

    def _admit(self, one: Whole, now: int) -> None:
        self._look(now)
        if self._is_over_budget(one):
            one.status = REJECTED
            return
        if self.queue is None:
            after = now + self.config["routing-latency"]
            self._push(after, ROUTING, lambda now: self._first_routing(one, now))
            return
        one.enqueued = now
        place = Waiting(one.index, one.band, one.tenant, one.given["slo_class"])
        enters, victim = self.queue.enter(place)
        if victim != NOBODY:
            self.requests[victim].status = SHED
        if not enters:
            one.status = QUEUE_FULL
            return
        one.status = IN_GATEWAY
        if self.config["request-ttl"] > 0:
            after = now + self.config["request-ttl"]
            self._push(after, EXPIRY, lambda now: self._expire(one, now))
        self._attempt(now)

    def _expire(self, one: Whole, now: int) -> None:
        assert self.queue is not None
        for place in self.queue.queued:
            if place.number == one.index:
                self.queue.queued.remove(place)
                one.status = EXPIRED
                return

    def _tick(self, now: int) -> None:
        assert self.queue is not None
        if self.queue.queued:
            self._attempt(now)
        if self.queue.queued:
            self._push(now + self.config["dispatch-tick-interval"], TICK, self._tick)
        else:
            self.ticks = False

    def _attempt(self, now: int) -> None:
        assert self.queue is not None
        if not self.queue.queued:
            return
        if not self.ticks:
            self.ticks = True
            self._push(now + self.config["dispatch-tick-interval"], TICK, self._tick)
        full = self._saturation(now)
        urgent = any(one.priority >= 0 for one in self.queue.queued)
        if full >= 1.0 and self.config["in-flight-eviction"] and self.tracked and urgent:
            victim = min(self.tracked, key=lambda one: (one.band, -one.dispatched, -one.turn))
            self.tracked.remove(victim)
            self._push(now, EVICTION, lambda now: self._evict(victim))
            return
        entered = [one.enqueued for one in self.requests]
        number = self.queue.dispatch(full, entered)
        if number == NOBODY:
            return
        one = self.requests[number]
        one.dispatched, one.turn, one.status = now, self.num_dispatched, IN_FLIGHT
        self.num_dispatched += 1
        after = now + self.config["routing-latency"]
        self._push(after, ROUTING, lambda now: self._first_routing(one, now))

    def _saturation(self, now: int) -> float:
        seen, config = self._look(now), self.config
        if config["saturation-detector"] == "never":
            return 0.0
        if config["saturation-detector"] == "concurrency":
            room = len(seen) * config["max-concurrency"]
            return sum(one.in_flight for one in seen) / room
        depth, kv = config["queue-depth-threshold"], config["kv-cache-util-threshold"]
        total = 0.0
        for one in seen:
            total += max(one.queued / depth, one.used / kv)
        return total / len(seen)

    def _evict(self, one: Whole) -> None:
        part, instance = one.whole, self.instances[one.instance]
        assert part is not None
        if not instance.evict(part):
            return
        self.in_flight[one.instance] = max(self.in_flight[one.instance] - 1, 0)
        self._hold(part.tenant, -1)
        one.status = EVICTED

    # --- routing and transfers -------------------------------------------------------------------

    def _first_routing(self, one: Whole, now: int) -> None:
        config = self.config
        one.instance = self._route(one, now, DECODE, "decode")
        splits = self.pools and config["pd-decider"] == "always"
        if self.pools and config["pd-decider"] == "prefix-threshold":
            cached = self._hits(one, one.instance) * config["block-size-in-tokens"]
            splits = one.given["input_len"] - cached > config["pd-prefix-threshold"]
        decider = config["encode-decider"]
        if decider == "always" or (decider == "multimodal" and one.has_media):
            self._route(one, now, ENCODE, "cluster")
        if splits:
            self._push(now, SECOND, lambda now: self._second_routing(one, now))
            return
        one.whole = self._inject(one, Part.of(one.given, one.tenant), one.instance, now)
        if one.band < 0 and config["flow-control"] and config["in-flight-eviction"]:
            self.tracked.append(one)

    def _second_routing(self, one: Whole, now: int) -> None:
        one.routed_to = self._route(one, now, PREFILL, "prefill")
        part = Part.of(one.given, one.tenant, output_len=0)
        one.prefill = self._inject(one, part, one.routed_to, now)
        self.pending.append((one, part))

    def _inject(self, one: Whole, part: Part, number: int, now: int) -> Part:
        self.in_flight[number] += 1
        self._hold(one.tenant, 1)
        self.placed += 1
        self.instances[number].inject(part, now, self.placed)
        return part

    def _begin_transfer(self, one: Whole, now: int) -> None:
        config, part = self.config, Part.of(one.given, one.tenant)
        part.comes_with_kv = True
        instance = self.instances[one.instance]
        one.times["transfer start"] = now
        if not instance.reserve(part):
            one.status, one.completed = DROPPED_AT_DECODE, now
            return
        one.decode, one.status = part, IN_TRANSFER
        self.transfers += 1
        blocks = -(-part.input_len // config["block-size-in-tokens"])
        shared = config["pd-transfer-contention"] and self.transfers > 1
        bandwidth = config["bytes-per-us"] / (float(self.transfers) if shared else 1)
        length = config["base-us"] + blocks * config["block-bytes"] / bandwidth
        after = now + max(math.ceil(length), 1)
        self._push(after, OVER, lambda now: self._end_transfer(one, part, now))

    def _end_transfer(self, one: Whole, part: Part, now: int) -> None:
        self.transfers -= 1
        one.times["transfer end"], one.status = now, IN_FLIGHT
        self.in_flight[one.instance] += 1
        self._hold(one.tenant, 1)
        self.decoding.append((one, part))
        self.instances[one.instance].enqueue_decode(part, now)

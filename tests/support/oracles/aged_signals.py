"""Signals that are old, in the plain-Python oracle: an observer for each group of signals, and a late prefix index."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.support.oracles.oracle import (
    Cluster,
    Config,
    Instance,
    Observer,
    OracleResult,
    PrefixIndex,
    Request,
    Snapshot,
    WeightedRouter,
    instance_configs,
    simulate,
)


@dataclass
class Clock:
    """When one group of signals of one instance is looked at."""

    interval_us: int
    phase: float
    has_phases: bool

    def __post_init__(self) -> None:
        self.seen_us = -int(np.floor(self.phase * self.interval_us))

    def is_due(self, now: int) -> bool:
        """Whether the router looks now, which is the last look from then on."""
        if self.interval_us == 0:
            return True
        if now - self.seen_us < self.interval_us:
            return False
        late = (now - self.seen_us) % self.interval_us
        self.seen_us = now - late if self.has_phases else now
        return True


class AgedObserver:
    """Looks at one instance; what the router has sent it and it has not queued is known at once, or not at all."""

    def __init__(self, instance: Instance, config: Config, phase: float) -> None:
        self.instance = instance
        has_phases = config["snapshot-phases"] != "aligned"
        self.of_kv, self.of_load = (
            Clock(config[name], phase, has_phases)
            for name in ("snapshot-refresh-interval", "load-refresh-interval")
        )
        self.counts_in_flight = config["in-flight-counts"]
        self.fresh = Observer(instance, 0)
        self.kv, self.load = Snapshot(0, 0, 0.0, 0, 0, 0, 0.0), (0, 0)

    def look(self, now: int) -> Snapshot:
        instance, fresh = self.instance, self.fresh.look(now)
        if self.of_kv.is_due(now):
            self.kv = fresh
        if self.of_load.is_due(now):
            self.load = fresh.queue_depth, fresh.batch_size
        waiting, running = self.load
        in_flight = instance.num_pending if self.counts_in_flight else 0
        return self.kv._replace(
            load=waiting + running + in_flight, queue_depth=waiting, batch_size=running
        )


class LateIndex(PrefixIndex):
    """Blocks count from a delay after they came in."""

    def __init__(self, num_instances: int, delay_us: int) -> None:
        super().__init__(num_instances)
        self.delay_us, self.now = delay_us, 0
        self.since: list[dict[int, int]] = [{} for _ in range(num_instances)]

    def matched_blocks(self, request: Request) -> list[int]:
        keys = request.prompt_keys
        return [
            next((n for n, key in enumerate(keys) if not self._counts(i, key)), len(keys))
            for i in range(len(self.touched))
        ]

    def record(self, request: Request, instance: int) -> None:
        before = set(self.touched[instance])
        super().record(request, instance)
        for key in set(self.touched[instance]) - before:
            self.since[instance][key] = self.now

    def _counts(self, instance: int, key: int) -> bool:
        is_there = key in self.touched[instance]
        return is_there and self.now - self.since[instance][key] >= self.delay_us


class AgedCluster(Cluster):
    """A cluster whose router sees old signals; `phases` are those of the instances, as shares of an interval."""

    def __init__(
        self, requests: list[Request], config: Config, profile: str, phases: Sequence[float]
    ) -> None:
        super().__init__(requests, config, profile)
        pairs = zip(self.instances, phases, strict=True)
        self.observers = [AgedObserver(each, config, phase) for each, phase in pairs]  # type: ignore[misc]
        if isinstance(self.router, WeightedRouter):
            delay_us = config["prefix-index-delay"]
            self.router.index = LateIndex(len(instance_configs(config)), delay_us)

    def _route(self, request: Request, now: int) -> None:
        if isinstance(self.router, WeightedRouter):
            index: Any = self.router.index
            index.now = now
        super()._route(request, now)


def aged(
    workload: Mapping[str, np.ndarray], config: Config, profile: str, phases: Sequence[float]
) -> OracleResult:
    """The oracle's run with old signals."""
    return simulate(workload, config, profile, lambda *given: AgedCluster(*given, phases=phases))

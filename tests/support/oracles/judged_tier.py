"""An offload policy beside the plain oracle: takes of contents are counted, and February's CPU tier asks for worths."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np

from tests.support.oracles import oracle

Worth = Callable[[int, int], float]  # of a class and a number of requests
CLASSES = {0: "standard", 1: "critical", 2: "standard"}


def worth_by(numbers: Mapping[str, float]) -> Worth:
    """What room for a content is worth by `content-worth` with these numbers."""

    def worth(slo_class: int, num_takers: int) -> float:
        if num_takers < numbers.get("least_takers", 1):
            return 0.0
        value = numbers.get(CLASSES.get(slo_class, "sheddable"), 1.0)
        return value + (num_takers - 1) * numbers.get("per_taker", 0.0)

    return worth


def num_shared_of(table: Any) -> list[int]:
    """Leading blocks of every prompt that other prompts may have."""
    nodes, blocks = np.asarray(table.path_nodes), np.asarray(table.node_blocks)
    return [int(blocks[path[path >= 0]].sum()) for path in nodes]


class CountingCache(oracle.GpuCache):
    """The GPU tier, and how often each content was taken, by allocations that succeeded."""

    def __init__(self, total_blocks: int, block_size: int) -> None:
        super().__init__(total_blocks, block_size)
        self.takers: Counter[Any] = Counter()
        self.last: dict[Any, oracle.Request] = {}
        self.named: list[Any] = []

    def allocate(self, request: oracle.Request, start: int, end: int, hits: list[Any]) -> bool:
        self.named = []
        is_there = super().allocate(request, start, end, hits)
        for key in self.named if is_there else ():
            self.takers[key] += 1
            self.last[key] = request
        return is_there

    def _pin(self, request: oracle.Request, hits: list[Any], undo: oracle.Undo) -> None:
        super()._pin(request, hits, undo)
        self.named += [block.key for block in hits]

    def _fill_last_block(self, request: oracle.Request, tokens: list[int]) -> int:
        added = super()._fill_last_block(request, tokens)
        last = self.lists[request][-1]
        if len(last.tokens) == self.block_size:
            self.named.append(last.key)
        return added

    def _take_block(
        self, request: oracle.Request, tokens: list[int], end: int, undo: oracle.Undo
    ) -> bool:
        is_there = super()._take_block(request, tokens, end, undo)
        if is_there and len(tokens) == self.block_size and request.in_prefill:
            self.named.append(self.lists[request][-1].key)
        return is_there


# whether blocks go, by the instance's blocks, those in use, those of waiting prompts, and the running requests
DemandRule = Callable[[int, int, int, int], bool]


def by_forecast(limit: float, ahead: float) -> DemandRule:
    """The rule of `forecast-offload`."""
    return lambda total, used, waiting, running: used + ahead * (waiting + running) > limit * total


@dataclass
class Demand:
    """The blocks in use on an instance and those that are soon asked for, as offload policies see them."""

    instance: oracle.Instance
    rule: DemandRule
    forming: oracle.FormedBatch | None = None  # the batch, while a step is formed
    leaver: oracle.Request | None = None  # who gives its blocks back

    def listen(self) -> None:
        """Be told of batches that are formed and of blocks that are given back."""
        former, kv = self.instance.former, self.instance.kv
        form, go_on, release = former.form, former._continue_running, kv.release

        def begin(batch: oracle.FormedBatch, queue: list[oracle.Request]) -> None:
            self.forming = batch
            go_on(batch, queue)

        def formed(members: list[Any], queue: list[Any]) -> oracle.FormedBatch:
            found = form(members, queue)
            self.forming = None
            return found

        def given_back(request: oracle.Request) -> None:
            self.leaver = request
            release(request)

        one: Any = former
        one._continue_running, one.form = begin, formed
        two: Any = kv
        two.release = given_back

    def is_short(self, gpu: Any) -> bool:
        """Whether blocks go; an evicted request waits already, one that completes runs no more."""
        waiting = list(self.instance.queue)
        if self.forming is None:
            running = sum(
                one.status == oracle.RUNNING and one is not self.leaver
                for one in self.instance.batch
            )
        else:
            assert self.leaver is not None
            running, waiting = self.forming.size, [*waiting, self.leaver]
        blocks = sum(math.ceil(one.input_len / gpu.block_size) for one in waiting)
        return bool(self.rule(gpu.total_blocks, gpu.used_blocks, blocks, running))


class JudgedTier(oracle.CpuTier):
    """The CPU tier, which passes over contents without worth."""

    worth: Worth
    shared: set[Any]
    demand: Demand | None = None

    def offload(self, gpu: Any) -> None:
        """One scan of the free list."""
        if self.demand is not None and not self.demand.is_short(gpu):
            return
        for block in list(chain(gpu.free._head, gpu.free._tail)):
            is_full = self.used >= self.capacity
            if gpu.used_blocks / gpu.total_blocks <= self.threshold or is_full:
                return
            if block.key is None:
                continue
            takers = gpu.takers[block.key] if block.key in self.shared else 1
            if self.worth(gpu.last[block.key].slo_class, takers) <= 0:
                continue
            self.entries[block.number] = oracle.OffloadedBlock(
                block.key, block.tokens, self.clock_us
            )
            self.used += 1
            self.offloads += 1
            gpu.forget(block)
            gpu.free.remove(block)
            gpu.free.append(block)


def cluster_with(worth: Worth, num_shared: list[int], rule: DemandRule | None = None) -> Any:
    """What builds the oracle's cluster with this worth, or with a rule about demand.

    For `oracle.simulate(cluster_of=...)`.
    """

    def build(
        requests: list[oracle.Request], config: oracle.Config, profile: str
    ) -> oracle.Cluster:
        cluster = oracle.Cluster(requests, config, profile)
        shared = {
            key
            for one, count in zip(requests, num_shared, strict=False)
            for key in one.prompt_keys[:count]
        }
        for instance in cluster.instances:
            kv = instance.kv
            kv.gpu = CountingCache(kv.gpu.total_blocks, kv.gpu.block_size)
            assert kv.cpu is not None
            tier = JudgedTier(kv.cpu.capacity, kv.cpu.threshold, kv.cpu.transfer_us)
            tier.worth, tier.shared = worth, shared
            if rule is not None:
                tier.demand = Demand(instance, rule)
                tier.demand.listen()
            kv.cpu = tier
        return cluster

    return build

"""Instances of BLIS's revision of August 2026 in plain Python: KV blocks with a CPU tier, one event at a time.

Requests go to the instances in turn. Nothing of the engine is in it; a block's identity is the chain of its tokens.
"""

from __future__ import annotations

import math
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tests.support.recorded.latency_2026_08 import STEP_TIMES, served

Chain = Any  # None, or (the chain before, tokens)
Worth = Callable[[int, int], float]  # of a class and a number of requests
NEVER = 2**63
COMPLETED, DROPPED, WAITING, RUNNING, IN_FLIGHT, TIMED_OUT = 0, 2, 3, 4, 5, 12


@dataclass(eq=False)
class Asker:
    """One request and what is recorded of it."""

    index: int
    arrival: int
    input_len: int
    output_len: int
    urgency: float  # lower is more urgent
    tokens: list[int]
    slo_class: int = 0
    num_shared: int = 0  # leading blocks that other prompts may have
    deadline: int = NEVER
    progress: int = 0
    done: int = 0  # after the step in progress
    new: int = 0
    itls: list[int] = field(default_factory=list)
    status: int = IN_FLIGHT
    delay: int = -1
    ttft: int = -1
    has_token: bool = False
    e2e: int = -1
    preemptions: int = 0
    scheduled: int = 0
    cached: int = -1


class Block:
    """A block of the GPU."""

    def __init__(self) -> None:
        self.holders, self.tokens, self.chain = 0, [], None


class Kv:
    """The blocks of one instance, and its CPU tier."""

    def __init__(self, total: int, size: int, cpu: int, transfer_us: int) -> None:
        self.size, self.total, self.room, self.transfer_us = size, total, cpu, transfer_us
        self.free: OrderedDict[Block, None] = OrderedDict((Block(), None) for _ in range(total))
        self.table: dict[Chain, Block] = {}
        self.lists: dict[Asker, list[Block]] = {}
        self.cpu: OrderedDict[Chain, None] = OrderedDict()
        self.hits = self.misses = self.cpu_misses = self.copies = self.evictions = 0
        self.reloads = self.pending_us = 0
        self.known: dict[Any, int] = {}
        self.worth_of: Worth | None = None
        self.worth: dict[Chain, float] = {}  # of entries of the CPU tier
        self.shared: set[Chain] = set()
        self.takers: Counter[Chain] = Counter()

    @property
    def used(self) -> int:
        return self.total - len(self.free)

    def chain(self, before: Chain, tokens: list[int]) -> int:
        """A number for the tokens and all before them."""
        return self.known.setdefault((before, tuple(tokens)), len(self.known))

    def prompt_block(self, one: Asker, place: int) -> list[int]:
        """Tokens of a full block of the prompt."""
        return one.tokens[place * self.size : (place + 1) * self.size]

    def cached(self, one: Asker) -> list[Block]:
        """Leading blocks of the prompt that the table names."""
        found, before = [], None
        for place in range(one.input_len // self.size):
            before = self.chain(before, self.prompt_block(one, place))
            if before not in self.table:
                break
            found.append(self.table[before])
        return found

    def allocate(self, one: Asker, start: int, end: int, cached: list[Block]) -> bool:
        """With the CPU tier in front, if there is one."""
        if not self.room:
            return self.on_gpu(one, start, end, cached)
        place = len(cached)
        before = cached[-1].chain if cached else None
        mine = self.lists.get(one, [])
        if len(mine) > place:
            place, before = len(mine), mine[-1].chain
        if not self.bring_back(one, place, before):
            is_there = self.on_gpu(one, start, end, cached)
            self.cpu_misses += not is_there
            return is_there
        now = self.cached(one)
        reach = len(now) * self.size
        if reach <= start:
            return self.on_gpu(one, start, end, cached)
        first = -(-start // self.size) if one in self.lists else 0
        if reach >= end:
            self.hold(one, now[first : min(-(-end // self.size), len(now))])
            return True
        self.hold(one, now[first:])
        return self.on_gpu(one, reach, end, now)

    def bring_back(self, one: Asker, place: int, before: Chain) -> bool:
        """Blocks of the prompt from the CPU, until neither tier has one."""
        most, count = len(self.free), 0
        for at in range(place, one.input_len // self.size):
            tokens = self.prompt_block(one, at)
            before = self.chain(before, tokens)
            if before in self.table:
                continue
            if before not in self.cpu or count >= most:
                break
            block = self.pop()
            block.tokens, block.chain = list(tokens), before
            self.table[before] = block
            self.free[block] = None
            self.cpu.move_to_end(before)
            self.pending_us += self.transfer_us
            count += 1
        self.reloads += count
        return count > 0

    def pop(self) -> Block:
        """The head of the free list, whose content is forgotten."""
        block, _ = self.free.popitem(last=False)
        if block.chain is not None:
            self.table.pop(block.chain, None)
        block.tokens, block.chain = [], None
        return block

    def hold(self, one: Asker, blocks: list[Block]) -> None:
        """Put blocks that were found on the request's list."""
        for block in blocks:
            block.holders += 1
            self.takers[block.chain] += 1
            self.free.pop(block, None)
            self.hits += 1
            self.lists.setdefault(one, []).append(block)

    def on_gpu(self, one: Asker, start: int, end: int, cached: list[Block]) -> bool:
        """Room for tokens on the GPU; if there is none, nothing changes."""
        in_prefill, mine = one.progress < one.input_len, self.lists.get(one, [])
        tokens = one.tokens[start:end]
        room = (self.size - len(mine[-1].tokens)) if mine else 0
        if in_prefill:
            needed = -(-max(len(tokens) - room, 0) // self.size)
            if needed + sum(block.holders == 0 for block in cached) > len(self.free):
                return False
        elif room == 0 and not self.free:
            return False
        if not tokens:
            return True
        if not mine:
            self.hold(one, cached)
        mine = self.lists.setdefault(one, [])
        if mine and len(mine[-1].tokens) < self.size:
            last, count = mine[-1], self.size - len(mine[-1].tokens)
            last.tokens += tokens[:count]
            tokens = tokens[count:]
            if len(last.tokens) == self.size:
                self.name(last, mine[-2].chain if len(mine) > 1 else None)
        before = mine[-1].chain if mine else None
        while tokens:
            block = self.pop()
            block.tokens, block.holders = tokens[: self.size], 1
            tokens = tokens[self.size :]
            self.misses += 1
            if len(block.tokens) == self.size and in_prefill:
                self.name(block, before)
                before = block.chain
            mine.append(block)
        return True

    def name(self, block: Block, before: Chain) -> None:
        """The table names a block that is full."""
        block.chain = self.chain(before, block.tokens)
        self.takers[block.chain] += 1
        self.table[block.chain] = block

    def release(self, one: Asker) -> None:
        """Give the list up, last block first."""
        for block in reversed(self.lists.pop(one, [])):
            block.holders -= 1
            if not block.holders:
                self.free[block] = None

    def share(self, one: Asker) -> None:
        """Other prompts may have the leading blocks of this one."""
        before = None
        for place in range(one.num_shared):
            before = self.chain(before, self.prompt_block(one, place))
            self.shared.add(before)

    def mirror(self, batch: list[Asker]) -> None:
        """Copy what the batch holds to the CPU, or use the copy again."""
        for one in batch if self.room else ():
            for block in self.lists.get(one, ()):
                if block.chain is None or len(block.tokens) < self.size:
                    continue
                self.use(one, block.chain)

    def use(self, one: Asker, chain: Chain) -> None:
        """A content of the batch: where it has no copy, the least worth gives way, of equals the one used first."""
        takers = self.takers[chain] if chain in self.shared else 1
        worth = self.worth_of(one.slo_class, takers) if self.worth_of else 1.0
        if worth <= 0:
            return
        if chain not in self.cpu:
            if len(self.cpu) >= self.room:
                victim = min(self.cpu, key=lambda other: self.worth[other])
                if self.worth[victim] > worth:
                    return
                self.cpu.pop(victim)
                self.evictions += 1
            self.copies += 1
        self.cpu[chain] = None
        self.worth[chain] = worth
        self.cpu.move_to_end(chain)


class Instance:
    """One instance: its queue, its batch and its steps."""

    def __init__(self, flags: Mapping[str, Any]) -> None:
        size = flags["block-size-in-tokens"]
        transfer = flags["kv-transfer-base-latency"]
        transfer += math.ceil(size / flags["kv-transfer-bandwidth"])
        self.flags = flags
        self.kv = Kv(flags["total-kv-blocks"], size, flags["kv-cpu-blocks"], transfer)
        self.queue: deque[Asker] = deque()
        self.batch: list[Asker] = []
        self.next_step = NEVER
        self.steps: list[tuple[int, ...]] = []
        self.failures = 0
        self.step_us = STEP_TIMES[flags["latency-model"]]
        self.deployment = served(flags)
        self.queueing, self.post, self.token_us = (int(one) for one in flags["alpha-coeffs"])

    def enqueue(self, one: Asker, now: int) -> None:
        """A request has come through its queueing time."""
        longest, kv = self.flags["max-model-len"], self.kv
        longest = longest or NEVER
        is_long = one.input_len >= longest or one.input_len + one.output_len > longest
        if is_long or -(-one.input_len // kv.size) > kv.total:
            one.status = DROPPED
        elif one.deadline <= now:
            one.status = TIMED_OUT
        else:
            one.status = WAITING
            self.queue.append(one)
            if self.next_step == NEVER:
                self.next_step = now

    def time_out(self, one: Asker) -> None:
        """The request's time is up."""
        if one.status in (WAITING, RUNNING):
            (self.queue if one in self.queue else self.batch).remove(one)
            self.kv.release(one)
            one.status = TIMED_OUT

    def step(self, now: int) -> None:
        """Form a batch, compute it, let go what is done."""
        self.next_step = NEVER
        if not self.batch and not self.queue:
            return
        admitted = self.form()
        batch = [
            (one.input_len, one.output_len, one.progress, one.new) for one in self.batch if one.new
        ]
        duration = self.step_us(self.deployment, self.flags["beta-coeffs"], batch) if batch else 1
        duration += self.kv.pending_us
        self.kv.pending_us = 0
        for one in self.batch:
            self.advance(one, now, duration)
        self.steps.append((now, duration, len(self.batch), len(self.queue), self.kv.used))
        for one in admitted:
            one.delay = now - one.arrival
        self.kv.mirror(self.batch)
        self.batch = [one for one in self.batch if not self.completes(one, now, duration)]
        if self.batch or self.queue:
            self.next_step = now + duration

    def advance(self, one: Asker, now: int, duration: int) -> None:
        """What a member has got from the step."""
        if one.progress < one.input_len:
            one.progress = one.done
        elif one.new:
            one.progress += 1
            one.itls.append(duration + self.token_us)
        if one.progress == one.input_len and not one.has_token:
            one.has_token = True
            one.ttft = now + duration + self.token_us - one.arrival

    def completes(self, one: Asker, now: int, duration: int) -> bool:
        """Whether a member has all its tokens; then it leaves."""
        if one.progress < one.input_len + max(one.output_len, 1) - 1:
            return False
        if one.output_len and one.progress < one.input_len + one.output_len:
            is_there = self.kv.allocate(one, one.progress, one.progress + 1, [])
            self.failures += not is_there
        self.kv.release(one)
        one.status = COMPLETED
        one.e2e = one.ttft + sum(one.itls) + (self.post if one.output_len else 0)
        return True

    def form(self) -> list[Asker]:
        """Members first, then the queue while nobody was evicted; who has joined."""
        flags = self.flags
        self.budget, self.evicted = flags["max-num-scheduled-tokens"], False
        chunk, longest = flags["long-prefill-token-threshold"], flags["max-model-len"]
        for one in self.batch:
            one.new = 0
        place = 0
        while place < len(self.batch) and self.budget > 0:
            one = self.batch[place]
            rest = one.input_len - one.progress
            if rest > 0:
                count = min(chunk if 0 < chunk < rest else rest, self.budget)
                if longest:
                    count = min(count, max(longest - 1 - one.progress, 0))
            else:
                count = int(one.output_len > 0)
                if longest and one.progress + 1 > longest - 1:
                    count = 0
            if count > 0:
                is_there, moved = self.make_room(one, count, place)
                place -= moved
                if not is_there:
                    break
                self.budget -= count
                one.new = count
                one.done = one.progress + count
            place += 1
        admitted: list[Asker] = []
        while self.queue and len(self.batch) < flags["max-num-running-reqs"]:
            if self.budget <= 0 or self.evicted:
                break
            one = self.queue[0]
            found = self.room_for(one)
            if found is None:
                break
            start, count = found
            self.queue.popleft()
            self.batch.append(one)
            admitted.append(one)
            if one.cached < 0:
                one.cached = start
            one.scheduled += 1
            self.budget -= count
            one.new, one.done, one.status = count, start + count, RUNNING
        return admitted

    def room_for(self, one: Asker) -> tuple[int, int] | None:
        """Tokens that the head of the queue has from the cache, and gets in this step; None: there is no room."""
        chunk, longest = self.flags["long-prefill-token-threshold"], self.flags["max-model-len"]
        cached = self.kv.cached(one)
        start = len(cached) * self.kv.size
        rest = one.input_len - start
        count = min(chunk if 0 < chunk < rest else rest, self.budget)
        if longest:
            count = min(count, max(longest - 1 - start, 0))
        return (start, count) if self.kv.allocate(one, start, start + count, cached) else None

    def make_room(self, one: Asker, count: int, place: int) -> tuple[bool, int]:
        """Allocate, and evict until that works; how many members before the place have left."""
        moved = 0
        while not self.kv.allocate(one, one.progress, one.progress + count, []):
            self.evicted = True
            at = len(self.batch) - 1
            if self.flags["slo-preemption"]:
                for other in range(len(self.batch) - 2, -1, -1):
                    key = [(self.batch[i].urgency, self.batch[i].arrival) for i in (other, at)]
                    at = other if key[0] > key[1] else at
            victim = self.batch.pop(at)
            moved += at < place - moved
            self.budget += victim.new
            victim.new = victim.progress = 0
            victim.itls, victim.has_token, victim.status = [], False, WAITING
            victim.preemptions += 1
            self.kv.release(victim)
            self.queue.appendleft(victim)
            if victim is one:
                return False, moved
        return True, moved


def run(
    askers: list[Asker], flags: Mapping[str, Any], worth_of: Worth | None = None
) -> list[Instance]:
    """Every instance to the end, or to the horizon."""
    instances = [Instance(flags) for _ in range(flags["num-instances"])]
    for number, instance in enumerate(instances):
        instance.kv.worth_of = worth_of
        for one in askers:
            instance.kv.share(one)
        mine = askers[number :: len(instances)]
        entries = deque(sorted(mine, key=lambda one: one.arrival))
        late = deque(
            sorted((one for one in mine if one.deadline < NEVER), key=lambda one: one.deadline)
        )
        while True:
            queued = entries[0].arrival + instance.queueing if entries else NEVER
            gone = late[0].deadline if late else NEVER
            now = min(queued, instance.next_step, gone)
            if now == NEVER or now > flags["horizon"]:
                break
            if queued == now:
                instance.enqueue(entries.popleft(), now)
            elif instance.next_step == now:
                instance.step(now)
            else:
                instance.time_out(late.popleft())
    return instances


def askers_of(
    workload: Mapping[str, np.ndarray], tokens: list[list[int]], urgency: Mapping[int, float]
) -> list[Asker]:
    """The requests of a workload, with their tokens and how urgent each class is."""
    names = ("arrival_us", "input_len", "output_len")
    columns = [workload[name].tolist() for name in names]
    classes = workload["slo_class"].tolist()
    return [
        Asker(index, *values, urgency[classes[index]], tokens[index], classes[index])
        for index, values in enumerate(zip(*columns, strict=True))
    ]

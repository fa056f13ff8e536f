"""A slow, obvious event-loop oracle of the reference simulator, defects included.

Plain Python objects and integers; numpy only holds the results. Times are integer microseconds.
"""

import heapq
import math
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from tests.support.oracles import precise_index
from tests.support.recorded import latency_2026_08
from tests.support.recorded.routing_track import (
    EPOCH_SIZE,
    AdaptiveRouter,
    add_up,
    cost_benefit_scores,
    kv_pressure_scores,
    predictive_gate,
    prefix_scores,
    queue_depth_scores,
    slo_headroom_scores,
)

Config = Mapping[str, Any]

COMPLETED, REJECTED, DROPPED, WAITING, RUNNING, IN_FLIGHT = range(6)
STATUS_NAMES = [
    "completed",
    "rejected",
    "dropped_unservable",
    "still_queued",
    "still_running",
    "in_flight",
]
NO_CLASS, CRITICAL, STANDARD, SHEDDABLE, BATCH, BACKGROUND = range(6)
STANDARD_CLASSES = (NO_CLASS, STANDARD)
SHEDDABLE_CLASSES = (SHEDDABLE, BATCH, BACKGROUND)

FINISHED = "finished"
LIVELOCK_STEPS = 10_000
NO_HORIZON = 2**63 - 1
ROUTER_INDEX_CAPACITY = 10_000
THRASHING_WINDOW_US = 1000
DEFAULT_SCORERS = "prefix-affinity:3,queue-depth:2,kv-utilization:2"


class NotSupported(ValueError):
    """A configuration outside the behaviour that the oracle models."""


class ReferenceCrash(Exception):
    """The reference would have stopped with this run-time error."""


class Livelock(Exception):
    """The reference would run for ever."""


@dataclass(eq=False, slots=True)
class Request:
    """One request: its workload row, its state, and what is recorded about it."""

    index: int
    arrival_us: int
    input_len: int
    output_len: int
    slo_class: int
    id_rank: int
    short_input_id: int
    tokens: list[int]
    prompt_keys: list[int]

    priority: float = 0.0
    computed: int = 0
    num_new_tokens: int = 0
    itl_sum_us: int = 0

    status: int = IN_FLIGHT
    admitted: int = -1
    instance: int = -1
    queued_at_us: int = -1
    sched_delay_us: int = -1
    first_sched_delay_us: int = -1
    ttft_us: int = -1
    e2e_us: int = -1
    preemptions: int = 0
    num_scheduled: int = 0
    cached_tokens_first_sched: int = -1
    scheduled_step_idx: int = 0
    finished_step_idx: int = 0
    num_itl: int = 0
    progress_index: int = 0
    admit_max_queue_depth: int = -1
    routed_at_us: int = -1

    @property
    def in_prefill(self) -> bool:
        return self.progress_index < self.input_len

    @property
    def final_progress(self) -> int:
        return self.input_len + max(self.output_len, 1) - 1


def requests_of_workload(workload: Mapping[str, np.ndarray]) -> list[Request]:
    """Build the requests; a token is an integer that stands for the whole sequence up to itself.

    Tokens of full blocks come from the block ids, so two requests share a token exactly where they
    share the prefix; tokens behind the last full block are unique to their request.
    """
    size = int(workload["block_size"])
    block_ids = np.cumsum(workload["block_ids_delta"], dtype=np.int64).tolist()
    starts = workload["block_ptr"].tolist()
    names = ("arrival_us", "input_len", "output_len", "slo_class", "id_rank", "short_input_id")
    columns = [workload[name].tolist() for name in names]
    requests = []
    unique = -1
    for index, values in enumerate(zip(*columns, strict=True)):
        row = dict(zip(names, values, strict=True))
        own_blocks = block_ids[starts[index] : starts[index + 1]]
        tokens = [block * size + offset for block in own_blocks for offset in range(size)]
        num_behind = row["input_len"] + row["output_len"] - len(tokens)
        tokens += range(unique, unique - num_behind, -1)
        unique -= num_behind
        prompt_keys = tokens[size - 1 : row["input_len"] : size]
        requests.append(Request(index=index, tokens=tokens, prompt_keys=prompt_keys, **row))
    return requests


Event = tuple[int, Callable[[], None]]
"""(time, action)"""


def no_operation() -> None:
    """The action of events that only take part in the order of the heap."""


class EventHeap:
    """A binary heap ordered by time only; the layout of its array decides the order of ties."""

    def __init__(self) -> None:
        self._events: list[Event] = []

    def next_time_us(self) -> float:
        return self._events[0][0] if self._events else math.inf

    def push(self, time_us: int, action: Callable[[], None]) -> None:
        self._events.append((time_us, action))
        child = len(self._events) - 1
        while child > 0 and self._is_earlier(child, parent := (child - 1) // 2):
            self._swap(child, parent)
            child = parent

    def pop(self) -> Event:
        self._swap(0, -1)
        popped = self._events.pop()
        parent = 0
        while (child := 2 * parent + 1) < len(self._events):
            if child + 1 < len(self._events) and self._is_earlier(child + 1, child):
                child += 1
            if not self._is_earlier(child, parent):
                break
            self._swap(child, parent)
            parent = child
        return popped

    def _is_earlier(self, first: int, second: int) -> bool:
        return self._events[first][0] < self._events[second][0]

    def _swap(self, first: int, second: int) -> None:
        events = self._events
        events[first], events[second] = events[second], events[first]


ContentKey = int | tuple[int, ...]


def content_key(request: Request, content: list[int]) -> ContentKey:
    """A prefix of the request is named by its last token, any other sequence by all its tokens."""
    return content[-1] if content == request.tokens[: len(content)] else tuple(content)


@dataclass(eq=False, slots=True)
class Block:
    """A physical KV block; `key` is the prefix content it was registered under."""

    number: int
    references: int = 0
    key: ContentKey | None = None
    tokens: list[int] = field(default_factory=list)


class FreeList:
    """Free blocks in order; blocks never used so far are created when they are first popped."""

    def __init__(self, total_blocks: int) -> None:
        self._head: OrderedDict[Block, None] = OrderedDict()
        self._num_created = 0
        self._total_blocks = total_blocks
        self._tail: OrderedDict[Block, None] = OrderedDict()

    def pop_head(self) -> Block | None:
        if self._head:
            return self._head.popitem(last=False)[0]
        if self._num_created < self._total_blocks:
            self._num_created += 1
            return Block(self._num_created - 1)
        return self._tail.popitem(last=False)[0] if self._tail else None

    def append(self, block: Block) -> None:
        self._tail[block] = None

    def prepend(self, block: Block) -> None:
        self._head[block] = None
        self._head.move_to_end(block, last=False)

    def remove(self, block: Block) -> None:
        del (self._head if block in self._head else self._tail)[block]

    def first_with_key(self) -> Block | None:
        free = chain(self._head, self._tail)
        return next((block for block in free if block.key is not None), None)


@dataclass
class Undo:
    """What a roll-back must restore: taken blocks with their former keys, hits and if free."""

    taken: list[tuple[Block, ContentKey | None]] = field(default_factory=list)
    pinned: list[tuple[Block, bool]] = field(default_factory=list)


class GpuCache:
    """The GPU tier: free list, block lists of requests, and the table from content to block."""

    def __init__(self, total_blocks: int, block_size: int) -> None:
        self.total_blocks = total_blocks
        self.block_size = block_size
        self.free = FreeList(total_blocks)
        self.lists: dict[Request, list[Block]] = {}
        self.table: dict[ContentKey, Block] = {}
        self.used_blocks = 0
        self.hits = 0
        self.misses = 0
        self.events: precise_index.KvEvents | None = None  # told of what precise routing hears

    def cached_prefix(self, request: Request) -> list[Block]:
        """The longest run of leading full prompt blocks that are registered."""
        found: list[Block] = []
        for key in request.prompt_keys:
            if key not in self.table:
                break
            found.append(self.table[key])
        return found

    def allocate(self, request: Request, start: int, end: int, hits: list[Block]) -> bool:
        """Store tokens [start, end) of a prefill, or the one token at `start` of a decode."""
        tokens = self._tokens_to_store(request, start, end)
        blocks_needed = math.ceil(len(tokens) / self.block_size)
        if request.in_prefill and blocks_needed > self.total_blocks - self.used_blocks:
            return False
        undo = Undo()
        stored = 0
        if tokens and request not in self.lists:
            self._pin(request, hits, undo)
        elif tokens and 0 < len(self.lists[request][-1].tokens) < self.block_size:
            stored = self._fill_last_block(request, tokens)
        while stored < len(tokens):
            chunk = tokens[stored : stored + self.block_size]
            stored += len(chunk)
            if not self._take_block(request, chunk, start + stored, undo):
                self._roll_back(request, undo)
                return False
        if self.events is not None and request.in_prefill:
            self.events.allocated(request)
        return True

    def release(self, request: Request) -> None:
        """Give up the references of a request, last block first."""
        for block in reversed(self.lists.pop(request, [])):
            block.references -= 1
            if block.references == 0:
                self.used_blocks -= 1
                self.free.append(block)

    def pop_free(self) -> tuple[Block, ContentKey | None] | None:
        """Take the head of the free list; the table forgets its key, whoever holds the entry."""
        block = self.free.pop_head()
        if block is None:
            return None
        former_key = block.key
        if self.events is not None and former_key is not None:
            self.events.evicted(former_key)
        self.forget(block)
        return block, former_key

    def forget(self, block: Block) -> None:
        if block.key is not None:
            self.table.pop(block.key, None)
        block.key = None
        block.tokens = []

    def register(self, block: Block, key: ContentKey) -> None:
        block.key = key
        self.table[key] = block

    def _tokens_to_store(self, request: Request, start: int, end: int) -> list[int]:
        if request.in_prefill:
            if end < start:
                raise ReferenceCrash(f"slice bounds out of range [{start}:{end}]")
            return request.tokens[start:end]
        output_index = start - request.input_len
        if output_index >= request.output_len:
            problem = f"index out of range [{output_index}] with length {request.output_len}"
            raise ReferenceCrash(problem)
        return [request.tokens[start]]

    def _pin(self, request: Request, hits: list[Block], undo: Undo) -> None:
        for block in hits:
            was_free = block.references == 0
            if was_free:
                self.used_blocks += 1
                self.free.remove(block)
            block.references += 1
            self.hits += 1
            undo.pinned.append((block, was_free))
            self.lists.setdefault(request, []).append(block)

    def _fill_last_block(self, request: Request, tokens: list[int]) -> int:
        blocks = self.lists[request]
        last = blocks[-1]
        added = tokens[: self.block_size - len(last.tokens)]
        last.tokens.extend(added)
        if len(last.tokens) == self.block_size:
            content = [token for block in blocks for token in block.tokens]
            self.register(last, content_key(request, content))
        return len(added)

    def _take_block(self, request: Request, tokens: list[int], end: int, undo: Undo) -> bool:
        popped = self.pop_free()
        if popped is None:
            return False
        block, _ = popped
        block.tokens = tokens
        block.references = 1
        self.used_blocks += 1
        self.misses += 1
        if len(tokens) == self.block_size and request.in_prefill:
            self.register(block, request.tokens[end - 1])
        undo.taken.append(popped)
        self.lists.setdefault(request, []).append(block)
        return True

    def _roll_back(self, request: Request, undo: Undo) -> None:
        """Defect: the whole block list goes, so blocks of earlier steps stay used for ever."""
        for block, former_key in reversed(undo.taken):
            self.forget(block)
            if former_key is not None:
                self.register(block, former_key)
            block.references = 0
            self.used_blocks -= 1
            self.misses -= 1
            self.free.prepend(block)
        for block, was_free in reversed(undo.pinned):
            block.references -= 1
            self.hits -= 1
            if was_free and block.references == 0:
                self.used_blocks -= 1
                self.free.append(block)
        self.lists.pop(request, None)


class OffloadedBlock(NamedTuple):
    """The content of a free GPU block, copied to the CPU."""

    key: ContentKey
    tokens: list[int]
    offloaded_at_us: int


class CpuTier:
    """Copies of free GPU blocks, keyed by physical block number."""

    def __init__(self, capacity: int, threshold: float, transfer_us: int) -> None:
        self.capacity = capacity
        self.threshold = threshold
        self.transfer_us = transfer_us
        self.entries: dict[int, OffloadedBlock] = {}
        self.used = 0
        self.clock_us = 0
        self.pending_transfer_us = 0
        self.offloads = self.reloads = self.misses = self.thrashing = 0

    @property
    def thrashing_rate(self) -> float:
        return self.thrashing / self.offloads if self.offloads else 0.0

    def offload(self, gpu: GpuCache) -> None:
        """Move content of free blocks here while the GPU is fuller than the threshold."""
        while gpu.used_blocks / gpu.total_blocks > self.threshold and self.used < self.capacity:
            block = gpu.free.first_with_key()
            if block is None or block.key is None:
                return
            # Defect: an entry that is overwritten still counts as used.
            self.entries[block.number] = OffloadedBlock(block.key, block.tokens, self.clock_us)
            self.used += 1
            self.offloads += 1
            gpu.forget(block)
            gpu.free.remove(block)
            gpu.free.append(block)

    def reload(self, gpu: GpuCache) -> bool:
        """Bring back all content that the GPU lacks, even over a block reloaded a moment ago."""
        num_before = self.reloads
        for number, entry in sorted(self.entries.items()):
            if entry.key in gpu.table:
                continue
            popped = gpu.pop_free()
            if popped is None:
                break
            block, _ = popped
            block.tokens = list(entry.tokens)
            gpu.register(block, entry.key)
            gpu.free.append(block)
            self.pending_transfer_us += self.transfer_us
            self.thrashing += self.clock_us - entry.offloaded_at_us < THRASHING_WINDOW_US
            del self.entries[number]
            self.used -= 1
            self.reloads += 1
        return self.reloads > num_before


class KvStore:
    """The GPU tier and, if configured, the CPU tier behind it."""

    def __init__(self, config: Config) -> None:
        block_size = config["block-size-in-tokens"]
        self.gpu = GpuCache(config["total-kv-blocks"], block_size)
        self.cpu: CpuTier | None = None
        if config["kv-cpu-blocks"] > 0:
            transfer_us = math.ceil(block_size / config["kv-transfer-bandwidth"])
            transfer_us += config["kv-transfer-base-latency"]
            self.cpu = CpuTier(config["kv-cpu-blocks"], config["kv-offload-threshold"], transfer_us)

    def allocate(self, request: Request, start: int, end: int, hits: list[Block]) -> bool:
        if self.gpu.allocate(request, start, end, hits):
            return True
        if self.cpu is None:
            return False
        if not self.cpu.reload(self.gpu):
            self.cpu.misses += 1
            return False
        new_hits = self.gpu.cached_prefix(request)
        new_start = len(new_hits) * self.gpu.block_size
        if new_start > start:
            return self.gpu.allocate(request, new_start, end, new_hits)
        return self.gpu.allocate(request, start, end, hits)

    def release(self, request: Request) -> None:
        self.gpu.release(request)
        if self.cpu is not None:
            self.cpu.offload(self.gpu)

    def start_step(self, now: int) -> None:
        if self.cpu is not None:
            self.cpu.clock_us = now

    def take_transfer_us(self) -> int:
        if self.cpu is None:
            return 0
        transfer_us, self.cpu.pending_transfer_us = self.cpu.pending_transfer_us, 0
        return transfer_us

    def totals(self) -> dict[str, Any]:
        gpu, cpu = self.gpu, self.cpu
        hits, misses, thrashing_rate = gpu.hits, gpu.misses, 0.0
        counters = {"gpu_hits": hits, "gpu_misses": misses, "used_blocks_at_end": gpu.used_blocks}
        if cpu is not None:
            hits, misses = hits + cpu.reloads, misses + cpu.misses
            thrashing_rate = cpu.thrashing_rate
            counters |= {"cpu_offloads": cpu.offloads, "cpu_reloads": cpu.reloads}
            counters |= {"cpu_miss": cpu.misses, "thrashing": cpu.thrashing}
        hit_rate = hits / (hits + misses) if hits + misses else 0.0
        return {"cache_hit_rate": hit_rate, "kv_thrashing_rate": thrashing_rate, "kv": counters}


PriorityPolicy = Callable[[Request, int, int], float]
"""(request, now, length of the wait queue) -> priority"""


def tiered_priority(config: Config, adaptive: bool) -> PriorityPolicy:
    """Base by class plus ageing after a grace time; if adaptive, bases spread with the queue."""
    critical, standard = config["slo-base-critical"], config["slo-base-standard"]
    sheddable = config["slo-base-sheddable"]

    def spread(queue_len: int) -> float:
        low, high = config["load-adaptive-low"], config["load-adaptive-high"]
        if high <= low:
            return 1.0 if queue_len > 0 else 0.0
        return min(max((queue_len - low) / (high - low), 0.0), 1.0)

    def priority(request: Request, now: int, queue_len: int) -> float:
        base, grace_us = sheddable, config["slo-threshold-sheddable"]
        if request.slo_class == CRITICAL:
            base, grace_us = critical, 0
        elif request.slo_class in STANDARD_CLASSES:
            base, grace_us = standard, config["slo-threshold-standard"]
        if adaptive:
            base = sheddable + spread(queue_len) * (base - sheddable)
        age_us = now - request.arrival_us
        return base + max(0.0, config["slo-age-weight"] * (age_us - grace_us))

    return priority


def deadline_priority(config: Config) -> PriorityPolicy:
    """Base of the class × least time left ÷ time left to the class's deadline; not BLIS's."""

    def priority(request: Request, now: int, _queue_len: int) -> float:
        name = "sheddable"
        if request.slo_class == CRITICAL:
            name = "critical"
        elif request.slo_class in STANDARD_CLASSES:
            name = "standard"
        least = float(config["slo-deadline-least-left"])
        left = max(config[f"slo-deadline-{name}"] - (now - request.arrival_us), least)
        return config[f"slo-base-{name}"] * (least / left)

    return priority


def class_priority(request: Request, now: int, _queue_len: int) -> float:
    """The `slo-class` policy of the routing track; requests without a class get base 0."""
    bases = {CRITICAL: 10.0, STANDARD: 5.0, SHEDDABLE: 3.0, BATCH: 1.0}
    return bases.get(request.slo_class, 0.0) + 1e-5 * (now - request.arrival_us)


def make_priority(config: Config, profile: str) -> PriorityPolicy:
    match config["priority-policy"]:
        case "" | "constant":
            return lambda request, now, queue_len: 0.0
        case "slo-based":
            return lambda request, now, queue_len: 1e-6 * (now - request.arrival_us)
        case "inverted-slo":
            return lambda request, now, queue_len: -(1e-6 * (now - request.arrival_us))
        case "slo-tiered" | "load-adaptive" as name if profile == "scheduling":
            return tiered_priority(config, adaptive=name == "load-adaptive")
        case "slo-deadline":
            return deadline_priority(config)
        case "slo-class" if profile == "routing":
            return class_priority
    raise NotSupported(f"priority-policy {config['priority-policy']!r} in profile {profile!r}")


SortKey = Callable[[Request], tuple[float, int, int]]
SORT_KEYS: dict[str, SortKey | None] = {
    "": None,
    "fcfs": None,
    "priority-fcfs": lambda request: (-request.priority, request.arrival_us, request.id_rank),
    "reverse-priority": lambda request: (request.priority, request.arrival_us, request.id_rank),
    "sjf": lambda request: (request.input_len, request.arrival_us, request.id_rank),
}


@dataclass
class FormedBatch:
    """A batch being formed: `slots[:size]` are members, evicted requests may linger behind."""

    slots: list[Request]
    size: int
    budget: int
    preempted: list[Request] = field(default_factory=list)
    newly_scheduled: list[Request] = field(default_factory=list)


def worth_of(config: Config) -> Callable[[Request, Any], float] | None:
    """What a running request is worth by `least-worth`, given the block lists; None where BLIS's rule decides."""
    if config.get("victim-policy", "none") != "least-worth":
        return None

    def worth(request: Request, lists: Any) -> float:
        if request.slo_class == CRITICAL:
            value = config["least-worth-critical"]
        elif request.slo_class in STANDARD_CLASSES:
            value = config["least-worth-standard"]
        else:
            value = config["least-worth-sheddable"]
        held = lists.get(request, [])
        tokens = sum(len(block.tokens) for block in held)
        own = sum(block.references == 1 for block in held)
        freed: float = config["least-worth-per-block"] * own
        return float(value + config["least-worth-per-token"] * tokens - freed)

    return worth


class BatchFormer:
    """Continues running requests, evicting when KV runs out, then admits waiting ones."""

    def __init__(self, config: Config, kv: KvStore) -> None:
        self.kv = kv
        self.block_size = config["block-size-in-tokens"]
        self.token_budget = config["max-num-scheduled-tokens"]
        self.max_running = config["max-num-running-reqs"]
        self.evicts_lowest_priority = config.get("slo-preemption", False)
        self.worth = worth_of(config)
        threshold: int = config["long-prefill-token-threshold"]
        self.thresholds = dict.fromkeys(range(6), threshold)
        if config.get("slo-prefill", False):
            self.thresholds[CRITICAL] = config["slo-prefill-critical"]
            for slo_class in SHEDDABLE_CLASSES:
                self.thresholds[slo_class] = config["slo-prefill-sheddable"]

    def form(self, members: list[Request], queue: list[Request]) -> FormedBatch:
        batch = FormedBatch(list(members), len(members), self.token_budget)
        self._continue_running(batch, queue)
        while queue and batch.size < self.max_running and batch.budget > 0 and not batch.preempted:
            if not self._admit(batch, queue[0]):
                break
            queue.pop(0)
        return batch

    def _continue_running(self, batch: FormedBatch, queue: list[Request]) -> None:
        """Visit every slot of the start; defect: evicted and moved requests are visited too."""
        for position in range(batch.size):
            if batch.budget <= 0 or not self._go_on(batch.slots[position], batch, queue):
                return

    def _go_on(self, request: Request, batch: FormedBatch, queue: list[Request]) -> bool:
        """Give a member its tokens of this step; False if no other may be visited any more."""
        if not request.in_prefill and request.output_len == 0:
            return True
        num_tokens = 1
        if request.in_prefill:
            num_tokens = self._chunk(request, request.progress_index, batch.budget)
        if not self._allocate_or_evict(request, num_tokens, batch, queue):
            return False
        batch.budget -= num_tokens
        request.num_new_tokens = num_tokens
        request.computed += num_tokens
        return True

    def _chunk(self, request: Request, start: int, budget: int) -> int:
        remaining = request.input_len - start
        threshold = self.thresholds[request.slo_class]
        return min(remaining, budget, threshold if threshold > 0 else remaining)

    def _allocate_or_evict(
        self, request: Request, num_tokens: int, batch: FormedBatch, queue: list[Request]
    ) -> bool:
        start = request.progress_index
        while not self.kv.allocate(request, start, start + num_tokens, []):
            if batch.size == 0:
                return False
            victim = self._evict(batch)
            queue.insert(0, victim)
            if victim is request:
                return False
        return True

    def _evict(self, batch: FormedBatch) -> Request:
        slot = batch.size - 1
        if self.evicts_lowest_priority:
            slot = min(range(batch.size), key=lambda position: batch.slots[position].priority)
        if self.worth is not None:  # of equals the last
            lists = self.kv.gpu.lists
            slot = min(range(batch.size), key=lambda at: (self.worth(batch.slots[at], lists), -at))
        victim = batch.slots[slot]
        batch.size -= 1
        batch.slots[slot] = batch.slots[batch.size]
        victim.status = WAITING
        victim.progress_index = 0
        victim.computed = 0
        victim.preemptions += 1
        self.kv.release(victim)
        batch.preempted.append(victim)
        return victim

    def _admit(self, batch: FormedBatch, request: Request) -> bool:
        hits = self.kv.gpu.cached_prefix(request)
        start = len(hits) * self.block_size
        num_tokens = self._chunk(request, start, batch.budget)
        if not self.kv.allocate(request, start, start + num_tokens, hits):
            return False
        if request.num_scheduled == 0:
            request.cached_tokens_first_sched = start
        batch.slots.append(request)
        batch.size += 1
        batch.budget -= num_tokens
        batch.newly_scheduled.append(request)
        request.status = RUNNING
        request.num_new_tokens = num_tokens
        request.computed = start + num_tokens
        return True


class Step(NamedTuple):
    """One executed step."""

    start_us: int
    duration_us: int
    running: int
    waiting: int
    used_blocks: int


class Instance:
    """One serving instance with its event heap, wait queue, running batch and KV cache."""

    def __init__(self, config: Config, profile: str) -> None:
        self.kv = KvStore(config)
        self.former = BatchFormer(config, self.kv)
        self.priority = make_priority(config, profile)
        if config["scheduler"] not in SORT_KEYS:
            raise NotSupported(f"scheduler {config['scheduler']!r}")
        self.sort_key = SORT_KEYS[config["scheduler"]]
        self.alpha = config["alpha-coeffs"]
        self.beta = config["beta-coeffs"]
        self.latency_model = config.get("latency-model", "auto")
        if self.latency_model == "auto" and len(self.beta) > 3:
            is_routing = profile == "routing"
            self.latency_model = "blackbox-attention" if is_routing else "blackbox-context"
        self.step_time_of = latency_2026_08.STEP_TIMES.get(self.latency_model)
        if self.step_time_of is not None:
            self.served = latency_2026_08.served(config)
        if self.latency_model == "trained-physics":  # its second number is not of queueing
            self.alpha = [self.alpha[0], 0.0, self.alpha[2]]
        self.output_processing_us = int(self.alpha[2])

        self.events = EventHeap()
        self.clock_us = 0
        self.queue: list[Request] = []
        self.batch: list[Request] = []
        self.num_pending = 0
        self.is_step_scheduled = False

        self.steps: list[Step] = []
        self.counts: Counter[str] = Counter()
        self.best_progress = 0
        self.num_stalled_steps = 0
        self.has_end = config["horizon"] < NO_HORIZON

    @property
    def load(self) -> int:
        return len(self.queue) + len(self.batch) + self.num_pending

    def inject(self, request: Request, now: int) -> None:
        self.num_pending += 1
        self.events.push(now, partial(self._arrive, request))

    def process_next_event(self) -> None:
        self.clock_us, action = self.events.pop()
        action()

    def _arrive(self, request: Request) -> None:
        queueing_us = int(self.alpha[0] + self.alpha[1] * request.input_len)
        self.events.push(self.clock_us + queueing_us, partial(self._enqueue, request))

    def _enqueue(self, request: Request) -> None:
        self.num_pending -= 1
        gpu = self.kv.gpu
        if math.ceil(request.input_len / gpu.block_size) > gpu.total_blocks:
            request.status = DROPPED
            self.counts["dropped_unservable"] += 1
        else:
            request.status = WAITING
            request.queued_at_us = self.clock_us
            self.queue.append(request)
            self.counts["total_input_tokens"] += request.input_len
        if not self.is_step_scheduled:
            # Defect: the flag stays down, so a second request of this tick starts a second chain.
            self.events.push(self.clock_us, self._step)

    def _step(self) -> None:
        self._form_batch()
        duration_us = self._step_time_us()
        for request in self.batch:
            self._advance(request, duration_us)
        self._record_step(duration_us)
        remaining = [each for each in self.batch if each.progress_index != each.final_progress]
        for request in self.batch:
            if request.progress_index == request.final_progress:
                self._complete(request, duration_us)
        self._check_livelock(remaining)
        self.batch = remaining
        self.is_step_scheduled = bool(self.batch or self.queue)
        if self.is_step_scheduled:
            self.events.push(self.clock_us + duration_us, self._step)

    def _form_batch(self) -> None:
        self.kv.start_step(self.clock_us)
        for request in self.queue:
            request.priority = self.priority(request, self.clock_us, len(self.queue))
        if self.sort_key is not None:
            self.queue.sort(key=self.sort_key)
        formed = self.former.form(self.batch, self.queue)
        self.batch = formed.slots[: formed.size]
        self.counts["preemption_count"] += len(formed.preempted)
        for _ in formed.preempted:
            self.events.push(self.clock_us, no_operation)
        for request in formed.newly_scheduled:
            self.events.push(self.clock_us, no_operation)
            self._record_scheduled(request)

    def _record_scheduled(self, request: Request) -> None:
        request.sched_delay_us = self.clock_us - request.arrival_us
        if request.num_scheduled == 0:
            request.first_sched_delay_us = request.sched_delay_us
        request.num_scheduled += 1
        request.scheduled_step_idx = len(self.steps) + 1

    def _step_time_us(self) -> int:
        """Defect: a member not reached counts with the tokens of its last scheduled step."""
        if self.step_time_of is not None:
            members = [
                (each.input_len, each.output_len, each.progress_index, each.num_new_tokens)
                for each in self.batch
                if each.num_new_tokens > 0
            ]
            return self.step_time_of(self.served, self.beta, members) + self.kv.take_transfer_us()
        prefill = sum(each.num_new_tokens for each in self.batch if each.in_prefill)
        decode = sum(
            each.num_new_tokens
            for each in self.batch
            if not each.in_prefill and each.output_len > 0
        )
        model_us = self.beta[0] + self.beta[1] * prefill + self.beta[2] * decode
        if self.latency_model == "blackbox-attention":  # the routing revision's
            prefills = (each for each in self.batch if each.in_prefill)
            model_us += self.beta[3] * sum(
                e.num_new_tokens * (e.progress_index + e.num_new_tokens) for e in prefills
            )
        if self.latency_model == "blackbox-context":  # not BLIS's: the context read by attention
            ends = (e.computed if e.in_prefill else e.progress_index + 1 for e in self.batch)
            model_us += self.beta[3] * (sum(ends) - prefill - decode)
        return int(model_us) + self.kv.take_transfer_us()

    def _advance(self, request: Request, duration_us: int) -> None:
        if request.in_prefill:
            request.progress_index = request.computed
        else:
            request.progress_index += 1
            self.counts["total_output_tokens"] += 1
            self._record_itl(request, duration_us)
        if request.progress_index == request.input_len:
            first_token_us = self.clock_us + duration_us + self.output_processing_us
            request.ttft_us = first_token_us - request.arrival_us
            self.counts["ttft_sum_us"] += request.ttft_us

    def _record_itl(self, request: Request, duration_us: int) -> None:
        request.num_itl += 1
        request.itl_sum_us += duration_us + self.output_processing_us

    def _record_step(self, duration_us: int) -> None:
        used = self.kv.gpu.used_blocks
        step = Step(self.clock_us, duration_us, len(self.batch), len(self.queue), used)
        self.steps.append(step)
        self.counts["kv_blocks_used_integral"] += used * duration_us

    def _complete(self, request: Request, duration_us: int) -> None:
        # Defect: the last latency is recorded a second time.
        self._record_itl(request, duration_us)
        end = request.progress_index
        if request.output_len > 0 and not self.kv.allocate(request, end, end + 1, []):
            self.counts["kv_allocation_failures"] += 1
        self.kv.release(request)
        request.status = COMPLETED
        request.finished_step_idx = len(self.steps)
        request.e2e_us = max(request.ttft_us, 0) + request.itl_sum_us
        self.events.push(self.clock_us + duration_us, no_operation)
        self.counts["completed_requests"] += 1

    def _check_livelock(self, remaining: list[Request]) -> None:
        progress = sum(min(each.progress_index, each.final_progress) for each in remaining)
        has_completion = len(remaining) < len(self.batch)
        has_work = bool(remaining or self.queue)
        if has_completion or progress > self.best_progress or not has_work:
            self.best_progress = progress
            self.num_stalled_steps = 0
            return
        self.num_stalled_steps += 1
        if self.num_stalled_steps >= LIVELOCK_STEPS and not self.has_end:
            raise Livelock(f"{LIVELOCK_STEPS} steps without completion or net progress")


class Snapshot(NamedTuple):
    """What admission and routing see of one instance."""

    load: int
    queue_depth: int
    utilization: float
    free_blocks: int
    batch_size: int
    pending_transfer_us: int
    thrashing_rate: float


class Observer:
    """Looks at one instance; KV figures are refreshed once per interval and start at zero."""

    def __init__(self, instance: Instance, refresh_interval_us: int) -> None:
        self.instance = instance
        self.refresh_interval_us = refresh_interval_us
        self.refreshed_at_us = 0
        self.utilization = 0.0
        self.free_blocks = 0
        self.pending_transfer_us = 0
        self.thrashing_rate = 0.0

    def look(self, now: int) -> Snapshot:
        instance, gpu, cpu = self.instance, self.instance.kv.gpu, self.instance.kv.cpu
        if now - self.refreshed_at_us >= self.refresh_interval_us:
            self.utilization = gpu.used_blocks / gpu.total_blocks
            self.free_blocks = gpu.total_blocks - gpu.used_blocks
            if cpu is not None:
                self.pending_transfer_us = cpu.pending_transfer_us
                self.thrashing_rate = cpu.thrashing_rate
            self.refreshed_at_us = now
        return Snapshot(
            instance.load,
            len(instance.queue),
            self.utilization,
            self.free_blocks,
            len(instance.batch),
            self.pending_transfer_us,
            self.thrashing_rate,
        )


AdmissionPolicy = Callable[[Request, list[Snapshot], int], bool]
"""(request, snapshots, now) -> admitted"""


class TokenBucket:
    """Admits while the bucket holds one token per prompt token; starts full."""

    def __init__(self, capacity: float, refill_per_s: float) -> None:
        self.capacity = capacity
        self.refill_per_s = refill_per_s
        self.level = capacity
        self.refilled_at_us = 0

    def __call__(self, request: Request, _snapshots: list[Snapshot], now: int) -> bool:
        refill = (now - self.refilled_at_us) * self.refill_per_s / 1e6
        self.level = min(self.capacity, self.level + refill)
        self.refilled_at_us = now
        if self.level < request.input_len:
            return False
        self.level -= request.input_len
        return True


def gate_on_mean_load(threshold: float) -> AdmissionPolicy:
    def admit(request: Request, snapshots: list[Snapshot], _now: int) -> bool:
        mean_load = sum(snapshot.load for snapshot in snapshots) / len(snapshots)
        return request.slo_class not in SHEDDABLE_CLASSES or mean_load <= threshold

    return admit


def gate_by_class(config: Config) -> AdmissionPolicy:
    """Everything of a class above its limit is shed; not BLIS's, and only for probability 1."""

    def admit(request: Request, snapshots: list[Snapshot], _now: int) -> bool:
        name = "sheddable" if request.slo_class in SHEDDABLE_CLASSES else "standard"
        mean_load = sum(snapshot.load for snapshot in snapshots) / len(snapshots)
        return request.slo_class == CRITICAL or mean_load <= config[f"class-gated-{name}"]

    return admit


def gate_on_longest_queue(request: Request, snapshots: list[Snapshot], _now: int) -> bool:
    """The `slo-gated` policy of the routing track, with its fixed thresholds."""
    threshold = 10 if request.slo_class in STANDARD_CLASSES else 5
    longest = max(snapshot.queue_depth for snapshot in snapshots)
    return request.slo_class == CRITICAL or longest < threshold


def make_admission(config: Config, profile: str) -> AdmissionPolicy:
    match config["admission-policy"]:
        case "" | "always-admit":
            return lambda request, snapshots, now: True
        case "reject-all":
            return lambda request, snapshots, now: False
        case "token-bucket":
            return TokenBucket(config["token-bucket-capacity"], config["token-bucket-refill-rate"])
        case "class-gated":
            return gate_by_class(config)
        case "slo-gated" if profile == "routing":
            return gate_on_longest_queue
        case "slo-gated":
            return gate_on_mean_load(config["slo-gated-threshold"])
        case "predictive-slo" if profile == "routing":
            return predictive_gate(PrefixIndex(len(instance_configs(config))))
    raise NotSupported(f"admission-policy {config['admission-policy']!r}")


class PrefixIndex:
    """Router-side guess of each instance's cached blocks, least recently touched evicted first."""

    def __init__(self, num_instances: int) -> None:
        self.touched: list[OrderedDict[int, None]] = [OrderedDict() for _ in range(num_instances)]

    def matched_blocks(self, request: Request) -> list[int]:
        keys = request.prompt_keys
        return [
            next((matched for matched, key in enumerate(keys) if key not in blocks), len(keys))
            for blocks in self.touched
        ]

    def record(self, request: Request, instance: int) -> None:
        blocks = self.touched[instance]
        for key in request.prompt_keys:
            if key not in blocks and len(blocks) >= ROUTER_INDEX_CAPACITY:
                blocks.popitem(last=False)
            blocks[key] = None
            blocks.move_to_end(key)


SCORERS_OF_PROFILE = {
    "scheduling": ("slo-priority",),
    "routing": ("kv-pressure", "cost-benefit", "slo-headroom"),
}


class WeightedRouter:
    """Weighted sum of clamped scores; the first maximum wins.

    The priority bridge is left out: its stamp is overwritten before anything reads it.
    """

    SCORERS = ("prefix-affinity", "queue-depth", "kv-utilization", "load-balance")

    def __init__(self, config: Config, profile: str) -> None:
        pairs = (config["routing-scorers"] or DEFAULT_SCORERS).split(",")
        self.weights = {
            name.strip(): float(weight) for name, weight in (p.split(":") for p in pairs)
        }
        known = (*self.SCORERS, *SCORERS_OF_PROFILE[profile])
        if unknown := set(self.weights).difference(known):
            raise NotSupported(f"routing-scorers {sorted(unknown)} in profile {profile!r}")
        self.block_size = config["block-size-in-tokens"]
        self.index_of_cost_benefit = PrefixIndex(len(instance_configs(config)))
        self.index = PrefixIndex(len(instance_configs(config)))
        self.bias = dict.fromkeys(range(6), 0.5)
        if "slo-priority" in self.weights:
            self.bias[CRITICAL] = config["slo-scorer-bias-critical"]
            for slo_class in SHEDDABLE_CLASSES:
                self.bias[slo_class] = config["slo-scorer-bias-sheddable"]

    def route(self, request: Request, snapshots: list[Snapshot]) -> int:
        scores = [self._scores(name, request, snapshots) for name in self.weights]
        totals = add_up(list(self.weights.values()), scores)
        target = totals.index(max(totals))
        self.index.record(request, target)
        self.index_of_cost_benefit.record(request, target)
        return target

    def matched_blocks(self, request: Request) -> list[int] | None:
        return self.index.matched_blocks(request) if "prefix-affinity" in self.weights else None

    def _scores(self, name: str, request: Request, snapshots: list[Snapshot]) -> list[float]:
        match name:
            case "prefix-affinity":
                return prefix_scores(request, self.index.matched_blocks(request))
            case "queue-depth":
                return queue_depth_scores(snapshots)
            case "kv-utilization":
                return [1.0 - snapshot.utilization for snapshot in snapshots]
            case "load-balance":
                return [1.0 / (1.0 + snapshot.load) for snapshot in snapshots]
            case "kv-pressure":
                return kv_pressure_scores(snapshots)
            case "cost-benefit":
                matched = self.index_of_cost_benefit.matched_blocks(request)
                return cost_benefit_scores(request, snapshots, matched, self.block_size)
            case "slo-headroom":
                return slo_headroom_scores(request, snapshots)
        bias = self.bias[request.slo_class]
        return [bias * score + (1 - bias) * 0.5 for score in queue_depth_scores(snapshots)]


class SimpleRouter:
    """The policies without scores."""

    POLICIES = ("round-robin", "least-loaded", "always-busiest", "prefix-affinity")

    def __init__(self, policy: str) -> None:
        self.policy = policy or "round-robin"
        if self.policy not in self.POLICIES:
            raise NotSupported(f"routing-policy {policy!r}")
        self.num_routed = 0
        self.first_target: dict[tuple[str, int], int] = {}

    def route(self, request: Request, snapshots: list[Snapshot]) -> int:
        self.num_routed += 1
        loads = [snapshot.load for snapshot in snapshots]
        match self.policy:
            case "round-robin":
                return (self.num_routed - 1) % len(snapshots)
            case "least-loaded":
                return loads.index(min(loads))
            case "always-busiest":
                return loads.index(max(loads))
        whole_prompt = ("short", request.short_input_id)
        if request.prompt_keys:
            whole_prompt = ("blocks", request.prompt_keys[-1])
        return self.first_target.setdefault(whole_prompt, loads.index(min(loads)))

    def matched_blocks(self, _request: Request) -> None:
        return None


def instance_configs(config: Config) -> list[Config]:
    """The configuration of every instance: the cluster's, with the numbers of the instance's group."""
    if not config.get("instances"):
        return [config] * config["num-instances"]
    configs: list[Config] = []
    for group in config["instances"]:
        own = {name.replace("_", "-"): value for name, value in group.items()}
        configs += [{**config, **own}] * own.get("count", 1)
    return configs


Router = WeightedRouter | AdaptiveRouter | SimpleRouter


def make_router(config: Config, profile: str) -> Router:
    policy = config["routing-policy"]
    if policy == "weighted":
        return WeightedRouter(config, profile)
    if policy in AdaptiveRouter.POLICIES and profile == "routing":
        epoch_size = dict(config.get("policy-numbers", ())).get("routing.epoch_size", EPOCH_SIZE)
        return AdaptiveRouter(policy, PrefixIndex(len(instance_configs(config))), epoch_size)
    return SimpleRouter(policy)


class Cluster:
    """Arrival, admission and routing of requests, and the shared clock of all instances."""

    def __init__(self, requests: list[Request], config: Config, profile: str) -> None:
        self.instances = [Instance(each, profile) for each in instance_configs(config)]
        refresh_interval_us = config["snapshot-refresh-interval"]
        self.observers = [Observer(each, refresh_interval_us) for each in self.instances]
        self.admit = make_admission(config, profile)
        self.router = make_router(config, profile)
        self.admission_latency_us = config["admission-latency"]
        self.routing_latency_us = config["routing-latency"]
        self.horizon_us = config["horizon"]
        self.stages = (self._arrive, self._decide_admission, self._route)
        self.events: list[tuple[int, int, int, Request]] = []
        self.num_created = 0
        self.router_views: dict[int, tuple[list[Snapshot], list[int] | None]] = {}
        for request in requests:
            self._push(request.arrival_us, 0, request)

    def run(self) -> None:
        """Process events by time, cluster events first, then the lowest instance index."""
        while True:
            cluster_time = self.events[0][0] if self.events else math.inf
            earliest = min(self.instances, key=lambda instance: instance.events.next_time_us())
            instance_time = earliest.events.next_time_us()
            now = min(cluster_time, instance_time)
            if now == math.inf or now > self.horizon_us:
                return
            if cluster_time <= instance_time:
                time_us, stage, _, request = heapq.heappop(self.events)
                self.stages[stage](request, time_us)
            else:
                earliest.process_next_event()

    def _push(self, time_us: int, stage: int, request: Request) -> None:
        heapq.heappush(self.events, (time_us, stage, self.num_created, request))
        self.num_created += 1

    def _look(self, now: int) -> list[Snapshot]:
        return [observer.look(now) for observer in self.observers]

    def _arrive(self, request: Request, now: int) -> None:
        self._push(now + self.admission_latency_us, 1, request)

    def _decide_admission(self, request: Request, now: int) -> None:
        snapshots = self._look(now)
        request.admit_max_queue_depth = max(snapshot.queue_depth for snapshot in snapshots)
        request.admitted = int(self.admit(request, snapshots, now))
        if request.admitted:
            self._push(now + self.routing_latency_us, 2, request)
        else:
            request.status = REJECTED
            if isinstance(self.router, AdaptiveRouter):
                self.router.reject()

    def _route(self, request: Request, now: int) -> None:
        snapshots = self._look(now)
        if isinstance(index := getattr(self.router, "index", None), precise_index.PreciseIndex):
            index.now = now
        self.router_views[request.index] = (snapshots, self.router.matched_blocks(request))
        request.routed_at_us = now
        request.instance = self.router.route(request, snapshots)
        self.instances[request.instance].inject(request, now)


@dataclass
class OracleResult:
    """What the reference computes; `outcome` is FINISHED, or names the crash or livelock."""

    outcome: str
    requests: dict[str, np.ndarray]
    steps: dict[str, np.ndarray]
    aggregates: dict[str, Any]
    instances: list[dict[str, Any]]


REQUEST_FIELDS = {
    "int8": "status admitted",
    "int16": "instance",
    "int32": "preemptions num_scheduled cached_tokens_first_sched scheduled_step_idx "
    "finished_step_idx num_itl progress_index admit_max_queue_depth",
    "int64": "queued_at_us sched_delay_us first_sched_delay_us ttft_us e2e_us routed_at_us",
}
STEP_DTYPES = ("int64", "int32", "int32", "int32", "int32")
SUMMED = (
    "completed_requests",
    "dropped_unservable",
    "kv_allocation_failures",
    "kv_blocks_used_integral",
    "preemption_count",
    "total_input_tokens",
    "total_output_tokens",
    "ttft_sum_us",
)


def request_arrays(requests: list[Request], cluster: Cluster) -> dict[str, np.ndarray]:
    arrays = {
        name: np.array([getattr(request, name) for request in requests], dtype)
        for dtype, names in REQUEST_FIELDS.items()
        for name in names.split()
    }
    shape = (len(requests), len(cluster.instances))
    load, matched, free = (np.full(shape, -1, np.int32) for _ in range(3))
    for row, (snapshots, matched_blocks) in cluster.router_views.items():
        load[row] = [snapshot.load for snapshot in snapshots]
        matched[row] = -1 if matched_blocks is None else matched_blocks
        free[row] = [snapshot.free_blocks for snapshot in snapshots]
    arrays["route_load"] = load.astype(np.int16)
    arrays["route_match_blocks"] = matched.astype(np.int16)
    arrays["route_free_blocks"] = free
    return arrays


def step_arrays(instances: list[Instance]) -> dict[str, np.ndarray]:
    steps = [step for instance in instances for step in instance.steps]
    counts = [len(instance.steps) for instance in instances]
    arrays = {"step_instance": np.repeat(np.arange(len(instances), dtype=np.int16), counts)}
    for name, dtype in zip(Step._fields, STEP_DTYPES, strict=True):
        values = np.array([getattr(step, name) for step in steps], np.int64)
        fits = values.max(initial=0) <= np.iinfo(dtype).max
        arrays[f"step_{name}"] = values.astype(dtype) if fits else values
    return arrays


def instance_totals(instance: Instance, horizon_us: int) -> dict[str, Any]:
    return {
        **{name: instance.counts[name] for name in SUMMED},
        **instance.kv.totals(),
        "still_queued": len(instance.queue),
        "still_running": len(instance.batch),
        "peak_kv_blocks_used": max((step.used_blocks for step in instance.steps), default=0),
        "sim_ended_time_us": min(instance.clock_us, horizon_us),
        "step_count": len(instance.steps),
    }


def cluster_totals(totals: list[dict[str, Any]], requests: list[Request]) -> dict[str, Any]:
    statuses = Counter(request.status for request in requests)
    aggregates: dict[str, Any] = {
        "num_steps": sum(each["step_count"] for each in totals),
        "rejected_requests": statuses[REJECTED],
        "status_counts": {name: statuses[code] for code, name in enumerate(STATUS_NAMES)},
    }
    for name in (*SUMMED, "still_queued", "still_running"):
        aggregates[name] = sum(each[name] for each in totals)
    for name in ("peak_kv_blocks_used", "sim_ended_time_us"):
        aggregates[name] = max(each[name] for each in totals)
    for name in ("cache_hit_rate", "kv_thrashing_rate"):
        aggregates[name] = sum(each[name] for each in totals) / len(totals)
    return aggregates


def simulate(
    workload: Mapping[str, np.ndarray],
    config: Config,
    profile: str = "scheduling",
    cluster_of: Callable[[list[Request], Config, str], Cluster] = Cluster,
) -> OracleResult:
    """Run one workload; `profile` names the track whose variants of the policies apply."""
    if profile not in ("scheduling", "routing"):
        raise NotSupported(f"profile {profile!r}")
    if config.get("roofline", False):
        raise NotSupported("roofline")
    requests = requests_of_workload(workload)
    cluster = cluster_of(requests, config, profile)
    if config.get("precise-kv-routing", False):
        precise_index.wire(cluster, config.get("prefix-index-delay", 0))
    outcome = FINISHED
    try:
        cluster.run()
    except ReferenceCrash as crash:
        outcome = f"crash: {crash}"
    except Livelock as livelock:
        outcome = f"livelock: {livelock}"
    totals = [instance_totals(instance, cluster.horizon_us) for instance in cluster.instances]
    arrays = request_arrays(requests, cluster)
    return OracleResult(
        outcome, arrays, step_arrays(cluster.instances), cluster_totals(totals, requests), totals
    )

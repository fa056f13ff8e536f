"""Closed loops in segments: between two events the batch of an instance is constant, so its steps are summed at once.

The steps are those of the step law, and instances are chosen at random. What the engine has beyond it: blocks of 16
tokens, whole microseconds, pools, and every policy. Fits simulate thousands of loops: one takes a hundredth of a
second here, and minutes in the engine.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from blis_jax.errors import ConfigError
from blis_jax.latency.served_physics import ServedNumbers, step_us

MOST_EVENTS = 5_000_000


@dataclass(eq=False, slots=True)
class Request:
    """A request under way; times in µs."""

    arrival: float
    # tokens to compute before the next token is made; with those made before a preemption
    prompt: int
    output: int  # tokens still to make
    cached: int = 0  # of the prompt, found in the cache
    computed: int = 0
    first: float = -1.0
    end: float = -1.0
    turn: int = 0  # admissions of its instance before it
    tokens: int = 0  # held when its decode began, less the steps done then
    last_step: int = -1  # of its instance: makes its last token


@dataclass(eq=False, slots=True)
class LoopInstance:
    """A server that forms batches as vLLM does: decodes first, then prompts in order, cut by a token budget."""

    numbers: ServedNumbers
    max_running: int
    budget: int  # tokens of one step
    memory: int  # tokens
    waiting: deque[Request] = field(default_factory=deque)
    prompts: list[Request] = field(default_factory=list)  # begun, in order
    decodes: list[tuple[int, int, Request]] = field(default_factory=list)  # heap by last step
    held: int = 0  # tokens in memory
    context: int = 0  # tokens of the decodes
    done: int = 0  # steps
    admissions: int = 0
    chunks: list[tuple[Request, int]] = field(default_factory=list)  # of the segment
    steps: int = 0  # of the segment; 0: idle
    start: float = 0.0
    first_step_us: float = 0.0
    growth_us: float = 0.0  # that each further step takes more
    segment: int = 0  # number; events of others are void

    @property
    def load(self) -> int:
        """Return the number of requests on this instance."""
        return len(self.waiting) + len(self.prompts) + len(self.decodes)

    def admits(self) -> bool:
        """Return whether the first in the queue may enter the batch."""
        return (
            bool(self.waiting)
            and len(self.prompts) + len(self.decodes) < self.max_running
            and self.held + self.waiting[0].prompt + len(self.decodes) <= self.memory
        )

    def plan(self, now: float) -> None:
        """Choose the next segment: one step with prompts, or all steps until a request ends."""
        self._make_room()
        room = self.budget - len(self.decodes)
        self.chunks = []
        for request in self.prompts:
            room -= self._chunk(request, room)
        while room > 0 and self.admits():
            request = self.waiting.popleft()
            self.held += request.prompt
            self.admissions += 1
            request.turn = self.admissions
            self.prompts.append(request)
            request.computed = request.cached
            room -= self._chunk(request, room)
        self.segment += 1
        self.start = now
        self.steps = self._length()
        if not self.steps:
            return
        number = len(self.decodes)
        tokens = sum(take for _, take in self.chunks)
        attended = sum(take * (request.computed + take / 2) for request, take in self.chunks)
        first_us = step_us(
            self.numbers, len(self.chunks), tokens, attended, number, self.context, max
        )
        self.first_step_us = float(first_us)
        self.growth_us = float(self.numbers.kv_us) * number

    def _chunk(self, request: Request, room: int) -> int:
        take = max(min(room, request.prompt - request.computed), 0)
        if take:
            self.chunks.append((request, take))
        return take

    def _length(self) -> int:
        if self.chunks:
            return 1
        if not self.decodes:
            return 0
        fits = (self.memory - self.held) // len(self.decodes)
        return max(min(self.decodes[0][0] - self.done, fits), 1)

    def _make_room(self) -> None:
        """Preempt the last admitted requests until every decode may grow by a token."""
        while self.decodes and self.held + len(self.decodes) > self.memory:
            if len(self.decodes) == 1:
                raise ConfigError(
                    f"a request needs more than the {self.memory} tokens of KV memory; use more GPUs"
                )
            entry = max(self.decodes, key=lambda entry: entry[2].turn)
            self.decodes.remove(entry)
            heapq.heapify(self.decodes)
            request = entry[2]
            tokens = request.tokens + self.done
            self.held -= tokens
            self.context -= tokens
            request.prompt, request.output = tokens, request.last_step - self.done
            request.computed = request.cached = 0
            self.waiting.appendleft(request)

    def _decode(self, request: Request) -> None:
        request.tokens = request.prompt - self.done
        request.last_step = self.done + request.output
        self.context += request.prompt
        heapq.heappush(self.decodes, (request.last_step, request.turn, request))

    def end_us(self) -> float:
        """Return when the segment ends."""
        return self.start + self._until(self.steps)

    def _until(self, steps: int) -> float:
        return steps * self.first_step_us + self.growth_us * steps * (steps - 1) / 2

    def cut(self, now: float) -> bool:
        """End the segment with the step under way, if that is not its last."""
        steps, low = self.steps, 1
        while low < steps:  # the first whose end is not before now
            middle = (low + steps) // 2
            if self.start + self._until(middle) >= now:
                steps = middle
            else:
                low = middle + 1
        if steps == self.steps:
            return False
        self.steps = steps
        self.segment += 1
        return True

    def finish(self, now: float) -> list[Request]:
        """Do the steps of the segment; return the requests that leave."""
        grown = self.steps * len(self.decodes)
        self.done += self.steps
        self.held += grown
        self.context += grown
        self.steps = 0
        left = []
        while self.decodes and self.decodes[0][0] <= self.done:
            request = heapq.heappop(self.decodes)[2]
            tokens = request.tokens + self.done
            self.held -= tokens
            self.context -= tokens
            left.append(request)
        for request, take in self.chunks:
            request.computed += take
            if request.computed == request.prompt:
                self.prompts.remove(request)
                request.output -= 1
                if request.first < 0:
                    request.first = now
                if request.output == 0:
                    self.held -= request.prompt
                    left.append(request)
                else:
                    self._decode(request)
        return left


def run_loop(
    instances: Sequence[LoopInstance],
    requests: Sequence[Request],
    concurrency: int,
    seed: int = 0,
    entry_us: float = 0.0,
) -> None:
    """Send requests in order, `concurrency` of them at once, and fill in their times.

    Args:
        instances: idle.
        requests: in the order of sending.
        concurrency: how many are under way at once; a request that ends starts the next.
        seed: of the draws, by which every request gets its instance.
        entry_us: from sending a request until an instance can take it.

    Raises:
        ConfigError: a request does not fit into an instance.
    """
    longest = max(request.prompt + request.output for request in requests)
    if longest > min(instance.memory for instance in instances):
        raise ConfigError(
            f"a request of {longest} tokens does not fit into the KV memory of "
            f"{min(instance.memory for instance in instances)} tokens; use more GPUs"
        )
    _Loop(list(instances), deque(requests), seed, entry_us).run(concurrency)


class _Loop:
    def __init__(
        self, instances: list[LoopInstance], coming: deque[Request], seed: int, entry_us: float
    ) -> None:
        self.instances, self.coming = instances, coming
        self.entry_us = entry_us
        self.rng = np.random.default_rng(seed)
        self.events: list[tuple[float, int, int, int, Request | None]] = []
        self.number = 0
        self.touched: dict[int, None] = {}

    def run(self, concurrency: int) -> None:
        """Serve all requests, `concurrency` of them at once."""
        for _ in range(min(concurrency, len(self.coming))):
            self._send(0.0)
        self._settle(0.0)
        while self.events:
            now, _, place, segment, moved = heapq.heappop(self.events)
            if moved is not None:
                self._route(moved)
            elif segment == self.instances[place].segment:
                self.touched[place] = None
                for request in self.instances[place].finish(now):
                    self._left(request, now)
            else:
                continue
            self._settle(now)
            if self.number > MOST_EVENTS:
                raise ConfigError("the load needs too many steps; use fewer requests")

    def _left(self, request: Request, now: float) -> None:
        request.end = now
        if self.coming:
            self._send(now)

    def _send(self, now: float) -> None:
        request = self.coming.popleft()
        request.arrival = now
        if self.entry_us:
            self._event(now + self.entry_us, -1, 0, request)
        else:
            self._route(request)

    def _route(self, request: Request) -> None:
        number = len(self.instances)
        place = int(self.rng.integers(number)) if number > 1 else 0
        self.instances[place].waiting.append(request)
        self.touched[place] = None

    def _settle(self, now: float) -> None:
        """Plan or cut the segments of instances to which something happened."""
        for place in self.touched:
            instance = self.instances[place]
            if not instance.steps:
                instance.plan(now)
            elif instance.chunks or not instance.admits() or not instance.cut(now):
                continue
            if instance.steps:
                self._event(instance.end_us(), place, instance.segment, None)
        self.touched.clear()

    def _event(self, time: float, place: int, segment: int, moved: Request | None) -> None:
        self.number += 1
        heapq.heappush(self.events, (time, self.number, place, segment, moved))

"""A plain replay of one of vLLM's instances; prompts are cut at whole KV blocks, as for linear attention, or not.

Written from what vLLM does: the running requests in order, then the waiting ones, each with what the budget leaves.
Shared beginnings are found as soon as their blocks are given out, and none is ever lost; where memory is tight, prompts
are shorter than a block, so that none is found. The last token of a prompt is computed, found or not.
"""

from collections import deque
from dataclasses import dataclass, field


@dataclass(eq=False)
class Served:
    """One request; what has happened to it so far."""

    arrival: int
    prompt: int
    output: int
    group: int = -1
    shared: int = 0  # tokens of its prompt that all of its group have
    computed: int = 0
    tokens: int = 0
    kept: int = 0  # tokens made before it was preempted
    preemptions: int = 0
    hits: int = -1  # blocks found when it was scheduled first
    chunks: list[int] = field(default_factory=list)
    token_ends: list[int] = field(default_factory=list)
    # of each token behind the first: its step, or all that has passed since the token before a preemption
    latencies: list[int] = field(default_factory=list)
    is_resumed: bool = False  # preempted since its last token

    @property
    def to_prefill(self) -> int:
        return self.prompt + self.kept

    @property
    def in_decode(self) -> bool:
        return self.computed >= self.to_prefill

    @property
    def is_over(self) -> bool:
        return self.tokens >= max(self.output, 1)


@dataclass
class Replay:
    """The instance; times in µs."""

    block: int
    budget: int
    threshold: int
    most_running: int
    num_blocks: int
    dropped: int = 0
    cuts: bool = True  # at whole blocks
    step_us: int = 5000
    prefill_us: int = 1000
    running: list[Served] = field(default_factory=list)
    waiting: deque[Served] = field(default_factory=deque)
    known: set[tuple[int, int]] = field(default_factory=set)
    passed_over: int = 0  # steps in which a running request got nothing
    held_up: int = 0  # steps in which the head of the queue found no whole block

    def run(self, requests: list[Served]) -> list[Served]:
        coming, now = deque(requests), 0
        while coming or self.waiting or self.running:
            if not self.waiting and not self.running:
                now = max(now, coming[0].arrival)
            while coming and coming[0].arrival <= now:
                self.waiting.append(coming.popleft())
            now = self._step(now)
        return requests

    def _wanted(self, one: Served, start: int, left: int) -> int:
        """Tokens of a chunk from `start`, with so much budget left."""
        tokens = one.to_prefill - start
        if 0 < self.threshold < tokens:
            tokens = self.threshold
        tokens = min(tokens, left)
        if not self.cuts:
            return tokens
        last = one.to_prefill - one.to_prefill % self.block
        for _ in range(self.dropped):
            last = max(last - self.block, 0)
        if start + tokens < last:
            return tokens - tokens % self.block
        if start < last < start + tokens:
            return last - start
        return tokens

    def _blocks(self, tokens: int) -> int:
        return -(-tokens // self.block)

    def _step(self, now: int) -> int:
        left, got = self.budget, dict[Served, int]()
        taken = sum(self._blocks(one.computed) for one in self.running)
        before = len(self.running)
        for one in list(self.running):
            if one not in self.running:
                break
            wanted = 1 if one.in_decode else self._wanted(one, one.computed, left)
            if left == 0 or wanted == 0:
                self.passed_over += 1
                continue
            more = self._blocks(one.computed + wanted) - self._blocks(one.computed)
            asked = more if one.in_decode else max(more, self._blocks(wanted))
            while taken + asked > self.num_blocks and one in self.running:
                victim = self.running.pop()
                assert victim not in got
                taken -= self._blocks(victim.computed)
                victim.computed, victim.kept = 0, victim.tokens
                victim.preemptions += 1
                victim.is_resumed = True
                self.waiting.appendleft(victim)
            if one not in self.running:
                break
            got[one], left, taken = wanted, left - wanted, taken + more
        if len(self.running) == before:
            self._admit(got, left, taken)
        return self._end(now, got)

    def _admit(self, got: dict[Served, int], left: int, taken: int) -> None:
        """Take in waiting requests, none of which was preempted in this step."""
        while self.waiting and left and len(self.running) < self.most_running:
            one, hits = self.waiting[0], 0
            most = min(one.shared, one.to_prefill - 1)
            while (one.group, hits) in self.known and (hits + 1) * self.block <= most:
                hits += 1
            wanted = self._wanted(one, hits * self.block, left)
            if wanted == 0:
                self.held_up += 1
                return
            if taken + self._blocks(wanted) > self.num_blocks:
                return
            self.running.append(self.waiting.popleft())
            one.computed = hits * self.block
            one.hits = hits if one.hits < 0 else one.hits
            got[one], left, taken = wanted, left - wanted, taken + self._blocks(wanted)
            self._learn(one, one.computed + wanted)

    def _learn(self, one: Served, end: int) -> None:
        self.known |= {(one.group, at) for at in range(min(end, one.shared) // self.block)}

    def _end(self, now: int, got: dict[Served, int]) -> int:
        new = {one: count for one, count in got.items() if not one.in_decode}
        duration = self.step_us + self.prefill_us * sum(new.values())
        now += duration
        for one, count in got.items():
            if one in new:
                one.chunks.append(count)
                self._learn(one, one.computed + count)
            one.computed += count
            if one.in_decode:
                if one.tokens:
                    since = now - one.token_ends[-1]
                    one.latencies.append(since if one.is_resumed else duration)
                one.tokens, one.is_resumed = one.tokens + 1, False
                one.token_ends.append(now)
                if one.is_over:
                    self.running.remove(one)
        return now

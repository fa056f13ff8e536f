"""A plain replay of one instance that keeps the output of a preempted request, as vLLM does.

For prompts shorter than a KV block, so that no block is ever found in the cache: then only numbers of blocks count.
"""

from dataclasses import dataclass, field


@dataclass
class Served:
    """One request; what has happened to it so far."""

    arrival: int
    prompt: int
    output: int
    progress: int = 0  # tokens computed in its current stay
    tokens: int = 0  # made
    preemptions: int = 0
    ttft: int = -1
    e2e: int = -1
    token_ends: list[int] = field(default_factory=list)

    @property
    def target(self) -> int:
        """Tokens to compute before the next one is made for the first time since it was scheduled."""
        return self.prompt + self.kept

    kept: int = 0  # tokens made before its current stay

    @property
    def last(self) -> int:
        """Progress at which it completes."""
        return self.prompt + max(self.output, 1) - 1


@dataclass
class Replay:
    """The instance; times in µs."""

    blocks: int
    block_size: int
    threshold: int
    most_running: int
    step_us: int
    prefill_us: int
    output_us: int
    batch: list[Served] = field(default_factory=list)
    queue: list[Served] = field(default_factory=list)

    def run(self, requests: list[Served]) -> list[Served]:
        """Serve the requests, which come in order of arrival."""
        coming, now = list(requests), 0
        while coming or self.queue or self.batch:
            if not self.queue and not self.batch:
                now = max(now, coming[0].arrival)
            while coming and coming[0].arrival <= now:
                self.queue.append(coming.pop(0))
            now += self._step(now)
        return requests

    def _blocks_of(self, tokens: int) -> int:
        return -(-tokens // self.block_size)

    def _free(self, but: int = 0) -> int:
        return self.blocks - sum(self._blocks_of(each.progress) for each in self.batch) - but

    def _chunk(self, one: Served) -> int:
        left = one.target - one.progress
        return min(left, self.threshold) if self.threshold else left

    def _step(self, now: int) -> int:
        new: dict[int, int] = {}  # tokens by request
        taken, preempted = 0, False
        for one in list(self.batch):
            if one not in self.batch:
                break
            is_prefill = one.progress < one.target
            tokens = self._chunk(one) if is_prefill else 1
            need = self._blocks_of(one.progress + tokens) - self._blocks_of(one.progress)
            asked = self._blocks_of(tokens) if is_prefill else 0  # the last block's room is ignored
            while max(need, asked) > self._free(taken) and one in self.batch:
                preempted = True
                taken -= self._evict(new)
            if one not in self.batch:
                break
            new[id(one)], taken = tokens, taken + need
        while self.queue and len(self.batch) < self.most_running and not preempted:
            one = self.queue[0]
            tokens = self._chunk(one)
            need = self._blocks_of(tokens)
            if need > self._free(taken):
                break
            self.batch.append(self.queue.pop(0))
            new[id(one)], taken = tokens, taken + need
        prefill = sum(new[id(each)] for each in self.batch if each.progress < each.target)
        duration = self.step_us + self.prefill_us * prefill
        for one in list(self.batch):
            one.progress += new[id(one)]
            if one.progress >= one.target:
                self._token(one, now + duration)
        return duration

    def _evict(self, new: dict[int, int]) -> int:
        """Blocks that the step had set aside for the last member, which goes back to the head of the queue."""
        one = self.batch.pop()
        tokens = new.pop(id(one), 0)
        set_aside = self._blocks_of(one.progress + tokens) - self._blocks_of(one.progress)
        one.progress, one.kept, one.preemptions = 0, one.tokens, one.preemptions + 1
        self.queue.insert(0, one)
        return set_aside

    def _token(self, one: Served, end: int) -> None:
        one.tokens += 1
        one.token_ends.append(end)
        if one.ttft < 0:
            one.ttft = end + self.output_us - one.arrival
        if one.progress == one.last:
            one.e2e = end - one.arrival + self.output_us * max(one.output, 1)
            self.batch.remove(one)

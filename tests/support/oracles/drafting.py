"""One instance that drafts tokens, step by step in plain Python: nothing of the engine is used here.

Requests come with prompts of their own. What decodes has its tokens set aside in the budget of a step, those that it
verifies included. Then members get room in memory in the order in which they joined, prompts a chunk of the budget that
is left, and waiting requests join in order of arrival. Where blocks are missing, the member that joined last is
preempted: it keeps its output, loses its drafts, gives back its budget, and waits before all others.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Server:
    """What the instance can hold, and how long a step takes: µs a step, a prompt token, a decode token."""

    beta: tuple[float, float, float]
    max_num_seqs: int
    max_num_batched_tokens: int
    block_size: int = 16
    draft_step_us: float = 0.0
    draft_token_us: float = 0.0
    schedule: Sequence[tuple[int, int]] = ((0, 0),)  # least batch, drafts
    num_blocks: int = 10**9


@dataclass
class Served:
    """A request, and what became of it."""

    number: int
    arrival: int
    input_len: int
    output_len: int
    slo_class: str = ""
    computed: int = 0  # of the prompt
    output: int = 0  # tokens
    num_drafted: int = 0  # for the next step
    reserved: int = 0  # tokens that it has room for
    turn: int = 0  # steps in decode
    kept: int = 0  # output tokens that are computed again with its prompt
    preemptions: int = 0
    gaps: list[tuple[int, int]] = field(default_factory=list)  # µs since the token before, tokens
    last_us: int = 0
    ttft: int = -1
    e2e: int = -1

    @property
    def in_decode(self) -> bool:
        return self.output > self.kept

    @property
    def left(self) -> int:
        """Tokens that are to be computed before its next one."""
        return self.input_len + self.kept - self.computed

    def preempt(self) -> None:
        """Lose all but the output."""
        self.computed = self.reserved = self.num_drafted = 0
        self.kept, self.preemptions = self.output, self.preemptions + 1

    @property
    def stored(self) -> int:
        """Tokens in its KV cache: the latest output token is not there yet."""
        return self.computed + max(self.output - self.kept - 1, 0)


@dataclass(frozen=True)
class Step:
    """A step: when it began, how long it took, members and used blocks."""

    start: int
    duration: int
    running: int
    used_blocks: int


def serve(
    server: Server,
    requests: Sequence[Served],
    accepted: Callable[[Served, int], int],
) -> list[Step]:
    """Serve all requests; `accepted` says how many of so many drafts of a request its step accepts."""
    queue, batch, steps, now = list(requests), list[Served](), list[Step](), 0
    while queue or batch:
        if not batch:
            now = max(now, queue[0].arrival)
        steps.append(_step(server, queue, batch, now, accepted))
        now += steps[-1].duration
        for one in batch:
            one.num_drafted = 0
        batch[:] = [one for one in batch if one.e2e < 0]
        num = [num for least, num in server.schedule if least <= len(batch)][-1]
        for one in batch:
            one.num_drafted = num if one.in_decode else 0
    return steps


def _step(
    server: Server,
    queue: list[Served],
    batch: list[Served],
    now: int,
    accepted: Callable[[Served, int], int],
) -> Step:
    size, has_preempted = server.block_size, False
    reserved = sum(one.num_drafted + 1 for one in batch if one.in_decode)
    budget = server.max_num_batched_tokens - reserved
    prompt_tokens = 0

    def blocks(tokens: int) -> int:
        return -(-tokens // size)

    def free() -> int:
        return server.num_blocks - sum(blocks(one.reserved) for one in batch)

    def wants(one: Served) -> tuple[int, int, int]:
        """Tokens of the prompt, room afterwards, and the blocks that must be free."""
        if one.in_decode:
            chunk, room = 0, max(one.reserved, one.stored + 1 + one.num_drafted)
        else:
            chunk = min(one.left, budget)
            room = one.computed + chunk
        # a prompt is refused where its new tokens alone would not fit, whatever room its last block has
        return chunk, room, max(blocks(room) - blocks(one.reserved), blocks(chunk))

    def give(one: Served) -> None:
        nonlocal budget, prompt_tokens
        chunk, one.reserved, _ = wants(one)
        one.computed += chunk
        budget, prompt_tokens = budget - chunk, prompt_tokens + chunk

    for one in list(batch):
        if not one.in_decode and budget <= 0:
            continue
        while one in batch and wants(one)[2] > free():
            victim, has_preempted = batch.pop(), True
            budget += victim.num_drafted + 1 if victim.in_decode else 0
            victim.preempt()
            queue.insert(0, victim)
        if one not in batch:
            break
        give(one)
    while queue and queue[0].arrival <= now and len(batch) < server.max_num_seqs and budget > 0:
        if has_preempted or wants(queue[0])[2] > free():
            break
        batch.append(queue.pop(0))
        give(batch[-1])
    decoding = [one for one in batch if one.in_decode]
    drafted = sum(one.num_drafted for one in decoding)
    base, per_prompt, per_decode = server.beta
    time = base + per_prompt * prompt_tokens + per_decode * (len(decoding) + drafted)
    passes = max((one.num_drafted for one in decoding), default=0)
    time += server.draft_step_us * passes + server.draft_token_us * drafted
    duration = math.trunc(time)
    made = Step(now, duration, len(batch), server.num_blocks - free())
    for one in batch:
        _give(one, now + duration, accepted)
    return made


def _give(one: Served, now: int, accepted: Callable[[Served, int], int]) -> None:
    """Give a request its tokens at the end of a step, if it gets any."""
    if one.left > 0:
        return
    tokens = 1
    if one.in_decode:
        one.turn += 1
        tokens = min(1 + accepted(one, one.num_drafted), one.output_len - one.output)
    if one.output == 0:
        one.ttft = now - one.arrival
    else:
        one.gaps.append((now - one.last_us, tokens))
    one.output, one.last_us = one.output + tokens, now
    if one.output == one.output_len:
        one.e2e = now - one.arrival


def by_uniform(
    reach: Mapping[str, Sequence[float]], uniform: Callable[[int, int], float]
) -> Callable[[Served, int], int]:
    """Return what draws; `reach[slo_class][k]` is the probability that draft k is accepted with all before it."""

    def accepted(one: Served, num: int) -> int:
        number = uniform(one.number, one.turn)
        return sum(number < share for share in reach[one.slo_class][:num])

    return accepted

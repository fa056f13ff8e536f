"""The moving oracle in the corrected profile, with `preemption_mode: recompute`: a preempted request keeps its tokens.

They count as prompt from the preemption on, here, and where its KV goes. An attempt that an instance's stop ends
leaves nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tests.support.oracles import oracle
from tests.support.oracles.moving_instance import FINISHED_THERE, Former, Journey, MovingInstance
from tests.support.oracles.moving_oracle import MovingCluster
from tests.support.oracles.oracle import Block, Config, FormedBatch, Request, Undo


@dataclass
class Kept:
    """What a request has kept, and what its preemptions cost."""

    tokens: int = 0  # that count as prompt
    evicted_us: int = -1  # start of the step that took it from its decode, until the next token
    place: int = -1  # in `gaps` of that preemption
    # start of the evicting step and time to the next token, −1 if there is none, by preemption
    gaps: list[list[int]] = field(default_factory=list)


class CorrectedGpu(oracle.GpuCache):
    """A roll-back leaves the blocks of earlier steps, and the last token of a prompt is computed, found or not."""

    def cached_prefix(self, request: Request) -> list[Block]:
        return super().cached_prefix(request)[: (request.input_len - 1) // self.block_size]

    def _roll_back(self, request: Request, undo: Undo) -> None:
        before: list[Block] = list(self.lists.get(request, []))
        super()._roll_back(request, undo)
        gone = {block.number for block, _ in undo.taken} | {one.number for one, _ in undo.pinned}
        if kept := [block for block in before if block.number not in gone]:
            self.lists[request] = kept


class KeepingFormer(Former):
    """Members are visited where they are, and a victim's tokens become prompt."""

    kept: dict[int, Kept]
    now = 0

    def form(self, members: list[Request], queue: list[Request]) -> FormedBatch:
        for request in members:
            request.num_new_tokens = 0
        return super().form(members, queue)

    def _continue_running(self, batch: FormedBatch, queue: list[Request]) -> None:
        for request in list(batch.slots):
            if batch.budget <= 0:
                return
            if request in batch.slots and not self._go_on(request, batch, queue):
                return

    def _evict(self, batch: FormedBatch) -> Request:
        order = batch.slots[: batch.size]
        before = {request.index: request.progress_index for request in order}
        victim = super()._evict(batch)
        batch.slots[:] = [request for request in order if request is not victim]
        kept = self.kept[victim.index]
        made = max(before[victim.index] - victim.input_len + 1, 0)
        kept.gaps.append([self.now, -1])
        if made > 0:
            kept.evicted_us, kept.place = self.now, len(kept.gaps) - 1
        kept.tokens += made
        victim.input_len += made
        victim.output_len -= made
        return victim


class KeepingInstance(MovingInstance):
    """Steps of an instance follow each other."""

    cluster: KeepingCluster

    def __init__(self, config: Config, profile: str, cluster: Any, number: int) -> None:
        super().__init__(config, profile, cluster, number)
        self.busy_until_us, self.is_waking = 0, False
        self.corrected()

    def corrected(self) -> None:
        """Its memory and its batches."""
        gpu = self.kv.gpu
        self.kv.gpu = CorrectedGpu(gpu.total_blocks, gpu.block_size)
        self.kv.gpu.hits, self.kv.gpu.misses = gpu.hits, gpu.misses
        self.former = KeepingFormer(self.config, self.kv)
        self.former.journeys, self.former.kept = self.cluster.journeys, self.cluster.kept

    def _enqueue(self, request: Request) -> None:
        self.num_pending -= 1
        gpu = self.kv.gpu
        if -(-request.input_len // gpu.block_size) > gpu.total_blocks:
            request.status, request.queued_at_us = oracle.DROPPED, -1
            self.counts["dropped_unservable"] += 1
            return
        request.status = oracle.WAITING
        if request.queued_at_us < 0:
            request.queued_at_us = self.clock_us
        self.queue.append(request)
        if not self.is_step_scheduled:
            self.is_step_scheduled = self.is_waking = True
            self.events.push(max(self.clock_us, self.busy_until_us), self._step)

    def _step(self) -> None:
        self.is_waking, self.former.now = False, self.clock_us
        super()._step()
        self.busy_until_us = self.clock_us + self.steps[-1].duration_us

    def _advance(self, request: Request, duration_us: int) -> None:
        first, in_prefill = request.ttft_us, request.in_prefill
        super()._advance(request, duration_us)
        if first >= 0:
            request.ttft_us = first
        kept = self.cluster.kept[request.index]
        if in_prefill and request.progress_index == request.input_len and kept.evicted_us >= 0:
            self._record_itl(request, 0)
            kept.gaps[kept.place][1] = self.clock_us + duration_us - kept.evicted_us
            kept.evicted_us = -1

    def _complete(self, request: Request, duration_us: int) -> None:
        end = request.progress_index
        if request.output_len > 0 and not self.kv.allocate(request, end, end + 1, []):
            self.counts["kv_allocation_failures"] += 1
        self.kv.release(request)
        request.status = oracle.COMPLETED
        request.finished_step_idx = len(self.steps)
        tokens = max(request.output_len + self.cluster.kept[request.index].tokens, 1)
        whole = self.clock_us + duration_us - request.arrival_us
        request.e2e_us = whole + tokens * self.output_processing_us
        self.counts["completed_requests"] += 1

    def fail(self, now: int, running: int, delay_us: int) -> None:
        if self.is_waking:
            self.events.cancel(None)
            self.is_step_scheduled = self.is_waking = False
        coming = [each[3] for each in self.events.entries if isinstance(each[3], Request)]
        for request in [*self.queue, *coming]:
            has_kv = self.cluster.journeys[request.index].has_kv
            if not has_kv or running != FINISHED_THERE:
                self._forget(request)
        super().fail(now, running, delay_us)

    def _restart(self, request: Request, journey: Journey) -> None:
        self._forget(request)
        super()._restart(request, journey)

    def _forget(self, request: Request) -> None:
        kept = self.cluster.kept[request.index]
        request.input_len -= kept.tokens
        request.output_len += kept.tokens
        kept.tokens, kept.evicted_us = 0, -1

    def _stop(self) -> None:
        self.busy_until_us = self.clock_us
        super()._stop()

    def cool(self) -> None:
        super().cool()
        self.corrected()


class KeepingCluster(MovingCluster):
    """A cluster of such instances."""

    def __init__(self, requests: list[Request], config: Config, profile: str) -> None:
        super().__init__(requests, config, profile)
        self.kept = {request.index: Kept() for request in requests}
        each = oracle.instance_configs(config)
        self.instances = [
            KeepingInstance(one, profile, self, number) for number, one in enumerate(each)
        ]
        for observer, instance in zip(self.observers, self.instances, strict=True):
            observer.instance = instance

    def rename(self, request: Request) -> None:
        tokens = self.kept[request.index].tokens if hasattr(self, "kept") else 0
        request.input_len -= tokens
        super().rename(request)
        request.input_len += tokens


def gaps_of(cluster: KeepingCluster) -> np.ndarray:
    """Time to the next token after each preemption, in order of time and request `[preemption]`; −1 if none came."""
    every = [(begin, index, gap) for index, one in cluster.kept.items() for begin, gap in one.gaps]
    return np.array([gap for _, _, gap in sorted(every)], np.int64)

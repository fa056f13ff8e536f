"""Scorers, routing and admission of the routing track in plain Python, for the oracle."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.support.oracles.oracle import PrefixIndex, Request, Snapshot

CLASS_NAMES = ("", "critical", "standard", "sheddable", "batch", "background")
STEP_US, PREFILL_US, DECODE_US = 6910.42, 17.67, 2.84
HEADROOM_BUDGETS = {
    "critical": 50_000.0,
    "standard": 200_000.0,
    "sheddable": 500_000.0,
    "batch": 5_000_000.0,
    "background": 1.7976931348623157e308,
}
ADMISSION_BUDGETS = {
    "": 500_000.0,
    "standard": 500_000.0,
    "sheddable": 300_000.0,
    "batch": 5_000_000.0,
    "background": 1.7976931348623157e308,
}
# prefix-affinity, queue-depth, kv-utilization
CLASS_WEIGHTS = {
    "critical": (1.0, 5.0, 2.0),
    "standard": (3.0, 2.0, 2.0),
    "sheddable": (3.0, 2.0, 1.0),
    "batch": (5.0, 1.0, 1.0),
    "background": (5.0, 0.5),
}
NORMAL_WEIGHTS, PRESSED_WEIGHTS = (3.0, 2.0, 2.0), (2.0, 2.0, 5.0)
EPOCH_SIZE, MOST_RATIO = 100, 1.33

Scores = list[float]


def queue_depth_scores(snapshots: Sequence[Snapshot]) -> Scores:
    loads = [snapshot.load for snapshot in snapshots]
    low, high = min(loads), max(loads)
    return [(high - load) / (high - low) if high > low else 1.0 for load in loads]


def prefix_scores(request: Request, matched: Sequence[int]) -> Scores:
    num_blocks = max(len(request.prompt_keys), 1)
    return [blocks / num_blocks for blocks in matched]


def kv_pressure_scores(snapshots: Sequence[Snapshot]) -> Scores:
    most = max(snapshot.free_blocks for snapshot in snapshots)
    return [snapshot.free_blocks / most if most > 0 else 0.0 for snapshot in snapshots]


def cost_benefit_scores(
    request: Request, snapshots: Sequence[Snapshot], matched: Sequence[int], block_size: int
) -> Scores:
    if not request.prompt_keys:
        return [0.5] * len(snapshots)
    least = min(snapshot.load for snapshot in snapshots)
    scores = []
    for snapshot, blocks in zip(snapshots, matched, strict=True):
        rest = max(request.input_len - blocks * block_size, 0)
        saved = max(PREFILL_US * request.input_len - PREFILL_US * rest, 0.0)
        delay = (snapshot.load - least) * (STEP_US + DECODE_US)
        scores.append(saved / (saved + delay) if saved + delay > 0 else 0.5)
    return scores


def slo_headroom_scores(request: Request, snapshots: Sequence[Snapshot]) -> Scores:
    budget = HEADROOM_BUDGETS.get(CLASS_NAMES[request.slo_class], HEADROOM_BUDGETS["standard"])
    own = STEP_US + PREFILL_US * request.input_len
    ahead = STEP_US + PREFILL_US * 256
    return [1.0 - (snapshot.load * ahead + own) / budget for snapshot in snapshots]


def add_up(weights: Sequence[float], scores: Sequence[Scores]) -> Scores:
    """Sum of weight ÷ sum of weights × score cut to [0, 1], one scorer after the other."""
    total = 0.0
    for weight in weights:
        total += weight
    sums = [0.0] * len(scores[0])
    for weight, of_instances in zip(weights, scores, strict=True):
        for index, score in enumerate(of_instances):
            sums[index] += min(max(score, 0.0), 1.0) * (weight / total)
    return sums


class AdaptiveRouter:
    """The policies that change the weights of prefix affinity, queue depth and KV utilization."""

    POLICIES = ("adaptive-weighted", "kv-adaptive", "epoch-adaptive")

    def __init__(self, policy: str, index: PrefixIndex, epoch_size: float = EPOCH_SIZE) -> None:
        self.policy = policy
        self.epoch_size = epoch_size
        self.index = index
        self.epoch_weights = (3.0, 2.0)
        self.num_routed = 0
        self.num_rejected = 0

    def matched_blocks(self, _request: Request) -> None:
        """Of the routing revision's policies only `weighted` exposes its index to the record."""
        return None

    def reject(self) -> None:
        """Admission has turned a request away."""
        self.num_rejected += 1

    def route(self, request: Request, snapshots: list[Snapshot]) -> int:
        scores = [
            prefix_scores(request, self.index.matched_blocks(request)),
            queue_depth_scores(snapshots),
            [1.0 - snapshot.utilization for snapshot in snapshots],
        ]
        weights = self._weights(request, snapshots)
        sums = add_up(weights, scores[: len(weights)])
        target = sums.index(max(sums))
        if self.policy == "adaptive-weighted" and not _is_healthy(snapshots[target]):
            healthy = [i for i, snapshot in enumerate(snapshots) if _is_healthy(snapshot)]
            target = min(healthy, key=lambda i: snapshots[i].load, default=target)
        self.index.record(request, target)
        return target

    def _weights(self, request: Request, snapshots: list[Snapshot]) -> tuple[float, ...]:
        if self.policy == "adaptive-weighted":
            name = CLASS_NAMES[request.slo_class]
            return CLASS_WEIGHTS.get(name, CLASS_WEIGHTS["standard"])
        if self.policy == "kv-adaptive":
            fullest = max(snapshot.utilization for snapshot in snapshots)
            return NORMAL_WEIGHTS if fullest < 0.5 else PRESSED_WEIGHTS
        self.num_routed += 1
        if self.num_routed >= self.epoch_size:
            rate = self.num_rejected / self.num_routed
            self.epoch_weights = next_epoch_weights(*self.epoch_weights, rate)
            self.num_routed = self.num_rejected = 0
        return self.epoch_weights


def _is_healthy(snapshot: Snapshot) -> bool:
    return snapshot.pending_transfer_us == 0 and snapshot.thrashing_rate <= 0.1


def next_epoch_weights(prefix: float, depth: float, rate: float) -> tuple[float, float]:
    """Weights of prefix affinity and queue depth after an epoch with this share of rejections."""
    alpha = 0.5 / 10.0
    if rate > 0.1:
        depth = min(5.0, depth * (1.0 + alpha * (rate - 0.1) * 10))
        prefix = max(1.0, prefix * max(1.0 - alpha * (rate - 0.1) * 5, 0.8))
    elif rate < 0.02:
        depth = max(2.0, depth * (1.0 - alpha * 0.5))
        prefix = min(5.0, prefix * (1.0 + alpha * 0.5))
    if depth > 0 and prefix / depth > MOST_RATIO:
        depth = prefix / MOST_RATIO
        if depth > 5.0:
            depth = 5.0
            prefix = depth * MOST_RATIO
    return prefix, depth


def predictive_gate(index: PrefixIndex) -> Callable[[Request, list[Snapshot], int], bool]:
    """Admission by expected time to first token; the reference's run fills no `index` for it."""

    def admit(request: Request, snapshots: list[Snapshot], _now: int) -> bool:
        name = CLASS_NAMES[request.slo_class]
        matched = index.matched_blocks(request)
        if name == "critical" or not any(matched):
            return True
        expected = math.inf
        for snapshot, blocks in zip(snapshots, matched, strict=True):
            capacity = max(1.0, 8.0 - snapshot.batch_size)
            wait = math.ceil(snapshot.queue_depth / capacity) * 7000.0
            rest = max(request.input_len - blocks * 16, 0)
            expected = min(expected, wait + (STEP_US + PREFILL_US * rest))
        return expected <= ADMISSION_BUDGETS[name]

    return admit

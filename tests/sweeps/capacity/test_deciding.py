"""Looks at made-up runs, and the way to the smallest cluster."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from benchmarks.coverage.verdicts.capacity import KINDS, SIZES, MadeUpRuns, of_one
from blis_jax.cluster.config import ClusterConfig
from sweeps.capacity.deciding import Answer, decide, looks
from sweeps.capacity.finding import Finder
from sweeps.capacity.layouts import Hardware, LayoutFamily
from sweeps.capacity.targets import ServiceTarget
from sweeps.strategies.arms import Arm

ARM, FAMILY = Arm("made up", ClusterConfig(num_instances=8)), LayoutFamily(Hardware())


def test_looks_double() -> None:
    assert looks(256) == (32, 64, 128, 256) and looks(100) == (32, 64, 100) and looks(20) == (20,)


def counts(*shares: float, num_seeds: int = 32) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(1)
    total = random.integers(80, 120, (num_seeds, len(shares))).astype(float)
    return random.binomial(total.astype(int), shares).astype(float), total


def test_a_cluster_meets_all_targets_or_fails_by_one() -> None:
    for shares, asked, answer in (
        ((0.99, 0.98), (0.95, 0.95), Answer.MEETS),
        ((0.99, 0.7), (0.95, 0.95), Answer.FAILS),
        ((0.99, 0.95), (0.95, 0.95), Answer.OPEN),
    ):
        decision = decide(*counts(*shares), asked, 0.05, 3)
        assert decision.answer is answer and decision.num_seeds == 32
        for attained, share in zip(decision.attained, shares, strict=True):
            assert attained.low <= attained.share <= attained.high
            assert attained.share == pytest.approx(share, abs=0.02)


def test_runs_that_are_all_alike_need_no_interval() -> None:
    total = np.full((16, 1), 10.0)
    assert decide(total, total, (0.99,), 0.05, 1).answer is Answer.MEETS
    assert decide(0 * total, total, (0.01,), 0.05, 1).answer is Answer.FAILS


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_claims_are_seldom_wrong_just_below_the_target(kind: str) -> None:
    wrong, _, _ = of_one(KINDS[kind], 0.949, 300, 128)
    assert wrong <= 0.05 + 2 * np.sqrt(0.05 * 0.95 / 300)


class TrueShares:
    """Runs of clusters whose share in time follows their size, the same for every seed."""

    def __init__(self, shares: Any) -> None:
        self.shares, self.seeds, self.asked = shares, range(64), []
        self.in_time = SimpleNamespace(targets=(ServiceTarget("all", "ttft_ms", 1.0, 0.95),))

    def of(self, config: ClusterConfig, num_seeds: int, wider: ClusterConfig) -> Any:
        size = config.num_instances
        self.asked.append((size, wider.num_instances))
        return np.full((num_seeds, 1), 100 * self.shares(size)), np.full((num_seeds, 1), 100.0)


@pytest.mark.parametrize("answer", [1, 2, 3, 7, 8, 9, 15, 31, 63, 64])
def test_the_smallest_cluster_is_found(answer: int) -> None:
    runs: Any = TrueShares(lambda size: 0.96 if size >= answer else 0.9)
    finder = Finder(runs, 0.95, 64)
    found = finder.find(ARM, FAMILY, False, lambda size, decision: None)
    assert found.num_instances == answer and found.is_sharp
    assert found.fails_at == (answer - 1 or None)
    assert len(found.tried) <= finder.num_tries
    assert all(size <= wider <= 64 for size, wider in runs.asked)


def test_none_is_large_enough() -> None:
    runs: Any = TrueShares(lambda size: 0.5)
    found = Finder(runs, 0.95, 20).find(ARM, FAMILY, False, lambda size, decision: None)
    assert found.num_instances is None and not found.is_sharp and found.fails_at == 20


def test_what_is_open_is_not_claimed() -> None:
    """A cluster with just the share that is asked for stays open, and the answer is not called smallest."""
    random = np.random.default_rng(3)
    runs: Any = MadeUpRuns(random, KINDS["even"], 64)
    exactly = dict(SIZES) | {6: 0.95}
    runs.kept = {
        size: random.binomial(200, KINDS["even"](runs.rank, share)).astype(float)[:, None]
        for size, share in exactly.items()
    }
    found = Finder(runs, 0.95, 64).find(ARM, FAMILY, False, lambda size, decision: None)
    assert found.tried[6].answer is Answer.OPEN
    assert found.num_instances in (7, 8) and found.fails_at in (4, 5) and not found.is_sharp

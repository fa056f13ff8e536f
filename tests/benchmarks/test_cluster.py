"""The model of many workers: what was measured comes out again, and the command bounds many of them."""

from __future__ import annotations

import pytest

pytest.importorskip("distributed", reason="the extra `distributed` is not installed")
from benchmarks.cluster import MILLION, WORKERS, Spent, fitted, said

ALONE = Spent(1000, 0, 0, 0, 2.0, 0.0, 0.0, 2.5)
SMALL = Spent(
    16_000, 1000, 16_000_000, 1_600_000, 16_000 * 20e-6 + 1000 * 3e-3, 1000 * 1e-3, 0.0, 9.0
)
LARGE = Spent(16_000, 100, 6_400_000, 1_600_000, 16_000 * 20e-6 + 100 * 3e-3, 100 * 1e-3, 0.0, 9.0)
MODEL = fitted(ALONE, SMALL, LARGE, worker_s=2.5e-3, first_s=5.0)


def test_costs_of_tasks_and_of_runs_are_told_apart() -> None:
    assert MODEL.command_s == pytest.approx((3e-3, 20e-6))
    assert MODEL.scheduler_s == pytest.approx((1e-3, 0.0), abs=1e-9)
    assert said(MODEL, LARGE).endswith(
        "39 µs a run for the command and 6 for the scheduler; measured were 39 and 6."
    )
    assert "3.0 ms a task and 20 µs a run" in said(MODEL, LARGE)


def test_workers_bound_few_and_the_command_bounds_many() -> None:
    assert MODEL.rate(10, 400) == pytest.approx(10 / 2.5e-3)
    assert MODEL.rate(1000, 400) == pytest.approx(1 / (3e-3 / 400 + 20e-6))
    times = [MODEL.seconds(MILLION, count) for count in WORKERS]
    assert times == sorted(times, reverse=True)
    shares = [MILLION * MODEL.run_s / (count * s) for count, s in zip(WORKERS, times, strict=True)]
    assert shares == sorted(shares, reverse=True) and shares[0] < 1


def test_tasks_take_a_second_at_most_and_leave_two_for_each_worker() -> None:
    assert MODEL.runs_of_task(MILLION, 1) == 400
    assert MODEL.runs_of_task(MILLION, 5000) == 96
    assert MODEL.runs_of_task(100, 1000) == 16


def test_a_row_says_who_and_how_much() -> None:
    worker = Spent(1000, 50, 500_000, 150_000, 0.1, 0.1, 2.3, 3.0)
    assert worker.row("1 worker", ALONE) == (
        "1 worker", "1,000", "20", "500", "150", "100", "100", "2.30", "80%",
    )  # fmt: skip
    assert MODEL.row(1, 0.05)[0] == "1"

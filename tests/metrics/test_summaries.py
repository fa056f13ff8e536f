"""Components of the TTFT: every view adds up to the number that it explains."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from blis_jax.metrics.scalars import evaluate
from blis_jax.metrics.summaries import GROUPS, grouped, select, ttft_parts_ms
from blis_jax.records.record import TTFT_PARTS, RunRecord, Status
from tests.support.tiny_records import run_of


def run_with(ttft_parts_us: np.ndarray, slo_class: object = 1) -> RunRecord:
    """Requests with these parts; one with -1 got no token."""
    ttft = np.where(ttft_parts_us[:, 0] < 0, -1, ttft_parts_us.sum(axis=1))
    return run_of(
        {
            "arrival_us": np.arange(len(ttft)),
            "slo_class": slo_class,
            "status": Status.COMPLETED,
            "ttft_us": ttft,
            "ttft_parts_us": ttft_parts_us,
        }
    )


def random_parts(count: int) -> np.ndarray:
    return np.random.default_rng(count).integers(0, 5000, (count, len(TTFT_PARTS)))


@pytest.mark.parametrize("count", [1, 2, 7, 101, 250])
def test_views_add_up_to_what_they_explain(count: int) -> None:
    record = run_with(random_parts(count))
    found = ttft_parts_ms(select(record))
    figures = evaluate(record, ["ttft_mean_ms", "ttft_p99_ms"])
    assert sum(found["mean"]) == pytest.approx(figures["ttft_mean_ms"], rel=1e-12)
    assert sum(found["p99"]) == pytest.approx(figures["ttft_p99_ms"], rel=1e-12)
    ttft = record.requests.ttft_us
    slowest = ttft[ttft / 1000 >= figures["ttft_p99_ms"] * (1 - 1e-12)]
    assert sum(found["tail"]) == pytest.approx(slowest.mean() / 1000, rel=1e-12)
    assert sum(found["tail"]) >= sum(found["p99"]) * (1 - 1e-12)


def test_by_hand() -> None:
    parts = np.zeros((101, 8), int)
    parts[:, TTFT_PARTS.index("waiting")] = 1000 * np.arange(101)
    parts[99, TTFT_PARTS.index("prefill_compute")] = 500
    found = ttft_parts_ms(select(run_with(parts)))
    named = {view: dict(zip(TTFT_PARTS, values, strict=True)) for view, values in found.items()}
    assert named["p99"]["waiting"] == 99 and named["p99"]["prefill_compute"] == 0.5
    assert named["tail"]["waiting"] == 99.5 and named["tail"]["prefill_compute"] == 0.25
    assert named["mean"]["waiting"] == 50


def test_requests_that_share_the_p99_are_averaged() -> None:
    parts = np.zeros((4, 8), int)
    parts[:, 3], parts[:, 5] = [10, 1000, 0, 500], [0, 0, 1000, 500]
    found = ttft_parts_ms(select(run_with(parts)))
    assert found["p99"] == pytest.approx([0, 0, 0, 0.5, 0, 0.5, 0, 0])


def test_requests_without_a_token_and_of_other_classes_do_not_count() -> None:
    parts = random_parts(20)
    parts[3] = -1
    record = run_with(parts, slo_class=[1, 3] * 10)
    whole = ttft_parts_ms(select(record))
    assert sum(whole["mean"]) == pytest.approx(np.delete(parts, 3, axis=0).sum() / 19 / 1000)
    critical = select(record).where(record.requests.slo_class == 1)
    assert sum(ttft_parts_ms(critical)["mean"]) == pytest.approx(parts[::2].sum() / 10 / 1000)
    nobody = replace(critical, is_chosen=np.zeros(20, bool))
    assert ttft_parts_ms(nobody) == {}


def test_groups_hold_every_part_once() -> None:
    names = [name for group in GROUPS.values() for name in group]
    assert sorted(names) == sorted(TTFT_PARTS)
    table = random_parts(5).astype(float)
    assert sum(grouped(table).values()) == pytest.approx(table.sum(axis=1))

"""Success criteria: met, sure, on how many seeds, and for which classes."""

from __future__ import annotations

import pytest

from blis_jax.statistics.intervals import Inference
from sweeps.runs.measured import Measured
from sweeps.strategies.file import SuccessCriterion
from sweeps.tracks.success_criteria import JudgedCriterion, judged, metrics_of

CLASSES = ("critical", "sheddable")


def runs(**by_class: list[float]) -> list[Measured]:
    names = {"all": "ttft_p99_ms", **{name: f"ttft_p99_ms[{name}]" for name in CLASSES}}
    count = len(next(iter(by_class.values())))
    return [
        Measured(
            "COMPLETED",
            {names[key]: values[seed] for key, values in by_class.items()},
            fingerprint="x",
        )
        for seed in range(count)
    ]


def judge(
    criterion: SuccessCriterion, mine: list[Measured], base: list[Measured]
) -> dict[str, JudgedCriterion]:
    return {one.slo_class: one for one in judged([criterion], CLASSES, mine, base, Inference())}


BASE = runs(all=[100, 101, 99], critical=[100, 102, 98], sheddable=[100, 100, 100])
CHANGE = SuccessCriterion(metric="ttft_p99_ms[critical]", direction="min", change_percent=-15)


def test_a_change_is_judged_for_every_class() -> None:
    mine = runs(all=[150, 152, 149], critical=[50, 51, 49.5], sheddable=[60, 85.5, 110])
    found = judge(CHANGE, mine, BASE)
    assert list(found) == ["critical", "all", "sheddable"]
    assert [one.is_asked for one in found.values()] == [True, False, False]
    critical = found["critical"]
    assert critical.is_met and critical.is_sure and critical.num_seeds_met == 3
    assert critical.reached.mean == pytest.approx(100 * (150.5 / 300 - 1))
    assert not found["all"].is_met and found["all"].is_sure and found["all"].num_seeds_met == 0
    assert not found["sheddable"].is_met and not found["sheddable"].is_sure
    assert found["sheddable"].num_seeds_met == 1


def test_a_threshold_needs_no_reference() -> None:
    mine = runs(all=[90, 90.5, 89.5], critical=[1, 2, 3], sheddable=[99, 105, 93])
    criterion = SuccessCriterion(metric="ttft_p99_ms", direction="min", threshold=100)
    found = judge(criterion, mine, BASE)
    assert found["all"].is_met and found["all"].is_sure and found["all"].is_asked
    assert found["sheddable"].is_met and not found["sheddable"].is_sure
    assert found["sheddable"].num_seeds_met == 2
    more = SuccessCriterion(metric="ttft_p99_ms", direction="max", threshold=100)
    assert not judge(more, mine, BASE)["all"].is_met


def test_failed_seeds_are_left_out_and_counted() -> None:
    mine = runs(all=[1, 1, 1], critical=[50, 51, 49.5], sheddable=[1, 1, 1])
    mine[1] = Measured("LIVELOCK")
    found = judge(CHANGE, mine, BASE)["critical"]
    assert (found.num_seeds, found.num_seeds_met) == (2, 2)
    nothing = judge(CHANGE, [Measured("LIVELOCK")] * 3, BASE)["critical"]
    assert nothing.num_seeds == 0 and not nothing.is_met and not nothing.is_sure


def test_metrics_that_judging_takes() -> None:
    names = metrics_of(
        [CHANGE, SuccessCriterion(metric="throughput_tps", direction="max", threshold=1)], CLASSES
    )
    assert names == (
        "ttft_p99_ms[critical]", "ttft_p99_ms", "ttft_p99_ms[sheddable]", "tokens_per_sec",
    )  # fmt: skip

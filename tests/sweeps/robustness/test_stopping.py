"""Cells that take as many seeds as they need, on runs made by hand."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import xarray as xr

from blis_jax.core.outcome import Outcome
from blis_jax.metrics.measure import DEFAULT_TARGETS, Measure
from blis_jax.metrics.run_summary import RunSummary
from blis_jax.metrics.scalars import lookup
from blis_jax.statistics.intervals import ANYTIME_METHOD, METHOD
from blis_jax.statistics.sequential import StoppingRule
from sweeps.claims.words import UNDECIDED
from sweeps.robustness import parts
from sweeps.robustness.cells import make_axes, make_cells, reference_place
from sweeps.robustness.parts import MapRunner
from sweeps.robustness.plan import Extent, MapPlan, Question, load_shape, make_plan
from sweeps.robustness.report import differences
from sweeps.robustness.store import NOT_RUN, Unrun, empty_dataset, part_of
from sweeps.robustness.verdict import NONE, answer
from sweeps.strategies.arms import arm_of

OBJECTIVE = "ttft_p99_ms[critical]"
FIRST = tuple(range(100, 120))
CLEAR, CLOSE, SAME = 1000.0, 2000.0, 3000.0  # rates; what the second strategy changes there
CHANGES = {CLEAR: 0.7, CLOSE: 0.997, SAME: 1.0}
NOISE = {CLEAR: 0.01, CLOSE: 0.03, SAME: 0.0}


def plan_of(stopping: StoppingRule | None) -> MapPlan:
    rates = ",".join(f"{rate:g}" for rate in CHANGES)
    axes = make_axes(
        {"rate": rates, "arrival_cv": "1", "kv_blocks": "10000", "kv_cpu_blocks": "0", "shape": "mixed",
         "instances": "2", "step_constant": "6910.42"}
    )  # fmt: skip
    reference, shape = reference_place(axes), load_shape("mixed")
    arms = [arm_of("a=iter00_baseline"), arm_of("b=iter00_baseline:scheduler=sjf")]
    return make_plan(
        arms, axes, make_cells(axes, "grid", 1, 0, reference), reference, {"mixed": shape}, Extent(None, 400),
        FIRST, "jax", {"mixed": Measure(DEFAULT_TARGETS)}, Question(OBJECTIVE, ()),
        stopping=stopping,
    )  # fmt: skip


class MadeRuns(MapRunner):
    """Runs by rate, strategy and seed, made without a simulation."""

    ends: Mapping[tuple[float, int], str]
    asked: list[tuple[float, int, int]]

    def _results(self, entries: Any, places: range) -> list[list[RunSummary]]:
        seeds = self.plan.seeds[places.start : places.stop]
        return [
            [self._result(entry.place["rate"], entry.arm, seed) for seed in seeds]
            for entry in entries
        ]

    def _result(self, rate: float, arm: int, seed: int) -> RunSummary:
        self.asked.append((rate, arm, seed))
        common = np.random.default_rng(seed).normal(100, 10)
        own = np.random.default_rng((seed, arm)).normal(0, NOISE[rate])
        value = common * (1 + own) * (CHANGES[rate] if arm else 1.0)
        outcome = self.ends.get((rate, arm), "COMPLETED")
        has_figures = outcome == "COMPLETED"
        figures = {name: value for name in self.plan.names if lookup(name)[0].name != "num_dropped"}
        return RunSummary(Outcome[outcome], figures if has_figures else {})


def made(
    stopping: StoppingRule | None, ends: Mapping[tuple[float, int], str] = {}
) -> tuple[xr.Dataset, xr.Dataset, MadeRuns]:
    """The map, its verdicts, and what was run."""
    plan = plan_of(stopping)
    runner = MadeRuns(plan)
    runner.ends, runner.asked = ends, []
    dataset = empty_dataset(plan, {}, len(plan.cells))
    for name, values in part_of(plan, runner.run(plan.cells)).items():
        dataset[name].values[...] = values
    return dataset, answer(dataset, plan.question), runner


def by_rate(verdicts: xr.Dataset, name: str) -> dict[float, Any]:
    return dict(zip(verdicts["rate"].values.tolist(), verdicts[name].values.tolist(), strict=True))


def test_clear_cells_stop_at_once_and_close_ones_go_on() -> None:
    dataset, verdicts, runner = made(StoppingRule(decides=True, most_seeds=60))
    assert by_rate(verdicts, "num_seeds") == {CLEAR: 20, CLOSE: 60, SAME: 20}
    assert by_rate(verdicts, "recommended")[CLEAR] == "b"
    assert by_rate(verdicts, "recommended")[CLOSE] == UNDECIDED
    assert len(set(runner.asked)) == len(runner.asked) == 2 * (20 + 60 + 20)
    spared = (dataset["outcome"].values == Unrun.SPARED).sum()
    assert spared == 2 * (40 + 40) and not (dataset["outcome"].values == NOT_RUN).any()
    assert differences(dataset, ["ttft_p99_ms"]).attrs["intervals"] == ANYTIME_METHOD


def test_a_cell_says_the_same_beside_others_and_alone() -> None:
    dataset, verdicts, _ = made(StoppingRule(precision=0.005, most_seeds=90))
    for cell, count in enumerate(verdicts["num_seeds"].values):
        alone = dataset.isel(cell=[cell], seed=slice(0, count))
        one = answer(alone, Question(OBJECTIVE, ()))
        for name in ("recommended", "reason", "has_failed", "objective", "probability_best"):
            assert np.array_equal(one[name].values[0], verdicts[name].values[cell]), name
        for name in ("change_percent_low", "change_percent_high"):
            both = one[name].values[0], verdicts[name].values[cell]
            np.testing.assert_array_equal(*both)


def test_precision_adds_seeds_where_the_interval_is_wide() -> None:
    dataset, verdicts, _ = made(StoppingRule(precision=0.005, most_seeds=900))
    counts = by_rate(verdicts, "num_seeds")
    assert counts[SAME] == 20 and 200 < counts[CLOSE] < 900
    half = (verdicts["change_percent_high"] - verdicts["change_percent_low"]).values[:, 1] / 2
    assert (half <= 0.5).all()
    assert differences(dataset, ["ttft_p99_ms"]).attrs["intervals"] == METHOD


def test_strategies_that_livelock_stay_skipped_and_decide_the_cell() -> None:
    ends = {(CLOSE, 1): Outcome.LIVELOCK.name}
    _, verdicts, runner = made(StoppingRule(decides=True, most_seeds=60), ends)
    assert by_rate(verdicts, "num_seeds")[CLOSE] == 20
    assert by_rate(verdicts, "recommended")[CLOSE] == "a"
    assert sum(rate == CLOSE and arm == 1 for rate, arm, _ in runner.asked) == 1
    assert "skipped" in verdicts["ending"].values


def test_without_a_rule_every_cell_has_the_seeds_given() -> None:
    dataset, verdicts, _ = made(None)
    assert set(verdicts["num_seeds"].values.tolist()) == {20} == {dataset.sizes["seed"]}


@pytest.mark.parametrize("rule", [StoppingRule(decides=True, most_seeds=60), None])
def test_the_same_runs_give_the_same_answers(rule: StoppingRule | None) -> None:
    first, second = made(rule)[1], made(rule)[1]
    xr.testing.assert_equal(first, second)


@pytest.mark.parametrize(("second", "is_safe"), [(-1, True), (0, False), (1, False)])
def test_none_is_safe_only_where_every_strategy_surely_breaks_a_constraint(
    second: int, is_safe: bool
) -> None:
    """The second strategy surely breaks its limit, may break it, or keeps it and is not sure to lead."""
    verdicts = xr.Dataset(
        {
            "recommended": ("cell", np.array([NONE], object)),
            "probability_best": (("cell", "strategy"), [[0.0, 0.0]]),
            "has_failed": (("cell", "strategy"), [[False, False]]),
            "is_surely_kept": (("cell", "strategy", "constraint"), [[[1, -1], [1, second]]]),
        }
    )
    assert parts._is_safe(verdicts, 0.95).tolist() == [is_safe]

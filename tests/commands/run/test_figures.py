"""Figures of many runs by way of the compiled call: the same as of whole records, repaired runs included."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
import pytest

from blis_jax import over_seeds
from blis_jax.cluster.config import ClusterConfig
from blis_jax.commands.run.requests import draw_requests
from blis_jax.core.outcome import Outcome
from blis_jax.errors import ConfigError
from blis_jax.metrics.compiled import Report, RunFigures, figures_of
from blis_jax.metrics.measure import Measure
from blis_jax.metrics.run_summary import RunSummary
from blis_jax.metrics.summaries import SloTargets, Target
from blis_jax.policies.seeds import FIXED
from blis_jax.records.observation import Observation
from blis_jax.records.record import RunRecord
from blis_jax.runs import driver
from blis_jax.runs.driver import Runner
from blis_jax.runs.options import Options
from blis_jax.runs.runs import GivenRun, Row
from blis_jax.workload.spec import WorkloadSpec, load_builtin, override
from sweeps.sweep.data import Summarizer

SEEDS = (3, 1)
NAMES = ("ttft_p99_ms[critical]", "itl_p95_ms", "goodput_rps", "jain_fairness", "num_rejected")
TARGETS = SloTargets({"critical": Target(ttft_ms=40.0)})
MEASURE = Measure({}, warm_up_s=0.005, cool_down_s=0.005)
CONFIG = ClusterConfig(num_instances=2, routing_policy="weighted")


@pytest.fixture(scope="module")
def spec() -> WorkloadSpec:
    return override(load_builtin("mixed"), num_requests=60)


@pytest.fixture(scope="module")
def records(spec: WorkloadSpec) -> tuple[RunSummary, ...]:
    wanted = figures_of(NAMES, TARGETS, MEASURE, keep="records")
    return over_seeds(CONFIG, spec, SEEDS, wanted)


def assert_same(found: Sequence[RunSummary], expected: Sequence[RunSummary]) -> None:
    for one, other in zip(found, expected, strict=True):
        assert one.outcome == other.outcome
        assert one.metrics == pytest.approx(dict(other.metrics), rel=1e-9, nan_ok=True)
        assert one.violations == other.violations


def test_figures_are_those_of_the_records(spec: WorkloadSpec, records: tuple[RunSummary, ...]):
    found = over_seeds(CONFIG, spec, SEEDS, figures_of(NAMES, TARGETS, MEASURE))
    assert_same(found, records)
    assert [one.record for one in found] == [None, None]
    assert all(isinstance(one.record, RunRecord) for one in records)
    assert found[0].metrics != found[1].metrics


@pytest.fixture(autouse=True)
def always_in_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """However few rows there are."""
    for summary in (RunFigures, Summarizer):
        monkeypatch.setattr(summary, "fewest_rows", 0)


def test_only_some_kilobytes_come_back(spec: WorkloadSpec, monkeypatch: pytest.MonkeyPatch):
    sizes = []
    fetch = jax.device_get

    def counted(tree: Any) -> Any:
        fetched = fetch(tree)
        sizes.append(sum(leaf.nbytes for leaf in jax.tree.leaves(fetched)))
        return fetched

    monkeypatch.setattr(jax, "device_get", counted)
    monkeypatch.setattr(driver, "ROWS_PER_CALL", 1)
    summarizer = Summarizer([load_builtin("mixed")], Measure())
    over_seeds(CONFIG, spec, SEEDS[:1], summarizer)
    assert len(sizes) == 1 and sizes[0] <= 6144


def test_a_sweeps_row_is_that_of_the_record(spec: WorkloadSpec, records: tuple[RunSummary, ...]):
    summarizer = Summarizer([spec], Measure(warm_up_s=0.005, cool_down_s=0.005))
    for row, figures in zip(over_seeds(CONFIG, spec, SEEDS, summarizer), records, strict=True):
        assert figures.record is not None
        expected = summarizer(figures.record)
        for name in summarizer.dtype.names or ():
            is_short = summarizer.dtype[name].base == np.float32
            np.testing.assert_allclose(
                row[name], expected[name], rtol=3e-7 if is_short else 1e-9, err_msg=name
            )


@pytest.mark.slow
def test_runs_on_given_tables_are_repaired_first(
    spec: WorkloadSpec, monkeypatch: pytest.MonkeyPatch
):
    """A log too small, and ties: whole runs come back, and are made again before their figures count."""
    came_back = []
    take = GivenRun.take

    def noted(run: GivenRun, outcome: Outcome, look: Callable[[], Observation]) -> RunRecord | None:
        came_back.append((outcome, look().num_open_ties() > 0))
        return take(run, outcome, look)

    table = draw_requests(spec, SEEDS[0], 16)[0]
    even = dataclasses.replace(table, arrival_us=table.arrival_us // 500 * 500)
    in_step = CONFIG.replace(alpha_coeffs=(0.0, 0.0, 0.0), beta_coeffs=(1000.0, 0.0, 0.0))
    rows, options = [Row(CONFIG, table, FIXED), Row(in_step, even, FIXED)], Options(log_capacity=96)
    expected = Runner(options, len(rows)).run(rows, figures_of(NAMES, keep="records"))
    monkeypatch.setattr(GivenRun, "take", noted)
    found = Runner(options, len(rows)).run(rows, figures_of(NAMES))
    assert_same(found, expected)
    assert Outcome.LOG_FULL in {outcome for outcome, _ in came_back}
    assert (Outcome.COMPLETED, True) in came_back


def test_a_run_that_does_not_end_has_no_figures(spec: WorkloadSpec):
    options = Options(resolve_ties=False, max_scan_steps=64)
    for keep in ("figures", "records"):
        (found,) = over_seeds(CONFIG, spec, SEEDS[:1], figures_of(NAMES, keep=keep), options)
        assert (found.outcome, found.metrics) == (Outcome.ITERATIONS_EXHAUSTED, {})


def _reports_of(found: Callable[[RunRecord], RunSummary], code: Outcome) -> list[RunSummary]:
    assert isinstance(found, RunFigures)
    report = Report(
        np.array([int(code)]), *(np.zeros(1),) * 2, np.zeros((1, 7), int), np.ones((1, 1))
    )
    return list(found.of_reports(report, 0))


def test_the_outcome_decides_whether_there_are_metrics():
    wanted = figures_of(["duration_s"])
    assert _reports_of(wanted, Outcome.HORIZON)[0].metrics == {"duration_s": 1.0}
    assert _reports_of(wanted, Outcome.LIVELOCK)[0].metrics == {}


def test_what_cannot_be_kept_is_refused():
    with pytest.raises(ConfigError, match="keep is 'all'; give 'figures' or 'records'"):
        figures_of(NAMES, keep="all")
    with pytest.raises(ConfigError, match="metric 'duration' is unknown; did you mean 'duration_s"):
        figures_of(["duration"])

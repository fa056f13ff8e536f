"""Metrics in the compiled call: equal to the host's on recorded runs of every kind."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from benchmarks.golden import committed
from blis_jax.cluster.config import ClusterConfig
from blis_jax.commands.run.requests import draw_requests
from blis_jax.metrics.compiled import RunFigures
from blis_jax.metrics.measure import Measure
from blis_jax.metrics.scalars import evaluate
from blis_jax.metrics.summaries import Window
from blis_jax.policies.seeds import FIXED
from blis_jax.records.invariants import CHEAP_NAMES
from blis_jax.records.observation import unstack
from blis_jax.runs.calls import Call, Results, execute
from blis_jax.runs.driver import Runner
from blis_jax.runs.options import Options
from blis_jax.runs.runs import GivenRun, Row
from blis_jax.workload.spec import load_builtin, override
from tests.support.metric_laws import NAMES, TARGETS
from tests.support.recorded.golden_2026_08 import SIZES as AUGUST_SIZES
from tests.support.recorded.golden_2026_08 import AugustScenario
from tests.test_golden import SIZES, Scenario, scenarios

pytestmark = pytest.mark.golden

FAST_FAMILIES = ("cov_kv120_some_dropped",)


def both(
    config: Any, table: Any, options: Options, window: Window
) -> tuple[Any, dict[str, float], Any]:
    """The record of one run that ended, its metrics on the host, and its report."""
    spans_s = window.from_us / 1e6, _cool_down_us(table, window) / 1e6
    measured = RunFigures(NAMES, TARGETS, Measure({}, *spans_s))
    reports: list[Any] = []

    def noted(call: Call) -> Results:
        results = execute(call._replace(measured=measured))
        reports.append(results.report)
        return results

    record = Runner(options, num_rows=1).alone(GivenRun(Row(config, table, FIXED), options), noted)
    host = evaluate(record, NAMES, TARGETS, window)
    return record, host, unstack(reports[-1], 0)


def _cool_down_us(table: Any, window: Window) -> int:
    last_us = int(np.max(table.arrival_us))
    return 0 if window.until_us is None else last_us - window.until_us


def assert_equal(record: Any, host: dict[str, float], report: Any) -> None:
    figures = dict(zip(NAMES, report.figures.tolist(), strict=True))
    for name, value in host.items():
        assert figures[name] == pytest.approx(value, rel=1e-9, abs=0, nan_ok=True), name
    assert report.outcome == record.outcome
    assert report.num_iterations == record.num_iterations
    names = (*CHEAP_NAMES, "monotone_clock")
    assert dict(zip(names, report.violations.tolist(), strict=True)) == record.invariant_failures


def chosen() -> list[Any]:
    """All recorded runs; fast are a few that differ in kind, as each compiles every metric."""
    found = [param.values[0] for param in scenarios()]
    first: dict[str, Scenario] = {}
    for each in sorted(found, key=lambda each: each.name):
        first.setdefault(each.family, each)
    fast = [first[family] for family in FAST_FAMILIES if family in first]
    return [
        pytest.param(each, id=each.name, marks=[] if each in fast else pytest.mark.slow)
        for each in found
    ]


@pytest.mark.parametrize("scenario", chosen())
def test_equal_to_the_host_on_recorded_runs(scenario: Scenario):
    from blis_jax.workload.table import from_golden

    config = scenario.cluster
    table = from_golden(scenario.workload(), config.block_size_in_tokens)
    last_us = int(table.arrival_us.max())
    window = Window(last_us // 5, max(last_us - last_us // 10, last_us // 5 + 1))
    assert_equal(*both(config, table, SIZES, window))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fc_evict_s42", "fc_ttl_band_s42", "timeouts_s42"])
def test_equal_to_the_host_where_requests_wait_at_the_gateway_or_give_up(name: str):
    scenario = AugustScenario(committed() / "blis_2026_08", name)
    table = scenario.table()
    record, host, report = both(scenario.cluster, table, AUGUST_SIZES, Window(0, None))
    assert_equal(record, host, report)
    assert sum(host[each] for each in ("num_evicted", "num_expired", "num_timed_out")) > 0


@pytest.mark.slow
def test_equal_to_the_host_where_pools_split_requests_that_have_priorities():
    config = ClusterConfig(
        revision="blis-2026-08",
        num_instances=2,
        prefill_instances=1,
        decode_instances=1,
        pd_decider="always",
        scheduler="priority-fcfs",
    )
    table = draw_requests(override(load_builtin("mixed"), num_requests=60), 3, 16)[0]
    record, host, report = both(config, table, AUGUST_SIZES, Window(0, None))
    assert_equal(record, host, report)
    assert record.splits is not None and host["priority_inversions"] > 0

"""Metrics in the compiled call: equal to the host's on recorded runs of every kind."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

import sweeps.compiled_metrics  # noqa: F401  (registers the metrics of searches)
from blis_jax.device_metrics.compiled import compiled_table_reports
from blis_jax.device_metrics.figures import has_figure
from blis_jax.device_metrics.lane import measure_numbers
from blis_jax.device_metrics.run_figures import NamedFigures
from blis_jax.invariants import CHEAP_NAMES
from blis_jax.metrics import CLASS_NAMES
from blis_jax.observe import Observation, unstack
from blis_jax.policies.seeds import FIXED
from blis_jax.scalar_metrics import evaluate, lookup, metric_names
from blis_jax.simulation import Attempt, Options, Row
from blis_jax.summaries import SloTargets, Target, Window
from tests.test_golden import SIZES, Scenario, scenarios

pytestmark = pytest.mark.golden

TARGETS = SloTargets(
    {"critical": Target(ttft_ms=60.0), "sheddable": Target(e2e_ms=4000.0, tpot_ms=20.0)},
    otherwise=Target(ttft_ms=200.0),
)
FAST_FAMILIES = ("it00_baseline", "cov_kv120_some_dropped")
NAMES = tuple(
    f"{name}[{slo_class}]" if slo_class else name
    for name in metric_names()
    for slo_class in ((None, *CLASS_NAMES) if lookup(name)[0].has_classes else (None,))
)


def both(
    config: Any, table: Any, options: Options, window: Window
) -> tuple[Any, dict[str, float], Any]:
    """The record of one run that ended, its metrics on the host, and its report; see `Attempt`."""
    attempt = Attempt(Row(config, table, FIXED), options)
    while True:
        inputs = attempt.arguments(attempt.shape)
        rows = jax.tree.map(lambda leaf: np.asarray(leaf)[None], inputs)
        numbers = measure_numbers(TARGETS, window.from_us, _cool_down_us(table, window))
        with jax.enable_x64(True):
            function = compiled_table_reports(
                attempt.shape, attempt.functions, "rows", NamedFigures(NAMES)
            )
            steps = np.int32(options.max_scan_steps)
            raw, report = jax.device_get(function(*rows, steps, numbers))
        seen = Observation(unstack(raw, 0), inputs[1], inputs[0], attempt.shape.record_dtype)
        seen.block_size, seen.defects = attempt.shape.block_size, attempt.functions.defects
        record = attempt.take(seen)
        if record is not None:
            return record, evaluate(record, NAMES, TARGETS, window, "slo-based"), unstack(report, 0)


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


def test_every_metric_has_a_compiled_form():
    assert [name for name in metric_names() if not has_figure(name)] == []


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

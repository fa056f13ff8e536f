"""Lanes that are done take the next row: the same runs as by themselves, in fewer scan steps of all lanes."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import numpy as np
import pytest

from blis_jax import over_seeds
from blis_jax.cluster.config import ClusterConfig
from blis_jax.core.outcome import Outcome
from blis_jax.metrics.compiled import figures_of
from blis_jax.policies.seeds import FIXED
from blis_jax.records.record import RunRecord
from blis_jax.runs.calls import Call, Group
from blis_jax.runs.driver import Runner
from blis_jax.runs.many_runs import drawn_runs, simulate
from blis_jax.runs.options import Options
from blis_jax.runs.programs import compiled, rows_of
from blis_jax.runs.runs import Point, Row
from blis_jax.workload.reference import draw
from blis_jax.workload.spec import WorkloadSpec, load_builtin, override
from tests.support.scenes import (
    RECORD_PARTS,
    assert_same_arrays,
    assert_same_ends,
    burst,
    table_of,
    workload_of,
)

CONFIG = ClusterConfig(num_instances=2, routing_policy="weighted")
SEEDS = range(7)
ROWS = Options(resolve_ties=False)
LANES = Options(resolve_ties=False, form="lanes", num_lanes=3)


@pytest.fixture(scope="module")
def spec() -> WorkloadSpec:
    return override(load_builtin("mixed"), num_requests=0, horizon=40_000)


@pytest.fixture(scope="module")
def alone(spec: WorkloadSpec) -> tuple[RunRecord, ...]:
    return over_seeds(CONFIG, spec, SEEDS, options=ROWS)


def assert_equal(one: RunRecord, other: RunRecord) -> None:
    assert_same_arrays(one, other, parts=(*RECORD_PARTS, "preemptions"))
    ends = ("outcome", "num_iterations", "num_open_ties", "num_repairs", "invariant_failures")
    assert_same_ends(one, other, ends)


@pytest.mark.slow
def test_drawn_rows_in_fewer_lanes_are_the_same(
    spec: WorkloadSpec, alone: tuple[RunRecord, ...]
) -> None:
    """Scan steps, too: a row's own are counted, not those of the lanes beside it."""
    assert len({record.num_iterations for record in alone}) > 1
    for one, other in zip(over_seeds(CONFIG, spec, SEEDS, options=LANES), alone, strict=True):
        assert_equal(one, other)


@pytest.mark.slow
def test_figures_are_put_out_at_their_row(spec: WorkloadSpec) -> None:
    figures = figures_of(["ttft_p99_ms", "num_completed", "duration_s"])
    found = over_seeds(CONFIG, spec, SEEDS, figures, LANES)
    expected = over_seeds(CONFIG, spec, SEEDS, figures, ROWS)
    assert len({str(one.metrics) for one in found}) == len(SEEDS)
    for one, other in zip(found, expected, strict=True):
        assert (one.outcome, one.violations) == (other.outcome, other.violations)
        assert one.metrics == pytest.approx(other.metrics, rel=1e-9)


def assert_given_rows_are_equal(rows: list[Row], options: Options) -> list[RunRecord]:
    records = Runner(options, num_rows=len(rows)).run(rows, lambda record: record)
    for row, record in zip(rows, records, strict=True):
        one = simulate(row.config, row.table)
        assert record.outcome == one.outcome == Outcome.COMPLETED and record.num_open_ties == 0
        for field in dataclasses.fields(one.requests):
            mine, theirs = (getattr(each.requests, field.name) for each in (record, one))
            np.testing.assert_array_equal(mine, theirs, err_msg=field.name)
    return records


@pytest.mark.slow
def test_given_tables_are_repaired_and_put_in_order(spec: WorkloadSpec) -> None:
    """One row has ties and too small a log, the others neither."""
    tables = [draw(spec, seed, 16)[0] for seed in range(4)]
    even = dataclasses.replace(tables[0], arrival_us=tables[0].arrival_us // 500 * 500)
    in_step = CONFIG.replace(alpha_coeffs=(0.0, 0.0, 0.0), beta_coeffs=(1000.0, 0.0, 0.0))
    rows = [*(Row(CONFIG, table, FIXED) for table in tables), Row(in_step, even, FIXED)]
    options = Options(form="lanes", num_lanes=2, log_capacity=256, num_slots=64)
    records = assert_given_rows_are_equal(rows, options)
    repairs = [record.num_repairs for record in records]
    assert repairs[:4] == [0] * 4 and repairs[4] > 1


def test_rows_that_run_out_of_scan_steps_wait_as_they_are(
    spec: WorkloadSpec, alone: tuple[RunRecord, ...]
) -> None:
    least = min(record.num_iterations for record in alone)
    hurried = [dataclasses.replace(one, max_scan_steps=least) for one in (ROWS, LANES)]
    expected, found = (over_seeds(CONFIG, spec, SEEDS, options=one) for one in hurried)
    outcomes = {record.outcome for record in found}
    assert outcomes == {Outcome.COMPLETED, Outcome.ITERATIONS_EXHAUSTED}
    for one, other in zip(found, expected, strict=True):
        assert_equal(one, other)


def lane_steps(spec: WorkloadSpec, seeds: range, options: Options) -> int:
    runs = drawn_runs([Point(CONFIG, spec)], seeds, options)
    call: Any = Call(Group(runs[0]), runs, len(runs))
    with jax.enable_x64(True):
        return int(compiled(rows_of, *call.statics)(*call.arguments(call.given())).lane_steps)


@pytest.mark.slow
def test_fewer_scan_steps_are_spent_on_lanes_that_are_done(
    spec: WorkloadSpec, alone: tuple[RunRecord, ...]
) -> None:
    """Against calls of as many rows as lanes, each of which waits for its slowest row."""
    own = [record.num_iterations for record in alone]
    width = LANES.num_lanes or 1
    apart = sum(width * max(own[at : at + width]) for at in range(0, len(own), width))
    assert sum(own) <= lane_steps(spec, SEEDS, LANES) < apart


@pytest.mark.slow
@pytest.mark.parametrize("total_kv_blocks", [400, 60])
def test_the_caches_feed_the_router_s_index_in_lanes_too(total_kv_blocks: int) -> None:
    """With room for all blocks, and with so few that requests are preempted."""
    config = CONFIG.replace(
        precise_kv_routing=True,
        routing_scorers="prefix-affinity:4,queue-depth:3",
        total_kv_blocks=total_kv_blocks,
    )
    table = table_of(workload_of(burst(3, num_prompts=60)))
    one, other = (simulate(config, table, options) for options in (ROWS, LANES))
    assert one.kv_model == other.kv_model
    assert np.any(one.requests.expected_cached_tokens > 0)
    assert np.any(one.instances.preemption_count > 0) == (total_kv_blocks == 60)
    assert_equal(one, other)

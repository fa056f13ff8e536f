"""Batches: common seeds, shared compilations, repairs, rows that are there already."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
import pytest

from blis_jax.cluster.config import ClusterConfig
from blis_jax.core.outcome import Outcome
from blis_jax.errors import ConfigError
from blis_jax.metrics.compiled import figures_of
from blis_jax.records.record import BLOCK_LEVEL, NO_EVICTION, RunRecord
from blis_jax.runs import driver, many_runs
from blis_jax.runs.calls import Call
from blis_jax.runs.many_runs import simulate
from blis_jax.runs.options import Options
from blis_jax.runs.runs import Point
from blis_jax.workload.drawing import plan as plans
from blis_jax.workload.drawing.draw import compile_plan, draw
from blis_jax.workload.spec import WorkloadSpec, load_builtin, override, parse_spec
from blis_jax.workload.table import NEVER_US
from tests.support.scenes import assert_same_arrays, assert_same_ends

SEEDS = (3, 1, 4, 15)
SESSIONS = """
version: '2'
category: reasoning
aggregate_rate: 40.0
num_requests: 60
clients:
- id: chat
  slo_class: standard
  rate_fraction: 1.0
  arrival: {process: poisson}
  input_distribution: {type: constant, params: {value: 70}}
  output_distribution: {type: constant, params: {value: 40}}
  reasoning:
    multi_turn: {max_rounds: 4, think_time_us: 200000, context_growth: accumulate}
"""
OPTIONS = Options(resolve_ties=False)


@pytest.fixture(scope="module")
def spec() -> WorkloadSpec:
    return override(load_builtin("mixed"), num_requests=60)


@pytest.fixture(scope="module")
def fcfs() -> ClusterConfig:
    return ClusterConfig(num_instances=2, routing_policy="weighted")


@pytest.fixture(scope="module")
def first(spec: WorkloadSpec, fcfs: ClusterConfig) -> tuple[RunRecord, ...]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(driver, "ROWS_PER_CALL", 1)
        return many_runs.run_grid([fcfs], spec, SEEDS, whole, OPTIONS).rows[0]


@pytest.fixture(autouse=True)
def one_row_per_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """One program serves all tests of a shape, however many rows they run."""
    monkeypatch.setattr(driver, "ROWS_PER_CALL", 1)


@pytest.fixture
def compilations(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The sizes of the calls that were compiled."""
    sizes: list[int] = []
    begin = Call.begin_compiling

    def counted(call: Call, *arguments: Any) -> Any:
        sizes.append(call.size)
        return begin(call, *arguments)

    monkeypatch.setattr(Call, "begin_compiling", counted)
    yield sizes


def whole(record: RunRecord) -> RunRecord:
    return record


def assert_equal(one: RunRecord, other: RunRecord, but: tuple[str, ...] = ()) -> None:
    assert_same_arrays(one, other)
    ends = {"outcome", "num_open_ties", "num_repairs", "invariant_failures"} - set(but)
    assert_same_ends(one, other, ends)


def test_calls_are_full_and_few_in_size() -> None:
    rows = driver.Runner(OPTIONS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(driver, "ROWS_PER_CALL", 16)
        patch.setattr(driver, "num_workers", lambda: 2)
        assert [rows.rows_per_call(n) for n in (1, 2, 3, 20, 512)] == [1, 1, 16, 16, 16]
        assert [rows.rows_per_call(n, 100_000) for n in (2, 4, 31, 512)] == [1, 2, 8, 16]
    lanes = driver.Runner(dataclasses.replace(OPTIONS, form="lanes"))
    assert [lanes.rows_per_call(n) for n in (5, 100_000)] == [5, driver.LANES_PER_CALL]


def test_any_number_of_seeds_runs_in_one_program(
    spec: WorkloadSpec,
    fcfs: ClusterConfig,
    first: tuple[RunRecord, ...],
    compilations: list[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(driver, "ROWS_PER_CALL", 4)
    monkeypatch.setattr(driver, "num_workers", lambda: 2)
    for count in (3, 4):
        records = many_runs.run_grid([fcfs], spec, SEEDS[:count], whole, OPTIONS).rows[0]
        for record, expected in zip(records, first, strict=False):
            assert_equal(record, expected)
    assert compilations == [4, 4]


def test_a_call_is_filled_up_with_runs_of_no_request(
    spec: WorkloadSpec, fcfs: ClusterConfig
) -> None:
    run = many_runs.drawn_runs([many_runs.Point(fcfs, spec)], SEEDS[:1], OPTIONS)[0]
    _, full, _ = run.inputs(run.sizes.shape)
    _, empty, _ = run.filler().inputs(run.sizes.shape)
    assert (full.arrival_us != NEVER_US).sum() == spec.num_requests
    assert (empty.arrival_us == NEVER_US).all()


def test_same_seeds_same_bits_in_any_order(
    spec: WorkloadSpec, fcfs: ClusterConfig, first: tuple[RunRecord, ...]
) -> None:
    again = many_runs.run_grid([fcfs], spec, SEEDS[::-1], whole, OPTIONS).rows[0]
    for one, other in zip(first, reversed(again), strict=True):
        assert_equal(one, other)
    assert not np.array_equal(first[0].requests.arrival_us, first[1].requests.arrival_us)


@pytest.mark.slow
@pytest.mark.lenient_promotion
def test_a_row_equals_a_run_alone_on_its_table(
    spec: WorkloadSpec, fcfs: ClusterConfig, first: tuple[RunRecord, ...]
) -> None:
    plan = compile_plan(spec, block_size=fcfs.block_size_in_tokens)
    for seed, row in zip(SEEDS, first, strict=True):
        with jax.enable_x64(True):
            table, is_short = draw(plan.shape, plan.params, jax.random.key(seed))
            table = jax.device_get(table)
        assert not bool(is_short)
        assert_equal(row, simulate(fcfs, table, OPTIONS))


def test_points_of_one_mechanism_share_a_compilation_and_seeds_their_requests(
    spec: WorkloadSpec,
    fcfs: ClusterConfig,
    first: tuple[RunRecord, ...],
    compilations: list[int],
) -> None:
    configs = [fcfs, fcfs.replace(max_num_scheduled_tokens=512, routing_latency=5)]
    told: list[int] = []
    grid = many_runs.run_grid(configs, spec, SEEDS, whole, OPTIONS, progress=told.append)
    assert len(compilations) == 1
    assert sum(told) == grid.timing.num_rows == 8
    for one, other in zip(first, grid.rows[0], strict=True):
        assert_equal(one, other)
    for one, other in zip(*grid.rows, strict=True):
        for name in ("arrival_us", "input_len", "output_len", "slo_class", "tenant"):
            mine, theirs = getattr(one.requests, name), getattr(other.requests, name)
            np.testing.assert_array_equal(mine, theirs)
        assert np.any(one.requests.ttft_us != other.requests.ttft_us)


def test_metrics_of_a_grid_are_labelled(spec: WorkloadSpec, fcfs: ClusterConfig) -> None:
    names = ["ttft_mean_ms", "output_tokens_per_s"]
    grid = many_runs.run_grid([fcfs], spec, SEEDS, figures_of(names), OPTIONS)
    dataset = grid.to_dataset()
    assert dataset.sizes == {"point": 1, "seed": len(SEEDS)}
    assert [dataset[name].attrs["units"] for name in names] == ["ms", "1/s"]
    assert dataset["seed"].values.tolist() == list(SEEDS)
    for place, run in enumerate(grid.rows[0]):
        assert dataset["ttft_mean_ms"].values[0, place] == run.metrics["ttft_mean_ms"]
    with pytest.raises(ConfigError, match="no metrics to label; give summarize=figures_of"):
        many_runs.run_grid([fcfs], spec, SEEDS[:1], whole, OPTIONS).to_dataset()


def test_a_record_is_shown_in_a_line(first: tuple[RunRecord, ...]) -> None:
    shown = repr(first[0])
    assert shown.startswith("RunRecord(COMPLETED: ") and len(shown) < 150


def test_rates_share_a_compilation_and_their_random_numbers(
    spec: WorkloadSpec, fcfs: ClusterConfig, compilations: list[int]
) -> None:
    specs = [spec, override(spec, aggregate_rate=20.0)]
    grid = many_runs.run_grid([fcfs, fcfs], specs, SEEDS, whole, OPTIONS)
    assert len(compilations) == 1
    for fast, slow in zip(*grid.rows, strict=True):
        np.testing.assert_array_equal(fast.requests.input_len, slow.requests.input_len)
        np.testing.assert_array_equal(fast.requests.output_len, slow.requests.output_len)
        ratio = slow.requests.arrival_us[-1] / fast.requests.arrival_us[-1]
        assert ratio == pytest.approx(100, rel=0.01)  # gaps are whole microseconds


@pytest.mark.slow
def test_sizes_of_the_largest_draw_serve_all_points(fcfs: ClusterConfig) -> None:
    """Without a number of requests the sizes of a draw follow the rate."""
    low = override(load_builtin("mixed"), num_requests=0, horizon=30_000)
    high = override(low, aggregate_rate=4000.0)
    together = many_runs.run_grid([fcfs, fcfs], [low, high], SEEDS, whole, OPTIONS)
    for spec, rows in zip((low, high), together.rows, strict=True):
        alone = many_runs.run_grid([fcfs], spec, SEEDS, whole, OPTIONS).rows[0]
        for one, other in zip(alone, rows, strict=True):
            assert_equal(one, other)


@pytest.mark.slow
def test_repaired_rows_say_so_and_are_equal(
    spec: WorkloadSpec, fcfs: ClusterConfig, first: tuple[RunRecord, ...]
) -> None:
    tight = dataclasses.replace(OPTIONS, num_slots=28)
    grid = many_runs.run_grid([fcfs], spec, SEEDS, whole, tight)
    repairs = [row.num_repairs for row in grid.rows[0]]
    assert grid.timing.num_reruns == sum(repairs) > 0
    assert {row.outcome for row in grid.rows[0]} == {Outcome.COMPLETED}
    for one, other in zip(first, grid.rows[0], strict=True):
        assert_equal(one, other, but=("num_repairs",))


@pytest.mark.parametrize("latency_model", ["auto", "trained-physics"])
def test_the_first_log_holds_the_steps_in_which_shared_outputs_fill_blocks(
    latency_model: str,
) -> None:
    text = SESSIONS.replace("value: 40", "value: 320").replace("rate: 40", "rate: 1")
    cluster = ClusterConfig(num_instances=2, latency_model=latency_model)
    (record,) = many_runs.over_seeds(cluster, parse_spec(text), [7], options=OPTIONS)
    assert record.num_repairs == 0
    assert len(record.steps.num_steps) > 1024  # the smallest log


def test_outputs_without_a_mean_ask_for_no_long_log() -> None:
    law = "{type: pareto_lognormal, params: {alpha: 0.9, xm: 9, mu: 3, sigma: 1, mix_weight: 0.5}}"
    text = SESSIONS.replace("{type: constant, params: {value: 40}}", law)
    point = Point(ClusterConfig(num_instances=2, latency_model="trained-physics"), parse_spec(text))
    (run,) = many_runs.drawn_runs([point], [0], OPTIONS)
    assert 1024 < run.sizes.shape.log_capacity <= 4096


@pytest.mark.slow
def test_short_draws_are_drawn_again(
    spec: WorkloadSpec,
    fcfs: ClusterConfig,
    first: tuple[RunRecord, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in (("SIGMAS", -1.0), ("SPARE_DRAWS", 0), ("SIZE_STEP", 1)):
        monkeypatch.setattr(plans, name, value)
    grid = many_runs.run_grid([fcfs], spec, SEEDS, whole, OPTIONS)
    assert grid.timing.num_reruns > 0
    for one, other in zip(first, grid.rows[0], strict=True):
        assert_equal(one, other, but=("num_repairs",))


def test_what_cannot_be_repaired_comes_back(spec: WorkloadSpec, fcfs: ClusterConfig) -> None:
    hopeless = dataclasses.replace(OPTIONS, max_scan_steps=64)
    rows = many_runs.run_grid([fcfs], spec, SEEDS[:2], whole, hopeless).rows[0]
    assert [row.outcome for row in rows] == [Outcome.ITERATIONS_EXHAUSTED] * 2


def test_known_rows_are_not_run_again(
    spec: WorkloadSpec, fcfs: ClusterConfig, first: tuple[RunRecord, ...]
) -> None:
    told: list[tuple[int, int]] = []
    grid = many_runs.run_grid(
        [fcfs],
        spec,
        SEEDS,
        whole,
        OPTIONS,
        known={(0, 0): first[1], (0, 2): first[2]},
        on_row=lambda point, seed, _: told.append((point, seed)),
    )
    assert told == [(0, 1), (0, 3)]
    assert grid.timing.num_rows == 2
    assert grid.rows[0][0] is first[1]
    assert_equal(grid.rows[0][3], first[3])


def test_nothing_is_compiled_if_all_is_known(
    spec: WorkloadSpec, fcfs: ClusterConfig, compilations: list[int]
) -> None:
    known = {(0, seed): str(seed) for seed in range(4)}
    grid = many_runs.run_grid([fcfs], spec, SEEDS, str, OPTIONS, known=known)
    assert grid.rows == (("0", "1", "2", "3"),)
    assert not compilations


def test_an_interruption_stops_the_batch(spec: WorkloadSpec, fcfs: ClusterConfig) -> None:
    told: list[int] = []

    def stop(point: int, seed: int, record: RunRecord) -> None:
        told.append(seed)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        many_runs.run_grid([fcfs], spec, range(64), whole, OPTIONS, on_row=stop)
    assert told == [0]


@pytest.mark.parametrize(
    ("num_configs", "num_specs", "seeds", "words"),
    [
        (0, 1, [1], "at least one configuration"),
        (1, 1, [], "at least one configuration and one seed"),
        (1, 1, [-1], "seed -1 is out of range"),
        (1, 1, [2**32], "out of range"),
        (2, 3, [1], "3 workloads for 2 configurations"),
    ],
)
def test_bad_grids_are_refused(
    spec: WorkloadSpec,
    fcfs: ClusterConfig,
    num_configs: int,
    num_specs: int,
    seeds: list[int],
    words: str,
) -> None:
    specs = spec if num_specs == 1 else [spec] * num_specs
    with pytest.raises(ConfigError, match=words):
        many_runs.run_grid([fcfs] * num_configs, specs, seeds, whole, OPTIONS)


@pytest.mark.slow
@pytest.mark.lenient_promotion
@pytest.mark.parametrize("name", ["prefix groups", "sessions"])
def test_rows_under_pressure_are_run_again_at_block_level(
    spec: WorkloadSpec, fcfs: ClusterConfig, name: str
) -> None:
    """Both models serve one batch; each row equals a run alone on its table."""
    if name == "sessions":
        spec = parse_spec(SESSIONS)
    tight = fcfs.replace(total_kv_blocks=150 if name == "sessions" else 260)
    records = many_runs.run_grid([fcfs, tight], spec, SEEDS[:2], whole, OPTIONS).rows
    assert {record.kv_model for record in records[0]} == {NO_EVICTION}
    assert {record.kv_model for record in records[1]} == {BLOCK_LEVEL}
    assert any(record.instances.preemption_count.any() for record in records[1])
    plan = compile_plan(spec)
    for seed, record in zip(SEEDS[:2], records[1], strict=True):
        with jax.enable_x64(True):
            table, _ = draw(plan.shape, plan.params, jax.random.key(seed))
        alone = simulate(tight, jax.tree.map(np.asarray, table), OPTIONS)
        assert_equal(record, alone, but=("num_repairs",))


@pytest.mark.parametrize(
    ("ask", "told"),
    [
        (lambda: Options(clock="cont"), "use one of int32, int64, float64, continuous"),
        (lambda: figures_of("ttft_p99_ms"), "give a list"),
        (
            lambda: many_runs.over_params(ClusterConfig(), load_builtin("mixed"), 4),
            "give a list of them",
        ),  # type: ignore[arg-type]
        (
            lambda: many_runs.over_seeds(ClusterConfig(), "mixed", [3]),
            r"give load_builtin\('mixed'\)",
        ),  # type: ignore[arg-type]
        (
            lambda: many_runs.over_seeds(ClusterConfig(), load_builtin("mixed"), 3),
            r"such as range\(3\)",
        ),  # type: ignore[arg-type]
        (lambda: simulate(ClusterConfig(), load_builtin("mixed")), "draw_requests"),  # type: ignore[arg-type]
    ],
    ids=["clock", "figures", "one cluster", "requests", "seeds", "workload"],
)
def test_what_is_of_another_kind_is_refused_with_what_to_give(
    ask: Callable[[], object], told: str
) -> None:
    with pytest.raises(ConfigError, match=told):
        ask()

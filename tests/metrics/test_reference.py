"""Metrics against recorded figures of the reference, brute force, and scenes worked out by hand."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from blis_jax.errors import ConfigError
from blis_jax.metrics import reference as metrics
from blis_jax.metrics import scalars as scalar_metrics
from blis_jax.metrics.distributions import (
    Sample,
    mean,
    percentile,
    percentile_ms,
    sample_of,
    summary_us,
    weighted_sample,
)
from blis_jax.metrics.metric import register
from blis_jax.metrics.summaries import SloTargets, Target, Window
from blis_jax.records import step_records
from blis_jax.records.record import RunRecord, Status
from tests.support.recorded.golden_records import GoldenRun, compressed, load_run
from tests.support.recorded.reference_data import find_golden_dir
from tests.support.tiny_records import changed, pressed_run, run_of, whole_run

SAMPLE = (
    "scheduling/it00_baseline_s42",
    "scheduling/it01_opt_s42",
    "scheduling/cov_horizon_lat_s42",
    "scheduling/cov_adm_tokenbucket_s42",
    "scheduling/cov_kv33_all_dropped_s42",
    "scheduling/cov_blocksize8_s42",
    "scheduling/cov_traces_zero_output_one_s42",
    "scheduling/cov_kv1300_single_tier_s42",
    "scheduling/cov_kv1300_tiered_s42",
    "scheduling/cov_kv1400_slopreempt_s42",
    "routing/it21_prefill_pool_r400_s42",
)


def all_scenarios() -> list[str]:
    golden = find_golden_dir()
    paths = sorted(golden.glob("[rs]*/scenarios/*.json")) if golden else []
    return [f"{path.parts[-3]}/{path.stem}" for path in paths]


def golden_run(golden_dir: Path, scenario: str) -> GoldenRun:
    track, name = scenario.split("/")
    path = golden_dir / track / "scenarios" / f"{name}.json"
    if not path.exists():
        pytest.skip(f"the reference results here lack {path.name}")
    return load_run(path)


def differences(ours: Any, recorded: Any, path: str = "") -> list[str]:
    """Where two JSON documents differ; numbers may by 1e-12 of their size."""
    if isinstance(recorded, dict):
        if not isinstance(ours, dict) or list(ours) != list(recorded):
            return [f"{path}: fields"]
        return [
            found
            for name, value in recorded.items()
            for found in differences(ours[name], value, f"{path}.{name}")
        ]
    if isinstance(recorded, list):
        if len(ours) != len(recorded):
            return [f"{path}: length"]
        return [
            found
            for row, (one, other) in enumerate(zip(ours, recorded, strict=True))
            for found in differences(one, other, f"{path}[{row}]")
        ]
    if isinstance(recorded, int | float) and not isinstance(recorded, bool):
        is_same = math.isclose(ours, recorded, rel_tol=1e-12, abs_tol=0)
        return [] if is_same else [f"{path}: {ours} is not {recorded}"]
    return [] if ours == recorded else [f"{path}: {ours!r} is not {recorded!r}"]


def is_known_gap(run: GoldenRun, difference: str) -> bool:
    """What the recorded arrays do not tell: in which steps the latencies of preempted requests lie."""
    return not run.is_without_preemption and ".itl_" in difference


def figures_of(record: RunRecord, config: dict[str, Any]) -> dict[str, Any]:
    return {
        "cluster_json": metrics.cluster_json(record),
        "aggregates": metrics.aggregates(record),
        "per_slo": metrics.per_slo(record),
        "instances": metrics.instances(record, has_cpu_tier=config["kv-cpu-blocks"] > 0),
    }


def check_run(run: GoldenRun, record: RunRecord) -> None:
    config = run.recorded["config"]
    for name, figures in figures_of(record, config).items():
        found = differences(figures, run.recorded[name], name)
        assert [entry for entry in found if not is_known_gap(run, entry)] == []
    steps = step_records.expand_steps(record, config["block-size-in-tokens"])._asdict()
    for name, values in steps.items():
        assert values.dtype == run.arrays[name].dtype, name
        np.testing.assert_array_equal(values, run.arrays[name], err_msg=name)


@pytest.mark.golden
@pytest.mark.parametrize("scenario", SAMPLE)
def test_equals_recorded_figures(golden_dir: Path, scenario: str):
    run = golden_run(golden_dir, scenario)
    check_run(run, run.record)


@pytest.mark.golden
@pytest.mark.parametrize("scenario", [name for name in SAMPLE if "cov_kv1300" not in name])
def test_putting_equal_steps_together_changes_nothing(golden_dir: Path, scenario: str):
    run = golden_run(golden_dir, scenario)
    assert run.is_without_preemption
    record = compressed(run.record)
    assert len(record.steps.instance) <= len(run.record.steps.instance)
    check_run(run, record)


@pytest.mark.golden
@pytest.mark.slow
@pytest.mark.parametrize("scenario", all_scenarios())
def test_equals_every_recorded_figure(golden_dir: Path, scenario: str):
    run = golden_run(golden_dir, scenario)
    check_run(run, run.record)
    has_one_chain = run.recorded["aggregates"]["steps_with_same_start"] == 0
    if run.is_without_preemption and has_one_chain:
        check_run(run, compressed(run.record))


@given(st.lists(st.integers(0, 10**9), min_size=1, max_size=50), st.sampled_from([50, 90, 95, 99]))
def test_percentile_and_mean_are_numpys(values: list[int], percent: int):
    sample = sample_of(np.array(values))
    expected = np.percentile(values, percent)
    assert percentile(sample, percent) == pytest.approx(expected, rel=1e-12)
    assert percentile_ms(sample, percent) == pytest.approx(expected / 1000, rel=1e-12)
    assert mean(sample) == pytest.approx(np.mean(values), rel=1e-12)


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 4)), min_size=1, max_size=30))
def test_weights_mean_repetition(pairs: list[tuple[int, int]]):
    values, weights = np.array(pairs).T
    assert summary_us(weighted_sample(values, weights)) == summary_us(
        sample_of(np.repeat(values, weights))
    )


def test_empty_sample_has_zeros():
    assert set(summary_us(Sample(np.zeros(0))).values()) == {0.0}
    assert set(summary_us(weighted_sample(np.array([3]), np.array([0]))).values()) == {0.0}


def test_block_of_a_run_worked_out_by_hand():
    block = metrics.cluster_json(whole_run())
    assert block is not None
    assert block["injected_requests"] == 2
    assert block["responses_per_sec"] == 2 / 0.0001
    assert block["tokens_per_sec"] == 2 / 0.0001
    assert block["ttft_mean_ms"] == 0.1475
    assert block["itl_mean_ms"] == (3 * 110 + 130) / 4 / 1000
    assert block["itl_p99_ms"] == pytest.approx(0.1294, rel=1e-12)
    assert "kv_allocation_failures" not in block
    figures = metrics.aggregates(whole_run())
    assert (figures["num_steps"], figures["overlapping_steps"]) == (4, 1)
    assert figures["cache_hit_rate"] == 0.25


def test_figures_of_a_run_under_pressure():
    figures = metrics.aggregates(pressed_run())
    assert figures["ttft_sum_us"] == 10 + 20 + 65
    assert figures["cache_hit_rate"] == (1 + 1) / (1 + 1 + 6 + 2)
    assert figures["kv_thrashing_rate"] == 0.25
    assert figures["preemption_rate"] == 1.0
    (entry,) = metrics.instances(pressed_run(), has_cpu_tier=True)
    assert (entry["ttft_sum_us"], entry["kv_thrashing_rate"]) == (95, 0.25)
    assert list(entry["kv"].values()) == [2, 4, 1, 1, 6, 1, 2]
    (entry,) = metrics.instances(pressed_run())
    assert list(entry["kv"]) == ["gpu_hits", "gpu_misses", "used_blocks_at_end"]


def test_failed_allocations_are_printed_when_there_are_any():
    record = changed(whole_run(), "instances", "kv_allocation_failures", 3)
    block = metrics.cluster_json(record)
    assert block is not None
    names = list(block)
    assert names.index("kv_allocation_failures") == names.index("preemption_count") - 1


def test_nothing_is_printed_when_nothing_completed():
    record = run_of({"arrival_us": [0], "status": [Status.REJECTED]})
    assert metrics.cluster_json(record) is None
    assert metrics.instance_json(record, 0) == {}
    assert metrics.results_json(record)["ttft_p99_ms"] == 0


@pytest.mark.parametrize(
    ("limit", "just_above", "value"),
    [("ttft_ms", 0.1551, 0.155), ("tpot_ms", 0.1651, 0.165), ("e2e_ms", 0.4851, 0.485)],
)
def test_each_target_counts(limit: str, just_above: float, value: float):
    kept = SloTargets({"critical": Target(**{limit: just_above})})
    missed = SloTargets({"critical": Target(**{limit: value - 0.001})})
    summary = scalar_metrics.class_summary(whole_run(), kept)
    assert summary["critical"]["attainment"] == 1.0
    assert summary["all"]["attainment"] == pytest.approx(2 / 3)  # the rejected one missed
    assert summary["all"]["goodput_rps"] == 2 / 0.0001
    summary = scalar_metrics.class_summary(whole_run(), missed)
    assert summary["critical"]["goodput_rps"] == 0.0
    assert summary["standard"]["attainment"] == 1.0


def test_groups_of_a_summary():
    by_class = scalar_metrics.class_summary(whole_run())
    assert list(by_class) == ["all", "critical", "standard", "sheddable"]
    assert by_class["critical"]["tpot_p99_ms"] == 0.165
    assert by_class["sheddable"]["num_rejected"] == 1
    assert math.isnan(by_class["sheddable"]["ttft_p99_ms"])


def test_window_measures_arrivals_inside_it():
    window = Window(from_us=50, until_us=70)
    summary = scalar_metrics.class_summary(whole_run(), window=window)
    assert list(summary) == ["all", "standard"]
    assert summary["all"]["num_completed"] == 1  # arrives at 60 and completes at 100
    assert summary["all"]["requests_per_s"] == 0.0
    assert scalar_metrics.class_summary(whole_run(), window=Window(50))["all"]["num_requests"] == 2
    with pytest.raises(ConfigError, match=r"the measured window \[9, 9\) µs holds no time"):
        Window(9, 9)


@pytest.mark.parametrize(
    ("left_us", "num_output", "num_tokens", "num_good"),
    [
        ([15, 45, 75, 105], 2, 3, 1),  # what piled up before the window completes in it
        ([12, 22, 32, 42], 4, 15, 4),  # the same arrivals on a faster cluster
        ([9, 10, 50, 51], 1, 2, 1),  # the window holds its beginning and not its end
    ],
)
def test_rates_in_a_window_count_what_completes_in_it(
    left_us: list[int], num_output: int, num_tokens: int, num_good: int
):
    arrival_us = np.array([0, 10, 20, 30])
    record = run_of(
        {
            "arrival_us": arrival_us,
            "output_len": [1, 2, 4, 8],
            "slo_class": [1, 2, 2, 2],
            "status": Status.COMPLETED,
            "ttft_us": [5, 5, 5, 5],
            "e2e_us": left_us - arrival_us,
            "left_us": left_us,
        },
        sim_ended_time_us=[110],
    )
    targets, window = SloTargets(otherwise=Target(e2e_ms=0.02)), Window(10, 50)
    summary = scalar_metrics.class_summary(record, targets, window)
    assert summary["all"]["num_completed"] == 3  # that arrived in the window
    assert summary["all"]["requests_per_s"] == num_output / 40e-6
    assert summary["all"]["output_tokens_per_s"] == num_tokens / 40e-6
    assert summary["all"]["goodput_rps"] == num_good / 40e-6
    for name in ("requests_per_s", "output_tokens_per_s", "goodput_rps"):
        assert (
            scalar_metrics.evaluate(record, [name], targets, window)[name] == summary["all"][name]
        )
    by_class = [
        figures["output_tokens_per_s"] for name, figures in summary.items() if name != "all"
    ]
    assert sum(by_class) == pytest.approx(num_tokens / 40e-6)


@pytest.mark.golden
def test_named_metrics_are_the_printed_ones(golden_dir: Path):
    run = golden_run(golden_dir, "scheduling/it01_opt_s42")
    printed = run.recorded["cluster_json"]
    names = [name for name in printed if name in scalar_metrics.metric_names()]
    assert len(names) > 10
    values = scalar_metrics.evaluate(run.record, names)
    assert values == pytest.approx({name: printed[name] for name in names}, rel=1e-12)
    critical = run.recorded["per_slo"]["critical"]["ttft_us"]["p99"] / 1000
    found = scalar_metrics.evaluate(run.record, ["ttft_p99_ms[critical]"])
    assert found["ttft_p99_ms[critical]"] == pytest.approx(critical, rel=1e-12)


def test_every_metric_has_a_value():
    for record in (whole_run(), pressed_run()):
        values = scalar_metrics.evaluate(record, scalar_metrics.metric_names())
        assert list(values) == list(scalar_metrics.metric_names())
        # nothing moves in them, they do not say for how long instances are paid, no drafts, no adapters
        missing = {"transfer_mean_ms", "handed_wait_mean_ms", "idle_share"}
        further = {"mean_acceptance_length", "num_adapter_loads"}
        further |= {"mean_adapter_ttft_p99_ms", "worst_adapter_ttft_p99_ms"}
        missing |= further & values.keys()  # where searches' metrics are there
        assert {name for name, value in values.items() if math.isnan(value)} == missing


def test_kv_metrics_by_name():
    names = ("thrashing_rate", "kv_peak_utilization", "kv_mean_utilization", "phantom_hit_rate")
    values = scalar_metrics.evaluate(pressed_run(), names)
    assert values == dict(zip(names, (0.25, 1.0, 165 / (85 * 3), 1.0), strict=True))
    unpromised = changed(pressed_run(), "requests", "expected_cached_tokens", 0)
    assert math.isnan(scalar_metrics.evaluate(unpromised, names)["phantom_hit_rate"])


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("ttft_p98_ms", "metric 'ttft_p98_ms' is unknown; did you mean 'ttft_p"),
        ("ttft_p99_ms[critical", r"metric 'ttft_p99_ms\[critical' is unknown"),
        ("ttft_p99_ms[urgent]", "SLO class 'urgent' is unknown"),
        ("itl_p99_ms[critical]", r"'itl_p99_ms' covers the whole cluster; leave \[critical\] out"),
    ],
)
def test_unknown_metrics_are_refused(name: str, sentence: str):
    with pytest.raises(ConfigError, match=sentence):
        scalar_metrics.evaluate(whole_run(), [name])


def test_metric_names_are_taken_once():
    metric, _ = scalar_metrics.lookup("e2e_p99_ms")
    assert (metric.unit, metric.direction) == ("ms", "lower")
    with pytest.raises(ConfigError, match="metric 'e2e_p99_ms' is registered already"):
        register(metric)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: Target(ttft_ms=0), "ttft_ms is 0; a target must be above 0 ms"),
        (lambda: SloTargets({"gold": Target()}), "SLO class 'gold' is unknown"),
    ],
)
def test_impossible_targets_are_refused(make: Any, sentence: str):
    with pytest.raises(ConfigError, match=sentence):
        make()

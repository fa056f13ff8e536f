"""KV figures: scenes worked out by hand, recorded runs, timelines, and what the run command says of them."""

import dataclasses
import hashlib
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

from blis_jax import run
from blis_jax.metrics import kv as kv_metrics
from blis_jax.metrics import reference as metrics
from blis_jax.records import invariants
from blis_jax.records.record import BLOCK_LEVEL, PreemptionRecords, RunRecord, Status
from blis_jax.results.blis_files import results_text
from blis_jax.results.dataset import load, save_table
from tests import test_golden
from tests.commands.run.test_command import BASE, config_with, save_scenario, save_workload
from tests.metrics.test_reference import differences, figures_of, golden_run
from tests.support.tiny_records import changed, pressed_run, run_of, whole_run

PRESSED = {
    "cache_hit_rate": 0.2,
    "preemption_rate": 1.0,
    "thrashing_rate": 0.25,
    "peak_used_blocks": 3.0,
    "kv_peak_utilization": 1.0,
    "kv_mean_utilization": 165 / (85 * 3),
    "orphaned_blocks": math.nan,
    "preemption_count": 1.0,
    "kv_allocation_failures": 0.0,
    "cpu_offloads": 4.0,
    "cpu_reloads": 1.0,
    "cpu_misses": 2.0,
    "cpu_thrashing": 1.0,
    "reload_us": 5.0,
    "predicted_cached_tokens": 16.0,
    "actual_cached_tokens": 16.0,
    "phantom_hit_tokens": 16.0,
    "unexpected_hit_tokens": 16.0,
    "phantom_hit_rate": 1.0,
}
# Preemption, CPU tier, lowest priority evicted and computed past its prompt, many requests left at the horizon.
UNDER_PRESSURE = (
    "scheduling/cov_kv1300_tiered_s42",
    "scheduling/cov_kv1200_slopreempt_nopfx_s7",
    "scheduling/it09_kv1500_sloPre1_s44",
    "routing/it20_approx_kv2000_g10_s42",
    "routing/it21_shared_r400_kv5000_s42",
)


def test_figures_of_one_instance_worked_out_by_hand():
    of_cluster = kv_metrics.cluster_figures(pressed_run())
    assert list(of_cluster) == list(kv_metrics.FIGURES) == list(PRESSED)
    np.testing.assert_equal(of_cluster, PRESSED)
    of_instance = kv_metrics.instance_figures(pressed_run())
    np.testing.assert_equal({name: [value] for name, value in PRESSED.items()}, of_instance)


def two_instances() -> RunRecord:
    return run_of(
        {
            "instance": [0, 1, 1, 1],
            "first_sched_delay_us": [5, 5, 5, -1],
            "expected_cached_tokens": [32, 48, 0, 64],
            "cached_tokens_first_sched": [32, 16, 16, -1],
        },
        completed_requests=[2, 0],
        preemption_count=[1, 3],
        gpu_hits=[3, 0],
        gpu_misses=[1, 0],
        cpu_offloads=[0, 2],
        cpu_thrashing=[0, 1],
        total_kv_blocks=[10, 40],
        peak_kv_blocks_used=[9, 10],
        kv_blocks_used_integral=[500.0, 1000.0],
        sim_ended_time_us=[80, 100],
        used_blocks_at_end=[4, 0],
    )


def test_cluster_is_ratio_of_sums_or_sum_of_its_instances():
    figures = kv_metrics.instance_figures(two_instances())
    assert figures["cache_hit_rate"].tolist() == [0.75, 0.0]
    assert figures["preemption_rate"].tolist() == [0.5, 0.0]  # nothing completed on the second
    assert figures["kv_peak_utilization"].tolist() == [0.9, 0.25]
    assert figures["kv_mean_utilization"].tolist() == [0.5, 0.25]
    assert figures["phantom_hit_tokens"].tolist() == [0.0, 32.0]
    assert figures["unexpected_hit_tokens"].tolist() == [0.0, 16.0]
    assert figures["phantom_hit_rate"].tolist() == [0.0, 32 / 48]
    cluster = kv_metrics.cluster_figures(two_instances())
    # the second instance looked nothing up, and the first offloaded nothing
    assert (cluster["cache_hit_rate"], cluster["thrashing_rate"]) == (0.75, 0.5)
    printed = two_instances()
    assert kv_metrics.printed_hit_rate(printed) == 0.375  # BLIS's mean
    assert kv_metrics.printed_thrashing_rate(printed) == 0.25
    assert cluster["preemption_rate"] == 4 / 2
    assert (cluster["peak_used_blocks"], cluster["kv_peak_utilization"]) == (10.0, 0.9)
    assert cluster["kv_mean_utilization"] == 1500 / (100 * 50)
    assert cluster["phantom_hit_rate"] == 32 / 80
    assert cluster["orphaned_blocks"] == 4.0


def test_tokens_count_once_a_request_is_scheduled():
    tokens = kv_metrics.cached_tokens(two_instances())
    assert tokens.predicted.tolist() == [32, 48, 0, 0]
    assert (tokens.predicted - tokens.phantom + tokens.unexpected - tokens.actual == 0).all()


def test_what_cannot_be_told_is_nan():
    unpromised = changed(two_instances(), "requests", "expected_cached_tokens", -1)
    assert math.isnan(kv_metrics.phantom_hit_rate(unpromised))
    assert np.isnan(kv_metrics.instance_figures(unpromised)["phantom_hit_rate"]).all()
    for counter in (
        "still_running",
        "still_queued",
    ):  # a request that waits can hold blocks as well
        busy = changed(two_instances(), "instances", counter, 1, at=1)
        orphans = kv_metrics.instance_figures(busy)["orphaned_blocks"]
        assert orphans[0] == 4.0 and math.isnan(orphans[1])
    never_ran = kv_metrics.cluster_figures(run_of({"arrival_us": [0]}))
    assert never_ran["kv_mean_utilization"] == never_ran["kv_peak_utilization"] == 0.0


def test_cpu_tier_is_none_inert_or_active():
    assert kv_metrics.cpu_tier(whole_run(), has_cpu_tier=False) == "none"
    assert kv_metrics.cpu_tier(whole_run(), has_cpu_tier=True) == "inert"
    assert kv_metrics.cpu_tier(pressed_run(), has_cpu_tier=True) == "active"


def test_document_is_json_without_nan():
    document = json.loads(json.dumps(kv_metrics.kv_document(pressed_run(), True), allow_nan=False))
    assert (document["kv_model"], document["cpu_tier"]) == (BLOCK_LEVEL, "active")
    assert document["cluster"]["orphaned_blocks"] is None
    assert document["cluster"] == document["instances"][0]


def test_timeline_of_every_step():
    timeline = kv_metrics.timelines(pressed_run(), block_size=16)
    assert timeline.start_us.values.tolist() == [0, 10, 20, 30, 40, 50, 65, 75]
    assert timeline.used_blocks.values.tolist() == [1, 3, 3, 2, 2, 1, 2, 2]
    assert timeline.preemptions.values.tolist() == [0, 0, 0, 1, 0, 0, 0, 0]
    assert timeline.kv_utilization.values[1] == 1.0
    assert timeline.waiting.values.tolist() == [0, 0, 0, 1, 1, 0, 0, 0]
    assert timeline.start_us.attrs == {"units": "us", "long_name": "start of the step"}
    assert timeline.attrs == {"kv_model": BLOCK_LEVEL, "block_size": 16}


def test_timeline_of_a_run_without_steps():
    timeline = kv_metrics.timelines(run_of({"arrival_us": [0]}), block_size=16)
    assert dict(timeline.sizes) == {"step": 0}


def test_timeline_is_by_instance_though_records_are_by_execution():
    """The preempting records lie second on instance 1 and first on instance 0."""
    steps = {
        "instance": [1, 0, 1, 0],
        "start_us": [0, 5, 30, 40],
        "duration_us": [10, 10, 10, 10],
        "num_steps": [3, 2, 1, 1],
        "last_index": [3, 2, 4, 3],
    }
    record = run_of({"arrival_us": [0]}, steps, total_kv_blocks=[5, 5])
    at = np.array([1, 2, 2])
    zeros = np.zeros(3, np.int64)
    evictions = PreemptionRecords(zeros, zeros, zeros, at, zeros)
    record = dataclasses.replace(record, preemptions=evictions, kv_model=BLOCK_LEVEL)
    timeline = kv_metrics.timelines(record, block_size=16)
    assert timeline.instance.values.tolist() == [0, 0, 0, 1, 1, 1, 1]
    assert timeline.start_us.values.tolist() == [5, 15, 40, 0, 10, 20, 30]
    assert timeline.preemptions.values.tolist() == [1, 0, 0, 0, 0, 0, 2]


@pytest.mark.parametrize("name", ["t.csv", "t.nc", "t.zarr"])
def test_timeline_is_written(tmp_path: Path, name: str):
    timeline = kv_metrics.timelines(pressed_run(), block_size=16)
    save_table(timeline, tmp_path / name)
    if name.endswith(".csv"):
        lines = (tmp_path / name).read_text().splitlines()
        assert lines[0] == ",".join(timeline.variables)
        assert lines[4].split(",")[:4] == ["0", "30", "10", "2"]
        assert len(lines) == 1 + timeline.sizes["step"]
    else:
        xr.testing.assert_identical(load(tmp_path / name), timeline)
    assert [path.name for path in tmp_path.iterdir()] == [name]


@pytest.mark.golden
@pytest.mark.parametrize("scenario", ["scheduling/cov_kv1300_tiered_s42"])
def test_rates_are_the_recorded_ones(golden_dir: Path, scenario: str):
    recorded = golden_run(golden_dir, scenario)
    figures = kv_metrics.instance_figures(recorded.record)
    for row, entry in enumerate(recorded.recorded["instances"]):
        assert figures["cache_hit_rate"][row] == pytest.approx(entry["cache_hit_rate"], rel=1e-12)
        thrashing = figures["thrashing_rate"][row]
        assert thrashing == pytest.approx(entry["kv_thrashing_rate"], rel=1e-12)
        assert figures["orphaned_blocks"][row] == entry["kv"]["used_blocks_at_end"]
    assert kv_metrics.cpu_tier(recorded.record, has_cpu_tier=False) == "active"


@pytest.mark.golden
@pytest.mark.slow
@pytest.mark.lenient_promotion
@pytest.mark.parametrize("name", UNDER_PRESSURE)
def test_runs_under_pressure(golden_dir: Path, name: str):
    """Every recorded figure, no invariant broken, and the KV figures agree with each other."""
    scenario = test_golden.Scenario(*name.split("/"))
    if not scenario.path.exists():
        pytest.skip(f"the reference results here lack {name}")
    record = test_golden.run(scenario)
    config = scenario.recorded["config"]
    assert {name for name, count in invariants.violations(record).items() if count} == set()
    for part, figures in figures_of(record, config).items():
        assert differences(figures, scenario.recorded[part], part) == []
    if "stdout_sha256" in scenario.recorded:
        text = results_text(record)
        assert hashlib.sha256(text.encode()).hexdigest() == scenario.recorded["stdout_sha256"]
    table = kv_metrics.instance_figures(record)
    timeline = kv_metrics.timelines(record, scenario.cluster.block_size_in_tokens)
    per_instance = timeline.groupby("instance")
    assert per_instance.sum().preemptions.values.tolist() == table["preemption_count"].tolist()
    assert per_instance.max().used_blocks.values.tolist() == table["peak_used_blocks"].tolist()
    block_time = float((timeline.used_blocks.astype(float) * timeline.duration_us).sum())
    total = record.instances.total_kv_blocks.sum() * metrics.ended_us(record)
    assert kv_metrics.mean_utilization(record) == pytest.approx(block_time / total, rel=1e-12)
    assert (record.requests.status != Status.COMPLETED).any() == name.startswith("routing/")


@pytest.fixture
def in_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.lenient_promotion
def test_command_writes_figures_and_timeline(in_empty_folder: Path, capsys: Any):
    save_workload(in_empty_folder / "w.npz")
    outputs = ["--results-path", "r.json", "--kv-timeline", "t.csv"]
    assert run.main([*BASE, "--requests", "w.npz", "--kv-cpu-blocks", "9", *outputs]) == 0
    captured = capsys.readouterr()
    assert captured.err.count("the CPU tier was inert") == 1
    document = json.loads((in_empty_folder / "r.json").read_text())
    assert document["kv"]["cpu_tier"] == "inert"
    assert list(document["kv"]["cluster"]) == list(kv_metrics.FIGURES)
    lines = (in_empty_folder / "t.csv").read_text().splitlines()
    assert lines[0].startswith("instance,start_us,duration_us,used_blocks,kv_utilization")
    assert len(lines) > 15
    assert run.main([*BASE, "--requests", "w.npz"]) == 0
    tierless = capsys.readouterr()
    assert tierless.out == captured.out and "CPU tier" not in tierless.err


def test_command_refuses_a_timeline_without_a_format(in_empty_folder: Path, capsys: Any):
    save_workload(in_empty_folder / "w.npz")
    assert run.main([*BASE, "--requests", "w.npz", "--kv-timeline", "t.txt"]) == 2
    assert (
        "'t.txt' does not say its format; end it in .csv, .zarr or .nc" in capsys.readouterr().err
    )


@pytest.mark.lenient_promotion
def test_replay_says_that_the_tier_was_inert(in_empty_folder: Path, capsys: Any):
    config = config_with(kv_cpu_blocks=5)
    paths = [str(save_scenario(in_empty_folder, name, config=config)) for name in ("one", "two")]
    assert run.main(["--scenario", paths[0], "--results-path", "out"]) == 0
    captured = capsys.readouterr()
    assert "the CPU tier was inert" in captured.err and "inert" not in captured.out
    assert json.loads(Path("out/one.json").read_text())["kv"]["cpu_tier"] == "inert"
    assert run.main(["--scenario", *paths]) == 0
    assert capsys.readouterr().out.count(", CPU tier inert\n") == 2

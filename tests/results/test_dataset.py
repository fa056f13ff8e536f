"""Datasets and files: round trips, equality with what the reference printed and saved, refusals."""

import hashlib
import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

from blis_jax.core.outcome import Outcome
from blis_jax.errors import ConfigError
from blis_jax.files.atomic_write import replacing
from blis_jax.metrics.kv import FIGURES
from blis_jax.metrics.summaries import SloTargets, Target, Window
from blis_jax.records.record import Status
from blis_jax.results import blis_files
from blis_jax.results import dataset as results
from blis_jax.results.blis_files import Labels
from tests.metrics.test_reference import all_scenarios, differences, golden_run
from tests.support.recorded.golden_records import record_of
from tests.support.tiny_records import changed, pressed_run, run_of, whole_run

COORDS: dict[str, list[Any]] = {"strategy": ["base", "best"], "seed": [42, 43, 44]}
COORDS_OF_KV = ("cpu_tier", "kv_model")
PROVENANCE = results.Provenance(
    spec_text="version: '2'\n", policies={"routing": "weighted"}, config={"tp": 2}, seeds=[42, 43]
)
# Without those whose preempted requests leave open in which steps their tokens were produced.
ROUTING_SCENARIOS = [
    name for name in all_scenarios() if name.startswith("routing/") and "kv2000_g10" not in name
]


LABELS = Labels(
    [f"request_{row}" for row in range(3)], ["", "gold", ""], [""] * 3, [""] * 3, [0] * 3
)


def six_runs() -> list[Any]:
    late = changed(whole_run(), "requests", "ttft_us", 255, at=0)
    return [whole_run(), whole_run(), late, late, whole_run(), whole_run()]


def test_dataset_of_runs():
    dataset = results.to_dataset(six_runs(), COORDS, PROVENANCE)
    assert dataset.sizes["strategy"] == 2
    assert dataset.slo_class.values.tolist() == ["all", "critical", "standard", "sheddable"]
    at = dataset.sel(strategy="base", slo_class="critical", quantile=0.99)
    assert at.ttft_ms.values.tolist() == [0.155, 0.155, 0.255]
    assert dataset.ttft_ms.attrs["units"] == "ms"
    assert dataset.num_rejected.sel(slo_class="sheddable").values.tolist() == [[1] * 3] * 2
    assert dataset.cache_hit_rate.dims == ("strategy", "seed")
    assert dataset.itl_ms.dims == ("strategy", "seed", "quantile")
    assert dataset.invariant_violations.sel(invariant="ttft_parts_add_up").sum() == 2
    meanings = dataset.outcome.attrs["flag_meanings"].split()
    assert meanings[Outcome.COMPLETED] == "completed"
    assert "outcome" in dataset.coords
    assert dataset.attrs["profile"] == "blis-2026-02"
    assert json.loads(dataset.attrs["policies"]) == {"routing": "weighted"}
    assert set(dataset.attrs) >= {"package_version", "jax_version", "spec", "config", "created"}


def test_kv_figures_of_clusters_and_instances():
    larger = run_of({"arrival_us": [0]}, gpu_hits=[1, 0], gpu_misses=[1, 0])
    dataset = results.to_dataset(
        [pressed_run(), larger], {"seed": [1, 2]}, PROVENANCE, has_cpu_tier=[True, False]
    )
    assert dataset.instance.values.tolist() == ["instance_0", "instance_1"]
    assert dataset.cache_hit_rate.values.tolist() == [0.2, 0.5]
    rates = dataset.instance_cache_hit_rate
    np.testing.assert_equal(rates.values, [[0.2, np.nan], [0.5, 0.0]])
    assert rates.dims == ("seed", "instance")
    for name, long_name in FIGURES.items():
        for variable in (dataset[name], dataset[f"instance_{name}"]):
            unit = "us" if name == "reload_us" else "1"
            assert variable.attrs == {"units": unit, "long_name": long_name}
    assert dataset.reload_us.values.tolist() == [5.0, 0.0]
    meanings = {name: dataset[name].attrs["flag_meanings"].split() for name in COORDS_OF_KV}
    assert [meanings["cpu_tier"][code] for code in dataset.cpu_tier.values] == ["active", "none"]
    models = [meanings["kv_model"][code] for code in dataset.kv_model.values]
    assert models == ["block-level", "no-eviction"]
    inert = results.to_dataset([whole_run()], {"seed": [1]}, PROVENANCE, has_cpu_tier=True)
    assert meanings["cpu_tier"][inert.cpu_tier.item()] == "inert"


def test_a_class_missing_from_one_run_is_nan_there():
    plain = run_of({"arrival_us": [0], "status": [Status.REJECTED], "admitted": [0]})
    dataset = results.to_dataset([whole_run(), plain], {"seed": [1, 2]}, PROVENANCE)
    critical = dataset.sel(slo_class="critical")
    assert np.isnan(critical.ttft_ms.sel(seed=2)).all()
    assert critical.num_requests.values.tolist() == [1, 0]
    assert dataset.slo_class.values.tolist()[:2] == ["all", "default"]


def test_targets_and_window_are_recorded():
    targets = SloTargets({"critical": Target(ttft_ms=0.1)})
    dataset = results.to_dataset(
        [whole_run()], {"seed": [1]}, PROVENANCE, targets, Window(until_us=70)
    )
    assert dataset.attainment.sel(slo_class="critical").item() == 0.0
    assert json.loads(dataset.attrs["slo_targets"])["critical"]["ttft_ms"] == 0.1
    assert json.loads(dataset.attrs["measured_window_us"]) == [0, 70]


@pytest.mark.parametrize("suffix", [".zarr", ".nc"])
def test_round_trip(tmp_path: Path, suffix: str):
    for runs in (six_runs(), six_runs()[::-1]):
        dataset = results.to_dataset(runs, COORDS, PROVENANCE)
        path = tmp_path / f"run{suffix}"
        results.save(dataset, path)  # the second one replaces the first
        xr.testing.assert_identical(results.load(path), dataset)
    assert [entry.name for entry in tmp_path.iterdir()] == [f"run{suffix}"]


def test_only_stores_of_a_kind_are_loaded(tmp_path: Path):
    path = tmp_path / "one.zarr"
    with pytest.raises(ConfigError, match="does not exist; give the store of sevens"):
        results.load_kind(path, "sevens", "the store of sevens")
    results.save(xr.Dataset({"a": ("x", [7])}, attrs={"kind": "sevens"}), path)
    assert results.load_kind(path, "sevens", "the store of sevens")["a"].item() == 7
    with pytest.raises(ConfigError, match="is something else; give the store of eights"):
        results.load_kind(path, "eights", "the store of eights")
    for file in path.rglob("*"):
        if file.is_file():
            file.write_bytes(b"torn")
    with pytest.raises(ConfigError, match=r"is damaged: manifest/zarr\.json has changed; make it"):
        results.load_kind(path, "sevens", "the store of sevens")
    shutil.rmtree(path / "manifest")
    with pytest.raises(ConfigError, match=r"cannot be read .*; make it again"):
        results.load_kind(path, "sevens", "the store of sevens")


@pytest.mark.parametrize("is_folder", [False, True])
def test_failed_write_leaves_the_old_file(tmp_path: Path, is_folder: bool):
    path = tmp_path / "result"
    if is_folder:
        path.mkdir()
        (path / "old").touch()
    else:
        path.write_text("old")
    with pytest.raises(RuntimeError), replacing(path) as written:
        written.write_text("half of the")
        raise RuntimeError
    assert [entry.name for entry in tmp_path.iterdir()] == ["result"]
    assert (path / "old").exists() if is_folder else path.read_text() == "old"


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (
            lambda: results.to_dataset([whole_run()], COORDS, PROVENANCE),
            "1 records do not fill the coordinates (strategy: 2, seed: 3); give one record for",
        ),
        (
            lambda: results.to_dataset([whole_run()], {"request": [1]}, PROVENANCE),
            "'request' is a dim of the results; give the coordinate another name",
        ),
        (
            lambda: results.to_dataset([whole_run()], {"instance": [1]}, PROVENANCE),
            "'instance' is a dim of the results; give the coordinate another name",
        ),
        (
            lambda: results.to_dataset(six_runs(), COORDS, PROVENANCE, has_cpu_tier=[True]),
            "1 CPU tiers for 6 records; give one for all or one for each",
        ),
        (lambda: results.load("run.csv"), "'run.csv' does not say its format; end it in .zarr"),
    ],
)
def test_refusals(make: Any, sentence: str):
    with pytest.raises(ConfigError, match=re.escape(sentence)):
        make()


def test_results_of_a_run():
    document = blis_files.results_document(whole_run(), LABELS)
    assert list(document)[-1] == "requests"
    assert document["instance_id"] == "cluster"
    assert document["requests"][0] == {
        "arrived_at": 0,
        "requestID": "request_0",
        "num_prefill_tokens": 16,
        "num_decode_tokens": 3,
        "ttft_ms": 0.155,
        "itl_ms": 0.165,
        "e2e_ms": 0.485,
        "scheduling_delay_ms": 0.005,
        "slo_class": "critical",
        "handled_by": "instance_0",
    }
    assert [entry["requestID"] for entry in document["requests"]] == ["request_0", "request_1"]
    assert document["requests"][1]["tenant_id"] == "gold"


def test_results_of_a_run_without_completions():
    rejected = run_of({"arrival_us": [0], "status": [Status.REJECTED]})
    document = blis_files.results_document(rejected)
    assert document["ttft_p99_ms"] == 0
    assert "requests" not in document
    assert blis_files.results_text(rejected) == (
        "=== Anomaly Counters ===\n"
        "Priority Inversions: 0\n"
        "HOL Blocking Events: 0\n"
        "Rejected Requests: 1\n"
        "Dropped Unservable: 0\n"
    )


def test_the_one_instance_of_several_that_was_placed_has_a_block():
    """As BLIS counts the instances that were asked for."""
    run = pressed_run()
    assert blis_files.results_text(run).count("=== Simulation Metrics ===") == 1
    text = blis_files.results_text(run, num_asked=3)
    assert text.count('"instance_id": "instance_0"') == 1
    assert text.count("=== Simulation Metrics ===") == 2


def test_text_of_a_run_under_pressure():
    text = blis_files.results_text(pressed_run())
    assert "Preemption Rate: 1.0000\nCache Hit Rate: 0.2000\nKV Thrashing Rate: 0.2500\n" in text


def test_text_blocks_of_a_single_instance():
    text = blis_files.results_text(whole_run())
    assert text.count("=== Simulation Metrics ===") == 1
    assert "=== KV Cache Metrics ===\nPreemption Rate: 0.0000\nCache Hit Rate: 0.2500\n" in text
    assert "  critical:\n    TTFT: mean=155.00 p99=155.00 (n=1)\n    E2E:  mean=485.00" in text


@pytest.mark.golden
@pytest.mark.parametrize("scenario", ROUTING_SCENARIOS)
def test_text_is_the_references_byte_for_byte(golden_dir: Path, scenario: str):
    run = golden_run(golden_dir, scenario)
    text = blis_files.results_text(run.record)
    assert hashlib.sha256(text.encode()).hexdigest() == run.recorded["stdout_sha256"]


@pytest.mark.golden
@pytest.mark.parametrize("scenario", ["scheduling/it01_opt_s42", "scheduling/cov_horizon_lat_s42"])
def test_written_scenario_is_the_recorded_one(golden_dir: Path, tmp_path: Path, scenario: str):
    run = golden_run(golden_dir, scenario)
    blis_files.write_scenario(
        tmp_path, run.name, run.record, run.recorded["config"], {"seed": run.recorded["seed"]}
    )
    written = json.loads((tmp_path / f"{run.name}.json").read_text())
    expected = {name: run.recorded[name] for name in written}
    assert differences(written, expected) == []
    assert {"cluster_json", "aggregates", "per_slo", "instances", "config"} <= set(written)
    with np.load(tmp_path / f"{run.name}.npz") as file:
        arrays = dict(file)
    assert list(arrays) == list(run.arrays)
    for name, values in arrays.items():
        assert values.dtype == run.arrays[name].dtype, name
        np.testing.assert_array_equal(values, run.arrays[name], err_msg=name)
    again = record_of(written, arrays, run.workload)
    assert (
        differences(blis_files.results_document(again), blis_files.results_document(run.record))
        == []
    )

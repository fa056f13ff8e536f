"""A saved sweep is judged as fresh runs of the same arms are; what cannot be judged is refused in a sentence."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import xarray as xr

from blis_jax.core.outcome import Outcome
from blis_jax.metrics.run_summary import RunSummary
from blis_jax.results.dataset import load, save
from sweeps.compare.__main__ import main as compare
from sweeps.runs.measured import same_lives
from sweeps.sweep.command import main as sweep

AXIS = "max_num_scheduled_tokens"


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two token budgets on three seeds, which share a compilation."""
    path = tmp_path_factory.mktemp("saved") / "sweep.zarr"
    words = ["--strategy", "it08_opt", "--set", "num_instances=1", "--grid", f"{AXIS}=300,2048"]
    words += ["--set", "workload.num_requests=60", "--seeds", "3", "--figure", "none", "--quiet"]
    assert sweep([*words, "--output", str(path)]) == 0
    return path


def judged(folder: Path, *words: str) -> dict[str, Any]:
    output = folder / "out.json"
    assert compare([*words, "--output", str(output), "--figure", "none", "--quiet"]) == 0
    document: dict[str, Any] = json.loads(output.read_text())
    return document


@pytest.mark.slow
def test_a_saved_sweep_gives_what_fresh_runs_give(saved: Path, tmp_path: Path) -> None:
    """Every difference, interval and verdict, of the same requests."""
    arms = [f"{AXIS}={budget}" for budget in (300, 2048)]
    fresh = judged(
        tmp_path, *(f"t{arm[-3:]}=it08_opt:num_instances=1;{arm}" for arm in arms), "--workload", "mixed",
        "--num-requests", "60", "--seeds", "3", "--first-seed", "0", "--rng", "jax", "--inert", "records",
    )  # fmt: skip
    (tmp_path / "out.jsonl").unlink()
    (tmp_path / "out.json").unlink()
    again = judged(tmp_path, str(saved))
    assert [arm["name"] for arm in again["arms"]] == arms
    assert again["datasets"] == [str(saved)] and again["classes"] == fresh["classes"]
    assert len(again["comparisons"]) == len(fresh["comparisons"]) == 30
    for ours, theirs in zip(again["comparisons"], fresh["comparisons"], strict=True):
        for name in ("class", "metric", "verdict", "num_pairs"):
            assert ours[name] == theirs[name]
        for name in ("difference", "percent", "simultaneous"):
            for end in ("mean", "low", "high"):
                assert ours[name][end] == pytest.approx(theirs[name][end], rel=1e-5, abs=1e-9)


def test_a_saved_sweep_needs_no_run(saved: Path, tmp_path: Path) -> None:
    document = judged(tmp_path, str(saved))
    tails = {
        arm["name"]: arm["figures"]["critical"]["ttft_p99_ms"]["per_seed"] for arm in document["arms"]
    }  # fmt: skip
    kept = load(saved)["ttft_ms"].sel(slo_class="critical", quantile=0.99).squeeze("strategy")
    assert list(tails.values()) == kept.transpose(AXIS, "seed").values.tolist()
    assert document["seeds"] == [0, 1, 2] and document["rng"] == "jax"
    assert all(arm["same_as"] == [] for arm in document["arms"])  # lives are not kept


def test_runs_without_lives_are_not_said_to_be_the_same() -> None:
    unknown = [RunSummary(Outcome.COMPLETED)]
    assert not same_lives(unknown, unknown)


def _seeds(dataset: xr.Dataset) -> xr.Dataset:
    return dataset.assign_attrs(seeds="[7, 8, 9]")


def _revision(dataset: xr.Dataset) -> xr.Dataset:
    return dataset.assign_attrs(profile="blis-2026-08")


def _single(dataset: xr.Dataset) -> xr.Dataset:
    return dataset.isel({AXIS: [0]}).assign_attrs(grid=json.dumps({AXIS: [300]}))


def _unfinished(dataset: xr.Dataset) -> xr.Dataset:
    changed = dataset.copy(deep=True)
    changed["outcome"].values[..., 0] = -1
    return changed


def _other_kind(dataset: xr.Dataset) -> xr.Dataset:
    return dataset.assign_attrs(kind="runs")


def _loads(dataset: xr.Dataset) -> xr.Dataset:
    grid = json.dumps({"workload.aggregate_rate": [300, 2048]})
    return dataset.rename({AXIS: "workload.aggregate_rate"}).assign_attrs(grid=grid)


@pytest.mark.parametrize(
    ("change", "is_beside", "problem"),
    [
        (_seeds, True, "differ in seeds, so their runs are not pairs"),
        (_revision, True, "differ in the revision of BLIS"),
        (
            _single,
            False,
            "has one arm, max_num_scheduled_tokens=300, and nothing to compare it with",
        ),
        (_unfinished, False, "lacks 2 of 6 runs; finish the sweep with --resume"),
        (_other_kind, False, "is something else; give a Dataset of blis-jax sweep"),
        (_loads, False, "its points differ in workload.aggregate_rate"),
    ],
)
def test_datasets_that_cannot_be_judged_are_refused(
    saved: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    change: Callable[[xr.Dataset], xr.Dataset],
    is_beside: bool,
    problem: str,
) -> None:
    other = tmp_path / "other.zarr"
    save(change(load(saved)), other)
    words = [str(saved), str(other)] if is_beside else [str(other)]
    assert compare([*words, "--output", str(tmp_path / "out.json")]) == 2
    said = capsys.readouterr().err
    assert problem in said and str(other) in said and not (tmp_path / "out.json").exists()


def test_options_of_runs_damage_and_mixtures_are_refused(
    saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = tmp_path / "broken.zarr"
    save(load(saved), broken)
    files = [path for path in sorted((broken / "ttft_ms").rglob("*")) if path.is_file()]
    piece = next(path for path in files if path.name != "zarr.json")
    piece.write_bytes(b"nothing")
    for words, problem in (
        ([str(saved), "--seeds", "64"], "--seeds says how arms are run"),
        ([str(saved), "--rng", "jax"], "--rng says how arms are run"),
        (
            [str(saved), "iter00_baseline"],
            "'iter00_baseline' is an arm to run beside a Dataset of runs",
        ),
        ([str(tmp_path / "absent.zarr")], "absent.zarr does not exist"),
        ([str(saved), "--metrics", "slo_miss_rate"], "--metrics: "),
        ([str(broken)], "broken.zarr"),
    ):
        assert compare([*words, "--output", str(tmp_path / "out.json")]) == 2
        said = capsys.readouterr().err
        assert problem in said and "Traceback" not in said


def test_an_arm_that_two_sweeps_have_counts_once(
    saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "other.zarr"
    save(_single(load(saved)), other)
    document = judged(tmp_path, str(other), str(saved))
    assert [arm["name"] for arm in document["arms"]] == [f"{AXIS}=300", f"{AXIS}=2048"]
    assert f"has {AXIS}=300 too; the runs of the first are taken" in capsys.readouterr().err

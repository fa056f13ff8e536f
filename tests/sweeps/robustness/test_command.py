"""The command at a tiny size: dataset, verdicts, resume after a kill, failures, refusals."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import xarray as xr
import yaml

from blis_jax.core.outcome import Outcome
from blis_jax.errors import ConfigError, ConfigWarning
from blis_jax.metrics.measure import DEFAULT_TARGETS, Measure
from blis_jax.metrics.run_summary import RunSummary
from blis_jax.policies.seeds import policy_seed
from blis_jax.results.dataset import load, load_kind
from blis_jax.runs.many_runs import simulate
from blis_jax.workload.reference import draw
from sweeps.robustness.__main__ import main
from sweeps.robustness.cells import make_axes, make_cells, reference_place
from sweeps.robustness.parts import MapRunner
from sweeps.robustness.plan import Extent, MapPlan, Question, Shape, load_shape, make_plan
from sweeps.robustness.store import KIND, WANTED, MapStore
from sweeps.robustness.verdict import recommend
from sweeps.runs import drawn
from sweeps.strategies.arms import arm_of
from tests.sweeps.tiny import TINY

SEEDS = (42, 43, 44)
AXES = """--rate 200,400 --kv-blocks 10,1000 --arrival-cv 1 --kv-cpu-blocks 0 --instances 2
--step-constant 6910.42"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A strategy and its workload as files."""
    folder = tmp_path_factory.mktemp("tiny")
    (folder / "tiny.yaml").write_text(TINY)
    (folder / "load.yaml").write_text(yaml.safe_dump(yaml.safe_load(TINY)["workload"]))
    return folder


def words(folder: Path, output: str, *further: str) -> list[str]:
    arms = [f"first={folder / 'tiny.yaml'}", f"other={folder / 'tiny.yaml'}:slo_base_critical=-5"]
    seeds = ",".join(map(str, SEEDS))
    given = ["--shape", str(folder / "load.yaml"), "--seeds", seeds, "--duration", "0.2"]
    return [*arms, *AXES.split(), *given, "--output", str(folder / output), *further]


@pytest.fixture(scope="module")
def whole(folder: Path) -> Path:
    """The result of an undisturbed study, written in parts of one cell."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(drawn, "RUNS_PER_PART", 6)
        assert main(words(folder, "whole.zarr", "--design", "grid", "--quiet")) == 0
    return folder / "whole.zarr"


def test_the_dataset_has_cells_strategies_seeds_and_classes(whole: Path, folder: Path) -> None:
    dataset = load_kind(whole, KIND, WANTED)
    assert dict(dataset.sizes) == {"cell": 4, "strategy": 2, "seed": 3, "slo_class": 3}
    assert dataset["slo_class"].values.tolist() == ["all", "critical", "sheddable"]
    assert dataset["rate"].attrs["units"] == "requests/s"
    assert dataset["ttft_p99_ms"].attrs["units"] == "ms"
    assert dataset["ttft_p99_ms"].dims == ("cell", "strategy", "seed", "slo_class")
    attributes = dataset.attrs
    assert json.loads(attributes["seeds"]) == list(SEEDS)
    assert json.loads(attributes["config"])["other"]["slo_base_critical"] == -5
    assert "aggregate_rate: 200.0" in attributes["workloads"]
    assert json.loads(attributes["reference_cell"])["rate"] == 400
    assert {"package_version", "jax_version", "command", "device"} <= set(attributes)
    assert int(dataset["num_broken_invariants"].sum()) == 0


def test_cells_hold_the_single_runs_of_the_reference_requests(whole: Path, folder: Path) -> None:
    dataset = load_kind(whole, KIND, WANTED)
    shape = load_shape(str(folder / "load.yaml"))
    for cell in np.flatnonzero(dataset["kv_blocks"].values == 1000).tolist():
        rate = float(dataset["rate"][cell])
        table, _ = draw(shape.at(rate, 1.0, Extent(0.2)), 43, 16)
        assert table.num_rows == rate * 0.2
        config = arm_of(f"{folder / 'tiny.yaml'}:slo_base_critical=-5").config
        config = config.replace(
            total_kv_blocks=1000, beta_coeffs=(6910.42, *config.beta_coeffs[1:])
        )
        ttft_us = simulate(config, table).requests.ttft_us
        found = dataset["ttft_p99_ms"].sel(strategy="other", seed=43, slo_class="all")[cell]
        assert float(found) == pytest.approx(np.percentile(ttft_us, 99) / 1000)


def test_priorities_upside_down_lose_and_unservable_requests_are_failures(whole: Path) -> None:
    verdicts = recommend(load_kind(whole, KIND, WANTED), constraints=())
    chosen = dict(zip(verdicts["kv_blocks"].values, verdicts["recommended"].values, strict=True))
    assert chosen[10] == "none"
    starved = verdicts.isel(cell=np.flatnonzero(verdicts["kv_blocks"].values == 10))
    assert (starved["num_runs"].sel(ending="dropped").values == 3).all()
    busiest = verdicts.isel(cell=np.flatnonzero(verdicts["rate"].values == 400))
    change = busiest["change_percent"].sel(strategy="other").values
    assert change[busiest["kv_blocks"].values == 1000][0] > 0


def test_files_say_the_same(whole: Path) -> None:
    document = json.loads(whole.with_suffix(".json").read_text())
    table = pd.read_csv(whole.with_suffix(".csv"))
    assert document["num_cells"] == len(table) == 4
    counts = table["recommended"].value_counts()
    assert counts.get("none", 0) == document["recommended"]["none"] == 2
    assert whole.with_suffix(".png").read_bytes().startswith(b"\x89PNG")


def killed_in(part: int, monkeypatch: pytest.MonkeyPatch, is_torn: bool) -> None:
    """Interrupts the command in a part, with or without half of the part written."""
    original = MapStore.write
    written = 0

    def write(self: MapStore, first: int, arrays: Mapping[str, np.ndarray]) -> None:
        nonlocal written
        if written == part:
            if is_torn:
                original(self, first, {k: v for k, v in arrays.items() if k != "outcome"})
            raise KeyboardInterrupt
        original(self, first, arrays)
        written += 1

    monkeypatch.setattr(MapStore, "write", write)


@pytest.mark.parametrize("is_torn", [False, True])
def test_resumed_after_a_kill_equals_unkilled(
    whole: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, is_torn: bool
) -> None:
    monkeypatch.setattr(drawn, "RUNS_PER_PART", 6)
    name = f"killed{is_torn}.zarr"
    grid = ("--design", "grid", "--quiet")
    with monkeypatch.context() as patch:
        killed_in(2, patch, is_torn)
        assert main(words(folder, name, *grid)) == 130
    assert int((load_kind(folder / name, KIND, WANTED)["outcome"] == -1).sum()) == 2 * 6
    runs = 0
    original = MapRunner.run

    def counted(self: MapRunner, cells: Sequence[Any]) -> Any:
        nonlocal runs
        runs += len(cells)
        return original(self, cells)

    monkeypatch.setattr(MapRunner, "run", counted)
    assert main(words(folder, name, *grid, "--resume")) == 0
    assert runs == 2
    resumed, unkilled = load_kind(folder / name, KIND, WANTED), load_kind(whole, KIND, WANTED)
    xr.testing.assert_equal(resumed, unkilled)
    assert resumed.equals(unkilled)
    for suffix in (".json", ".csv", ".png"):
        path = folder / name
        assert path.with_suffix(suffix).read_bytes() == whole.with_suffix(suffix).read_bytes()


def test_damaged_cells_are_run_again(
    whole: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(drawn, "RUNS_PER_PART", 6)
    before, piece = load(whole), "tokens_per_sec/c/1/0/0"
    (whole / piece).unlink()
    with pytest.raises(
        ConfigError, match=rf"{piece} is missing; make it again: .*\.zarr .* --resume"
    ):
        load_kind(whole, KIND, WANTED)
    assert main(words(folder, "whole.zarr", "--design", "grid", "--quiet", "--resume")) == 0
    assert f"{piece} is missing; the parts concerned are made again" in capsys.readouterr().err
    xr.testing.assert_identical(load(whole), before)


def test_another_question_runs_nothing_again(
    whole: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(MapRunner, "run", lambda *_: pytest.fail("a cell is run again"))
    saved = {suffix: whole.with_suffix(suffix) for suffix in (".json", ".csv", ".png")}
    before = {suffix: path.read_bytes() for suffix, path in saved.items()}
    differences = folder / "differences.zarr"
    asked = ("--objective", "goodput_rps", "--constraint", "none", "--differences")
    further = ("--design", "grid", "--resume", "--all", *asked, str(differences))
    assert main(words(folder, "whole.zarr", *further)) == 0
    said = capsys.readouterr().out
    assert "4 cells of load" in said and "against first, goodput" in said, said
    assert "runs in" not in said
    assert json.loads(saved[".json"].read_text())["objective"] == "goodput_rps"
    assert load(differences)["e2e_p99_ms_percent"].sizes["figure"] == 3
    for suffix, path in saved.items():
        path.write_bytes(before[suffix])


def test_another_reference_turns_the_order_round_or_not(
    whole: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(MapRunner, "run", lambda *_: pytest.fail("a cell is run again"))
    saved = whole.with_suffix(".json").read_bytes(), whole.with_suffix(".csv").read_bytes()
    further = (
        "--design",
        "grid",
        "--resume",
        "--all",
        "--figure",
        "none",
        "--reference",
        "kv-blocks=10",
    )
    assert main(words(folder, "whole.zarr", *further)) == 0
    cell = "arrival rate 400 requests/s, CV of arrivals 1, KV blocks 10 per instance"
    assert f"In the reference cell ({cell}" in " ".join(capsys.readouterr().out.split())
    whole.with_suffix(".json").write_bytes(saved[0])
    whole.with_suffix(".csv").write_bytes(saved[1])


def test_help_comes_without_jax(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    assert ended.value.code == 0
    said = capsys.readouterr().out
    assert "--step-constant" in said and "<=110%'" in said


def test_another_study_is_not_gone_on_with(
    whole: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    grid = ("--design", "grid", "--resume")
    for further, problem in (
        (("--duration", "0.3"), "different duration or number of requests"),
        (("--seeds", "42,43"), "seed labels"),
        (("--rate", "200,300"), "cells"),
        (("--rng", "jax"), "different --rng"),
        (("--objective", "ttft_p90_ms"), "has no ttft_p90_ms"),
        (("--window", "0.01,0"), "different --window"),
    ):
        given = words(folder, "whole.zarr", *grid)
        if further[0] in given:
            at = given.index(further[0])
            given[at : at + 2] = further
        else:
            given += further
        assert main(given) == 2
        assert problem in capsys.readouterr().err
    assert main(words(folder, "whole.zarr")) == 2
    assert "exists; give --resume" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"arms": ["iter00_baseline"]}, "fewer than two arms"),
        ({"arms": ["a=iter00_baseline", "b=iter00_baseline"]}, "are the same in every cell"),
        ({"arms": ["iter00_baselin", "iter00_baseline"]}, "did you mean 'iter00_baseline'"),
        ({"--rate": "0"}, "--rate: 0 is out of range"),
        ({"--shape": "mixt"}, "did you mean 'mixed'"),
        ({"--seeds": "42,"}, "--seeds: 1 run is too few to have a spread"),
        ({"--seeds": "42,x"}, "nor a list of whole numbers"),
        ({"--seeds": "42,42"}, "a seed is given twice"),
        ({"--duration": "0"}, "--duration must be above 0"),
        ({"--requests": "5"}, "--requests and --duration contradict"),
        ({"--objective": "ttft_p99_ms[standard]"}, "has no requests of class standard"),
        ({"--constraint": "ttft_p99_ms[batch]<=1"}, "has no requests of class batch"),
        ({"--constraint": "ttft<2"}, "is not METRIC<=LIMIT"),
        ({"--confidence": "2"}, "--confidence must be between"),
        ({"--depth": "0"}, "--depth must be between 1 and 10"),
        ({"--cells": "0"}, "--cells must be between 1"),
        ({"--design": "square"}, "--design"),
        ({"--random-state": "-1"}, "--random-state"),
        ({"--reference": "rate=300"}, "rate 300 is not on its axis"),
        ({"--map-axes": "kv_block,rate"}, "did you mean 'kv_blocks'"),
        ({"--window": "1,1"}, "leave nothing of"),
        ({"--output": "map.nc"}, "must end in .zarr"),
        ({"--figure": "map.pdf"}, "must end in .png"),
        ({"--differences": "a.csv"}, "must end in .zarr or .nc"),
    ],
)
def test_refusals_write_nothing(
    folder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    changes: dict[str, Any],
    problem: str,
) -> None:
    given = words(folder, str(tmp_path / "new.zarr"))
    given = [*changes.pop("arms", given[:2]), *given[2:]]
    for name, value in changes.items():
        if name in given:
            given[given.index(name) + 1] = value
        else:
            given += [f"{name}={value}"]
    assert main(given) == 2
    said = capsys.readouterr().err
    lines = [line for line in said.splitlines() if "note:" not in line]
    assert len(lines) == 1 and problem in lines[0]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.filterwarnings("ignore::blis_jax.errors.ConfigWarning")
def test_arms_that_differ_in_what_cells_set_are_told(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arms = [f"a={folder / 'tiny.yaml'}", f"b={folder / 'tiny.yaml'}:num_instances=4"]
    assert main([*arms, *words(folder, "never.zarr")[2:]]) == 2
    assert "'a' and 'b' are the same in every cell" in capsys.readouterr().err
    arms[1] += ";scheduler=fcfs"
    with pytest.warns(ConfigWarning, match="the arms differ in num_instances, which every cell"):
        plan_of(folder, arms)


def plan_of(folder: Path, arms: Sequence[str], **further: Any) -> MapPlan:
    texts = {"rate": "200,400", "arrival_cv": "1", "kv_blocks": "1000", "kv_cpu_blocks": "0"}
    axes = make_axes(
        texts | {"instances": "2,4", "shape": "mine,turns", "step_constant": "6910.42"}
    )
    reference = reference_place(axes)
    shapes = {
        "mine": Shape("mine", load_shape(str(folder / "load.yaml")).spec),
        "turns": Shape("turns", load_shape("multiturn").spec),
    }
    return make_plan(
        [arm_of(text) for text in arms],
        axes,
        make_cells(axes, "grid", 1, 0, reference),
        reference,
        shapes,
        Extent(None, 40),
        SEEDS,
        "reference",
        dict.fromkeys(shapes, Measure(DEFAULT_TARGETS)),
        Question("ttft_p99_ms[critical]", ()),
        **further,
    )


@pytest.mark.filterwarnings("ignore::blis_jax.errors.ConfigWarning")
def test_cells_of_one_engine_shape_and_workload_follow_each_other(folder: Path) -> None:
    tiny = str(folder / "tiny.yaml")
    plan = plan_of(folder, [f"a={tiny}", f"b={tiny}:scheduler=fcfs"])
    order = [(place["instances"], place["shape"], place["rate"]) for place in plan.cells]
    assert order == [
        (2, "mine", 400.0),
        (2, "mine", 200.0),
        (2, "turns", 400.0),
        (2, "turns", 200.0),
        (4, "mine", 400.0),
        (4, "mine", 200.0),
        (4, "turns", 400.0),
        (4, "turns", 200.0),
    ]


@pytest.mark.filterwarnings("ignore::blis_jax.errors.ConfigWarning")
def test_strategies_share_the_policy_draws_of_a_seed_and_of_no_other(folder: Path) -> None:
    tiny = str(folder / "tiny.yaml")
    plan = plan_of(folder, [f"a={tiny}", f"b={tiny}:scheduler=fcfs"])
    runner, place = MapRunner(plan), plan.cells[0]
    for arm in (0, 1):
        config, source = runner._point(place, arm)
        rows = runner.experiment.rows(config, SEEDS, source)
        assert [row.policy_seed for row in rows] == [policy_seed(seed) for seed in SEEDS]


@pytest.mark.filterwarnings("ignore::blis_jax.errors.ConfigWarning")
@pytest.mark.parametrize("is_every_seed_run", [False, True])
def test_a_livelock_on_the_first_seed_saves_the_others(
    folder: Path, monkeypatch: pytest.MonkeyPatch, is_every_seed_run: bool
) -> None:
    tiny = str(folder / "tiny.yaml")
    arms = [f"a={tiny}", f"b={tiny}:scheduler=fcfs"]
    runner = MapRunner(plan_of(folder, arms, is_every_seed_run=is_every_seed_run))
    asked: list[tuple[float, int, tuple[int, ...]]] = []

    def results(self: Any, entries: Any, places: range) -> list[list[RunSummary]]:
        seeds = tuple(SEEDS[place] for place in places)
        asked.extend((place["rate"], arm, seeds) for place, arm, _ in entries)
        return [
            [
                RunSummary(
                    Outcome["LIVELOCK" if (place["rate"], arm) == (400.0, 1) else "COMPLETED"]
                )
                for _ in seeds
            ]
            for place, arm, _ in entries
        ]

    monkeypatch.setattr(MapRunner, "_results", results)
    found = runner.run(runner.plan.cells[:2])
    outcomes = [[[run.outcome.name for run in runs] for runs in arms] for arms in found]
    whole = ["COMPLETED"] * 3
    last = ["LIVELOCK"] * 3 if is_every_seed_run else ["LIVELOCK", "SKIPPED", "SKIPPED"]
    assert outcomes == [[whole, last], [whole, whole]]
    assert (400.0, 1, SEEDS[1:]) not in asked
    assert ((400.0, 1, SEEDS) in asked) == is_every_seed_run


@pytest.mark.slow
def test_cells_take_as_many_seeds_as_they_need(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = words(folder, "decided.zarr", "--decide", "--most-seeds", "30", "--constraint", "none")
    assert main([*(word if word != "42,43,44" else "20" for word in given), "--all"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "Seeds were added in a cell until the rule had enough, at most 30" in printed
    dataset = load_kind(folder / "decided.zarr", KIND, WANTED)
    verdicts = recommend(dataset, constraints=())
    assert dataset.sizes["seed"] == 30
    assert set(verdicts["num_seeds"].values.tolist()) <= {20, 30}
    was_run = np.isfinite(dataset["tokens_per_sec"].values).all(axis=1).sum(axis=1)
    assert (was_run[~verdicts["has_failed"].values.any(axis=1)] >= 20).all()
    document = json.loads((folder / "decided.json").read_text())
    assert "anytime-valid" in document["method"]["intervals"]
    assert main([*given[:-3], "--most-seeds", "30"]) == 2  # seeds in a list


def test_requests_of_the_other_stream_and_a_fixed_number(folder: Path) -> None:
    given = words(folder, "jax.zarr", "--rng", "jax", "--figure", "none", "--quiet")
    at = given.index("--duration")
    given[at : at + 2] = ["--requests", "30"]
    given[given.index("10,1000")] = "1000"
    assert main(given) == 0
    dataset = load_kind(folder / "jax.zarr", KIND, WANTED)
    assert dataset.attrs["random_stream"] == "jax"
    assert json.loads(dataset.attrs["extent"]) == {"duration_s": None, "num_requests": 30}
    assert dataset.sizes["cell"] == 2 and not folder.joinpath("jax.png").exists()
    assert np.isfinite(dataset["ttft_p99_ms"].values).all()

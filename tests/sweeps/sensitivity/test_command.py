"""The command at a tiny size: dataset, summary, figures, resume, comparison, refusals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

from blis_jax.cluster.config import ClusterConfig
from blis_jax.results.dataset import load
from sweeps import merge
from sweeps.runs.experiment import Experiment
from sweeps.runs.requests import workload_of
from sweeps.search.loop import Runs
from sweeps.sensitivity import command as sensitivity_command
from sweeps.sensitivity.__main__ import main
from sweeps.strategies.file import load_strategy
from tests.support.findings_forms import assert_all_forms_agree, shown_findings
from tests.support.rotation import rotating
from tests.sweeps.tiny import interrupted_runs, tiny_space

SIZES = ("--base", "16", "--trajectories", "4", "--gradients", "4", "--levels", "3", "--bases", "4",
         "--pairs", "1", "--num-seeds", "4", "--bootstrap", "99", "--metrics", "ttft_p99_ms")  # fmt: skip


def study(strategy: Path, *words: str) -> int:
    output = str(strategy.parent / "out")
    return main([str(strategy), "--output", output, *SIZES, *words])


def dataset_of(strategy: Path) -> xr.Dataset:
    return load(strategy.parent / "out" / "dataset.zarr")


def test_dataset_summary_and_figures(
    strategy: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = shown_findings(monkeypatch)
    assert study(strategy, "--all") == 0
    assert_all_forms_agree(*seen)
    found = dataset_of(strategy)
    assert found.attrs["kind"] == "sensitivity study" and found.attrs["package"] == "blis-jax"
    assert found["metric"].values.tolist()[:2] == ["ttft_p99_ms", "ttft_p99_ms[critical]"]
    assert found["unit"].values[0] == "ms"
    total = found["total_order"].sel(model="simulator", metric="ttft_p99_ms[critical]")
    assert total.sel(figure="estimate").notnull().all()
    assert (total.sel(figure="low") <= total.sel(figure="high")).all()
    assert found["response_simulator"].shape == (16 * 8, 4, 3)
    assert found["dgsm"].sel(parameter="routing_scorers.queue-depth").isnull().all()
    assert found["simulator_region"].values.tolist() == ["whole space", "best quarter"]
    inside = found["total_order_of_region_simulator"].sel(metric="ttft_p99_ms[critical]")
    whole = inside.sel(simulator_region="whole space", scale="metric", figure="estimate")
    np.testing.assert_allclose(whole, total.sel(figure="estimate"), rtol=1e-12)
    assert set(found["best_place"].values) <= {"anywhere", "inside", "lower bound", "upper bound"}
    assert all("long_name" in found[name].attrs for name in found.data_vars)
    text = (strategy.parent / "out" / "summary.md").read_text()
    assert "## Where people tune" in text and "best quarter, logarithm" in text
    assert "## What matters" in text and "## Best ranges" in text and "dummy gets" in text
    said = capsys.readouterr().out
    assert said.startswith("Cluster: ") and "How to read this:" in said and "--all" not in said
    assert text.index("- **Asked** Which of ") < text.index("- **Next** ") < text.index("## What")
    for name in ("indices", "morris"):
        assert (strategy.parent / "out" / f"{name}.png").read_bytes().startswith(b"\x89PNG")


def test_values_are_the_runs_of_the_points(strategy: Path) -> None:
    assert study(strategy, "--no-figures", "--quiet") == 0
    found = dataset_of(strategy)
    space = tiny_space()
    experiment = Experiment.on(
        workload_of(space.strategy), (42, 43, 44, 45), "reference", ("ttft_p99_ms",)
    )
    (runs,) = experiment.run([space.config_at(space.at(found["share"].values[17]))])
    values = found["response_simulator"].sel(metric="ttft_p99_ms").values[17]
    assert values.tolist() == [run.metrics["ttft_p99_ms"] for run in runs]


@pytest.mark.slow
def test_resumed_after_a_kill_equals_unkilled(
    strategy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert study(strategy, "--no-figures", "--quiet") == 0
    unkilled = dataset_of(strategy)
    with interrupted_runs(monkeypatch, "run", 3):
        assert study(strategy, "--no-figures", "--overwrite") == 130
    assert study(strategy, "--no-figures", "--resume", "--quiet") == 0
    xr.testing.assert_equal(dataset_of(strategy), unkilled)


def test_a_larger_design_goes_on_from_the_record(
    strategy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert study(strategy, "--no-figures", "--quiet") == 0
    simulated: list[ClusterConfig] = []
    original = Experiment.run

    def counted(self: Experiment, configs: Sequence[ClusterConfig]) -> list[Runs]:
        simulated.extend(configs)
        return original(self, configs)

    monkeypatch.setattr(Experiment, "run", counted)
    assert study(strategy, "--no-figures", "--resume", "--quiet", "--gradients", "6") == 0
    assert 0 < len(simulated) <= 2 * 4


class Exact:
    """A surrogate that is the simulator, but for a factor."""

    def __init__(self, distortion: float) -> None:
        self.space = tiny_space()
        self.names, self.outputs = self.space.names, ("ttft_p99_ms", "ttft_p99_ms[critical]")
        self.bounds = ((5, 20), (600, 2048), (1, 2))
        seeds = (42, 43, 44, 45)
        spec = workload_of(self.space.strategy)
        self.experiment = Experiment.on(
            spec, seeds, "reference", self.outputs, configs_per_batch=32
        )
        self.distortion = distortion

    def predict_mean(self, points: np.ndarray) -> Mapping[str, np.ndarray]:
        configs = [
            self.space.config_at((base, round(tokens), int(weight)))
            for base, tokens, weight in points.tolist()
        ]
        found = self.experiment.run(configs)
        shift = self.distortion * points[:, 0]
        return {
            name: np.array([np.mean([run.metrics[name] for run in runs]) for runs in found]) + shift
            for name in self.outputs
        }


@pytest.mark.parametrize(
    ("distortion", "word"), rotating([(0.0, "agree"), (1e4, "differ")], always=[])
)
def test_a_surrogate_is_compared(
    strategy: Path, monkeypatch: pytest.MonkeyPatch, distortion: float, word: str
) -> None:
    def loaded(path: str) -> Any:
        return Exact(distortion)

    monkeypatch.setattr(sensitivity_command, "load_surrogate", loaded)
    assert study(strategy, "--quiet", "--surrogate", "model") == 0
    text = (strategy.parent / "out" / "summary.md").read_text()
    heads = "meet | simulator, lowered | surrogate, lowered | meet |"
    assert heads in text and "Of 6 pairs of metric and parameter" in text
    assert ("lowered by what a dummy gets from these, the intervals meet for 6." in text) == (
        word == "agree"
    )
    assert "| yes |" in text if word == "agree" else "| no |" in text
    assert (strategy.parent / "out" / "agreement.png").exists()
    found = dataset_of(strategy)
    assert found["model"].values.tolist() == ["simulator", "surrogate"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--base", "17"), "--base: got 17, allowed is a power of two"),
        (("--num-seeds", "2"), "--seeds: 2 runs are too few for indices"),
        (("--metrics", "ttft_p98_ms"), "--metrics: metric 'ttft_p98_ms' is unknown"),
        (("--model", "both"), "--model: both needs a surrogate"),
        (("--bootstrap", "3"), "--bootstrap: got 3"),
        (("--resume", "--overwrite"), "contradict each other"),
    ],
)
def test_bad_input_is_refused_in_a_sentence(
    strategy: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], message: str
) -> None:
    assert study(strategy, *words) == 2
    said = capsys.readouterr().err
    assert message in said and said.count("\n") == 1
    assert not (strategy.parent / "out").exists()


def test_existing_results_are_kept(strategy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (strategy.parent / "out" / "dataset.zarr").mkdir(parents=True)
    assert study(strategy) == 2
    assert "give --resume to continue it" in capsys.readouterr().err


def test_a_plan_simulates_nothing(strategy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert study(strategy, "--plan") == 0
    assert "× 4 seeds" in capsys.readouterr().out
    assert not (strategy.parent / "out").exists()


def test_strategies_without_parameters_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert load_strategy("iter00_baseline").parameters == ()
    assert main(["iter00_baseline"]) == 2
    assert "parameters: there are none" in capsys.readouterr().err


def test_parts_of_the_first_designs_are_the_undivided_study(
    strategy: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(strategy.parent)
    words = [str(strategy), *SIZES, "--no-figures", "--quiet"]
    assert main([*words, "--output", "whole"]) == 0
    for number in "312":
        assert main([*words, "--part", f"{number}/3", "--output", f"p{number}"]) == 0
    parts = [f"p{number}/record.jsonl" for number in "123"]
    assert merge.main([*parts, "--output", "all/record.jsonl"]) == 0
    assert "--output all --resume" in " ".join(capsys.readouterr().out.split())
    joined, whole = (Path(name, "record.jsonl").read_bytes() for name in ("all", "whole"))
    assert whole.startswith(joined) and len(joined) > len(whole) / 2
    assert main([*words, "--output", "all", "--resume"]) == 0
    assert Path("all/record.jsonl").read_bytes() == whole
    assert Path("all/summary.md").read_bytes() == Path("whole/summary.md").read_bytes()
    xr.testing.assert_identical(
        load("all/dataset.zarr").drop_attrs(), load("whole/dataset.zarr").drop_attrs()
    )

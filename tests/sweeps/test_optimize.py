"""The command at a tiny size: results, figure, resume, failures, refusals."""

from __future__ import annotations

import dataclasses
import json
import signal
import subprocess
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from blis_jax.cluster.config import ClusterConfig
from blis_jax.runs.many_runs import simulate
from blis_jax.workload.reference import draw
from sweeps.optimize import main
from sweeps.runs.experiment import Experiment
from sweeps.runs.requests import workload_of
from sweeps.search.engines import Told
from sweeps.search.engines.denoised import Denoised
from sweeps.search.loop import Runs
from sweeps.search.report import findings_of
from sweeps.strategies.file import load_strategy
from tests.files.test_leftovers import ENVIRONMENT, names
from tests.support.findings_forms import assert_all_forms_agree
from tests.support.killed import ROOT
from tests.sweeps.tiny import TINY, interrupted_runs, tiny_space


@pytest.fixture(scope="module")
def experiment() -> Experiment:
    names = ("ttft_p99_ms", "ttft_p99_ms[critical]", "tokens_per_sec")
    return Experiment.on(workload_of(tiny_space().strategy), (42, 43), "reference", names)


def optimize(strategy: Path, *words: str) -> int:
    output = strategy.with_suffix(".json")
    return main([str(strategy), "--output", str(output), *words])


def result(strategy: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(strategy.with_suffix(".json").read_text())
    return found


def test_a_recommended_point_is_the_result_with_its_own_score(
    strategy: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine is made to recommend the worst of five points."""

    def worst(self: Denoised, told: Sequence[Told]) -> list[int]:
        return sorted(range(len(told)), key=lambda place: -told[place].score)

    monkeypatch.setattr(Denoised, "ranked", worst)
    assert optimize(strategy, "--engine", "denoised", "--initial", "5") == 0
    found = result(strategy)
    scores = found["convergence"]
    assert found["is_recommended"] and scores[found["best_call"]] == max(scores)
    assert found["best_score"] == max(scores) > min(scores) == found["lowest_score"]
    assert scores[found["lowest_call"]] == min(scores)
    assert found["points"][found["best_call"]]["parameters"] == found["best_parameters"]
    said = " ".join(capsys.readouterr().out.split())
    best = f"point {found['best_call'] + 1} of 5, which the model recommends, has score"
    assert f"{best} {max(scores):.3f}, its objectives plus penalties." in said
    assert (
        f"the lowest score, {min(scores):.3f} of point {found['lowest_call'] + 1}, is partly"
        in said
    )
    assert found["picture"] == findings_of(found).pictures[0].to_json()
    assert_all_forms_agree(findings_of(found))
    assert findings_of(found).answer.to_json() == found["answer"]


def test_result_has_the_schema_of_the_reference_and_ours(
    strategy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert optimize(strategy) == 0
    found = result(strategy)
    assert found["n_calls"] == 5 and found["seeds"] == [42, 43]
    assert (
        found["best_score"] == min(found["convergence"]) == found["convergence"][found["best_call"]]
    )
    best = found["points"][found["best_call"]]
    assert best["parameters"] == found["best_parameters"]
    assert set(found["best_metrics"]) >= {"ttft_p99_ms", "throughput_tps", "dropped"}
    assert found["cli_args"][:2] == ["--model", "meta-llama/llama-3.1-8b-instruct"]
    critical = best["figures"]["critical"]["ttft_p99_ms"]
    assert critical["low"] < critical["mean"] < critical["high"]
    assert best["penalties"]["tokens_per_sec"] > 0
    assert best["score"] == pytest.approx(critical["mean"] + sum(best["penalties"].values()))
    assert [entry["is_met"] for entry in found["success"]] != []
    assert found["num_broken_invariants"] == 0 and found["failures"] == {}
    assert strategy.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
    assert ", the best of them, has score " in capsys.readouterr().out


def test_points_are_the_single_runs_of_the_reference_requests(experiment: Experiment) -> None:
    space = tiny_space()
    point = space.at([0.3, 0.6, 0.9])
    ((first, second),) = experiment.run([space.config_at(point)])
    for seed, found in ((42, first), (43, second)):
        table, _ = draw(experiment.requests.source, seed, 16)
        record = simulate(space.config_at(point), table)
        ttft_ms = np.percentile(record.requests.ttft_us, 99) / 1000
        assert found.metrics["ttft_p99_ms"] == pytest.approx(ttft_ms)


def test_resumed_after_a_kill_equals_unkilled(
    strategy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert optimize(strategy) == 0
    unkilled = result(strategy)
    with interrupted_runs(monkeypatch, "run", 3):
        assert optimize(strategy, "--overwrite", "--figure", "none") == 130
    assert optimize(strategy, "--resume", "--quiet") == 0
    assert result(strategy) == unkilled


KILLED = """
import sys
from sweeps import optimize
from sweeps.runs.experiment import Experiment
from tests.support.killed import kill_when
kill_when(lambda event, path: event == "os.rename" and path.endswith("/tiny.png"))
sys.exit(optimize.main(sys.argv[1:]))
"""


@pytest.mark.slow
def test_killed_while_it_draws_it_leaves_nothing_in_the_end(strategy: Path) -> None:
    output = strategy.with_suffix(".json")
    words = [str(strategy), "--output", str(output), "--calls", "2", "--batch", "2"]
    done = subprocess.run([sys.executable, "-c", KILLED, *words], env=ENVIRONMENT, cwd=ROOT)
    assert done.returncode == -signal.SIGKILL
    assert any(name.startswith(".tiny.png.") for name in names(strategy.parent))
    assert main([*words, "--resume", "--quiet"]) == 0
    assert names(strategy.parent) == ["tiny.json", "tiny.jsonl", "tiny.png", "tiny.yaml"]


def test_failed_points_are_finite_and_named(
    experiment: Experiment, strategy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = Experiment.run

    def hurried(
        self: Experiment, configs: Sequence[ClusterConfig], places: range | None = None
    ) -> list[Runs]:
        usual = self.runner.options
        is_second = self.runner.compiled != set()
        self.runner.options = dataclasses.replace(usual, max_scan_steps=64 if is_second else 2**30)
        try:
            return original(self, configs, places)
        finally:
            self.runner.options = usual

    monkeypatch.setattr(Experiment, "run", hurried)
    assert optimize(strategy) == 0
    found = result(strategy)
    assert found["failures"] == {"ITERATIONS_EXHAUSTED": 3}
    assert found["convergence"][2:] == [1e6, 1e6, 1e6]
    assert found["points"][-1]["outcomes"] == ["ITERATIONS_EXHAUSTED"] * 2
    assert found["best_call"] < 2


def test_several_objectives_give_a_front(strategy: Path) -> None:
    text = TINY.replace(
        'objectives: [{metric: "ttft_p99_ms[critical]"}]',
        "objectives: [{metric: ttft_p99_ms}, {metric: output_tokens_per_s}]",
    )
    strategy.write_text(text.replace("1.0e+9,", "1.0,"))
    assert optimize(strategy, "--engine", "pareto", "--rng", "jax") == 0
    front = result(strategy)["front"]
    assert front["calls"] and front["hypervolume"] == max(front["hypervolume_by_call"])


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--calls", "0"], "--calls"),
        (["--engine", "sobel"], "did you mean 'sobol'"),
        (["--seeds", "a"], "--seeds: 'a' is neither a number of seeds nor a list"),
        (["--seeds", "1,1"], "a seed is given twice"),
        (["--rng", "go"], "--rng"),
        (["--resume", "--overwrite"], "contradict"),
        (["--figure", "a.pdf"], "--figure"),
    ],
)
def test_refusals_write_nothing(
    strategy: Path, capsys: pytest.CaptureFixture[str], words: list[str], problem: str
) -> None:
    assert optimize(strategy, *words) == 2
    said = capsys.readouterr().err
    assert problem in said and said.count("\n") == 1
    assert list(strategy.parent.iterdir()) == [strategy]


def test_a_baseline_is_looked_up_before_the_search(
    strategy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    strategy.write_text(TINY + "baseline: iter00_basline\n")
    assert optimize(strategy) == 2
    assert "tiny.yaml: baseline: strategy 'iter00_basline' is unknown" in capsys.readouterr().err


def test_existing_results_are_kept(strategy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    strategy.with_suffix(".json").write_text("mine")
    assert optimize(strategy) == 2
    assert "exists; give --resume" in capsys.readouterr().err
    assert strategy.with_suffix(".json").read_text() == "mine"


def test_workloads_are_found_beside_the_strategy(strategy: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        spec = workload_of(load_strategy("iter00_baseline"))
    (strategy.parent / "other.yaml").write_text(json.dumps(spec.model_dump(mode="json")))
    theirs = "{name: a, objectives: [{metric: e2e_p99_ms}], workload_spec: elsewhere/other.yaml}"
    strategy.write_text(theirs)
    assert workload_of(load_strategy(str(strategy)), 7) == spec.model_copy(
        update={"num_requests": 7}
    )

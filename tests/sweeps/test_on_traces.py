"""Every study on a trace: the same requests as `--trace` reads, in one run or in windows."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from blis_jax.errors import ConfigError
from blis_jax.metrics.scalars import evaluate as figures_of
from blis_jax.results.dataset import load
from blis_jax.runs.many_runs import simulate
from blis_jax.runs.options import Options
from blis_jax.traces.read import TraceOptions, read_trace
from blis_jax.traces.rows import to_table
from blis_jax.traces.source import TraceSource
from sweeps.ablate import main as ablate
from sweeps.evaluate import evaluate
from sweeps.evaluate import main as evaluate_command
from sweeps.optimize import main as optimize
from sweeps.robustness.__main__ import main as robustness
from sweeps.runs.experiment import Experiment
from sweeps.sensitivity.__main__ import main as sensitivity
from sweeps.strategies.file import load_strategy
from sweeps.strategies.space import space_of
from sweeps.sweep.command import main as sweep
from tests.sweeps.compare.test_judge import write_trace
from tests.sweeps.tiny import TINY

METRIC = "ttft_p99_ms[critical]"
Main = Callable[[list[str]], int]


@pytest.fixture
def given(tmp_path: Path) -> tuple[str, str]:
    """Paths of a strategy and of a trace of 60 requests."""
    (tmp_path / "tiny.yaml").write_text(TINY)
    return str(tmp_path / "tiny.yaml"), write_trace(tmp_path, 60)


def test_a_study_runs_the_requests_that_a_single_run_reads(given: tuple[str, str]) -> None:
    strategy, trace = given
    config = space_of(load_strategy(strategy)).base
    table, _ = to_table(read_trace(trace).rows, config.block_size_in_tokens)
    record = simulate(config, table, Options())
    answer = evaluate(strategy=strategy, trace=trace, metrics=[METRIC])
    assert answer["seeds"] == [42] and answer["rng"] == "recorded"
    assert answer["metrics"][METRIC]["per_seed"] == [figures_of(record, [METRIC])[METRIC]]
    experiment = Experiment.on(
        TraceSource(Path(trace), TraceOptions()), (1, 2, 3), "recorded", [METRIC]
    )
    (runs,) = experiment.run([config])  # nothing is drawn, so one run stands for all
    assert experiment.runner.timing.num_rows == 1 and len(runs) == 3


def test_requests_to_evaluate_take_the_trace_of_the_command(
    given: tuple[str, str], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    strategy, trace = given
    request = {"strategy": strategy, "metrics": ["ttft_p99_ms[standard]"]}
    (tmp_path / "request.json").write_text(json.dumps(request))
    words = [str(tmp_path / "request.json"), "--trace", trace, "--slo-mix", "batch:1"]
    assert evaluate_command(words) == 0
    assert json.loads(capsys.readouterr().out)["workload"] == trace
    with pytest.raises(ConfigError, match="trace: workload is given too"):
        evaluate(strategy=strategy, trace=trace, workload="mixed")
    with pytest.raises(ConfigError, match="--trace-windows: got 1, allowed is 2"):
        evaluate(strategy=strategy, trace={"trace": trace, "trace_windows": 1})


REFUSED: dict[str, tuple[Main, list[str], str]] = {
    "sweep rate": (sweep, ["--rate", "100"], "--time-scale changes how fast its requests come"),
    "sweep grid": (sweep, ["--grid", "workload.aggregate_rate=1,2"], "has no meaning with --trace"),
    "sweep workload": (sweep, ["--workload", "mixed"], "are both given; give one of them"),
    "robustness shape": (robustness, ["--shape", "mixed"], "the trace is the shape"),
    "robustness one run": (robustness, ["--seeds", "2"], "--trace-windows: 1 run is too few"),
    "sensitivity windows": (
        sensitivity,
        ["{strategy}", "--trace-windows", "3"],
        "--trace-windows: 3 runs are too few for indices",
    ),
    "ablate blocks": (
        ablate,
        ["iter05_simplified", "--against", "iter00_baseline", "--block-s", "1"],
        "--block-s has no meaning here",
    ),
}


@pytest.mark.parametrize(("main", "words", "sentence"), REFUSED.values(), ids=REFUSED)
def test_refusals(
    given: tuple[str, str],
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    main: Main,
    words: list[str],
    sentence: str,
) -> None:
    strategy, trace = given
    arms = ["iter00_baseline", "iter05_simplified"] if main is robustness else []
    output = "out.json" if main is ablate else "out.zarr"
    full = [word.format(strategy=strategy) for word in words]
    assert main([*arms, *full, "--trace", trace, "--output", str(tmp_path / output)]) == 2
    assert sentence in capsys.readouterr().err
    assert not list(tmp_path.glob("out*"))


def test_a_search_refuses_an_objective_that_no_request_has(
    given: tuple[str, str], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    trace = tmp_path / "plain.csv"
    trace.write_text("arrival_us,input_tokens,output_tokens\n0,10,3\n9,10,3\n")
    output = str(tmp_path / "out.json")
    assert optimize([given[0], "--trace", str(trace), "--output", output]) == 2
    assert "has no requests of class critical; it has default; --slo-mix" in capsys.readouterr().err


@pytest.mark.slow
def test_a_sweep_of_windows_goes_on_from_its_store(given: tuple[str, str], tmp_path: Path) -> None:
    store = str(tmp_path / "out.zarr")
    words = ["--trace", given[1], "--trace-windows", "2", "--quiet", "--figure", "none"]
    words += ["--strategy", "baseline", "--set", "num_instances=2", "--output", store]
    assert sweep(words) == 0
    first = load(store)
    assert first["seed"].values.tolist() == [1, 2]
    assert first["num_requests"].sel(slo_class="all").values.tolist() == [[30.0, 30.0]]
    assert first.attrs["random_stream"] == "recorded"
    assert sweep([*words, "--resume"]) == 0
    np.testing.assert_array_equal(first["ttft_mean_ms"], load(store)["ttft_mean_ms"])


@pytest.mark.slow
def test_a_search_in_windows(given: tuple[str, str], tmp_path: Path) -> None:
    strategy, trace = given
    output = tmp_path / "out.json"
    words = [strategy, "--trace", trace, "--trace-windows", "2", "--output", str(output), "--quiet"]
    assert optimize([*words, "--calls", "2", "--initial", "1", "--figure", "none"]) == 0
    document: dict[str, Any] = json.loads(output.read_text())
    assert document["seeds"] == [1, 2] and document["trace"]["windows"] == 2
    assert document["best_score"] is not None


@pytest.mark.slow
def test_a_map_of_paces(given: tuple[str, str], tmp_path: Path) -> None:
    words = ["iter00_baseline", "iter05_simplified", "--trace", given[1], "--trace-windows", "2"]
    words += [
        "--rate",
        "50,200",
        "--total-kv-blocks",
        "3000",
        "--kv-cpu-blocks",
        "0",
        "--num-instances",
        "2",
    ]
    words += ["--step-constant", "6910.42", "--figure", "none", "--quiet"]
    store = tmp_path / "out.zarr"
    assert robustness([*words, "--output", str(store)]) == 0
    dataset = load(store)
    assert sorted(dataset["rate"].values.tolist()) == [50.0, 200.0]
    means = dataset["ttft_mean_ms"].sel(slo_class="all", strategy="iter00_baseline").mean("seed")
    slow, fast = (float(means.values[dataset["rate"].values == rate][0]) for rate in (50, 200))
    assert fast > slow


@pytest.mark.slow
def test_sensitivity_in_windows(given: tuple[str, str], tmp_path: Path) -> None:
    strategy, trace = given
    words = [strategy, "--trace", trace, "--trace-windows", "4", "--base", "16", "--no-figures"]
    words += ["--trajectories", "4", "--gradients", "4", "--levels", "3", "--bases", "4"]
    folder = tmp_path / "out"
    assert sensitivity([*words, "--pairs", "1", "--quiet", "--output", str(folder)]) in (0, 3)
    dataset = load(folder / "dataset.zarr")
    assert dataset.attrs["random_stream"] == "recorded"
    assert dataset["response_simulator"].sizes["simulator_seed"] == 4

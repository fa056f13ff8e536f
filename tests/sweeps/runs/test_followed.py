"""Studies in which requests wait for answers, of a trace or of users: each configuration has its own closed loop."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from blis_jax.__main__ import main
from blis_jax.cluster.config import ClusterConfig
from blis_jax.commands.cluster_settings import cluster_config, resolved
from blis_jax.commands.run.flags import make_parser
from blis_jax.metrics.run_summary import RunSummary
from blis_jax.records.record import Status
from blis_jax.results.dataset import load
from blis_jax.runs.closed_loop import simulate_closed_loop
from blis_jax.runs.options import Options
from blis_jax.traces.closed_loop import closed_loop_of_rows
from blis_jax.traces.read import TraceOptions
from blis_jax.traces.source import TraceSource
from sweeps.runs.experiment import Experiment
from sweeps.runs.measured import Recorder
from sweeps.runs.requests import workload_from

NAMES = ("ttft_mean_ms", "e2e_mean_ms")
DELAY_MS = 300


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> TraceSource:
    """Six sessions of three turns; the later ones come 300 ms after the answer before."""
    lines = []
    for session in range(6):
        row = {"session_id": f"s{session}", "input_length": 600, "output_length": 40}
        lines.append(row | {"timestamp": 5 * session})
        lines += [row | {"delay": DELAY_MS, "input_length": 600 + 100 * k} for k in (1, 2)]
    path = tmp_path_factory.mktemp("trace") / "loop.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return TraceSource(path, TraceOptions(prefix_model="none"))


@pytest.mark.parametrize("max_num_running_reqs", [1, 64])
def test_every_configuration_has_its_own_closed_loop(
    trace: TraceSource, max_num_running_reqs: int
) -> None:
    config = ClusterConfig(corrected=True, max_num_running_reqs=max_num_running_reqs)
    experiment = Experiment.on(trace, [42], "recorded", NAMES)
    recorder = Recorder(NAMES, experiment.measure, (), has_requests=True)
    ((kept,),) = experiment.summaries([config], recorder)
    workload = closed_loop_of_rows(trace.rows(42))
    assert workload is not None
    record = simulate_closed_loop(config, workload, Options(), 42).record
    requests = record.requests
    assert (requests.status == Status.COMPLETED).all() and len(requests.status) == 18
    assert kept.metrics["ttft_mean_ms"] == pytest.approx(requests.ttft_us.mean() / 1e3)
    assert kept.metrics["e2e_mean_ms"] == pytest.approx(requests.e2e_us.mean() / 1e3)
    # kept in the order and at the times of the trace, whatever the run did
    assert kept.requests is not None
    np.testing.assert_array_equal(kept.requests.arrivals(), trace.rows(42).arrival_us)
    values = kept.requests.column("e2e", None)
    assert sorted(values) == sorted(requests.e2e_us / 1e3)
    first_turns = trace.rows(42).round_index == 0
    by_arrival = requests.e2e_us[np.argsort(requests.arrival_us, kind="stable")][:6] / 1e3
    assert values[first_turns].tolist() == by_arrival.tolist()
    # later turns wait: none comes before an answer and the delay
    assert np.sort(requests.arrival_us)[6] >= requests.left_us.min() + 1000 * DELAY_MS


def test_a_slow_server_gets_later_turns_later(trace: TraceSource) -> None:
    experiment = Experiment.on(trace, [42], "recorded", NAMES)
    fast, slow = (
        experiment.record(ClusterConfig(corrected=True, max_num_running_reqs=most), 42).requests
        for most in (64, 1)
    )
    assert slow.arrival_us.max() > fast.arrival_us.max() + 100_000


# --- users who wait for their answers --------------------------------------------------------------

STEP_US, TOKENS, THINK_US = 10_000, 5, 30_000  # a step takes as long whatever is in it
CLUSTER = ClusterConfig(
    corrected=True, alpha_coeffs=(0.0, 0.0, 0.0), beta_coeffs=(float(STEP_US), 0.0, 0.0)
)


def _users(path: Path, users: int, num_requests: int = 24, more: str = "") -> Path:
    path.write_text(f"""
version: "2"
seed: 1
num_requests: {num_requests}
clients:
  - id: users
    concurrency: {users}
    think_time_us: {THINK_US}
    slo_class: standard
    input_distribution: {{type: constant, params: {{value: 50}}}}
    output_distribution: {{type: constant, params: {{value: {TOKENS}}}}}
{more}""")
    return path


def _kept(config: ClusterConfig, path: Path) -> RunSummary:
    experiment = Experiment.on(workload_from(str(path)), [42], "reference", NAMES)
    recorder = Recorder(NAMES, experiment.measure, ("standard",))
    ((kept,),) = experiment.summaries([config], recorder)
    return kept


def test_a_single_user_sends_a_think_time_after_each_answer(tmp_path: Path) -> None:
    """Five tokens are five steps, so an answer takes 50 ms, and requests come each 80 ms."""
    spec = workload_from(str(_users(tmp_path / "one.yaml", 1)))
    experiment = Experiment.on(spec, [42], "reference", NAMES)
    requests = experiment.record(CLUSTER, 42).requests
    answer_us = TOKENS * STEP_US
    assert (requests.e2e_us == answer_us).all() and len(requests.e2e_us) == 24
    np.testing.assert_array_equal(requests.arrival_us, np.arange(24) * (answer_us + THINK_US))


@pytest.mark.parametrize("users", [1, 2, 8])
def test_a_server_of_one_request_at_a_time_makes_users_wait(tmp_path: Path, users: int) -> None:
    """One at a time in 50 ms each: N users see N · 50 − 30 ms, less only while the first queue grows."""
    one = CLUSTER.replace(max_num_running_reqs=1)
    spec = workload_from(str(_users(tmp_path / "users.yaml", users, 10 * users)))
    requests = Experiment.on(spec, [42], "reference", NAMES).record(one, 42).requests
    answer_us = TOKENS * STEP_US
    settled = np.sort(requests.arrival_us)[2 * users]
    seen = requests.e2e_us[requests.arrival_us >= settled]
    assert seen == pytest.approx(max(answer_us, users * answer_us - THINK_US), abs=STEP_US)
    # Little's law: users who wait or think are all of them
    span_us = requests.left_us.max() - settled
    assert len(seen) * (seen.mean() + THINK_US) / span_us == pytest.approx(users, rel=0.25)


def test_users_send_the_same_to_every_cluster(tmp_path: Path) -> None:
    path = _users(tmp_path / "users.yaml", 3)
    text = path.read_text().replace(
        "{type: constant, params: {value: 50}}", "{type: exponential, params: {mean: 90}}"
    )
    path.write_text(text)
    experiment = Experiment.on(workload_from(str(path)), [42], "reference", NAMES)
    fast, slow = (
        experiment.record(CLUSTER.replace(max_num_running_reqs=most), 42).requests
        for most in (64, 1)
    )
    assert fast.e2e_us.mean() < slow.e2e_us.mean()
    first = [sorted(run.input_len[run.arrival_us < THINK_US].tolist()) for run in (fast, slow)]
    assert first[0] == first[1] and len(first[0]) == 3
    lengths = [set(run.input_len.tolist()) for run in (fast, slow)]
    assert len(lengths[0] & lengths[1]) > 0.8 * len(lengths[0] | lengths[1])


@pytest.mark.parametrize("option", ["--corrected", "--profile=blis-2026-08"])
@pytest.mark.parametrize("most", ["1", "64"])
def test_studies_have_the_figures_of_run(option: str, most: str, tmp_path: Path) -> None:
    path, out = _users(tmp_path / "users.yaml", 6, 60), tmp_path / "run.json"
    words = [option, "--model", "meta-llama/llama-3.1-8b-instruct", "--max-num-running-reqs", most]
    run = ["run", *words, "--workload-spec", str(path), "--seed", "42", "--results-path", str(out)]
    assert main(run) == 0
    printed = json.loads(out.read_text())
    config = cluster_config(resolved(make_parser().given(words)))
    kept = _kept(config, path)
    assert {name: kept.metrics[name] for name in NAMES} == {
        name: pytest.approx(printed[name], rel=1e-12) for name in NAMES
    }


def test_commands_of_many_runs_take_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compare and sweep agree, and capacity counts: 8 users see 370 ms on one server, less on more."""
    monkeypatch.chdir(tmp_path)
    path = str(_users(tmp_path / "users.yaml", 8, 80))
    cluster = "vllm:alpha_coeffs=0,0,0;beta_coeffs=10000,0,0;max_num_seqs=1"
    arms = [f"one={cluster};num_instances=1", f"four={cluster};num_instances=4"]
    few = ["--seeds", "2", "--figure", "none", "--quiet"]
    metrics = ["--metrics", "e2e_mean_ms"]
    assert main(["compare", *arms, "--workload", path, *few, *metrics, "--output", "c.json"]) == 0
    assert (
        main(["sweep", *arms, "--workload", path, *few, "--first-seed", "42", "--output", "s.nc"])
        == 0
    )
    compared = json.loads(Path("c.json").read_text())["comparisons"]
    (found,) = [one for one in compared if (one["class"], one["metric"]) == ("all", "e2e_mean_ms")]
    swept = load("s.nc").e2e_mean_ms.sel(slo_class="all").mean("seed").to_numpy().ravel()
    assert [found["reference_mean"], found["mean"]] == pytest.approx(swept.tolist())
    assert found["reference_mean"] == pytest.approx(8 * 50 - 30, rel=0.1)
    asked = ["--targets", "all.e2e_ms=250@80", "--max-instances", "4", "--figure", "none"]
    policy = f"{cluster};num_instances=1"
    assert (
        main(["capacity", path, "--policy", policy, *asked, "--seeds", "40", "--output", "n.json"])
        == 0
    )
    (answer,) = json.loads(Path("n.json").read_text())["clusters"]
    assert answer["num_instances"] == 2  # 4 · 50 − 30 = 170 ms


def test_a_rate_and_the_streams_of_jax_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(_users(tmp_path / "users.yaml", 2))
    for words, says in (
        (
            ["compare", "vllm", "vllm:num_instances=2", "--rate", "5"],
            "change clients[].concurrency",
        ),
        (["compare", "vllm", "vllm:num_instances=2", "--rng", "jax"], "leave --rng out"),
        (["curve", "vllm"], "what goes over rates of arrival"),
    ):
        assert main([*words, "--workload", path]) == 2
        assert says in capsys.readouterr().err

"""Workloads and traces that name models: all instances have that of --model; the figures are BLIS's."""

import json

import numpy as np
import pytest

from blis_jax.cluster.config import AUGUST, ClusterConfig
from blis_jax.run import main
from blis_jax.traces.read import read_trace
from blis_jax.traces.rows import to_table
from blis_jax.workload.table import with_media, with_models, with_timeouts
from tests.traces.formats.test_trace_v3 import HEADER, line

LLAMA, QWEN = "meta-llama/llama-3.1-8b-instruct", "qwen/qwen3-14b"
BASE = ["--model", LLAMA, "--num-instances", "2", "--profile", AUGUST, "--overwrite"]
LENGTHS = """
  arrival: {process: poisson}
  input_distribution: {type: gaussian, params: {mean: 200, std_dev: 80, min: 20, max: 600}}
  output_distribution: {type: gaussian, params: {mean: 20, std_dev: 8, min: 2, max: 60}}
"""


def client(name, share, model, more=""):
    return f"- id: {name}\n  model: {model}\n  rate_fraction: {share}{more}{LENGTHS}"


def spec(rate, number, *clients):
    top = f'version: "2"\nseed: 5\ncategory: language\naggregate_rate: {rate}\n'
    return f"{top}num_requests: {number}\nclients:\n{''.join(clients)}"


ONE = client("a", 0.6, LLAMA), client("b", 0.4, QWEN)
CLASSED = (
    client("a", 0.6, LLAMA, "\n  slo_class: batch\n  timeout: 300000"),
    client("b", 0.4, QWEN, "\n  slo_class: sheddable\n  timeout: 200000"),
)
QUEUED = (
    "--flow-control --saturation-detector concurrency --max-concurrency 2 --dispatch-order priority"
)
SESSIONS = 4, 12, 170.18625  # rejected at routing, completed, mean E2E in ms
RUNS = {
    "plain": (spec(40, 20, *ONE), "", 6, 14, 168.91414285714288),
    "saturation": (spec(300, 60, *CLASSED), "--admission-policy gaie-legacy", 0, 39, 160.35407692307695),
    "queue": (
        spec(300, 60, *CLASSED),
        f"{QUEUED} --max-gateway-queue-depth 12",
        7,
        6,
        236.47883333333334,
    ),
}  # fmt: skip


@pytest.fixture(autouse=True)
def in_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def results(tmp_path, text, options, capsys):
    (tmp_path / "w.yaml").write_text(text)
    words = [*BASE, "--workload-spec", "w.yaml", "--results-path", "r.json", *options.split()]
    assert main(words) == 0, capsys.readouterr().err
    document = json.loads((tmp_path / "r.json").read_text())
    return document, capsys.readouterr()


@pytest.mark.parametrize("case", RUNS)
def test_requests_for_another_model_are_rejected_at_routing(case, tmp_path, capsys):
    text, options, routing, completed, e2e_ms = RUNS[case]
    document, said = results(tmp_path, text, options, capsys)
    assert document["completed_requests"] == completed
    assert document["e2e_mean_ms"] == pytest.approx(e2e_ms, rel=1e-12)
    assert f"requests for {QWEN} are rejected at routing" in said.err
    if routing:
        assert f"Rejected Requests (Routing): {routing}" in said.out


TURNS = (
    "  reasoning: {multi_turn: {max_rounds: 3, think_time_us: 1000, context_growth: accumulate}}\n"
)


@pytest.mark.slow
def test_sessions_of_another_model_end_with_their_first_round(tmp_path, capsys):
    text = spec(300, 24, *(one + TURNS for one in ONE))
    document, said = results(tmp_path, text, "", capsys)
    routing, completed, e2e_ms = SESSIONS
    assert f"Rejected Requests (Routing): {routing}" in said.out
    assert document["completed_requests"] == completed
    assert document["e2e_mean_ms"] == pytest.approx(e2e_ms, rel=1e-12)


def test_which_models_a_cluster_serves():
    august = ClusterConfig(revision=AUGUST, model=QWEN)
    assert august.serves("") and august.serves(QWEN)
    assert not august.serves(LLAMA) and not august.serves("Qwen/Qwen3-14B")
    pools = august.replace(
        num_instances=2, prefill_instances=1, decode_instances=1, pd_decider="always"
    )
    assert pools.serves(LLAMA)  # BLIS asks nobody there
    assert ClusterConfig(model=QWEN).serves(LLAMA)


def test_rows_of_traces_name_models_and_keep_them(tmp_path):
    (tmp_path / "t.csv").write_text(
        HEADER + line(0, 1, model=QWEN) + line(1, 2) + line(2, 3, model=LLAMA)
    )
    rows = read_trace(tmp_path / "t.csv").rows
    table, names = to_table(rows, 16)
    assert names.models.tolist() == [QWEN, "", LLAMA]
    marked = with_models(table, names.models, ClusterConfig(revision=AUGUST, model=LLAMA).serves)
    assert marked.is_elsewhere.tolist() == [1, 0, 0]
    assert with_models(table, names.models, ClusterConfig(model=LLAMA).serves) is table
    both = with_timeouts(with_media(marked, [0, 1, 1]), [5, 0, 9])
    assert type(both) is type(with_media(with_timeouts(marked, [5, 0, 9]), [0, 1, 1]))
    columns = both.has_media, both.timeout_us, both.is_elsewhere
    assert np.array_equal(columns, [[0, 1, 1], [5, 0, 9], [1, 0, 0]])

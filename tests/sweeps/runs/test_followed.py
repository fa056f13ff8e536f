"""Studies of traces in which requests wait for answers: each configuration has its own closed loop."""

from __future__ import annotations

import json

import numpy as np
import pytest

from blis_jax.cluster.config import ClusterConfig
from blis_jax.records.record import Status
from blis_jax.runs.closed_loop import simulate_closed_loop
from blis_jax.runs.options import Options
from blis_jax.traces.closed_loop import closed_loop_of_rows
from blis_jax.traces.read import TraceOptions
from blis_jax.traces.source import TraceSource
from sweeps.runs.experiment import Experiment
from sweeps.runs.measured import Recorder

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

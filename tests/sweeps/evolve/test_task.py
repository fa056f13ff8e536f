"""TASK.yaml: what it describes, and what is refused in one sentence."""

from __future__ import annotations

from pathlib import Path

import pytest

from blis_jax.errors import ConfigError
from sweeps.evolve.task import load_task
from tests.support.evolve.tasks import task_file

ONE_CLASS = """\
version: "2"
aggregate_rate: 20
num_requests: 100
clients:
  - id: only
    rate_fraction: 1
    slo_class: batch
    arrival: {process: poisson}
    input_distribution: {type: constant, params: {value: 64}}
    output_distribution: {type: constant, params: {value: 8}}
"""


def test_it_describes_cluster_requests_and_score(tmp_path: Path) -> None:
    guards = '[{metric: "e2e_p95_ms[critical]", direction: min, change_percent: 5}]'
    (tmp_path / "workload_one.yaml").write_text(ONE_CLASS)
    path = task_file(
        tmp_path, workloads="[mixed, workload_one.yaml]", profile="blis-2026-08", guards=guards
    )
    task = load_task(path)
    assert task.base.is_august and task.base.num_instances == 2
    assert [one.name for one in task.requests] == ["mixed", "one"]
    assert {one.source.num_requests for one in task.requests} == {60}
    assert task.metrics == {"e2e_mean_ms": 0.5, "e2e_p95_ms": 0.5}
    mixed, one = (task.names(one) for one in task.requests)
    assert "e2e_p95_ms[critical]" in mixed and "e2e_p95_ms[critical]" not in one
    assert [len(task.guards(one)) for one in task.requests] == [1, 0]


def test_a_trace_that_is_cut_has_windows_for_seeds(tmp_path: Path) -> None:
    rows = [
        f'{{"timestamp": {100 * at}, "input_length": 64, "output_length": 8}}' for at in range(60)
    ]
    (tmp_path / "trace.jsonl").write_text("\n".join(rows) + "\n")
    text = "name: x\nbaseline: round-robin\nscore: {e2e_mean_ms: 1}\n"
    cut = "[{trace: trace.jsonl, trace_windows: 4}]"
    cluster = "{model: qwen/qwen3-14b, num_instances: 2}"
    task = load_task(task_file(tmp_path, text, traces=cut, seeds="[1, 2]", cluster=cluster))
    assert task.is_windowed and task.run_word == "window"
    with pytest.raises(ConfigError, match="windows 1 to 4, and no 5"):
        load_task(task_file(tmp_path, text, traces=cut, seeds="[1, 5]", cluster=cluster))


@pytest.mark.parametrize(
    ("replaced", "sentence"),
    [
        ({"sedes": "[1]"}, "sedes: the key is unknown"),
        ({"traces": "[{trace: t.jsonl}]"}, "either workloads or traces"),
        ({"score": "{e2e_mean: 1}"}, "score.e2e_mean: "),
        ({"score": "{e2e_mean_ms: 1, goodput_rps: 1}"}, "some are better low and some high"),
        ({"score": "{}"}, "give metrics with weights"),
        ({"seeds": "[1, 1]"}, "a seed is given twice"),
        ({"stage1": "{seeds: [7], pass: 0}"}, "stage1.seeds: all of them must be among seeds"),
        ({"cluster": "{model: qwen/qwen3-14b, routing-policy: weighted}"}, "give it as baseline"),
        ({"cluster": "{model: qwen/qwen3-14b, instances-count: 2}"}, "cluster: unknown option"),
        ({"guards": '[{metric: "e2e_p95_ms[batch]", direction: min, change_percent: 5}]'}, "no request is batch"),
        ({"guards": "[{metric: e2e_p95, direction: min, change_percent: 5}]"}, r"guards\[0\].metric"),
        ({"profile": "blis-2027"}, "profile"),
        ({"workloads": "[none]"}, "'none' is neither a file"),
    ],
)  # fmt: skip
def test_what_is_refused(replaced: dict[str, str], sentence: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=sentence) as error:
        load_task(task_file(tmp_path, **replaced))
    assert "\n" not in str(error.value)

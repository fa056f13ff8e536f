"""Studies of workloads whose requests name LoRA adapters: what runs serve, and figures by adapter."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from blis_jax.cluster.config import ClusterConfig
from blis_jax.errors import ConfigError, UnsupportedError
from blis_jax.metrics.scalars import evaluate, lookup
from blis_jax.records.record import Status
from blis_jax.runs.closed_loop import placed
from blis_jax.runs.many_runs import simulate
from blis_jax.workload.reference import drawn
from blis_jax.workload.reference.arrays import table_of
from blis_jax.workload.source import FIRST_REVISION, REVISED
from blis_jax.workload.spec import WorkloadSpec, load_builtin, override, parse_spec, with_zipf
from sweeps.robustness.cells import config_in, make_axes, reference_place
from sweeps.robustness.plan import Extent, Shape
from sweeps.runs.experiment import Experiment

NAMES = (
    *("worst_adapter_ttft_p99_ms", "mean_adapter_ttft_p99_ms", "num_adapter_loads"),
    *("adapter.b.ttft_p99_ms", "adapter.b.num_completed", "adapter.nobody.ttft_p99_ms"),
)
TEXT = """
version: "2"
aggregate_rate: 60
num_requests: 80
adapters: {names: [a, b, c], zipf: 1.0}
clients:
  - id: chat
    rate_fraction: 1
    arrival: {process: poisson}
    input_distribution: {type: constant, params: {value: 100}}
    output_distribution: {type: constant, params: {value: 8}}
"""
CONFIG = ClusterConfig(
    revision="blis-2026-08",
    latency_model="blackbox",
    num_instances=2,
    lora_config={"adapters": [{"id": name, "rank": 8} for name in "abc"]},
    lora_adapter_capacity=2,
)


def spec_of(text: str = TEXT) -> WorkloadSpec:
    return parse_spec(text, "w.yaml", None)


def test_runs_of_a_study_are_those_of_requests_placed_by_hand() -> None:
    experiment = Experiment.on(spec_of(), [3, 4], "reference", NAMES)
    ((first, second),) = experiment.run([CONFIG])
    table, names = table_of(drawn(spec_of(), 3), CONFIG.block_size_in_tokens)
    record = simulate(CONFIG, placed(CONFIG, table, names))
    assert names.adapters is not None and record.adapters is not None
    assert record.requests.adapter is not None
    ttft = record.requests.ttft_us / 1000
    assert (record.requests.status == Status.COMPLETED).all()
    tails = [np.percentile(ttft[names.adapters == name], 99) for name in "abc"]
    assert first.value("worst_adapter_ttft_p99_ms") == pytest.approx(max(tails))
    assert first.value("mean_adapter_ttft_p99_ms") == pytest.approx(np.mean(tails))
    assert first.value("adapter.b.ttft_p99_ms") == pytest.approx(tails[1])
    assert first.value("adapter.b.num_completed") == (names.adapters == "b").sum() > 0
    assert first.value("num_adapter_loads") == record.adapters.num_loads.sum() > 3
    assert np.isnan(first.value("adapter.nobody.ttft_p99_ms"))
    assert second.metrics != first.metrics


def test_a_run_without_adapters_has_no_figures_of_them() -> None:
    few = override(load_builtin("mixed"), num_requests=20)
    experiment = Experiment.on(few, [3], "reference", NAMES)
    ((run,),) = experiment.run([ClusterConfig(num_instances=2)])
    assert all(np.isnan(run.value(name)) for name in NAMES)


def test_a_name_of_an_adapters_figure_is_checked() -> None:
    metric, slo_class = lookup("adapter.my.own.e2e_mean_ms")
    assert (metric.unit, metric.direction, slo_class) == ("ms", "lower", None)
    assert "my.own" in metric.estimand
    for name in ("adapter.ttft_p99_ms", "adapter.b.ttft_p98_ms", "adapter.b.itl_mean_ms"):
        with pytest.raises(ConfigError, match=r"is not adapter\.ID\.METRIC"):
            lookup(name)


def test_figures_of_one_adapter_are_refused_where_no_record_is_kept() -> None:
    with pytest.raises(ConfigError, match="so many runs keep none"):
        lookup("adapter.b.ttft_p99_ms")[0].compute(SimpleNamespace())


def test_a_record_without_loads_has_none_of_them() -> None:
    table, _ = table_of(drawn(spec_of(), 3), CONFIG.block_size_in_tokens)
    record = simulate(CONFIG.replace(lora_adapter_capacity=0), table)
    assert np.isnan(evaluate(record, NAMES)["num_adapter_loads"])


def test_the_jax_stream_refuses_them() -> None:
    with pytest.raises(UnsupportedError, match="drawn by BLIS's own"):
        Experiment.on(spec_of(), [3], "jax", NAMES).run([CONFIG])


@pytest.mark.parametrize(
    ("more", "waits"),
    [
        ("", False),
        ("    adapter: a\n", False),
        ("    timeout: 90\n", True),
        ("    reasoning: {multi_turn: {max_rounds: 2, think_time_us: 5}}\n", True),
    ],
)
def test_runs_are_followed_one_by_one_only_where_requests_wait_or_give_up(
    more: str, waits: bool
) -> None:
    assert spec_of(TEXT + more).waits is waits


def test_a_file_is_of_the_first_revision_where_that_can_read_it() -> None:
    plain = TEXT.replace("adapters: {names: [a, b, c], zipf: 1.0}\n", "")
    assert spec_of(plain).revision == FIRST_REVISION
    assert spec_of().revision == REVISED
    with pytest.raises(ConfigError, match=r"w\.yaml: .*aggregat_rate"):
        spec_of(TEXT.replace("aggregate_rate", "aggregat_rate"))


def test_a_map_varies_the_skew_and_the_room_for_adapters() -> None:
    axes = make_axes({"lora_adapter_capacity": "1,2", "adapter_zipf": "0,1.5"})
    place = reference_place(axes, "lora_adapter_capacity=1,adapter_zipf=1.5,kv_cpu_blocks=0")
    assert config_in(CONFIG, place).lora_adapter_capacity == 1
    shape = Shape("w", spec_of())
    skewed = shape.at(60, 2.0, Extent(None, 80), 1.5)
    assert skewed == with_zipf(shape.at(60, 2.0, Extent(None, 80)), 1.5)
    with pytest.raises(ConfigError, match="no adapters whose popularity"):
        Shape("mixed", load_builtin("mixed")).at(60, 2.0, Extent(None, 80), 1.5)

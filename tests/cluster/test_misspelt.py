"""A name that does not exist is refused with the nearest that does, wherever names are given."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable

import pytest

from blis_jax import ClusterConfig
from blis_jax.errors import ConfigError
from blis_jax.latency.registry import lookup as coefficients
from blis_jax.metrics.measure import read_targets
from blis_jax.metrics.scalars import lookup as metric
from sweeps.runs.requests import workload_from
from sweeps.strategies.arms import arm_of
from sweeps.strategies.file import parse_strategy
from sweeps.strategies.space import space_of
from sweeps.sweep.plan import make_plan

MECHANISM = "name: a\ndescription: b\nmechanism: {max_num_seq: 4}\nworkload: mixed\n"
MECHANISM += "seeds: [42]\nobjectives: [{metric: ttft_p99_ms, direction: min}]\n"
MISSPELT: dict[str, tuple[Callable[[], object], str]] = {
    "setting": (lambda: ClusterConfig(num_instance=2), "num_instances"),
    "vLLM's name": (lambda: ClusterConfig(max_num_seq=4), "max_num_seqs"),
    "replaced": (lambda: ClusterConfig().replace(blok_size=8), "block_size"),
    "of a sweep": (lambda: make_plan(settings=["max-num-seq=4"]), "max_num_seqs"),
    "of an arm": (lambda: arm_of("iter00_baseline:tensor_paralel_size=4"), "tensor_parallel_size"),
    "of a file": (lambda: space_of(parse_strategy(MECHANISM, "a.yaml")), "max_num_seqs"),
    "policy": (lambda: ClusterConfig(routing_policy="weigthed"), "weighted"),
    "variant": (lambda: ClusterConfig(variant="routin"), "routing"),
    "latency model": (lambda: ClusterConfig(latency_model="blackbx"), "blackbox"),
    "model": (lambda: coefficients("meta-llama/llama-3.1-8b-instuct"), "meta-llama/llama-3.1-8b-instruct"),
    "GPU": (lambda: coefficients("meta-llama/llama-3.1-8b-instruct", gpu="H10"), "H100"),
    "workload": (lambda: workload_from("mixd"), "mixed"),
    "strategy": (lambda: arm_of("iter00_basline"), "iter00_baseline"),
    "point": (lambda: arm_of("iter08_token_budget@publishd"), "published"),
    "metric": (lambda: metric("ttft_p9_ms[critical]"), "ttft_p99_ms"),
    "class": (lambda: metric("ttft_p99_ms[criticl]"), "critical"),
    "target": (lambda: read_targets(["critical.tft_ms=3"]), "ttft_ms"),
}  # fmt: skip


@pytest.mark.parametrize("what", MISSPELT)
def test_the_nearest_name_is_said(what: str) -> None:
    misspell, meant = MISSPELT[what]
    with pytest.raises(ConfigError) as refused:
        misspell()
    assert f"did you mean '{meant}'" in str(refused.value) and "\n" not in str(refused.value)


def test_a_configuration_can_still_be_copied_and_kept() -> None:
    config = ClusterConfig(num_instances=3).replace(scheduler="sjf")
    assert pickle.loads(pickle.dumps(config)) == config == copy.deepcopy(config)


def test_a_name_like_no_other_gets_the_list() -> None:
    with pytest.raises(ConfigError, match="setting 'zzz' is unknown; known: admission_latency, "):
        ClusterConfig(zzz=1)

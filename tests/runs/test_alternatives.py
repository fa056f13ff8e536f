"""Routers in one program: every request fares as with the router alone, and what cannot share is left out."""

from __future__ import annotations

import pytest

from blis_jax.cluster.config import ClusterConfig
from blis_jax.metrics.run_summary import fingerprint
from blis_jax.records.record import RunRecord
from blis_jax.runs.alternatives import in_one_program
from blis_jax.workload.spec import parse_spec
from sweeps.runs.experiment import Experiment

WORKLOAD = """
version: '2'
aggregate_rate: 400.0
num_requests: 60
clients:
  - {id: a, tenant_id: a, slo_class: critical, rate_fraction: 0.5, arrival: {process: poisson},
     prefix_group: p, prefix_length: 64,
     input_distribution: {type: exponential, params: {mean: 400}},
     output_distribution: {type: exponential, params: {mean: 20}}}
  - {id: b, tenant_id: b, slo_class: batch, rate_fraction: 0.5, arrival: {process: poisson},
     input_distribution: {type: exponential, params: {mean: 200}},
     output_distribution: {type: exponential, params: {mean: 20}}}
"""
# with a counter, drawn, by scores, told of completions, from a file with a memory of its own
ROUTERS = (
    "round-robin",
    "power-of-two",
    "weighted",
    "epoch-adaptive",
    "sweeps/strategies/policies/hashes.py:session_hashed",
)
SEEDS = 42, 43


def configs(*routers: str, **settings: object) -> list[ClusterConfig]:
    return [ClusterConfig(num_instances=3, routing_policy=name, **settings) for name in routers]  # type: ignore[arg-type]


def lives(experiment: Experiment, config: ClusterConfig) -> list[str]:
    return [experiment.summaries([config], fingerprint)[0][at] for at in range(len(SEEDS))]


def experiment() -> Experiment:
    return Experiment.on(parse_spec(WORKLOAD, "test"), SEEDS, "reference", ["ttft_mean_ms"])


def test_each_router_decides_in_one_program_as_it_does_alone() -> None:
    asked, together = configs(*ROUTERS), experiment()
    together.expect(asked)
    found = [lives(together, config) for config in asked]
    assert len(together.runner.groups) == len(together.runner.compiled) == 1
    assert len({tuple(one) for one in found}) == len(ROUTERS)
    for config, one in zip(asked, found, strict=True):
        assert lives(experiment(), config) == one, config.routing_policy


def test_a_single_run_again_is_of_the_same_program() -> None:
    asked, together = configs("round-robin", "least-loaded"), experiment()
    together.expect(asked)
    record = together.record(asked[1], SEEDS[0])
    assert isinstance(record, RunRecord) and fingerprint(record) == lives(together, asked[1])[0]
    assert len(together.runner.groups) == 1


@pytest.mark.parametrize(
    "settings",
    [{"precise_kv_routing": True}, {"revision": "blis-2026-08"}],
    ids=["caches tell the router", "August"],
)
def test_what_would_decide_otherwise_beside_others_is_left_out(settings: dict[str, object]) -> None:
    assert not in_one_program(configs("round-robin", "least-loaded", **settings))


def test_configurations_without_others_of_their_kind_are_left_out() -> None:
    one, other = configs("round-robin", "least-loaded")
    alone = one.replace(num_instances=2)
    assert set(in_one_program([one, alone, other, one])) == {one, other}
    assert not in_one_program([alone, other])

"""Runs of a router as a table of operations are those of its compiled form, bit by bit, on all clusters."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

import papers.openevolve.routers
from blis_jax import ClusterConfig, simulate
from blis_jax.commands.run.requests import draw_requests
from blis_jax.policies import registry
from blis_jax.policies.as_data.tables import as_table
from blis_jax.policies.contract import Policies, Policy
from blis_jax.policies.reading import NotAsDataError
from blis_jax.runs.alternatives import router_as_table
from blis_jax.runs.options import Options
from blis_jax.workload.spec import load_builtin, override

SCORERS = "prefix-affinity:1,load-balance:1"
CLUSTERS: dict[str, dict[str, Any]] = {
    "february": {"num_instances": 3},
    "august": {"num_instances": 4, "revision": "blis-2026-08"},
    "old signals": {"num_instances": 4, "load_refresh_interval": 50_000},
    "few blocks": {"num_instances": 2, "total_kv_blocks": 1500},
}
PAPERS = {
    name: one
    for name, one in vars(papers.openevolve.routers).items()
    if isinstance(one, Policy) and one.kind == "routing"
}
SHIPPED = [name for name in registry.ROUTING if name not in ("prefix-affinity", "power-of-two")]


def cluster(name: str, **settings: Any) -> ClusterConfig:
    return ClusterConfig(
        model="qwen/qwen3-14b", routing_scorers=SCORERS, **CLUSTERS[name], **settings
    )


def found(policy: str) -> Policy:
    return PAPERS.get(policy) or registry.find("routing", policy)


def check_runs_are_equal(config: ClusterConfig, policy: Policy, seed: int) -> None:
    spec = override(load_builtin("mixed"), num_requests=120, aggregate_rate=40.0)
    requests, _ = draw_requests(spec, seed, config.block_size_in_tokens)
    table = as_table(policy, config.num_instances, 2)
    compiled, interpreted = (
        simulate(config, requests, seed=seed, policies=Policies(routing=one))
        for one in (policy, table)
    )
    assert compiled.outcome == interpreted.outcome
    for field in dataclasses.fields(compiled.requests):
        expected, its = (getattr(one.requests, field.name) for one in (compiled, interpreted))
        if expected is not None:
            np.testing.assert_array_equal(np.asarray(its), np.asarray(expected), field.name)


@pytest.mark.parametrize(("name", "policy"), [("february", "winner"), ("august", "epoch-adaptive")])
def test_runs_are_those_of_the_compiled_router(name: str, policy: str) -> None:
    check_runs_are_equal(cluster(name), found(policy), 1)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["old signals", "few blocks"])
@pytest.mark.parametrize("policy", ["kv-adaptive", "winner"])
def test_runs_under_old_signals_and_pressure(name: str, policy: str) -> None:
    for seed in (1, 2):
        check_runs_are_equal(cluster(name), found(policy), seed)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["february", "august"])
@pytest.mark.parametrize("policy", [*SHIPPED, *PAPERS])
def test_runs_of_every_router(name: str, policy: str) -> None:
    check_runs_are_equal(cluster(name), found(policy), 3)


def test_the_configured_router_is_handed_in_with_its_scorers() -> None:
    config = cluster("february", routing_policy="weighted")
    handed = router_as_table(config, Options())
    assert [weight for _, weight in handed.scorers or ()] == [1.0, 1.0]
    assert handed.routing == as_table(registry.find("routing", "weighted"), 3, 2)


REFUSED = {
    "many lanes": ({}, Options(form="lanes")),
    "a clock of float64": ({}, Options(clock="float64")),
    "the CPU tier": (
        {"routing_policy": "adaptive-weighted", "kv_cpu_blocks": 100},
        Options(),
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_no_table_does_is_refused(name: str) -> None:
    settings, options = REFUSED[name]
    with pytest.raises(NotAsDataError):
        router_as_table(cluster("february", **settings), options)

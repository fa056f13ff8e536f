"""Names of workloads, those of both packages, wherever a workload is asked for."""

from __future__ import annotations

import pytest

from blis_jax.errors import ConfigError
from blis_jax.workload.spec import list_builtin
from sweeps.robustness.plan import load_shape
from sweeps.runs.requests import list_own, list_workloads, load_workload, workload_from
from sweeps.tracks.problem import workload_named


def test_every_name_is_that_of_one_workload() -> None:
    names = list_workloads()
    assert set(names) == set(list_builtin()) | set(list_own())
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("name", ["mixed", "orth_gamma2"])
def test_a_name_means_the_same_everywhere(name: str) -> None:
    spec = load_workload(name)
    assert workload_from(name) == workload_named(name) == load_shape(name).spec == spec


def test_unknown_names_are_refused_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match="orth_gamma2"):
        load_workload("orth_gama2")


def test_the_larger_and_longer_workloads_have_the_clients_of_those_that_they_are_named_after() -> (
    None
):
    orth, sixteen = load_workload("orth"), load_workload("orth_sixteen")
    assert sixteen.clients == orth.clients
    assert (sixteen.aggregate_rate, sixteen.num_requests) == (4000.0, 2000)
    groups, sessions = load_workload("groups8"), load_workload("groups8_sessions")
    assert sessions.clients == groups.clients
    assert (sessions.aggregate_rate, sessions.num_requests, sessions.horizon) == (200.0, 1000, 0)

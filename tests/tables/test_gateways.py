"""Several gateways: equal to the oracle with a router for each, and to one gateway where there is nothing to hide."""

from __future__ import annotations

from typing import Any

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from blis_jax import ClusterConfig, over_params
from blis_jax.cluster import config
from blis_jax.errors import ConfigError
from blis_jax.runs.many_runs import simulate
from blis_jax.workload.spec import load_builtin, override
from tests.engine.test_properties import NODES, OPTIONS, PHASES, STATICS, Scene, scenes
from tests.support.oracles.gateways import shared
from tests.support.scenes import assert_same_arrays, table_of
from tests.tables.test_router import AGED, GATED, check_equal, roomy

SPEC = override(load_builtin("mixed"), num_requests=60)
CLUSTER = ClusterConfig(num_instances=4, routing_policy="least-loaded")


def check_shared(scene: Scene, num_gateways: int) -> None:
    settings = {**scene.flags, "num-gateways": num_gateways}
    cluster = config.from_flags({**settings, "variant": scene.static.variant})
    record = simulate(cluster, table_of(scene.workload, **NODES), OPTIONS, 3)
    expected = shared(scene.workload, settings, scene.static.variant)
    check_equal(record, expected, scene)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@hypothesis.settings(max_examples=60, phases=PHASES)
@hypothesis.given(scenes((*AGED, *GATED, STATICS[0], STATICS[11])), st.integers(2, 3))
def test_gateways_equal_the_oracle(scene: Scene, num_gateways: int) -> None:
    """Under memory pressure too, whatever admits and routes."""
    check_shared(scene, num_gateways)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_gateways_in_plenty_of_memory_equal_the_oracle(seed: int) -> None:
    check_shared(roomy(seed), 3)


def found(cluster: ClusterConfig) -> Any:
    (record,) = over_params([cluster], SPEC, 5)
    return record


@pytest.mark.slow
def test_a_second_gateway_changes_who_goes_where() -> None:
    """With requests on their way for 20 ms, gateways that do not count each other's send more to one instance."""
    slow = CLUSTER.replace(alpha_coeffs=[20_000.0, 0.0, 0.0])
    alone, four = found(slow), found(slow.replace(num_gateways=4))
    assert not np.array_equal(alone.requests.instance, four.requests.instance)
    loads = [np.bincount(one.requests.instance, minlength=4) for one in (alone, four)]
    assert loads[1].max() > loads[0].max()


@pytest.mark.slow
def test_gateways_with_nothing_to_hide_are_one() -> None:
    """No time on the way, no index, no state: everything that a gateway does is seen at once."""
    open_ = CLUSTER.replace(alpha_coeffs=[0.0, 0.0, 0.0])
    assert_same_arrays(found(open_), found(open_.replace(num_gateways=2)))


def test_each_gateway_deals_in_turn() -> None:
    """Two gateways with a counter each: requests 0 and 1 both go to instance 0."""
    turns = found(CLUSTER.replace(routing_policy="round-robin", num_gateways=2))
    assert turns.requests.instance[:8].tolist() == [0, 0, 1, 1, 2, 2, 3, 3]


@pytest.mark.parametrize("number", [0, 65])
def test_so_many_gateways_cannot_be(number: int) -> None:
    with pytest.raises(ConfigError, match="num_gateways must be between 1 and 64"):
        ClusterConfig(num_gateways=number)

"""Random small clusters with an offload policy before February's CPU tier: the engine equals the oracle."""

from __future__ import annotations

from typing import Any, NamedTuple

import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import strategies as st

from blis_jax.cluster import config
from blis_jax.core.outcome import WHOLE
from blis_jax.policies.contexts import OffloadContext
from blis_jax.policies.contract import NoParams, NoState, Policies, offload_policy
from blis_jax.runs.many_runs import simulate
from sweeps.strategies.moved import changed
from tests.engine.test_properties import (
    FAILURES,
    NODES,
    OPTIONS,
    PHASES,
    Scene,
    Static,
    check_conservation,
    scenes,
)
from tests.support.oracles import judged_tier, oracle
from tests.support.scenes import differences, table_of

TIERS = (
    Static(1, "round-robin", "", "always-admit", "fcfs", "constant", 4, has_cpu_tier=True),
    Static(2, "least-loaded", "", "slo-gated", "sjf", "constant", has_cpu_tier=True),
)


class Judged(NamedTuple):
    """A run, and the numbers of its policy."""

    scene: Scene
    numbers: dict[str, float]


@st.composite
def judged(draw: Any) -> Judged:
    """A cluster with the policy `content-worth`, of which some numbers leave everything as it is."""

    def pick(*values: Any) -> Any:
        return draw(st.sampled_from(values))

    scene = draw(scenes(TIERS, has_conversations=pick(False, True)))
    numbers = {
        "critical": pick(1.0, 0.0),
        "standard": pick(1.0, 0.0),
        "sheddable": pick(1.0, 0.0, 0.0),
        "per_taker": pick(0.0, 0.25, -0.5),
        "least_takers": pick(1, 1, 2, 3),
    }
    return Judged(scene, numbers)


def cluster_of(one: Judged) -> config.ClusterConfig:
    given = {f"content_worth_{name}": value for name, value in one.numbers.items()}
    flags = {**one.scene.flags, "variant": one.scene.static.variant}
    return changed(config.from_flags(flags), {"offload_policy": "content-worth", **given})


def check(
    cluster: config.ClusterConfig, scene: Scene, build: Any, policies: Policies | None = None
) -> None:
    """Equal to the oracle with this tier in everything, also in how the reference fails."""
    table = table_of(scene.workload, **NODES)
    record = simulate(cluster, table, OPTIONS, policies=policies)
    expected = oracle.simulate(scene.workload, scene.flags, cluster_of=build)
    if record.outcome not in WHOLE:
        assert FAILURES[record.outcome] == expected.outcome.partition(":")[0]
        return
    assert expected.outcome == oracle.FINISHED
    assert not differences(record, expected, scene.static.block_size)
    check_conservation(record)


@pytest.mark.slow
@pytest.mark.timeout(3000)
@hypothesis.settings(max_examples=300, phases=PHASES)
@hypothesis.given(judged())
def test_an_offload_policy_equals_oracle(one: Judged) -> None:
    num_shared = judged_tier.num_shared_of(table_of(one.scene.workload, **NODES))
    worth = judged_tier.worth_by(one.numbers)
    check(cluster_of(one), one.scene, judged_tier.cluster_with(worth, num_shared))


@pytest.mark.slow
@pytest.mark.timeout(3000)
@hypothesis.settings(max_examples=200, phases=PHASES)
@hypothesis.given(
    scenes(TIERS), st.sampled_from([0.1, 0.5, 0.9, 1.5]), st.sampled_from([0.25, 1.0, 2.0])
)
def test_a_forecast_equals_oracle(scene: Scene, limit: float, ahead: float) -> None:
    flags = {**scene.flags, "variant": scene.static.variant}
    policy = {"forecast_offload_limit": limit, "forecast_offload_ahead": ahead}
    cluster = changed(config.from_flags(flags), {"offload_policy": "forecast-offload", **policy})
    rule = judged_tier.by_forecast(limit, ahead)
    check(cluster, scene, judged_tier.cluster_with(judged_tier.worth_by({}), [], rule))


@offload_policy(NoParams)
def by_remainder(
    params: NoParams, state: NoState, context: OffloadContext
) -> tuple[jax.Array, NoState]:
    """A rule that one block or one request more turns round; limits seldom do."""
    demand = context.num_used_blocks + 3 * context.num_waiting_blocks + 5 * context.num_running
    worth = jnp.where(demand % 7 < 4, jnp.float64(1.0), jnp.float64(0.0))
    return jnp.broadcast_to(worth, context.num_takers.shape), state


@pytest.mark.slow
@pytest.mark.timeout(3000)
@hypothesis.settings(max_examples=100, phases=PHASES)
@hypothesis.given(scenes(TIERS))
def test_the_demand_that_a_policy_sees_equals_oracle(scene: Scene) -> None:
    flags = {**scene.flags, "variant": scene.static.variant}
    build = judged_tier.cluster_with(
        judged_tier.worth_by({}),
        [],
        lambda _, used, waiting, running: (used + 3 * waiting + 5 * running) % 7 < 4,
    )
    check(config.from_flags(flags), scene, build, Policies(offload=by_remainder))


@pytest.mark.slow
@pytest.mark.timeout(3000)
@hypothesis.settings(max_examples=30, phases=PHASES)
@hypothesis.given(scenes(TIERS), st.sampled_from([0.0, 0.1, 0.5, 0.9]))
def test_a_forecast_of_nothing_is_a_threshold(scene: Scene, threshold: float) -> None:
    """With nothing counted ahead, the forecast policy with a limit is BLIS's tier with this threshold."""
    flags = {**scene.flags, "variant": scene.static.variant}
    plain = config.from_flags({**flags, "kv-offload-threshold": threshold})
    policy = {"forecast_offload_limit": threshold, "forecast_offload_ahead": 0.0}
    judged = config.from_flags({**flags, "kv-offload-threshold": 0.0})
    judged = changed(judged, {"offload_policy": "forecast-offload", **policy})
    table = table_of(scene.workload, **NODES)
    ours, theirs = (simulate(each, table, OPTIONS) for each in (judged, plain))
    assert ours.outcome == theirs.outcome
    for name in ("e2e_us", "ttft_us", "preemptions", "instance", "status"):
        np.testing.assert_array_equal(getattr(ours.requests, name), getattr(theirs.requests, name))
    for name in ("cpu_offloads", "cpu_reloads", "gpu_hits", "used_blocks_at_end"):
        ours_, theirs_ = getattr(ours.instances, name), getattr(theirs.instances, name)
        np.testing.assert_array_equal(ours_, theirs_)

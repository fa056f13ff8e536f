"""Random outages: as often and as long as the numbers say, drawn by seed, and without effect where there are none."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from blis_jax import ClusterConfig, over_seeds
from blis_jax.core.outcome import Outcome
from blis_jax.core.types import EngineShape
from blis_jax.policies.contexts import ClusterContext
from blis_jax.policies.movement.outages import outages
from blis_jax.workload.spec import load_builtin, override

OFTEN = {"outages_mtbf_s": 0.2, "outages_mttr_s": 0.1, "outages_start_up_s": 0.05}
SPEC = override(load_builtin("mixed"), num_requests=150, aggregate_rate=200.0)


def cluster(**changes: Any) -> ClusterConfig:
    return ClusterConfig(num_instances=3, routing_policy="least-loaded", **changes)


def test_instances_are_up_for_the_share_of_time_that_the_means_give() -> None:
    numbers = outages.with_numbers(mtbf_s=8.0, mttr_s=1.5, start_up_s=0.5)
    params = numbers.values()
    shape = EngineShape(num_instances=64, num_slots=1, num_requests=1, num_nodes=0, path_depth=1)
    with jax.enable_x64(True):
        context = ClusterContext(None, jnp.ones(64, bool), jnp.int64(0), jax.random.key(0))
        state = numbers.start(params, shape)
        assert numbers.next_time is not None
        decide, next_time = jax.jit(numbers.decide), jax.jit(numbers.next_time)
        is_up, up_us, now, num_failures = jnp.ones(64, bool), 0.0, 0, 0
        for turn in range(1500):
            at = max(int(next_time(params, state)), now)
            up_us += float(is_up.sum()) * (at - now)
            asked = dataclasses.replace(
                context, is_up=is_up, now_us=jnp.int64(at), key=jax.random.key(turn)
            )
            change, state = decide(params, state, asked)
            assert bool((change.queue_leaves == (is_up & ~change.is_up)).all())
            num_failures += int(change.queue_leaves.sum())
            is_up, now = change.is_up, at
    # some 750 failures: the standard error of a mean is 4 %
    assert up_us / (64 * now) == pytest.approx(0.8, abs=0.03)
    assert up_us / num_failures == pytest.approx(8e6, rel=0.15)


@pytest.mark.slow
def test_rare_outages_change_nothing() -> None:
    runs = [
        over_seeds(one, SPEC, seeds=range(2))
        for one in (cluster(), cluster(cluster_policy="outages", outages_mtbf_s=1e9))
    ]
    for plain, twin in zip(*runs, strict=True):
        for field in ("instance", "ttft_us", "e2e_us"):
            mine, theirs = getattr(plain.requests, field), getattr(twin.requests, field)
            np.testing.assert_array_equal(mine, theirs)


@pytest.mark.slow
def test_outages_follow_the_seed_and_every_request_is_served_once() -> None:
    often = cluster(cluster_policy="outages", **OFTEN)
    first, again = over_seeds(often, SPEC, seeds=range(3)), over_seeds(often, SPEC, seeds=range(3))
    for one, other in zip(first, again, strict=True):
        assert one.outcome == Outcome.COMPLETED and not any(one.invariant_failures.values())
        assert int(one.instances.completed_requests.sum()) == 150
        np.testing.assert_array_equal(one.requests.e2e_us, other.requests.e2e_us)
    calm = over_seeds(cluster(), SPEC, seeds=range(3))
    slower = [
        one.requests.e2e_us.mean() > plain.requests.e2e_us.mean()
        for one, plain in zip(first, calm, strict=True)
    ]
    assert all(slower)
    # what draws, draws anew for every seed
    counts = [one.instances.step_count.tolist() for one in first]
    assert counts[0] != counts[1] != counts[2]

"""Load by speed: equal to queue-depth on equal instances, and a request on a slow one counts by its slowness."""

from types import SimpleNamespace
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from blis_jax import ClusterConfig, over_seeds
from blis_jax.engine.phases.router_view.prompt_time import prompt_times
from blis_jax.latency.blackbox import blackbox
from blis_jax.latency.blackbox_attention import blackbox_attention
from blis_jax.policies.scorers.capability import capability_load
from blis_jax.policies.scorers.load import queue_depth
from blis_jax.workload.spec import load_builtin, override
from tests.policies.made import asked, decision

pytestmark = pytest.mark.usefixtures("in_64_bits")


def test_on_equal_instances_it_is_queue_depth_bit_for_bit() -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        loads = rng.integers(0, 60, 7).tolist()
        active = [True, *(rng.random(6) < 0.8).tolist()]
        equal = asked(loads, is_active=active, prompt_us=[float(rng.uniform(1, 1e5))] * 7)
        mine = decision(capability_load, equal)[np.array(active)]
        assert mine.tolist() == decision(queue_depth, equal)[np.array(active)].tolist()


def test_a_request_on_a_slow_instance_counts_by_its_slowness() -> None:
    """Waits 4 × 1, 2 × 3 and 1 × 3; with the request left out 3, 3 and 0."""
    context = asked([3, 1, 0], prompt_us=[1000.0, 3000.0, 3000.0])
    assert decision(capability_load, context).tolist() == [2 / 3, 0.0, 1.0]
    alone = capability_load.with_numbers(own_requests=0.0)
    assert decision(alone, context).tolist() == [0.0, 0.0, 1.0]


def surroundings(model: Any, beta: list[list[float]], budget: list[int], chunk: list[int]) -> Any:
    cluster = SimpleNamespace(
        beta=jnp.asarray(beta),
        max_num_scheduled_tokens=jnp.asarray(budget, jnp.int32),
        prefill_threshold=jnp.asarray(chunk, jnp.int32)[:, None],
    )
    return SimpleNamespace(
        params=SimpleNamespace(cluster=cluster),
        shape=SimpleNamespace(num_instances=len(beta)),
        mechanism=SimpleNamespace(latency=model),
    )


def test_the_time_of_a_prompt_is_that_of_its_chunks() -> None:
    """5,000 tokens: three steps of at most 2,048; five of 1,000; one."""
    beta = [[100.0, 2.0, 1.0], [100.0, 3.0, 1.0], [50.0, 1.0, 1.0]]
    ctx = surroundings(blackbox, beta, [2048, 2048, 8192], [0, 1000, 0])
    request: Any = SimpleNamespace(slo_class=jnp.int32(0), input_len=jnp.int32(5000))
    assert prompt_times(ctx, request).tolist() == [3 * 100 + 2 * 5000, 5 * 100 + 3 * 5000, 5050]


def test_models_that_look_at_members_see_the_prompt() -> None:
    ctx = surroundings(blackbox_attention, [[100.0, 2.0, 1.0, 0.5]], [2048], [0])
    request: Any = SimpleNamespace(slo_class=jnp.int32(0), input_len=jnp.int32(40))
    assert prompt_times(ctx, request).tolist() == [100 + 80 + 0.5 * 40 * 40]


@pytest.mark.slow
def test_runs_on_equal_instances_are_those_of_queue_depth() -> None:
    spec = override(load_builtin("mixed"), num_requests=120)
    plain = ClusterConfig(num_instances=4, routing_policy="weighted")
    runs = [
        over_seeds(plain.replace(routing_scorers=scorers), spec, range(2))
        for scorers in ("prefix-affinity:1,queue-depth:2", "prefix-affinity:1,capability-load:2")
    ]
    for one, other in zip(*runs, strict=True):
        for field in ("instance", "ttft_us", "e2e_us"):
            mine, theirs = getattr(one.requests, field), getattr(other.requests, field)
            np.testing.assert_array_equal(mine, theirs)

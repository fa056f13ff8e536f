"""Dynamic weight switching: where each regime begins, and that a switch on a match changes nothing."""

import jax
import numpy as np
import pytest

from blis_jax import ClusterConfig, simulate
from blis_jax.workload.reference import draw
from blis_jax.workload.spec import load_builtin, override
from sweeps.strategies.policies.regimes import match_switched, regime_switched
from tests.policies.contexts import asked, choice


@pytest.fixture(autouse=True)
def with_x64():
    with jax.enable_x64(True):
        yield


def test_the_weights_without_a_match_count_only_without_one():
    """Instance 0 is idle and full, instance 1 busy and empty: the weights decide which is better."""
    numbers = {"queue": 3.0, "kv": 1.0, "queue_alone": 1.0, "kv_alone": 3.0, "affinity": 0.0}
    loads, used = [0, 9], [1.0, 0.0]
    assert choice(match_switched, asked(loads, [0, 0], used), **numbers) == 1
    assert choice(match_switched, asked(loads, [0, 1], used), **numbers) == 0
    assert choice(match_switched, asked(loads, [1, 0], used), **numbers) == 0


def test_a_match_on_an_inactive_instance_is_none():
    numbers = {"queue": 3.0, "kv": 1.0, "queue_alone": 1.0, "kv_alone": 3.0, "affinity": 0.0}
    context = asked([0, 9, 4], [0, 0, 5], [1.0, 0.0, 0.0], is_active=[True, True, False])
    assert choice(match_switched, context, **numbers) == 1


def test_equal_scores_go_to_the_first_instance():
    assert choice(match_switched, asked([5, 5, 5])) == 0


REGIMES = {
    "affinity_calm": 8.0, "queue_calm": 0.1, "kv_calm": 0.0,
    "affinity_busy": 0.0, "queue_busy": 8.0, "kv_busy": 0.0,
    "affinity_pressed": 0.0, "queue_pressed": 0.1, "kv_pressed": 8.0,
    "load_threshold": 6.0, "kv_threshold": 0.5,
}  # fmt: skip
# instance 0 is warm, 1 is the least loaded, 2 has the most free blocks
MATCHED = [9, 0, 0]


@pytest.mark.parametrize(
    ("loads", "used", "wanted"),
    [
        ([8, 4, 6], [0.5, 0.4, 0.1], 0),  # mean load 6 and fullest 0.5: neither is above
        ([8, 4, 7], [0.5, 0.4, 0.1], 1),  # busy
        ([8, 4, 6], [0.51, 0.4, 0.1], 2),  # pressed
        ([8, 4, 7], [0.51, 0.4, 0.1], 2),  # pressed and busy: pressed
    ],
)
def test_a_regime_begins_above_its_threshold(loads, used, wanted):
    assert choice(regime_switched, asked(loads, MATCHED, used), **REGIMES) == wanted


@pytest.fixture(scope="module")
def mixed():
    return draw(override(load_builtin("mixed"), num_requests=60), 7, 16)[0]


@pytest.mark.slow
def test_a_run_switching_on_a_match_is_that_of_static_weights(mixed):
    """Iteration 2 was recorded identical to static weights: without a match every affinity is 0."""
    config = ClusterConfig(num_instances=4, routing_policy="weighted")
    static = simulate(config, mixed).requests
    switched = simulate(
        config.replace(routing_policy="sweeps/strategies/policies/regimes.py:match_switched"), mixed
    ).requests
    np.testing.assert_array_equal(static.instance, switched.instance)
    np.testing.assert_array_equal(static.ttft_us, switched.ttft_us)


@pytest.mark.slow
def test_a_run_that_is_always_busy_has_the_routing_of_its_weights(mixed):
    """With a threshold of load 0, all requests but the first meet a busy cluster."""
    config = ClusterConfig(
        num_instances=4, routing_policy="sweeps/strategies/policies/regimes.py:regime_switched"
    )
    busy = config.replace(**{"routing.load_threshold": 0.0, "routing.affinity_busy": 0.0})
    least = config.replace(routing_policy="least-loaded")
    by_load, calm = simulate(busy, mixed), simulate(config, mixed)
    plain = simulate(least, mixed)
    np.testing.assert_array_equal(by_load.requests.instance, plain.requests.instance)
    assert not np.array_equal(calm.requests.instance, plain.requests.instance)

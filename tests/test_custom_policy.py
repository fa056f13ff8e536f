"""Policies from outside the package: randomness of their own, and what the contract lets them see."""

import dataclasses

import jax
import numpy as np
import pytest

from blis_jax import simulation as module
from blis_jax.config import ClusterConfig, mechanism
from blis_jax.workload.draw import compile_plan, draw
from blis_jax.workload.spec import load_builtin, override

CONFIG = ClusterConfig(num_instances=3, long_prefill_token_threshold=256, scheduler="sjf")


def random_routing(params, state, view, snapshots, scores, infinity):
    """Any active instance, by the decision's own key."""
    return jax.random.randint(view.key, (), 0, np.int32(3), np.int32), state


def random_admission(params, state, view, snapshots, clock, infinity):
    """Half of the requests, by the decision's own key."""
    return jax.random.bernoulli(view.key, 0.5), state


def cached_first(params, queue):
    """The largest cached prefix first."""
    return -queue.num_cached_blocks, queue.request.tie_rank


def expected_first(params, queue):
    """The largest prefix that the router expected to be cached first."""
    return -queue.num_expected_blocks, queue.request.tie_rank


@pytest.fixture(scope="module")
def table():
    plan = compile_plan(override(load_builtin("multiprefix"), num_requests=60))
    with jax.enable_x64(True):
        drawn, _ = draw(plan.shape, plan.params, jax.random.key(3))
        return jax.device_get(drawn)


def run(monkeypatch, table, config=CONFIG, **functions):
    functions = dataclasses.replace(mechanism(config), **functions)
    monkeypatch.setattr(module, "mechanism", lambda config: functions)
    return module.simulate(config, table)


def test_a_policy_draws_from_its_own_key(monkeypatch, table):
    first = run(monkeypatch, table, routing=random_routing)
    again = run(monkeypatch, table, routing=random_routing)
    both = run(monkeypatch, table, routing=random_routing, admission=random_admission)
    np.testing.assert_array_equal(first.requests.instance, again.requests.instance)
    assert set(first.requests.instance) == {0, 1, 2}
    assert 10 < int((both.requests.admitted == 0).sum()) < 50
    is_kept = both.requests.admitted == 1
    # admission has a key of its own, so its draws do not move those of routing
    np.testing.assert_array_equal(first.requests.instance[is_kept], both.requests.instance[is_kept])


def test_a_scheduler_sees_what_is_cached(monkeypatch, table):
    blind = run(monkeypatch, table, scheduler=cached_first)
    seeing = run(monkeypatch, table, scheduler=cached_first, needs_cached_blocks=True)
    # without the declaration every count is 0 and the order is that of arrival
    assert not np.array_equal(blind.requests.sched_delay_us, seeing.requests.sched_delay_us)
    assert blind.instances.completed_requests.sum() == 60
    assert seeing.instances.completed_requests.sum() == 60


def test_a_scheduler_sees_what_the_router_expected(monkeypatch, table):
    weighted = CONFIG.replace(routing_policy="weighted")
    expecting = run(monkeypatch, table, weighted, scheduler=expected_first)
    plain = run(monkeypatch, table, weighted, scheduler=cached_first)
    assert not np.array_equal(expecting.requests.sched_delay_us, plain.requests.sched_delay_us)

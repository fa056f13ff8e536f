"""Power of two choices: which instances are looked at, which one wins, and its two limits."""

import dataclasses

import jax
import numpy as np

from blis_jax import ClusterConfig, simulate
from blis_jax.policies.routing.power_of_two import ChoicesParams, power_of_two
from blis_jax.workload.reference import draw
from blis_jax.workload.spec import load_builtin, override
from sweeps.principles.experiments.probes import context_of

LOADS, SIZE = np.array([5, 1, 9, 3]), 2000


def chosen(candidates: int) -> np.ndarray:
    """How often each instance is taken over 2,000 keys."""
    with jax.enable_x64(True):
        params = ChoicesParams(np.float64(candidates))
        context = context_of(LOADS, np.zeros(4), np.zeros(4, int), 8)
        keys = jax.random.split(jax.random.key(5), SIZE)

        def one(key):
            asked = dataclasses.replace(context, key=key)
            return power_of_two.decide(params, power_of_two.start(params, None), asked)[0]

        return np.bincount(np.asarray(jax.jit(jax.vmap(one))(keys)), minlength=4) / SIZE


def test_the_less_loaded_of_two_wins():
    """Of six pairs the least loaded instance is in three, the next in two more, the third in one more.

    5 standard deviations of 2,000 draws: false alarms 1 in 10^6.
    """
    expected = np.array([1, 3, 0, 2]) / 6
    assert np.all(np.abs(chosen(2) - expected) <= 5 * np.sqrt(0.25 / SIZE))
    assert chosen(2)[2] == 0


def test_one_candidate_is_random_and_all_are_least_loaded():
    assert np.all(np.abs(chosen(1) - 0.25) <= 5 * np.sqrt(0.25 / SIZE))
    assert chosen(4)[1] == 1.0


def test_a_run_spreads_requests():
    table, _ = draw(override(load_builtin("mixed"), num_requests=60), 7, 16)
    config = ClusterConfig(num_instances=4, routing_policy="power-of-two")
    record = simulate(config, table)
    assert np.bincount(record.requests.instance, minlength=4).min() > 0
    every = simulate(config.replace(power_of_two_candidates=4), table)
    assert every.outcome == record.outcome
    assert not np.array_equal(every.requests.instance, record.requests.instance)

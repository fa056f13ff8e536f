"""Power of two choices: which instances are looked at, which one wins, and its two limits."""

import dataclasses

import jax
import numpy as np
import pytest

from blis_jax import ClusterConfig, simulate
from blis_jax.policies.routing.by_load import (
    ChoicesParams,
    in_bucket,
    least_loaded,
    length_buckets,
    power_of_two,
)
from blis_jax.workload.reference import draw
from blis_jax.workload.spec import load_builtin, override
from sweeps.principles.probes import context_of
from tests.policies.made import SHAPE, asked, decision

LOADS, SIZE = np.array([5, 1, 9, 3]), 2000


def chosen(candidates: int) -> np.ndarray:
    """How often each instance is taken over 2,000 keys."""
    with jax.enable_x64(True):
        params = ChoicesParams(np.float64(candidates))
        context = context_of(LOADS, np.zeros(4), np.zeros(4, int), 8)
        keys = jax.random.split(jax.random.key(5), SIZE)

        def one(key):
            asked = dataclasses.replace(context, key=key)
            return power_of_two.decide(params, power_of_two.start(params, SHAPE), asked)[0]

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


# Prompts by length: which instances take which, what happens where none does, and no effect with one bucket


pytestmark = pytest.mark.usefixtures("in_64_bits")
NUMBERS = {"short_tokens": 100, "long_tokens": 1000, "medium_from": 2, "long_from": 3}
BUCKET_LOADS = [5, 4, 3, 2, 1]


@pytest.mark.parametrize(
    ("tokens", "mine", "chosen"),
    [
        (100, [1, 1, 0, 0, 0], 1),
        (101, [0, 0, 1, 0, 0], 2),
        (1000, [0, 0, 1, 0, 0], 2),
        (1001, [0, 0, 0, 1, 1], 4),
    ],
)
def test_a_prompt_goes_to_the_instances_of_its_length(
    tokens: int, mine: list[float], chosen: int
) -> None:
    context = asked(BUCKET_LOADS, input_len=tokens)
    assert decision(in_bucket.with_numbers(**NUMBERS), context).tolist() == mine
    assert int(decision(length_buckets.with_numbers(**NUMBERS), context)) == chosen


def test_all_take_it_where_its_instances_are_down_or_full() -> None:
    router = length_buckets.with_numbers(**NUMBERS)
    down = asked(BUCKET_LOADS, input_len=500, is_active=[True, True, False, True, True])
    assert int(decision(router, down)) == 4
    full = length_buckets.with_numbers(**NUMBERS, spill_load=3)
    assert int(decision(full, asked(BUCKET_LOADS, input_len=500))) == 4
    roomy = length_buckets.with_numbers(**NUMBERS, spill_load=4)
    assert int(decision(roomy, asked(BUCKET_LOADS, input_len=500))) == 2


def test_one_bucket_is_least_loaded() -> None:
    rng = np.random.default_rng(1)
    for _ in range(20):
        context = asked(rng.integers(0, 9, 6).tolist(), input_len=int(rng.integers(1, 9000)))
        assert int(decision(length_buckets, context)) == int(decision(least_loaded, context))
        assert decision(in_bucket, context).tolist() == [1.0] * 6

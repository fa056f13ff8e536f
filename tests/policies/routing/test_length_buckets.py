"""Prompts by length: which instances take which, what happens where none does, and no effect with one bucket."""

import numpy as np
import pytest

from blis_jax.policies.routing.by_load import least_loaded
from blis_jax.policies.routing.length_buckets import in_bucket, length_buckets
from tests.policies.made import asked, decision

pytestmark = pytest.mark.usefixtures("in_64_bits")
NUMBERS = {"short_tokens": 100, "long_tokens": 1000, "medium_from": 2, "long_from": 3}
LOADS = [5, 4, 3, 2, 1]


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
    context = asked(LOADS, input_len=tokens)
    assert decision(in_bucket.with_numbers(**NUMBERS), context).tolist() == mine
    assert int(decision(length_buckets.with_numbers(**NUMBERS), context)) == chosen


def test_all_take_it_where_its_instances_are_down_or_full() -> None:
    router = length_buckets.with_numbers(**NUMBERS)
    down = asked(LOADS, input_len=500, is_active=[True, True, False, True, True])
    assert int(decision(router, down)) == 4
    full = length_buckets.with_numbers(**NUMBERS, spill_load=3)
    assert int(decision(full, asked(LOADS, input_len=500))) == 4
    roomy = length_buckets.with_numbers(**NUMBERS, spill_load=4)
    assert int(decision(roomy, asked(LOADS, input_len=500))) == 2


def test_one_bucket_is_least_loaded() -> None:
    rng = np.random.default_rng(1)
    for _ in range(20):
        context = asked(rng.integers(0, 9, 6).tolist(), input_len=int(rng.integers(1, 9000)))
        assert int(decision(length_buckets, context)) == int(decision(least_loaded, context))
        assert decision(in_bucket, context).tolist() == [1.0] * 6

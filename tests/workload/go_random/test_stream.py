"""Draws: known first values, redraws that keep the stream in step, vectors equal to single draws."""

import math

import numpy as np
import pytest

from blis_jax.workload.go_random import source
from blis_jax.workload.go_random.stream import LARGEST_BLOCK, Stream

TOKENS = 128_000


def test_first_whole_numbers_below_100_are_those_that_go_prints():
    stream = Stream(1)
    assert [stream.intn(100) for _ in range(10)] == [81, 87, 47, 59, 81, 18, 25, 40, 56, 0]


def test_first_real_numbers_are_those_that_go_prints():
    assert Stream(1).float64() == 0.6046602879796196
    assert Stream(1).norm_float64() == -1.233758177597947
    assert Stream(42).float64() == 0.3730283610466326


def of_numbers(numbers):
    """A stream that begins with these raw numbers."""
    stream = Stream(1)
    stream.int63()
    stream._next = source.LENGTH
    stream._raw[source.LENGTH : source.LENGTH + len(numbers)] = np.array(numbers, np.uint64)
    return stream


def test_uneven_rest_is_drawn_again():
    largest = (2**31 - 1) << 32
    assert of_numbers([largest, largest, 7 << 32]).intn(TOKENS) == 7
    vector = of_numbers([5 << 32, largest, 6 << 32, 7 << 32]).intn_vector(TOKENS, 3)
    assert vector.tolist() == [5, 6, 7]


def test_last_even_number_is_kept():
    last = 2**31 - 2**31 % TOKENS - 1
    assert of_numbers([last << 32, 7 << 32]).intn(TOKENS) == TOKENS - 1
    assert of_numbers([(last + 1) << 32, 7 << 32]).intn(TOKENS) == 7


def test_uniform_number_that_rounds_to_one_is_drawn_again():
    assert of_numbers([2**63 - 1, 2**62]).float64() == 0.5


@pytest.mark.parametrize("limit", [TOKENS, 2**20, 3 * 2**29])
def test_vectors_equal_single_draws_and_leave_the_stream_in_step(limit):
    vector, single = Stream(11), Stream(11)
    for count in (0, 1, 7, LARGEST_BLOCK // 2, 3 * LARGEST_BLOCK):
        drawn = vector.intn_vector(limit, count)
        assert drawn.tolist() == [single.intn(limit) for _ in range(count)]
        assert vector.int63() == single.int63()


def test_limits_beyond_31_bits_use_63():
    first = Stream(1).int63()
    assert Stream(1).intn(2**40) == first % 2**40
    assert Stream(1).intn(10**15) == first % 10**15


def test_moments_of_real_draws():
    """40,000 draws each: 5 standard errors, false alarms below one in 10^5."""
    stream, count = Stream(3), 40_000
    normal = np.array([stream.norm_float64() for _ in range(count)])
    exponential = np.array([stream.exp_float64() for _ in range(count)])
    uniform = np.array([stream.float64() for _ in range(count)])
    margin = 5 / math.sqrt(count)
    assert abs(normal.mean()) < margin
    assert abs(normal.var() - 1) < margin * math.sqrt(2)
    assert abs(exponential.mean() - 1) < margin
    assert abs(exponential.var() - 1) < margin * math.sqrt(8)
    assert abs(uniform.mean() - 0.5) < margin / math.sqrt(12)


def test_tails_are_reached_on_both_sides():
    """Beyond 3.44 lie 5.8 in 10,000: 40,000 draws miss one side once in 10^5."""
    stream = Stream(4)
    normal = np.array([stream.norm_float64() for _ in range(40_000)])
    assert normal.max() > 3.4427
    assert normal.min() < -3.4427
    exponential = np.array([stream.exp_float64() for _ in range(40_000)])
    assert exponential.max() > 7.698

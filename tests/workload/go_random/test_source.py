"""Go's source: known first numbers, the recurrence, seeds that coincide, jumping ahead."""

import numpy as np
import pytest

from blis_jax.workload.go_random import source
from blis_jax.workload.go_random.stream import LARGEST_BLOCK, Stream


def stepped(state, count):
    """The recurrence one number at a time, as its definition has it."""
    numbers = [int(number) for number in state]
    for _ in range(count):
        numbers.append((numbers[-source.LENGTH] + numbers[-source.TAP]) % 2**64)
    return numbers[source.LENGTH :]


def test_first_numbers_of_seed_1_are_those_that_go_prints():
    stream = Stream(1)
    assert [stream.int63() for _ in range(3)] == [
        5577006791947779410,
        8674665223082153551,
        6129484611666145821,
    ]


def test_blocks_continue_one_recurrence():
    count = 3 * LARGEST_BLOCK
    expected = stepped(source.seed_state(7), count)
    stream = Stream(7)
    assert [stream.int63() for _ in range(count)] == [n % 2**63 for n in expected]


@pytest.mark.parametrize("seed", [0, 5, -3, 2**62 + 11])
def test_seeds_that_agree_modulo_the_seed_modulus_coincide(seed):
    other = Stream(seed + 3 * source.SEED_MODULUS).int63()
    assert Stream(seed).int63() == other
    assert Stream(seed + 1).int63() != other


def test_seed_zero_stands_for_a_fixed_one():
    assert np.array_equal(source.seed_state(0), source.seed_state(source.SEED_OF_ZERO))


@pytest.mark.parametrize("steps", [0, 1, 606, 607, 5000])
def test_powers_of_t_jump_as_far_as_single_steps(steps):
    start = np.random.default_rng(0).integers(0, 2**64, source.LENGTH, np.uint64)
    numbers = [*map(int, start), *stepped(start, steps)]
    coefficients = source._power_of_t(steps)
    jumped = int((start * coefficients).sum(dtype=np.uint64))
    assert jumped == numbers[steps]

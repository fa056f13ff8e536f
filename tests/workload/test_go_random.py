"""Go's random numbers: its source, its tables, its draws."""

import math
import zlib

import numpy as np
import pytest

from blis_jax.workload import go_random
from blis_jax.workload.go_random import LARGEST_BLOCK, Stream


def stepped(state, count):
    """The recurrence one number at a time, as its definition has it."""
    numbers = [int(number) for number in state]
    for _ in range(count):
        numbers.append((numbers[-go_random.LENGTH] + numbers[-go_random.TAP]) % 2**64)
    return numbers[go_random.LENGTH :]


def test_first_numbers_of_seed_1_are_those_that_go_prints():
    stream = Stream(1)
    assert [stream.int63() for _ in range(3)] == [
        5577006791947779410,
        8674665223082153551,
        6129484611666145821,
    ]


def test_blocks_continue_one_recurrence():
    count = 3 * LARGEST_BLOCK
    expected = stepped(go_random.seed_state(7), count)
    stream = Stream(7)
    assert [stream.int63() for _ in range(count)] == [n % 2**63 for n in expected]


@pytest.mark.parametrize("seed", [0, 5, -3, 2**62 + 11])
def test_seeds_that_agree_modulo_the_seed_modulus_coincide(seed):
    other = Stream(seed + 3 * go_random.SEED_MODULUS).int63()
    assert Stream(seed).int63() == other
    assert Stream(seed + 1).int63() != other


def test_seed_zero_stands_for_a_fixed_one():
    assert np.array_equal(go_random.seed_state(0), go_random.seed_state(go_random.SEED_OF_ZERO))


@pytest.mark.parametrize("steps", [0, 1, 606, 607, 5000])
def test_powers_of_t_jump_as_far_as_single_steps(steps):
    start = np.random.default_rng(0).integers(0, 2**64, go_random.LENGTH, np.uint64)
    numbers = [*map(int, start), *stepped(start, steps)]
    coefficients = go_random._power_of_t(steps)
    jumped = int((start * coefficients).sum(dtype=np.uint64))
    assert jumped == numbers[steps]


def test_normal_table_has_the_published_entries():
    table = go_random.normal()
    assert [hex(value) for value in table.thresholds[:4]] == [
        "0x76ad2212",
        "0x0",
        "0x600f1b53",
        "0x6ce447a6",
    ]
    assert hex(table.thresholds[127]) == "0x77d664e5"
    assert np.float32(table.widths[127]) == np.float32("1.6030948e-09")
    assert table.heights[127] == np.float32("0.0026696292")


def test_exponential_table_has_the_published_entries():
    table = go_random.exponential()
    assert [hex(value) for value in table.thresholds[:4]] == [
        "0xe290a139",
        "0x0",
        "0x9beadebc",
        "0xc377ac71",
    ]
    assert hex(table.thresholds[255]) == "0xe6da6ecf"
    assert np.float32(table.widths[255]) == np.float32("1.7921248e-09")
    assert table.heights[255] == np.float32("0.00045413437")


@pytest.mark.parametrize(
    ("table", "sums"),
    [
        (go_random.normal, (2920647830, 3289620643, 175509752)),
        (go_random.exponential, (703905664, 4039496000, 2685981480)),
    ],
)
def test_tables_are_those_compared_with_go(table, sums):
    """Checksums of tables that were compared with every entry that Go lists."""
    parts = (
        np.array(table().thresholds, np.uint32),
        np.array(table().widths, np.float32),
        np.array(table().heights, np.float32),
    )
    assert tuple(zlib.crc32(part.tobytes()) for part in parts) == sums


@pytest.mark.parametrize(
    ("table", "scale", "area", "tail_area"),
    [
        (
            go_random.normal,
            2.0**31,
            go_random.NORMAL_AREA,
            math.sqrt(math.pi / 2) * math.erfc(go_random.NORMAL_TAIL / math.sqrt(2)),
        ),
        (
            go_random.exponential,
            2.0**32,
            go_random.EXPONENTIAL_AREA,
            math.exp(-go_random.EXPONENTIAL_TAIL),
        ),
    ],
)
def test_layers_have_equal_areas(table, scale, area, tail_area):
    edges = np.array(table().widths[1:]) * scale
    heights = np.array(table().heights, np.float64)
    layers = edges * (heights[:-1] - heights[1:])
    assert np.allclose(layers, area, rtol=1e-4)
    assert math.isclose(edges[-1] * heights[-1] + tail_area, area, rel_tol=1e-6)


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
    stream._next = go_random.LENGTH
    stream._raw[go_random.LENGTH : go_random.LENGTH + len(numbers)] = np.array(numbers, np.uint64)
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
    for count in (*range(20), LARGEST_BLOCK // 2, 3 * LARGEST_BLOCK):
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

"""The simple mode: draw order, presets, horizon, and options that the reference refuses too."""

import numpy as np
import pytest

from blis_jax.errors import ConfigError
from blis_jax.workload.distribution import PRESETS, Distribution, GaussianLengths, preset
from blis_jax.workload.go_random import Stream
from blis_jax.workload.reference import golden_arrays
from blis_jax.workload.reference.clients import VOCABULARY
from blis_jax.workload.reference.distribution import (
    TIMEOUT_US,
    as_spec,
    distribution_arrays,
    draw_distribution,
)


def test_draw_order_is_from_the_seed_itself():
    arrays = distribution_arrays(Distribution(prefix_tokens=40, num_requests=2), seed=77)
    stream = Stream(77)
    stream.intn_vector(VOCABULARY, 40)
    for row in range(2):
        for name, more in (("input_len", 40), ("output_len", 0)):
            drawn = stream.norm_float64() * 256 + 512
            length = round(max(2.0, min(7000.0, drawn)))
            assert arrays[name][row] == more + length
            stream.intn_vector(VOCABULARY, length)


@pytest.mark.parametrize(
    ("rate", "gap_us"), [(1.0, 1_000_000), (3.0, 333_333), (10.0, 99_999), (7e6, 0)]
)
def test_requests_are_evenly_spaced_from_time_0(rate, gap_us):
    """The reciprocal is truncated, and that of 1e-5 in floating point lies below 100,000."""
    arrays = distribution_arrays(Distribution(rate=rate, num_requests=4), seed=1)
    assert arrays["arrival_us"].tolist() == [0, gap_us, 2 * gap_us, 3 * gap_us]


@pytest.mark.parametrize(("horizon_us", "num"), [(1, 1), (99_999, 1), (100_000, 2), (None, 5)])
def test_requests_arrive_before_the_horizon(horizon_us, num):
    distribution = Distribution(rate=10.0, num_requests=5)
    assert len(distribution_arrays(distribution, 1, horizon_us)["arrival_us"]) == num


def test_equal_bounds_draw_nothing():
    fixed = GaussianLengths(8, 8, 8, 8)
    distribution = Distribution(num_requests=2, prompt=fixed, output=fixed)
    arrays = distribution_arrays(distribution, 3, block_size=8)
    stream = Stream(3)
    tokens = stream.intn_vector(VOCABULARY, 32).reshape(4, 8)
    assert len(np.unique(tokens, axis=0)) == len(arrays["block_ids_delta"]) == 4
    assert arrays["input_len"].tolist() == arrays["output_len"].tolist() == [8, 8]


def test_the_prefix_is_shared():
    distribution = Distribution(num_requests=3, prefix_tokens=64)
    table, names = draw_distribution(distribution, 42)
    assert names.tenant_names == ("",)
    assert table.node_start[0] == 0 and table.node_blocks[0] == 4
    assert np.all(table.path_nodes[:, 0] == 0)


@pytest.mark.parametrize("name", PRESETS)
def test_presets_keep_their_bounds(name):
    distribution = preset(name, 5.0, 20)
    arrays = distribution_arrays(distribution, 42)
    assert len(arrays["arrival_us"]) == 20
    for key, lengths in (("input_len", distribution.prompt), ("output_len", distribution.output)):
        assert lengths.min <= arrays[key].min() < arrays[key].max() <= lengths.max
        assert abs(arrays[key].mean() - lengths.mean) < 5 * lengths.stdev / np.sqrt(20)


BAD = {
    "rate": ({"rate": 0.0}, ["--rate", "above 0"]),
    "infinite rate": ({"rate": float("inf")}, ["--rate", "finite"]),
    "number": ({"num_requests": 0}, ["--num-requests", "between 1 and"]),
    "prefix": ({"prefix_tokens": -1}, ["--prefix-tokens", "-1"]),
    "mean": (
        {"prompt": GaussianLengths(1, 2, 2, 9)},
        ["--prompt-tokens is 1", "--prompt-tokens-min 2"],
    ),
    "stdev": ({"output": GaussianLengths(5, 10, 2, 9)}, ["--output-tokens-stdev is 10", "-max 9"]),
    "negative": ({"prompt": GaussianLengths(5, 0, -1, 9)}, ["--prompt-tokens-min", "-1"]),
}


@pytest.mark.parametrize("case", BAD)
def test_options_that_cannot_be_used(case):
    settings, words = BAD[case]
    with pytest.raises(ConfigError) as caught:
        Distribution(**settings)
    for word in words:
        assert word in str(caught.value)


def test_rates_and_lengths_that_cannot_be_drawn():
    with pytest.raises(ConfigError, match="--rate"):
        distribution_arrays(Distribution(rate=1e-14), 1)
    nothing = Distribution(prompt=GaussianLengths(0, 0, 0, 0))
    with pytest.raises(ConfigError, match="--prompt-tokens-min"):
        distribution_arrays(nothing, 1)


def test_the_revised_form_is_a_workload_of_one_client():
    distribution = Distribution(rate=40.0, num_requests=4, prefix_tokens=64)
    spec = as_spec(distribution)
    table, names = draw_distribution(distribution, 42, revision="blis-2026-08")
    assert table.arrival_us.tolist() == [24_999, 49_998, 74_997, 99_996]
    assert names.prefix_group_names == ("shared",)
    assert [client.id for client in spec.clients] == ["distribution"]
    arrays = golden_arrays(spec, 42, timeout_us=TIMEOUT_US)
    assert np.array_equal(arrays["input_len"], table.input_len)
    assert (arrays["deadline_us"] - arrays["arrival_us"]).tolist() == [300_000_000] * 4
    pool = as_spec(distribution, concurrency=3, think_time_us=90)
    assert pool.clients[0].concurrency == 3 and pool.aggregate_rate == 0
    assert golden_arrays(pool, 42)["arrival_us"].tolist() == [0, 30, 60]

"""Step times with a cost per token of context."""

import dataclasses

import numpy as np
import pytest

from blis_jax.batch import run_grid
from blis_jax.config import ClusterConfig
from blis_jax.errors import ConfigError
from blis_jax.run_requests import draw_requests
from blis_jax.simulation import Options, simulate
from blis_jax.types import Outcome
from blis_jax.workload.spec import parse_spec
from tests.scenes import Prompt, differences, flags, run_both, table_of, workload_of

OPTIONS = Options(num_slots=64, log_capacity=4096)
BETA = [1000.0, 3.0, 7.0, 0.25]


def test_a_single_request_by_hand():
    """Prompt of 40 in chunks of 16, then three decode steps on 40, 41 and 42 tokens."""
    settings = flags(beta_coeffs=BETA, long_prefill_token_threshold=16)
    record, expected = run_both(workload_of([Prompt(0, 40, 4)]), settings, OPTIONS)
    contexts = [0, 16, 32, 40, 41, 42]
    prefill, decode = [16, 16, 8, 0, 0, 0], [0, 0, 0, 1, 1, 1]
    by_hand = [
        int(1000 + 3.0 * p + 7.0 * d + 0.25 * c)
        for p, d, c in zip(prefill, decode, contexts, strict=True)
    ]
    assert record.steps.duration_us.tolist() == by_hand
    assert not differences(record, expected)


def _burst(seed: int, num_prompts: int = 40) -> list[Prompt]:
    rng = np.random.default_rng(seed)
    return [
        Prompt(
            int(rng.integers(60_000)),
            int(rng.integers(1, 120)),
            int(rng.integers(0, 40)),
            int(rng.integers(6)),
            int(rng.integers(-1, 2)),
            32,
        )
        for _ in range(num_prompts)
    ]


@pytest.mark.parametrize("blocks", [100_000, 60])
def test_runs_are_the_oracles(blocks):
    """With shared prefixes and chunks, memory in plenty and under pressure."""
    settings = flags(
        beta_coeffs=BETA,
        alpha_coeffs=[20.0, 0.5, 30.0],
        num_instances=2,
        total_kv_blocks=blocks,
        max_num_scheduled_tokens=64,
        long_prefill_token_threshold=24,
    )
    for seed in range(3):
        record, expected = run_both(workload_of(_burst(seed)), settings, OPTIONS)
        assert record.outcome == Outcome.COMPLETED
        assert not differences(record, expected)


@pytest.mark.slow
def test_the_vectorised_loop_counts_the_same_context():
    table = table_of(workload_of(_burst(2)))
    config = ClusterConfig(num_instances=2, beta_coeffs=tuple(BETA), max_num_scheduled_tokens=64)
    rows = simulate(config, table, OPTIONS)
    lanes = simulate(config, table, dataclasses.replace(OPTIONS, form="lanes"))
    np.testing.assert_array_equal(rows.steps.duration_us, lanes.steps.duration_us)
    np.testing.assert_array_equal(rows.requests.e2e_us, lanes.requests.e2e_us)


def test_no_cost_changes_nothing():
    table = table_of(workload_of(_burst(1)))
    plain = ClusterConfig(num_instances=2, beta_coeffs=(1000.0, 3.0, 7.0))
    free = plain.replace(beta_coeffs=(1000.0, 3.0, 7.0, 0.0))
    one, other = (simulate(config, table, OPTIONS) for config in (plain, free))
    np.testing.assert_array_equal(one.requests.e2e_us, other.requests.e2e_us)
    assert len(other.steps.num_steps) > len(one.steps.num_steps)


def test_sweeps_take_the_fourth_coefficient_too():
    law = "{type: constant, params: {value: 32}}"
    spec = parse_spec(
        "version: '2'\nseed: 1\naggregate_rate: 50.0\nnum_requests: 12\nclients:\n"
        "- id: one\n  rate_fraction: 1.0\n  arrival: {process: poisson}\n"
        f"  input_distribution: {law}\n  output_distribution: {law}\n",
        "test",
    )
    config = ClusterConfig(beta_coeffs=tuple(BETA))
    table = draw_requests(spec, 3, config.block_size_in_tokens)[0]
    ((record,),) = run_grid([config], spec, [3], lambda record: record).rows
    alone = simulate(config, table, Options(resolve_ties=False))
    np.testing.assert_array_equal(record.requests.e2e_us, alone.requests.e2e_us)
    assert np.all(record.steps.num_steps == 1)


def test_five_coefficients_are_refused():
    with pytest.raises(ConfigError, match="or four with a cost of context"):
        ClusterConfig(beta_coeffs=(1.0,) * 5)

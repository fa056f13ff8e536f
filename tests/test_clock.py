"""Hours of simulated time: the clock is widened before it overflows."""

import numpy as np
import pytest

from blis_jax import config
from blis_jax.batch import run_grid
from blis_jax.simulation import Options, simulate
from blis_jax.types import Outcome
from blis_jax.workload.spec import parse_spec
from tests.scenes import Prompt, differences, flags, run_both, table_of, workload_of

OPTIONS = Options(num_slots=64, log_capacity=4096)
HOUR_US = 3_600_000_000
LAST_US = 2**31 - 1  # of a 32-bit clock, 36 minutes


def prompts(start_us: int) -> list[Prompt]:
    return [
        Prompt(arrival_us=start_us + 3000 * i, input_len=40 + i, output_len=9) for i in range(12)
    ]


@pytest.mark.parametrize("start_us", [LAST_US - 20_000, 2 * HOUR_US, 1000 * HOUR_US])
def test_requests_after_hours_are_the_oracles(start_us):
    """The first burst fits a 32-bit clock, the second crosses its end or lies far beyond."""
    workload = workload_of(prompts(0) + prompts(start_us))
    record, expected = run_both(workload, flags(), OPTIONS)
    assert record.outcome == Outcome.COMPLETED
    assert not differences(record, expected)
    assert record.requests.left_us.max() > LAST_US


def test_a_later_start_shifts_everything():
    cluster = config.from_flags(flags())
    early, late = (
        simulate(cluster, table_of(workload_of(prompts(start))), OPTIONS)
        for start in (0, 100 * HOUR_US)
    )
    np.testing.assert_array_equal(early.requests.left_us + 100 * HOUR_US, late.requests.left_us)
    np.testing.assert_array_equal(early.requests.ttft_us, late.requests.ttft_us)


def test_drawn_workloads_of_hours_are_widened():
    law = "{type: constant, params: {value: 64}}"
    spec = parse_spec(
        "version: '2'\nseed: 1\naggregate_rate: 0.01\nnum_requests: 64\nclients:\n"
        "- id: slow\n  rate_fraction: 1.0\n  arrival: {process: poisson}\n"
        f"  input_distribution: {law}\n  output_distribution: {law}\n",
        "test",
    )
    cluster = config.from_flags(flags())
    (records,) = run_grid([cluster], spec, range(2), lambda record: record, OPTIONS).rows
    for record in records:
        assert record.outcome == Outcome.COMPLETED
        assert record.requests.left_us.max() > LAST_US
        assert np.all(record.requests.ttft_us[record.requests.ttft_us >= 0] < 10_000_000)

"""Hours of simulated time: the clock is widened before it overflows."""

import dataclasses

import numpy as np
import pytest

from blis_jax.cluster import config
from blis_jax.cluster.config import NO_HORIZON
from blis_jax.core.outcome import Outcome
from blis_jax.policies.seeds import FIXED
from blis_jax.runs.driver import Runner
from blis_jax.runs.many_runs import run_grid, simulate
from blis_jax.runs.options import Options
from blis_jax.runs.runs import Row
from blis_jax.workload.spec import parse_spec
from tests.support.oracles import oracle
from tests.support.scenes import Prompt, differences, flags, run_both, table_of, workload_of

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


# What comes to the clock's last time exactly, which stands for never, or to one beyond it.
AT_THE_END = {
    "a step ends at the last time": (LAST_US - 1, {"beta_coeffs": [1.0, 0.0, 0.0]}),
    "a step begins just before it": (LAST_US - 1, {"horizon": LAST_US + 50_000}),
    "a queueing time as long as the clock": (0, {"alpha_coeffs": [float(LAST_US), 0.0, 0.0]}),
    "a queueing time longer than the clock": (0, {"alpha_coeffs": [3e9, 0.0, 0.0]}),
    "tokens of a queueing time": (7, {"alpha_coeffs": [0.0, (LAST_US - 7) / 20, 0.0]}),
    "a step as long as the clock": (0, {"beta_coeffs": [float(LAST_US), 0.0, 0.0]}),
    "a step longer than the clock": (0, {"beta_coeffs": [3e9, 0.0, 0.0]}),
    "decode steps": (0, {"beta_coeffs": [0.0, 0.0, (LAST_US - 1) / 2]}),
    "both latencies": (
        0,
        {"admission_latency": LAST_US // 2, "routing_latency": LAST_US // 2 + 1},
    ),
    "a horizon between two steps": (
        LAST_US - 1500,
        {"horizon": LAST_US - 1, "max_num_scheduled_tokens": 7},
    ),
    "output processing": (LAST_US - 5000, {"alpha_coeffs": [0.0, 0.0, 2e9]}),
}


@pytest.mark.parametrize("name", AT_THE_END)
def test_sums_that_leave_the_clock_are_the_oracles(name: str):
    arrival, changes = AT_THE_END[name]
    record, expected = run_both(workload_of([Prompt(arrival, 20, 3)]), flags(**changes), OPTIONS)
    assert not differences(record, expected)


def test_given_tables_that_leave_the_clock_are_the_oracles():
    given = [(workload_of([Prompt(at, 20, 3)]), flags(**more)) for at, more in AT_THE_END.values()]
    rows = [
        Row(config.from_flags(settings), table_of(workload), FIXED) for workload, settings in given
    ]
    records = Runner(OPTIONS, len(rows)).run(rows, lambda record: record)
    for record, (workload, settings) in zip(records, given, strict=True):
        assert not differences(record, oracle.simulate(workload, settings))


def test_overlapping_steps_that_last_longer_together_than_the_clock_are_the_oracles():
    """Requests of one token leave the instance idle at once, so all steps start within 40 µs."""
    rows = [Prompt(10 * i, 20, 1) for i in range(3)] + [Prompt(40, 20, 2)]
    settings = flags(beta_coeffs=[5e8, 0.0, 0.0])
    record, expected = run_both(workload_of(rows), settings, OPTIONS)
    assert not differences(record, expected)
    assert record.requests.left_us.max() < LAST_US < record.steps.duration_us.sum()


@pytest.mark.slow
@pytest.mark.parametrize("base_latency_us", [2**31 // 10, 2**31 - 2])
def test_transfers_that_leave_the_clock_are_the_oracles(base_latency_us: int):
    """Blocks that come back from the CPU tier together take longer than the 32-bit clock counts."""
    rows = [Prompt(1501 * i, 80, 10, group=i % 2, prefix_len=48) for i in range(12)]
    settings = flags(
        total_kv_blocks=18,
        kv_cpu_blocks=200,
        kv_offload_threshold=0.1,
        kv_transfer_base_latency=base_latency_us,
    )
    record, expected = run_both(workload_of(rows), settings, OPTIONS)
    assert not differences(record, expected)
    assert record.instances.reload_us.sum() > LAST_US


def slow_spec(rate: float):
    law = "{type: constant, params: {value: 64}}"
    return parse_spec(
        f"version: '2'\nseed: 1\naggregate_rate: {rate}\nnum_requests: 64\nclients:\n"
        "- id: slow\n  rate_fraction: 1.0\n  arrival: {process: poisson}\n"
        f"  input_distribution: {law}\n  output_distribution: {law}\n",
        "test",
    )


@pytest.mark.parametrize("horizon", [NO_HORIZON, LAST_US + 1_000_000, LAST_US - 1])
@pytest.mark.parametrize("part", ["alpha_coeffs", "beta_coeffs"])
def test_drawn_sums_that_leave_the_clock_are_widened(part: str, horizon: int):
    """As long as the clock's range, all of it and a third."""
    clusters = [
        config.from_flags(flags(**{part: [float(LAST_US // parts), 0.0, 0.0]}, horizon=horizon))
        for parts in (1, 3)
    ]
    both = [
        run_grid(clusters, slow_spec(100.0), [1], lambda record: record, options).rows
        for options in (OPTIONS, dataclasses.replace(OPTIONS, clock="int64"))
    ]
    for (narrow,), (wide,) in zip(*both, strict=True):
        assert narrow.outcome == wide.outcome != Outcome.CLOCK_OVERFLOW
        for field in dataclasses.fields(wide.requests):
            mine, theirs = (getattr(one.requests, field.name) for one in (narrow, wide))
            np.testing.assert_array_equal(mine, theirs, err_msg=field.name)


def test_drawn_workloads_of_hours_are_widened():
    cluster = config.from_flags(flags())
    (records,) = run_grid([cluster], slow_spec(0.01), range(2), lambda record: record, OPTIONS).rows
    for record in records:
        assert record.outcome == Outcome.COMPLETED
        assert record.requests.left_us.max() > LAST_US
        assert np.all(record.requests.ttft_us[record.requests.ttft_us >= 0] < 10_000_000)

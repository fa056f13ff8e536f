"""Steps that achieve nothing: with a horizon, or a deadline, the run goes on to it."""

import dataclasses
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from blis_jax.cluster import config
from blis_jax.core.outcome import Outcome
from blis_jax.core.pytrees import Parts
from blis_jax.policies.seeds import FIXED
from blis_jax.records import invariants
from blis_jax.records.record import RunRecord, Status
from blis_jax.runs import runs
from blis_jax.runs.driver import Runner
from blis_jax.runs.many_runs import run_grid, simulate
from blis_jax.runs.options import Options
from blis_jax.runs.runs import GivenRun, Row
from blis_jax.workload.drawing.draw import compile_plan, draw
from blis_jax.workload.spec import parse_spec
from blis_jax.workload.table import with_timeouts
from tests.support.oracles import oracle
from tests.support.scenes import Prompt, differences, flags, run_both, table_of, workload_of

OPTIONS = Options(num_slots=64, num_blocks=64, list_blocks=96, num_shared_blocks=96)
AGEING = {"priority_policy": "slo-tiered", "scheduler": "priority-fcfs"}

# Nothing runs any more: a roll-back has leaked the blocks that the waiting requests need.
STARVED = {
    "one request": ([Prompt(0, 150, 40)], {}),
    "100 s": (
        [Prompt(0, 150, 40)],
        {"horizon": 100_000_000, "beta_coeffs": [6910.42, 17.67, 2.83]},
    ),
    "steps of 42 µs": (
        [Prompt(0, 150, 40), Prompt(100, 60, 20)],
        {"horizon": 3_500_000, "beta_coeffs": [42.0, 0.0, 0.0]},
    ),
    "arrivals in between": (
        [Prompt(1000 * i, 150, 40) for i in range(4)]
        + [Prompt(2_000_000, 20, 3), Prompt(2_500_001, 60, 30)],
        {"beta_coeffs": [420.0, 0.3, 0.1]},
    ),
    "the horizon is beyond the 32-bit clock": (
        [Prompt(0, 150, 40)],
        {"horizon": 3_000_000_000, "beta_coeffs": [69_100.0, 0.0, 0.0]},
    ),
    "two instances": (
        [Prompt(1000 * i, 150, 40, group=i % 2, prefix_len=48) for i in range(5)],
        {"num_instances": 2},
    ),
    "ageing requests": ([Prompt(999 * i, 150, 40, slo_class=i % 4) for i in range(5)], AGEING),
}
# Requests are admitted in chunks and evicted before they are done, over and over.
THRASHING = {
    "a chunked prompt": ([Prompt(0, 128, 40), Prompt(100, 90, 5)], 8, 32, {}),
    "first tokens again and again": (
        [
            Prompt(0, 60, 40, group=0, prefix_len=32),
            Prompt(1, 100, 5, group=1, prefix_len=32),
            Prompt(2003, 160, 40),
        ],
        10,
        20,
        {},
    ),
    "the lowest priority is evicted": (
        [
            Prompt(0, 60, 1, group=0, prefix_len=32),
            Prompt(1001, 192, 20, slo_class=1, group=1, prefix_len=32),
            Prompt(2003, 90, 1, slo_class=2, group=0, prefix_len=32),
        ],
        12,
        7,
        {**AGEING, "slo_preemption": True},
    ),
}
HORIZON_US = 15_000_000


def check(rows: list[Prompt], changes: dict) -> RunRecord:
    settings = flags(**{"total_kv_blocks": 10, "horizon": HORIZON_US} | changes)
    record, expected = run_both(workload_of(rows), settings, OPTIONS)
    assert record.outcome == Outcome.HORIZON
    assert not differences(record, expected)
    assert not any(invariants.violations(record).values())
    return record


@pytest.mark.slow
@pytest.mark.parametrize("name", STARVED)
def test_starved_requests_wait_until_the_horizon(name: str):
    assert check(*STARVED[name]).steps.num_steps.sum() > 14_000


@pytest.mark.slow
@pytest.mark.parametrize("name", THRASHING)
def test_thrashing_goes_on_until_the_horizon(name: str):
    rows, blocks, threshold, changes = THRASHING[name]
    own = {"total_kv_blocks": blocks, "long_prefill_token_threshold": threshold}
    record = check(rows, own | changes)
    assert record.instances.preemption_count.sum() > 1000
    assert record.steps.num_steps.sum() > 10_000


@pytest.mark.slow
def test_a_request_whose_time_is_up_ends_what_repeats():
    """Steps of 42 µs follow each other until its deadline; without it there are 82,000 up to the horizon."""
    prompts = [Prompt(0, 150, 40), Prompt(100, 60, 20)]
    table = with_timeouts(table_of(workload_of(prompts)), np.full(2, 2_000_000))
    cluster = config.ClusterConfig(
        total_kv_blocks=10, horizon=3_500_000, beta_coeffs=(42.0, 0.0, 0.0)
    )
    record = simulate(cluster, table, OPTIONS)
    assert record.requests.status.tolist() == [Status.TIMED_OUT, Status.COMPLETED]
    since = record.steps.start_us[0]
    assert record.steps.num_steps.sum() == -(-(2_000_000 - since) // 42)


@pytest.mark.slow
def test_a_run_without_a_horizon_ends_with_the_time_of_who_repeats():
    """BLIS goes on until then; one that repeats and has no deadline is a livelock."""
    prompts = [Prompt(0, 150, 40), Prompt(100, 60, 20), Prompt(2_500_000, 20, 5)]
    table = table_of(workload_of(prompts))
    cluster = config.ClusterConfig(total_kv_blocks=10, beta_coeffs=(42.0, 0.0, 0.0))
    timed = with_timeouts(table, np.full(3, 2_000_000))
    found = simulate(cluster, timed, OPTIONS)
    assert found.outcome == Outcome.COMPLETED
    times_out = Status.TIMED_OUT  # the third one misses blocks that the first has leaked
    assert found.requests.status.tolist() == [times_out, Status.COMPLETED, times_out]
    until = simulate(cluster.replace(horizon=5_500_000), timed, OPTIONS)
    for name in ("status", "e2e_us", "preemptions", "num_scheduled"):
        one, other = getattr(found.requests, name), getattr(until.requests, name)
        np.testing.assert_array_equal(one, other)
    for name in ("step_count", "waiting_sum"):
        one, other = getattr(found.instances, name), getattr(until.instances, name)
        np.testing.assert_array_equal(one, other)
    patient = with_timeouts(table, np.array([0, 2_000_000, 0]))
    assert simulate(cluster, patient, OPTIONS).outcome == Outcome.LIVELOCK
    assert simulate(cluster, table, OPTIONS).outcome == Outcome.LIVELOCK


@pytest.mark.slow
def test_who_waits_at_the_gateway_still_does_at_the_horizon():
    prompts = [Prompt(0, 150, 40), Prompt(100, 60, 20)]
    queue = {"flow_control": True, "saturation_detector": "concurrency", "max_concurrency": 1}
    settings = {"total_kv_blocks": 10, "horizon": 3_500_000, "beta_coeffs": (42.0, 0.0, 0.0)}
    record = simulate(
        config.ClusterConfig(**settings, **queue), table_of(workload_of(prompts)), OPTIONS
    )
    assert record.outcome == Outcome.HORIZON and record.steps.num_steps.sum() > 80_000
    assert record.requests.status.tolist() == [Status.WAITING, Status.IN_GATEWAY]


@pytest.mark.slow
def test_without_a_horizon_it_stays_a_livelock():
    rows, changes = STARVED["one request"]
    settings = flags(total_kv_blocks=10, **changes)
    record, expected = run_both(workload_of(rows), settings, OPTIONS)
    assert record.outcome == Outcome.LIVELOCK
    assert expected.outcome.startswith("livelock")


@pytest.mark.slow
def test_given_tables_go_on_to_the_horizon():
    several = [Prompt(1000 * i, 150, 40, group=i % 2, prefix_len=48) for i in range(4)]
    given = [
        (workload_of(prompts), flags(total_kv_blocks=10, horizon=horizon))
        for prompts, horizon in (
            ([Prompt(0, 150, 40)], HORIZON_US),
            (several, HORIZON_US),
            (several, 20_000),
            ([Prompt(0, 90, 40)], HORIZON_US),
        )
    ]
    rows = [
        Row(config.from_flags(settings), table_of(workload), FIXED) for workload, settings in given
    ]
    records = Runner(OPTIONS, len(rows)).run(rows, lambda record: record)
    for record, (workload, settings) in zip(records, given, strict=True):
        assert not differences(record, oracle.simulate(workload, settings))
    assert records[1].steps.num_steps.sum() > 14_000


LAW = "{type: constant, params: {value: %d}}"
SPEC = f"""
version: '2'
seed: 1
aggregate_rate: 500.0
num_requests: 5
clients:
- id: long
  rate_fraction: 1.0
  arrival: {{process: poisson}}
  input_distribution: {LAW % 150}
  output_distribution: {LAW % 40}
"""


@pytest.mark.slow
@pytest.mark.lenient_promotion
def test_drawn_rows_go_on_to_the_horizon():
    spec = parse_spec(SPEC, "test")
    cluster = config.from_flags(flags(total_kv_blocks=10, horizon=HORIZON_US))
    (row,) = run_grid([cluster], spec, [3], lambda record: record, OPTIONS).rows[0]
    plan = compile_plan(spec, block_size=16)
    with jax.enable_x64(True):
        table, _ = jax.device_get(draw(plan.shape, plan.params, jax.random.key(3)))
    alone = simulate(cluster, table, OPTIONS)
    assert row.outcome == alone.outcome == Outcome.HORIZON
    for part in ("requests", "steps", "instances"):
        for field in dataclasses.fields(getattr(alone, part)):
            mine, theirs = (getattr(getattr(one, part), field.name) for one in (row, alone))
            np.testing.assert_array_equal(mine, theirs, err_msg=field.name)
    assert row.steps.num_steps.sum() > 14_000


@dataclasses.dataclass(frozen=True)
class Ended:
    """As much of a record as a repair changes."""

    outcome: Outcome
    has_priorities: bool = False
    adapters: None = None


class StandInRun(GivenRun):
    """A run with such a record."""


@pytest.mark.parametrize("in_stretches", [Outcome.HORIZON, Outcome.LIVELOCK])
def test_a_run_that_fills_its_log_again_and_again_is_made_in_stretches(
    in_stretches: Outcome, monkeypatch: pytest.MonkeyPatch
):
    """Each larger log is another program; one that has too many records for stretches gets larger logs all the same."""
    whole = SimpleNamespace(
        outcome=lambda: in_stretches,
        num_open_ties=lambda: 0,
        raw=Parts(),
    )
    monkeypatch.setattr(runs, "run_record", lambda seen, repairs: Ended(Outcome.LOG_FULL))
    settings = config.from_flags(flags(num_instances=8, total_kv_blocks=7, horizon=90_000_000))
    row = Row(settings, table_of(workload_of([Prompt(0, 40, 60)])), FIXED)
    run = StandInRun(row, Options(kv_model="block-level"))
    made = []
    monkeypatch.setattr(run, "_to_horizon", lambda: made.append(True) or whole)
    found = [run.take(Outcome.LOG_FULL, lambda: whole) for _ in range(4)]
    ended = [None if one is None else one.outcome for one in found]
    if in_stretches == Outcome.HORIZON:
        assert ended == [None, None, Outcome.HORIZON, Outcome.HORIZON]
    else:
        assert ended == [None] * 4 and made == [True]

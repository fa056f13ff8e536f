"""Policies that BLIS has not: against the oracle, and where each must show and must not."""

from __future__ import annotations

import numpy as np
import pytest

from blis_jax.cluster import config
from blis_jax.cluster.config import ClusterConfig
from blis_jax.records.record import Status
from blis_jax.runs.many_runs import simulate
from blis_jax.runs.options import Options
from blis_jax.workload.reference import draw
from blis_jax.workload.spec import load_builtin, override
from sweeps.strategies.moved import changed
from tests.support.scenes import Prompt, differences, flags, run_both, table_of, workload_of

OPTIONS = Options(num_slots=64, log_capacity=4096)
CRITICAL, STANDARD, SHEDDABLE = 1, 2, 3
ORDER = "sweeps/strategies/policies/orders.py:priority_cached"
DEADLINES = {
    "slo_deadline_critical": 3_000,
    "slo_deadline_standard": 8_000,
    "slo_deadline_sheddable": 20_000,
    "slo_deadline_least_left": 500,
}


def crowd(seed: int, count: int = 40) -> list[Prompt]:
    rng = np.random.default_rng(seed)
    times = np.sort(rng.integers(0, 30_000, count))
    return [
        Prompt(int(time), int(rng.integers(5, 60)), int(rng.integers(1, 6)), int(code))
        for time, code in zip(times, rng.integers(0, 6, count), strict=True)
    ]


@pytest.mark.parametrize("seed", range(6))
def test_deadline_urgency_equals_the_oracle(seed: int) -> None:
    settings = {"scheduler": "priority-fcfs", "priority_policy": "slo-deadline"} | DEADLINES
    settings |= {"max_num_running_reqs": 2, "num_instances": 2}
    record, expected = run_both(workload_of(crowd(seed)), flags(**settings), OPTIONS)
    assert not differences(record, expected)


@pytest.mark.parametrize("seed", range(3))
def test_gate_by_class_equals_the_oracle(seed: int) -> None:
    settings = {"admission_policy": "class-gated", "class_gated_probability": 1.0}
    settings |= {"class_gated_standard": 2.0, "class_gated_sheddable": 0.5, "num_instances": 2}
    record, expected = run_both(workload_of(crowd(seed)), flags(**settings), OPTIONS)
    assert not differences(record, expected)
    status, slo_class = record.requests.status, record.requests.slo_class
    assert (status[slo_class == SHEDDABLE] == Status.REJECTED).any()
    assert (status[slo_class == CRITICAL] == Status.COMPLETED).all()


def test_gate_sheds_the_asked_share() -> None:
    table, _ = draw(override(load_builtin("mixed"), num_requests=1000), 7)
    shared = {"num_instances": 8, "admission_policy": "class-gated", "class_gated_sheddable": 0.0}
    rejected = {}
    for share in (0.0, 0.3, 1.0):
        cluster = changed(ClusterConfig(), shared | {"class_gated_probability": share})
        status = simulate(cluster, table).requests
        is_shed = status.status[status.slo_class == SHEDDABLE] == Status.REJECTED
        rejected[share] = is_shed.mean()
    assert rejected[0.0] == 0.0
    assert rejected[1.0] > 0.99  # the first arrivals meet an empty cluster
    assert rejected[0.3] == pytest.approx(0.3, abs=0.1)  # 300 draws: 3.8 standard deviations


def test_cached_prompts_go_first_only_with_a_worth() -> None:
    """While the first runs, one with its prefix and an earlier one without wait."""
    prompts = [Prompt(0, 200, 40, group=0, prefix_len=160)]
    prompts += [Prompt(1_000, 200, 2), Prompt(2_000, 200, 2, group=0, prefix_len=160)]
    table = table_of(workload_of(prompts))
    base = config.from_flags(flags(max_num_running_reqs=1))
    starts = {}
    for worth in (0.0, 1.0):
        cluster = base.replace(scheduler=ORDER, **{"scheduler.per_block": worth})
        starts[worth] = simulate(cluster, table, OPTIONS).requests.scheduled_step_idx
    assert starts[0.0][1] < starts[0.0][2]
    assert starts[1.0][2] < starts[1.0][1]

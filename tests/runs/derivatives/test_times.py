"""Pathwise derivatives against central differences on a clock without truncation."""

import dataclasses
from typing import Any

import numpy as np
import pytest

from blis_jax.cluster import config
from blis_jax.cluster.config import ClusterConfig
from blis_jax.core.outcome import Outcome
from blis_jax.errors import ConfigError
from blis_jax.records.record import RunRecord
from blis_jax.runs.derivatives.times import Derivatives, Differentiator, jacobian, jvp
from blis_jax.runs.many_runs import simulate
from blis_jax.runs.options import Options
from blis_jax.workload.table import RequestTable
from tests.support.scenes import Prompt, burst, flags, table_of, workload_of

SMOOTH = Options(num_slots=64, log_capacity=2048, clock="continuous")
WHOLE = Options(num_slots=64, log_capacity=2048, clock="float64")
TIMES = ("ttft_us", "e2e_us", "left_us", "sched_delay_us", "queued_at_us")
DECISIONS = ("instance", "status", "scheduled_step_idx", "finished_step_idx", "preemptions")
STRETCH = 1e-3  # arrivals are multiples of 1,000, so that they stay whole


def thousands(seed: int, num_prompts: int = 40, span: int = 120) -> RequestTable:
    """A burst within `span` ms; arrivals are whole thousands."""
    return table_of(workload_of(burst(seed, num_prompts, span, 1000)))


def settings(**changes: Any) -> ClusterConfig:
    given = {
        "alpha_coeffs": [23.71, 0.537, 31.13],
        "beta_coeffs": [1003.37, 3.19, 7.77],
        "num_instances": 2,
        "max_num_scheduled_tokens": 64,
        "long_prefill_token_threshold": 24,
        "admission_latency": 30,
        "routing_latency": 40,
    }
    return config.from_flags(flags(**given | changes))


SCENES: dict[str, dict[str, Any]] = {
    "plenty": {},
    "by priority": {"scheduler": "priority-fcfs", "priority_policy": "slo-tiered"},
    "context": {"beta_coeffs": [1003.37, 3.19, 7.77, 0.173]},
    "attention": {
        "beta_coeffs": [1003.37, 3.19, 7.77, 0.173],
        "latency_model": "blackbox-attention",
    },
    "pressure": {"total_kv_blocks": 28},
    "cpu tier": {
        "total_kv_blocks": 28,
        "kv_cpu_blocks": 30,
        "kv_offload_threshold": 0.1,
        "kv_transfer_base_latency": 50,
    },
}


QUICK = {("context", False)}  # each compiles for itself


def moved(
    cluster: ClusterConfig, table: RequestTable, name: str, step: float
) -> tuple[ClusterConfig, RequestTable]:
    """The inputs, a step further along one direction."""
    if name == "arrival_scale":
        scale = round(1 / STRETCH) + round(step / STRETCH)
        arrival = np.where(np.arange(table.num_rows) >= 0, table.arrival_us, 0)
        return cluster, dataclasses.replace(table, arrival_us=arrival // 1000 * scale)
    if name[:-1] in ("alpha", "beta"):
        values = list(getattr(cluster, f"{name[:-1]}_coeffs"))
        values[int(name[-1])] += step
        return cluster.replace(**{f"{name[:-1]}_coeffs": tuple(values)}), table
    return cluster.replace(**{name: getattr(cluster, name) + int(step)}), table


STEPS = {
    "alpha0": 1e-3,
    "alpha1": 1e-5,
    "alpha2": 1e-3,
    "beta0": 1e-4,
    "beta1": 1e-6,
    "beta2": 1e-5,
    "beta3": 1e-7,
    "arrival_scale": STRETCH,
    "kv_transfer_base_latency": 1,
    "admission_latency": 1,
    "routing_latency": 1,
}


def directions_of(cluster: ClusterConfig) -> tuple[str, ...]:
    names = [name for name in STEPS if name != "beta3" or len(cluster.beta_coeffs) > 3]
    return tuple(n for n in names if n != "kv_transfer_base_latency" or cluster.kv_cpu_blocks)


def is_same_path(one: RunRecord, other: RunRecord) -> bool:
    return all(
        np.array_equal(getattr(one.requests, name), getattr(other.requests, name))
        for name in DECISIONS
    )


def worst_error(
    found: Derivatives, place: int, ahead: RunRecord, back: RunRecord, h: float
) -> float:
    worst = 0.0
    for name in TIMES:
        slope = getattr(found, name)[place]
        exists = ~np.isnan(slope)
        assert exists.any()
        change = (getattr(ahead.requests, name) - getattr(back.requests, name)) / (2 * h)
        error = np.abs(change - slope)[exists] / np.maximum(np.abs(slope[exists]), 1.0)
        worst = max(worst, float(error.max()))
    return worst


CASES = [
    pytest.param(
        scene, is_corrected, marks=[] if (scene, is_corrected) in QUICK else pytest.mark.slow
    )
    for scene in SCENES
    for is_corrected in (False, True)
]


@pytest.mark.parametrize(("scene", "corrected"), CASES)
def test_slopes_are_central_differences_where_no_decision_flips(scene, corrected):
    cluster = settings(**SCENES[scene]).replace(corrected=corrected)
    names = directions_of(cluster)
    differentiate = Differentiator(names, SMOOTH)
    num_compared = 0
    for seed in range(4):
        table = thousands(seed)
        found = differentiate.run(cluster, table)
        if found.record.outcome in (Outcome.LIVELOCK, Outcome.REFERENCE_CRASH):
            continue  # the reference's defects under memory pressure
        assert found.record.outcome == Outcome.COMPLETED
        for place, name in enumerate(names):
            h = STEPS[name]
            ahead, back = (
                differentiate.run(*moved(cluster, table, name, sign * h)).record for sign in (1, -1)
            )
            if not (is_same_path(found.record, ahead) and is_same_path(found.record, back)):
                continue
            num_compared += 1
            assert worst_error(found, place, ahead, back, h) < 1e-6, (name, seed)
    assert num_compared >= len(names) - 1


def test_a_repeated_run_has_the_slopes_of_a_whole_one():
    """Other coefficients on the same requests, bit by bit; tables that have grown since are not used."""
    cluster, table = settings(**SCENES["context"]), thousands(0)
    differentiate = Differentiator(directions_of(cluster), SMOOTH)
    differentiate.run(cluster, table)
    repeated = differentiate.repeated(cluster, table)
    other = cluster.replace(alpha_coeffs=(19.0, 0.6, 30.0), beta_coeffs=(1100.0, 3.0, 8.0, 0.2))
    found = repeated(other.alpha_coeffs, other.beta_coeffs)
    whole = differentiate.run(other, table)
    assert found is not None
    np.testing.assert_array_equal(found.ttft_us, whole.record.requests.ttft_us)
    np.testing.assert_array_equal(found.e2e_us, whole.record.requests.e2e_us)
    np.testing.assert_array_equal(found.d_ttft, whole.ttft_us)
    np.testing.assert_array_equal(found.d_e2e, whole.e2e_us)
    repeated.group.shape = dataclasses.replace(repeated.group.shape, log_capacity=4096)
    assert repeated.is_outgrown and repeated(other.alpha_coeffs, other.beta_coeffs) is None


@pytest.mark.slow
def test_reloads_are_what_the_transfer_slope_counts():
    cluster = settings(**SCENES["cpu tier"])
    found = jacobian(cluster, thousands(0), ["kv_transfer_base_latency"], WHOLE)
    assert found.record.instances.cpu_reloads.sum() > 0
    total = found.step_duration_us[0] @ found.record.steps.num_steps
    assert total == found.record.instances.cpu_reloads.sum()


@pytest.mark.slow
def test_the_whole_clock_runs_as_ever_and_passes_truncation_through():
    cluster, table = settings(), thousands(1)
    found = jacobian(cluster, table, ["beta0", "alpha2"], WHOLE)
    plain = simulate(cluster, table, Options(num_slots=64, log_capacity=2048))
    for field in dataclasses.fields(plain.requests):
        mine = getattr(found.record.requests, field.name)
        np.testing.assert_array_equal(mine, getattr(plain.requests, field.name))
    np.testing.assert_array_equal(found.step_duration_us[0], 1.0)
    np.testing.assert_array_equal(
        found.ttft_us[1], np.where(plain.requests.ttft_us >= 0, 1, np.nan)
    )


def test_instances_with_events_at_one_time_keep_their_own_slopes():
    """Two instances whose steps start in the same microsecond, one after a long prompt."""
    prompts = [Prompt(0, 100, 3), Prompt(990, 1, 3)]
    cluster = settings(
        beta_coeffs=[1000.0, 10.0, 0.0],
        alpha_coeffs=[0.0] * 3,
        admission_latency=0,
        routing_latency=0,
        max_num_scheduled_tokens=2048,
        long_prefill_token_threshold=0,
    )
    found = jacobian(cluster, table_of(workload_of(prompts)), ["beta1"], WHOLE)
    np.testing.assert_array_equal(found.record.requests.ttft_us, [2000, 1010])
    np.testing.assert_array_equal(found.ttft_us[0], [100, 1])
    np.testing.assert_array_equal(found.left_us[0], [100, 1])


@pytest.mark.slow
def test_a_direction_is_the_weighted_sum_of_its_parts():
    cluster, table = settings(), thousands(2)
    parts = jacobian(cluster, table, ["beta0", "beta1"], SMOOTH)
    both = jvp(cluster, table, {"beta0": 2.0, "beta1": -0.5}, SMOOTH)
    mixed = 2.0 * parts.e2e_us[0] - 0.5 * parts.e2e_us[1]
    np.testing.assert_allclose(both.e2e_us[0], mixed, rtol=1e-12)


def test_what_acts_through_decisions_is_refused():
    with pytest.raises(ConfigError, match=r"slo_base_critical.*not pathwise"):
        jacobian(settings(), thousands(0), ["slo_base_critical"])
    with pytest.raises(ConfigError, match="no direction"):
        Differentiator([])
    with pytest.raises(ConfigError, match="three beta_coeffs"):
        jacobian(settings(), thousands(0), ["beta3"])

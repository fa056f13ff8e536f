"""Prefill and decode pools: who serves what, how long a transfer takes, and two servers in a row as theory has them."""

import math
from typing import Any

import numpy as np
import pytest

from blis_jax import ClusterConfig, ConfigError, Options, over_seeds, simulate
from blis_jax.core.outcome import Outcome
from blis_jax.policies import admission_policy
from blis_jax.records.record import RunRecord
from blis_jax.records.step_records import expand_steps
from blis_jax.workload.spec import load_builtin, override
from tests.support.scenes import Prompt, table_of, workload_of

STEP_US = 1000
POOLS = [{"count": 1, "role": "prefill"}, {"count": 2, "role": "decode"}]


def config(groups: Any = POOLS, **changes: Any) -> ClusterConfig:
    """Steps of one millisecond whatever is in them, no defects; a transfer takes 250 µs and 1 µs a token."""
    settings = {
        "instances": groups,
        "alpha_coeffs": (0.0, 0.0, 0.0),
        "beta_coeffs": (float(STEP_US), 0.0, 0.0),
        "corrected": True,
        "routing_policy": "least-loaded",
        "hand_over_policy": "pools",
        "pools_link_latency_us": 250.0,
        "pools_kv_bytes_per_token": 1000.0,
        "pools_link_gb_per_s": 1.0,
    }
    return ClusterConfig(**(settings | changes))


def run(prompts: list[Prompt], cluster: ClusterConfig) -> RunRecord:
    record = simulate(cluster, table_of(workload_of(prompts)))
    assert record.outcome == Outcome.COMPLETED
    return record


def test_a_prompt_is_computed_in_one_pool_and_goes_on_in_the_other() -> None:
    record = run([Prompt(0, 160, 4)], config())
    assert record.requests.ttft_us.tolist() == [STEP_US]
    # the step of the prompt, the latency, 160 tokens, and three steps for the other tokens
    assert record.requests.e2e_us.tolist() == [STEP_US + 250 + 160 + 3 * STEP_US]
    steps = expand_steps(record, 16)
    assert steps.step_instance.tolist() == [0, 1, 1, 1]


def test_short_prompts_and_those_that_find_the_pool_full_stay_in_the_decode_pool() -> None:
    prompts = [Prompt(0, 160, 4), Prompt(0, 40, 4), Prompt(0, 160, 4)]
    short = run(prompts, config(pools_split_above_tokens=100))
    assert np.count_nonzero(expand_steps(short, 16).step_instance == 0) == 1
    assert short.requests.ttft_us.tolist() == [STEP_US] * 3
    full = run(prompts, config(pools_split_within_load=0))
    # the second and the third find the first in the prefill pool
    assert [one > 4 * STEP_US for one in full.requests.e2e_us] == [True, False, False]


def test_an_instance_for_both_takes_part_in_both_pools() -> None:
    groups = [{"count": 1, "role": "prefill"}, {"count": 1, "role": "both"}]
    record = run([Prompt(0, 160, 3), Prompt(0, 160, 3)], config(groups))
    # the second prompt goes to the less loaded instance and stays there, where the first one joins it
    assert record.requests.instance.tolist() == [1, 1]
    assert record.requests.e2e_us.tolist() == [2 * STEP_US + 2 * STEP_US, 3 * STEP_US]


def test_without_a_decode_pool_nobody_leaves() -> None:
    record = run([Prompt(0, 160, 4)], config([{"count": 2, "role": "prefill"}]))
    assert record.requests.e2e_us.tolist() == [4 * STEP_US]


@pytest.mark.slow
def test_pools_of_instances_for_both_change_nothing() -> None:
    spec = override(load_builtin("mixed"), num_requests=120)
    plain = ClusterConfig(num_instances=4, routing_policy="weighted")
    for one, other in zip(
        over_seeds(plain, spec, seeds=range(2)),
        over_seeds(plain.replace(hand_over_policy="pools"), spec, seeds=range(2)),
        strict=True,
    ):
        for field in ("instance", "ttft_us", "e2e_us", "finished_step_idx"):
            mine, theirs = getattr(one.requests, field), getattr(other.requests, field)
            np.testing.assert_array_equal(mine, theirs)


@pytest.mark.slow
@pytest.mark.parametrize("routing", ["round-robin", "weighted", "power-of-two"])
def test_every_router_stays_in_the_pool(routing: str) -> None:
    spec = override(load_builtin("mixed"), num_requests=150, aggregate_rate=200.0)
    groups = [{"count": 2, "role": "prefill"}, {"count": 3, "role": "decode"}]
    cluster = ClusterConfig(instances=groups, routing_policy=routing, hand_over_policy="pools")
    for record in over_seeds(cluster, spec, seeds=range(3)):
        assert record.outcome == Outcome.COMPLETED
        has_more = record.requests.output_len > 1  # a request of one token ends in the prefill pool
        np.testing.assert_array_equal(record.requests.instance >= 2, has_more)
        assert not any(record.invariant_failures.values())
        steps = expand_steps(record, 16)
        assert set(np.unique(steps.step_instance).tolist()) == set(range(5))


def two_in_a_row(arrivals: np.ndarray, first_us: int, second_us: int) -> np.ndarray:
    """When each request leaves the second of two servers that take one after the other."""
    left = np.zeros(2)
    ends = []
    for arrival in arrivals:
        left[0] = max(arrival, left[0]) + first_us
        left[1] = max(left[0], left[1]) + second_us
        ends.append(left[1])
    return np.array(ends)


@pytest.mark.statistical
@pytest.mark.slow
def test_two_constant_servers_in_a_row_wait_as_the_slower_one_by_itself() -> None:
    """Friedman 1965: their waits add up to that of M/D/1 with the slower service."""
    first_us, second_us, load, num_runs, count = 600, 1000, 0.7, 24, 3000
    groups = [
        {"count": 1, "role": "prefill", "beta_coeffs": [float(first_us), 0.0, 0.0]},
        {"count": 1, "role": "decode", "beta_coeffs": [float(second_us), 0.0, 0.0]},
    ]
    cluster = config(
        groups, max_num_running_reqs=1, pools_link_latency_us=0.0, pools_kv_bytes_per_token=0.0
    )  # fmt: skip
    waits = []
    for seed in range(num_runs):
        gaps = np.random.default_rng(seed).exponential(second_us / load, count)
        arrivals = np.floor(np.cumsum(gaps)).astype(int)
        prompts = [Prompt(int(at), 1, 2) for at in arrivals]
        record = simulate(cluster, table_of(workload_of(prompts)), Options(num_slots=256))
        np.testing.assert_array_equal(
            record.requests.e2e_us, two_in_a_row(arrivals, first_us, second_us) - arrivals
        )
        waits.append(record.requests.e2e_us[500:].mean() - first_us - second_us)
    expected = load * second_us / (2 * (1 - load))
    half_width = (
        3.77 * np.std(waits, ddof=1) / math.sqrt(num_runs)
    )  # Student, 23 degrees, 1 in 1,000
    assert half_width < 0.2 * expected and abs(np.mean(waits) - expected) < half_width + 1


def test_a_pool_belongs_to_hand_over_policies() -> None:
    with pytest.raises(ConfigError, match="pool=… is for hand-over policies"):
        admission_policy(pool=lambda params, context: None)  # type: ignore[arg-type]


def test_an_unknown_hand_over_policy_is_refused_with_what_there_is() -> None:
    with pytest.raises(ConfigError, match="use one of pools, none, or path"):
        simulate(config(hand_over_policy="pool"), table_of(workload_of([Prompt(0, 16, 2)])))

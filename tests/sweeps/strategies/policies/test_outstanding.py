"""Scores and leads by outstanding prompts: by hand, and against the prompts that a run's record has."""

import dataclasses
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from blis_jax import ClusterConfig, simulate
from blis_jax.core.exact import runtime_infinity
from blis_jax.policies.contexts import GatewayContext, Outstanding
from blis_jax.runs.options import Options
from sweeps.strategies.policies.deadlines import deadline_wait
from sweeps.strategies.policies.intent import class_backlog, lead_of_detour
from tests.policies.made import asked, decision
from tests.support.scenes import burst, table_of, workload_of

pytestmark = pytest.mark.usefixtures("in_64_bits")
CRITICAL, STANDARD, SHEDDABLE = 1, 2, 3
DEADLINES = {
    "deadline_critical_us": 100_000,
    "deadline_standard_us": 300_000,
    "deadline_sheddable_us": 1_000_000,
}


def sent(slo_class: int, *rows: list[tuple[int, int, int]], **more: Any) -> GatewayContext:
    """One request of 160 tokens at 400 ms, and (class, tokens, arrival in µs) of what each instance has to compute."""
    context = asked([0] * len(rows), slo_class, input_len=160, **more)
    table = np.zeros((4, len(rows), 4), np.int64)
    is_there = np.zeros(table.shape[1:], bool)
    for instance, row in enumerate(rows):
        for slot, (code, tokens, arrival) in enumerate(row):
            table[:, instance, slot] = code, tokens, 0, arrival
            is_there[instance, slot] = True
    table[1] += 999 * ~is_there  # junk, which must not count
    columns = [jnp.asarray(one, jnp.int32) for one in table[:3]]
    columns.append(jnp.asarray(table[3], context.request.arrival_us.dtype))
    request = dataclasses.replace(
        context.request, arrival_us=jnp.asarray(400_000, context.request.arrival_us.dtype)
    )
    seen = Outstanding(jnp.asarray(is_there), *columns)
    return dataclasses.replace(context, request=request, outstanding=seen, block_size=jnp.int32(16))


def test_what_is_due_later_does_not_stand_in_the_way() -> None:
    """A critical request, due at 500 ms: behind 80 tokens due at 490, and not behind those due at 510."""
    context = sent(CRITICAL, [(CRITICAL, 80, 390_000)], [(STANDARD, 80, 210_000)], [])
    score = decision(deadline_wait, context, token_us=100.0, **DEADLINES)
    np.testing.assert_allclose(score, [100 / 124, 100 / 116, 100 / 116], rtol=1e-15)
    counting = decision(
        deadline_wait.with_numbers(later_share=0.5), context, token_us=100.0, **DEADLINES
    )
    np.testing.assert_allclose(counting, [100 / 124, 100 / 120, 100 / 116], rtol=1e-15)


def test_a_long_deadline_makes_instances_more_alike() -> None:
    rows: tuple[list[tuple[int, int, int]], ...] = ([(CRITICAL, 800, 390_000)], [])
    spread = {}
    for slo_class in (CRITICAL, SHEDDABLE):
        score = decision(deadline_wait, sent(slo_class, *rows), token_us=100.0, **DEADLINES)
        spread[slo_class] = score[1] - score[0]
    assert spread[CRITICAL] > 3 * spread[SHEDDABLE] > 0


def test_backlog_is_that_of_classes_as_urgent_and_a_share_of_the_rest() -> None:
    rows: tuple[list[tuple[int, int, int]], ...] = (
        [(CRITICAL, 200, 0)],
        [(SHEDDABLE, 400, 0)],
        [(STANDARD, 100, 0), (SHEDDABLE, 50, 0)],
    )
    score = decision(class_backlog, sent(CRITICAL, *rows), lower_share=0.0)
    np.testing.assert_allclose(score, [0.0, 1.0, 1.0])
    score = decision(class_backlog, sent(STANDARD, *rows), lower_share=0.25)
    np.testing.assert_allclose(score, [0.0, 1.0, (200 - 112.5) / 100])
    score = decision(class_backlog, sent(SHEDDABLE, *rows), lower_share=0.25)
    np.testing.assert_allclose(score, [0.8, 0.0, 1.0])


def test_a_cached_prompt_is_less_to_compute() -> None:
    context = sent(CRITICAL, [(CRITICAL, 64, 0)], [], matched=[8, 0], blocks=10)
    assert decision(class_backlog, context, lower_share=0.0).tolist() == [1.0, 0.0]  # 96 and 160


def test_the_lead_is_the_wait_beyond_the_instance_with_the_least_ahead() -> None:
    rows: tuple[list[tuple[int, int, int]], ...] = (
        [(CRITICAL, 200, 0), (SHEDDABLE, 500, 0)],
        [(CRITICAL, 50, 0)],
        [],
    )
    context = sent(CRITICAL, *rows, is_active=[True, True, False])
    params = class_backlog.with_numbers(detour_share=0.5, token_us=10.0).values()
    with runtime_infinity(jnp.float64(np.inf)):
        leads = [float(lead_of_detour(params, context, jnp.int32(one))) for one in range(2)]
    assert leads == [0.5 * 10 * 150, 0.0]


def first_choices(record: Any, table: Any, num_instances: int) -> np.ndarray:
    """The instance with the fewest outstanding prompt tokens at each arrival, told from the record alone."""
    requests, count = record.requests, len(record.requests.instance)
    begun = table.arrival_us[:count] + requests.sched_delay_us
    found = np.zeros(count, int)
    for n in range(count):
        earlier = np.arange(count) < n
        is_open = earlier & (begun >= table.arrival_us[n])
        tokens = [
            table.input_len[is_open & (requests.instance == one)].sum()
            for one in range(num_instances)
        ]
        found[n] = int(np.argmin(tokens))
    return found


SCENE = [
    dataclasses.replace(one, group=-1, prefix_len=0, output_len=3)
    for one in sorted(burst(5, num_times=30_000), key=lambda one: one.arrival_us)
]
CLUSTER = ClusterConfig(
    num_instances=3,
    max_num_running_reqs=2,
    routing_policy="weighted",
    routing_scorers="sweeps/strategies/policies/intent.py:class_backlog:1",
    policy_numbers={"scorer.class_backlog.lower_share": 1.0},
    alpha_coeffs=(0.0, 0.0, 0.0),
    beta_coeffs=(1000.0, 0.0, 0.0),
)
OPTIONS = Options(num_slots=64, log_capacity=4096)


@pytest.mark.parametrize("form", ["rows", pytest.param("lanes", marks=pytest.mark.slow)])
def test_the_router_sees_the_prompts_that_no_step_has_taken(form: str) -> None:
    table = table_of(workload_of(SCENE))
    record = simulate(CLUSTER, table, dataclasses.replace(OPTIONS, form=form))
    expected = first_choices(record, table, 3)
    np.testing.assert_array_equal(record.requests.instance, expected)
    assert len(set(expected.tolist())) == 3


def late_choices(record: Any, table: Any, age_us: int, counts: bool) -> np.ndarray:
    """As `first_choices`, where a look at most every `age_us` tells which prompts are in."""
    requests, count = record.requests, len(record.requests.instance)
    number, arrival = np.arange(count), table.arrival_us[:count]
    begun = arrival + requests.sched_delay_us
    found, looked_at, seen_us = np.zeros(count, int), 0, 0
    for n in range(count):
        if arrival[n] - seen_us >= age_us:
            looked_at, seen_us = n, arrival[n]
        is_open = (number < looked_at) & (begun >= seen_us)
        if counts:
            is_open |= (number >= looked_at) & (number < n)
        tokens = [table.input_len[is_open & (requests.instance == one)].sum() for one in range(3)]
        found[n] = int(np.argmin(tokens))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("form", ["rows", pytest.param("lanes", marks=pytest.mark.slow)])
def test_with_old_signals_it_hears_of_them_at_the_next_look(form: str) -> None:
    """At age 0 nothing changes; where requests in flight do not count, those sent since the look do not either.

    None completes while others come: a completion is known at once.
    """
    longer = [dataclasses.replace(one, output_len=50) for one in SCENE]
    table, options = table_of(workload_of(longer)), dataclasses.replace(OPTIONS, form=form)
    exact = simulate(CLUSTER, table, options)
    now = simulate(CLUSTER.replace(snapshot_phases="even"), table, options)
    np.testing.assert_array_equal(now.requests.instance, exact.requests.instance)
    np.testing.assert_array_equal(now.requests.ttft_us, exact.requests.ttft_us)
    choices = []
    for age_us, counts in ((1500, True), (6000, True), (6000, False)):
        old = CLUSTER.replace(load_refresh_interval=age_us, in_flight_counts=counts)
        record = simulate(old, table, options)
        expected = late_choices(record, table, age_us, counts)
        np.testing.assert_array_equal(record.requests.instance, expected)
        choices.append(tuple(expected.tolist()))
    assert len({*choices, tuple(exact.requests.instance.tolist())}) == 4

"""The rule of predictive admission as it is coded, and why it admits everything in a run."""

from typing import Any

import jax
import jax.numpy as jnp
import pytest

from blis_jax.policies.admission import (
    is_admitted,
    least_expected_us,
    predictive_slo,
)
from tests.policies.made import asked, decision

pytestmark = pytest.mark.usefixtures("in_64_bits")
PARAMS = predictive_slo.values()
MISS = 6910.42 + 17.67 * 64  # of a prompt of 64 tokens


def blocks(*matched: int) -> jax.Array:
    return jnp.asarray(matched, jnp.int32)


def admitted(context: Any, matched: list[int], **numbers: float) -> bool:
    params = predictive_slo.with_numbers(**numbers).values()
    return bool(jax.jit(is_admitted)(params, context, blocks(*matched)))


@pytest.mark.parametrize(
    ("queue", "batch", "num_steps"),
    [(0, 0, 0), (1, 0, 1), (8, 0, 1), (9, 0, 2), (9, 5, 3), (9, 7, 9), (9, 8, 9), (9, 200, 9)],
)
def test_a_waiting_request_waits_for_steps_that_take_up_what_there_is_room_for(
    queue: int, batch: int, num_steps: int
):
    context = asked([0], queue_depth=[queue], batch_size=[batch])
    assert least_expected_us(PARAMS, context, blocks(0)) == num_steps * 7000.0 + MISS


def test_the_best_active_instance_counts_and_its_cached_blocks():
    context = asked([0, 0, 0], queue_depth=[8, 0, 0], is_active=[True, True, False])
    best = 6910.42 + 17.67 * (64 - 48)
    assert least_expected_us(PARAMS, context, blocks(0, 3, 4)) == best
    context = asked([0], input_len=60)
    assert least_expected_us(PARAMS, context, blocks(4)) == 6910.42


@pytest.mark.parametrize(
    ("slo_class", "num_steps"), [(0, 70), (2, 70), (3, 41), (4, 713)]
)  # the most whole steps of 7 ms within the budget beside the prefill
def test_each_class_has_its_budget(slo_class: int, num_steps: int):
    busy = {"batch_size": [8]}
    assert admitted(asked([0], slo_class, queue_depth=[num_steps], **busy), [1])
    assert not admitted(asked([0], slo_class, queue_depth=[num_steps + 1], **busy), [1])


def test_the_budget_itself_is_in_time():
    context = asked([0], 3, queue_depth=[0])
    expected = 6910.42 + 17.67 * 48
    assert admitted(context, [1], budget_sheddable_us=expected)
    assert not admitted(context, [1], budget_sheddable_us=expected * (1 - 1e-15))
    assert admitted(context, [1], budget_sheddable_us=expected / 2, headroom=2)


@pytest.mark.parametrize("slo_class", [1, 5])
def test_critical_and_background_requests_are_always_let_in(slo_class: int):
    assert admitted(asked([0], slo_class, queue_depth=[100_000], batch_size=[8]), [1])


def test_a_prompt_that_no_instance_knows_is_let_in_whatever_the_load():
    seen = {"queue_depth": [100_000, 100_000], "batch_size": [8, 8]}
    assert admitted(asked([0, 0], 3, **seen), [0, 0])
    assert not admitted(asked([0, 0], 3, **seen), [0, 1])
    assert admitted(asked([0, 0], 3, is_active=[True, False], **seen), [0, 1])


@pytest.mark.parametrize("slo_class", range(6))
def test_in_a_run_its_index_is_empty_so_that_everything_is_let_in(slo_class: int):
    """The router's index, which knows the prompt, is not the policy's own."""
    seen = {"queue_depth": [100_000], "batch_size": [8]}
    assert decision(predictive_slo, asked([0], slo_class, matched=[4], **seen))

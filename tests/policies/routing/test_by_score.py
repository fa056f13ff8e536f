"""Weights by class and around a CPU tier that holds requests up; a hard switch at half full; weights after an epoch."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from blis_jax.policies.routing.by_score import (
    EpochState,
    adapted,
    adaptive_weighted,
    epoch_adaptive,
    kv_adaptive,
)
from tests.policies.made import SHAPE, asked, decision
from tests.support.recorded.routing_track import next_epoch_weights

pytestmark = pytest.mark.usefixtures("in_64_bits")

# the most loaded instance has `matched` of 10 prompt blocks: it wins iff prefix × matched / 10 ≥ depth
AFFINITY = {0: (False, 6), 1: (False, 10), 2: (False, 6), 3: (False, 6), 4: (True, 2), 5: (True, 1)}


@pytest.mark.parametrize("slo_class", AFFINITY)
def test_every_class_has_its_own_weights(slo_class: int):
    """3·0.6 < 2 and 1·1 < 5, but 5·0.2 = 1 and 5·0.1 = 0.5, and ties go to the first instance."""
    sticks, matched = AFFINITY[slo_class]
    context = asked([9, 0, 4], slo_class, matched=[matched, 0, 0], blocks=10)
    assert decision(adaptive_weighted, context) == (0 if sticks else 1)
    context = asked([9, 0, 4], slo_class, matched=[matched - 1, 0, 0], blocks=10)
    assert decision(adaptive_weighted, context) == 1


@pytest.mark.parametrize(("slo_class", "instance"), [(2, 1), (3, 1), (4, 1), (5, 0)])
def test_kv_use_counts_for_all_but_background(slo_class: int, instance: int):
    context = asked([3, 3], slo_class, utilization=[0.5, 0.4])
    assert decision(adaptive_weighted, context) == instance


def test_sheddable_weighs_kv_use_less_than_standard():
    """Best by prefix: 3·0.7 = 2.1 against 2·1 for kv, but 3·0.6 = 1.8 < 2; with weight 1 it holds on to 0.4."""
    for slo_class, least in ((2, 7), (3, 4)):
        for matched in (least - 1, least):
            context = asked([1, 1], slo_class, [1.0, 0.0], [matched, 0], 10)
            assert decision(adaptive_weighted, context) == (0 if matched == least else 1)


def with_tier(pending: list[float], rates: list[float]) -> dict[str, list[float]]:
    return {"pending_transfer_us": pending, "kv_thrashing_rate": rates}


@pytest.mark.parametrize(
    ("pending", "rates", "instance"),
    [
        ([0.0, 0.0, 0.0], [0.1, 0.0, 0.0], 0),  # exactly 0.1 is not thrashing
        ([0.0, 0.0, 0.0], [0.11, 0.0, 0.0], 2),
        ([1.0, 0.0, 0.0], [0.0, 0.0, 0.0], 2),
        ([1.0, 0.0, 5.0], [0.0, 0.0, 0.0], 1),
        ([0.0, 0.0, 5.0], [1.0, 0.0, 0.0], 1),
        ([1.0, 0.0, 5.0], [0.0, 0.2, 0.0], 0),  # nobody is better off: it stays
        ([0.0, 9.0, 9.0], [0.0, 1.0, 1.0], 0),
    ],
)
def test_an_instance_held_up_by_its_cpu_tier_gives_way_to_the_least_loaded_healthy_one(
    pending: list[float], rates: list[float], instance: int
):
    context = asked([0, 9, 4], **with_tier(pending, rates))
    assert decision(adaptive_weighted, context) == instance


def test_an_inactive_instance_is_no_way_out():
    context = asked(
        [1, 9, 0], is_active=[True, True, False], **with_tier([1.0, 0.0, 0.0], [0.0] * 3)
    )
    assert decision(adaptive_weighted, context) == 1


# --- a hard switch at half full -------------------------------------------------------------------


JUST_BELOW = float(np.nextafter(0.5, 0))


@pytest.mark.parametrize(("fullest", "instance"), [(JUST_BELOW, 0), (0.5, 1), (1.0, 1)])
def test_the_weights_switch_when_the_fullest_instance_is_half_full(fullest: float, instance: int):
    """Half the prompt is cached on the first: 3·0.5 > 2·0.5 before, 2·0.5 < 5·0.5 then."""
    context = asked([0, 0], utilization=[fullest, 0.0], matched=[2, 0])
    assert decision(kv_adaptive, context) == instance


def test_a_full_inactive_instance_does_not_switch_the_weights():
    context = asked(
        [0, 0, 0], utilization=[0.4, 0.0, 1.0], matched=[2, 0, 0], is_active=[True, True, False]
    )
    assert decision(kv_adaptive, context) == 0


# --- after an epoch: both thresholds, all bounds, the ratio; and when an epoch ends ---------------


PARAMS = epoch_adaptive.values()
RATES = (0.0, 0.0199, 0.02, 0.05, 0.1, 0.1001, 0.3, 0.99, 1.0, 3.0, 12.0)
WEIGHTS = ((3.0, 2.0), (1.0, 5.0), (1.01, 4.9), (5.0, 2.0), (4.99, 5.0), (5.0, 3.7), (2.5, 2.03))


def weights_after(prefix: float, depth: float, rate: float, params: Any = PARAMS) -> list[float]:
    found = jax.jit(adapted)(params, np.float64(prefix), np.float64(depth), np.float64(rate))
    return [float(one) for one in found]


@pytest.mark.parametrize("rate", RATES)
def test_weights_after_an_epoch_equal_the_oracle_s_to_the_bit(rate: float):
    for prefix, depth in WEIGHTS:
        assert weights_after(prefix, depth, rate) == list(next_epoch_weights(prefix, depth, rate))


def test_a_quiet_epoch_moves_towards_affinity_and_the_ratio_is_kept():
    """3·1.025 = 3.075 and 2·0.975 → at least 2; 3.075 / 2 > 1.33, so load gets 3.075 / 1.33."""
    prefix = 3.0 * 1.025
    assert weights_after(3.0, 2.0, 0.0) == pytest.approx([prefix, prefix / 1.33], rel=1e-15)


def test_between_the_thresholds_only_the_ratio_acts():
    assert weights_after(2.0, 3.0, 0.05) == [2.0, 3.0]
    assert weights_after(2.0, 3.0, 0.1) == weights_after(2.0, 3.0, 0.02) == [2.0, 3.0]


def test_affinity_loses_no_more_than_a_fifth_and_both_have_bounds():
    assert weights_after(4.0, 2.0, 12.0) == [4.0 * 0.8, 5.0]
    assert weights_after(1.1, 4.0, 12.0) == [1.0, 5.0]


def test_where_load_cannot_grow_further_affinity_gives_way():
    params = epoch_adaptive.with_numbers(most_prefix=20.0).values()
    assert weights_after(12.0, 5.0, 0.05, params) == [5.0 * 1.33, 5.0]


def test_an_epoch_ends_with_its_last_request_and_counts_rejections_since_the_one_before():
    params = epoch_adaptive.with_numbers(epoch_size=3).values()
    state: EpochState = epoch_adaptive.start(params, SHAPE)
    seen = []
    for rejected in (1, 1, 2, 5, 5, 5):
        context = asked([0, 1], num_rejected=jnp.int32(rejected))
        _, state = epoch_adaptive.decide(params, state, context)
        seen.append([float(x) for x in dataclasses.astuple(state)])
    first = next_epoch_weights(3.0, 2.0, 2 / 3)
    second = next_epoch_weights(*first, (5 - 2) / 3)
    assert seen == [
        [3.0, 2.0, 1, 0],
        [3.0, 2.0, 2, 0],
        [*first, 0, 2],
        [*first, 1, 2],
        [*first, 2, 2],
        [*second, 0, 5],
    ]


def test_the_last_request_of_an_epoch_is_routed_by_the_new_weights():
    """With 3:2 a cached prompt sticks at 3·0.75 ≥ 2; with 3.075 : 2.312 it does not."""
    for epoch_size, instance in ((2, 0), (1, 1)):
        params = epoch_adaptive.with_numbers(epoch_size=epoch_size).values()
        context = asked([9, 0], matched=[3, 0])
        chosen, _ = epoch_adaptive.decide(params, epoch_adaptive.start(params, SHAPE), context)
        assert int(chosen) == instance

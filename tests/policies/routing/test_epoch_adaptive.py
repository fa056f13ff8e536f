"""Weights after an epoch: both thresholds, all bounds, the ratio; and when an epoch ends."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from blis_jax.policies.routing.epoch_adaptive import EpochState, adapted, epoch_adaptive
from tests.policies.made import asked
from tests.support.recorded.routing_track import next_epoch_weights

pytestmark = pytest.mark.usefixtures("in_64_bits")
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
    state: EpochState = epoch_adaptive.start(params, None)
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
        chosen, _ = epoch_adaptive.decide(params, epoch_adaptive.start(params, None), context)
        assert int(chosen) == instance

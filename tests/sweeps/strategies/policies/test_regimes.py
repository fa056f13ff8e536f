"""Regimes with a threshold for each way."""

import jax
import numpy as np
import pytest

from sweeps.strategies.policies.regimes import (
    regime_affinity,
    regime_gated,
    regime_kept,
    regime_switched,
)
from tests.policies.contexts import asked, decided

CRITICAL, STANDARD, SHEDDABLE = 1, 2, 3
# calm: the matched instance 1; busy: the least loaded one, 0; pressed: the one with most free KV, 2
WEIGHTS = {
    "affinity_calm": 1.0, "queue_calm": 0.1, "kv_calm": 0.0,
    "affinity_busy": 0.0, "queue_busy": 1.0, "kv_busy": 0.0,
    "affinity_pressed": 0.0, "queue_pressed": 0.1, "kv_pressed": 8.0,
}  # fmt: skip
NUMBERS = {**WEIGHTS, "load_threshold": 10.0, "kv_threshold": 0.8, "stay": 0.5}


@pytest.fixture(autouse=True)
def with_x64():
    with jax.enable_x64(True):
        yield


def choices(policy, means, fullest, **numbers):
    """The instances that follow each other as mean load and KV use change."""
    state, found = None, []
    for mean, used in zip(means, fullest, strict=True):
        context = asked([mean - 1, mean, mean + 1], [0, 9, 0], [used, used / 2, used / 4])
        at, state = decided(policy, context, state, **numbers)
        found.append(int(at))
    return found


def test_busy_is_entered_above_the_threshold_and_left_at_half_of_it():
    means = [5, 10, 11, 8, 6, 5, 8, 10]
    assert choices(regime_kept, means, [0.0] * 8, **NUMBERS) == [1, 1, 0, 0, 0, 1, 1, 1]


def test_pressed_is_kept_likewise_and_comes_before_busy():
    used = [0.8, 0.9, 0.5, 0.41, 0.4, 0.7]
    assert choices(regime_kept, [4] * 6, used, **NUMBERS) == [1, 2, 2, 2, 1, 1]
    assert choices(regime_kept, [20] * 3, used[:3], **NUMBERS) == [0, 2, 2]


def test_with_one_threshold_for_both_ways_it_is_regime_switched():
    rng = np.random.default_rng(1)
    means, used = rng.integers(1, 20, 40), rng.choice([0.5, 0.7, 0.8, 0.9, 1.0], 40)
    plain = {name: value for name, value in NUMBERS.items() if name != "stay"}
    mine = choices(regime_kept, means, used, **{**NUMBERS, "stay": 1.0})
    assert mine == choices(regime_switched, means, used, **plain)
    assert mine != choices(regime_kept, means, used, **NUMBERS)
    assert len(set(mine)) == 3


def admitted(means, slo_class, **numbers):
    """Whether requests of a class are let in, one after the other."""
    state, found = None, []
    for mean in means:
        one, state = decided(regime_gated, asked([mean] * 2, slo_class=slo_class), state, **numbers)
        found.append(bool(one))
    return found


def test_the_gate_sheds_from_one_load_on_down_to_another():
    numbers = {"load_threshold": 10.0, "standard_factor": 2.0, "stay": 0.5}
    means = [10, 11, 6, 5, 8, 21, 11, 10]
    assert admitted(means, SHEDDABLE, **numbers) == [1, 0, 0, 1, 1, 0, 0, 0]
    assert admitted(means, STANDARD, **numbers) == [1, 1, 1, 1, 1, 0, 0, 1]
    assert admitted(means, 0, **numbers) == [1, 1, 1, 1, 1, 0, 0, 1]
    assert all(admitted(means, CRITICAL, **numbers))


def test_affinity_counts_less_from_one_load_on_down_to_another():
    """A prompt of ten blocks, five of which the second instance has."""
    state, found = None, []
    for mean in (10, 11, 6, 5, 8):
        context = asked([mean] * 2, [0, 5])
        score, state = decided(
            regime_affinity, context, state, busy_load=10.0, stay=0.5, busy_share=0.2
        )
        found.append(np.asarray(score).tolist())
    calm, busy = [0.0, 0.5], [0.0, 0.1]
    np.testing.assert_allclose(found, [calm, busy, busy, calm, calm])

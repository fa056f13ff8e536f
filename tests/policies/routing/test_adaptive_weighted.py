"""Weights by class, and the way around instances whose CPU tier holds them up."""

import pytest

from blis_jax.policies.routing.adaptive_weighted import adaptive_weighted
from tests.policies.made import asked, decision

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

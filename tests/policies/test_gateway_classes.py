"""Class priorities of August 2026, and who is turned away by them."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

from blis_jax.engine.arithmetic.exact import runtime_infinity
from blis_jax.engine.types import SLO_CLASSES
from blis_jax.policies import gateway_classes
from tests.policies.test_contract import case, gateway_scenes, queue_scenes

pytestmark = pytest.mark.usefixtures("in_64_bits")

CODES = {name: code for code, name in enumerate(SLO_CLASSES)}


def admits(policy, slo_class: str, **seen) -> bool:
    """Whether a request of the class is let in where the first scene's snapshots have these values."""
    scene = case(gateway_scenes(policy, 5), 0)
    request = dataclasses.replace(scene.request, slo_class=jnp.int32(CODES[slo_class]))
    snapshots = dataclasses.replace(scene.snapshots, **seen)
    scene = dataclasses.replace(scene, request=request, snapshots=snapshots)
    with runtime_infinity(np.float64(np.inf)):
        return bool(policy.decide(policy.values(), policy.start(None, None), scene)[0])


def test_priorities_of_the_classes():
    policy = gateway_classes.gateway_class
    scene = case(queue_scenes(policy), 0)
    codes = jnp.arange(len(SLO_CLASSES), dtype=jnp.int32)
    request = dataclasses.replace(scene.request, slo_class=codes)
    scene = dataclasses.replace(scene, request=request)
    urgency, _ = policy.decide(policy.values(), policy.start(None, None), scene)
    assert dict(zip(SLO_CLASSES, np.asarray(urgency).tolist(), strict=True)) == {
        "": 3,
        "critical": 4,
        "standard": 3,
        "sheddable": -2,
        "batch": -1,
        "background": -3,
    }


@pytest.mark.parametrize(("slo_class", "is_in"), [("critical", True), ("standard", False)])
def test_tier_shed_looks_at_the_fullest_instance(slo_class, is_in):
    policy = gateway_classes.tier_shed.with_numbers(threshold=12, min_priority=4)
    above, at = jnp.array([0, 13, 0, 0, 0]), jnp.array([12, 12, 0, 0, 0])
    assert admits(policy, slo_class, effective_load=above) == is_in
    assert admits(policy, slo_class, effective_load=at)


def test_gaie_legacy_turns_away_at_a_mean_of_one():
    policy = gateway_classes.gaie_legacy.with_numbers(queue_threshold=4)
    full = {"queue_depth": jnp.full(5, 4), "kv_utilization": jnp.zeros(5)}
    assert not admits(policy, "batch", **full)
    assert admits(policy, "standard", **full)
    assert admits(policy, "batch", **{**full, "queue_depth": jnp.array([4, 4, 4, 4, 3])})

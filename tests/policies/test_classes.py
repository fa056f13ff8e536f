"""Class priorities of August 2026, and who is turned away by them."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

from blis_jax.core.exact import runtime_infinity
from blis_jax.core.types import SLO_CLASSES
from blis_jax.policies import classes
from blis_jax.policies.classes import stale_gated
from tests.policies.made import SHAPE
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
        return bool(policy.decide(policy.values(), policy.start(policy.values(), SHAPE), scene)[0])


def test_priorities_of_the_classes():
    policy = classes.gateway_class
    scene = case(queue_scenes(policy), 0)
    codes = jnp.arange(len(SLO_CLASSES), dtype=jnp.int32)
    request = dataclasses.replace(scene.request, slo_class=codes)
    scene = dataclasses.replace(scene, request=request)
    urgency, _ = policy.decide(policy.values(), policy.start(policy.values(), SHAPE), scene)
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
    policy = classes.tier_shed.with_numbers(threshold=12, min_priority=4)
    above, at = jnp.array([0, 13, 0, 0, 0]), jnp.array([12, 12, 0, 0, 0])
    assert admits(policy, slo_class, effective_load=above) == is_in
    assert admits(policy, slo_class, effective_load=at)


def test_gaie_legacy_turns_away_at_a_mean_of_one():
    policy = classes.gaie_legacy.with_numbers(queue_threshold=4)
    full = {"queue_depth": jnp.full(5, 4), "kv_utilization": jnp.zeros(5)}
    assert not admits(policy, "batch", **full)
    assert admits(policy, "standard", **full)
    assert admits(policy, "batch", **{**full, "queue_depth": jnp.array([4, 4, 4, 4, 3])})


@pytest.mark.parametrize("slo_class", ["critical", "standard", "sheddable", "batch"])
def test_without_stale_instances_the_gate_is_that_of_gaie(slo_class):
    gate = stale_gated.with_numbers(num_stale=0, queue_threshold=4)
    gaie = classes.gaie_legacy.with_numbers(queue_threshold=4)
    for depths in ([4, 4, 4, 4, 4], [4, 4, 4, 4, 3], [0, 9, 9, 1, 1], [0, 0, 0, 0, 0]):
        seen = {"queue_depth": jnp.array(depths), "kv_utilization": jnp.zeros(5)}
        assert admits(gate, slo_class, **seen) == admits(gaie, slo_class, **seen)


def test_a_stale_instance_counts_as_full_whatever_it_shows():
    """With one of five stale, the mean reaches 1 where that of the other four does."""
    gate = stale_gated.with_numbers(num_stale=1, queue_threshold=4)
    none = {"kv_utilization": jnp.zeros(5)}
    for shown in (0, 100):
        full, nearly = jnp.array([shown, 4, 4, 5, 3]), jnp.array([shown, 4, 4, 4, 3])
        assert not admits(gate, "sheddable", queue_depth=full, **none)
        assert admits(gate, "sheddable", queue_depth=nearly, **none)
        assert admits(gate, "standard", queue_depth=full, **none)
    all_stale = stale_gated.with_numbers(num_stale=5)
    assert not admits(all_stale, "sheddable", queue_depth=jnp.zeros(5, int), **none)

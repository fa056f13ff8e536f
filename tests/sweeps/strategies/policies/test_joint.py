"""Tiers, intent and slack in one order, and tiers that close while few wait."""

import dataclasses
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from blis_jax.core.exact import runtime_infinity
from blis_jax.policies.contexts import QueueContext
from sweeps.strategies.policies.deadlines import slo_slack
from sweeps.strategies.policies.intent import intent_slack, intent_tiered
from tests.policies.made import SHAPE
from tests.sweeps.strategies.policies.made import asked, queue

pytestmark = pytest.mark.usefixtures("in_64_bits")
TIERS = {
    "base_critical": 9.0, "base_standard": 4.0, "base_sheddable": 1.0,
    "age_weight": 1e-5, "grace_standard_us": 0, "grace_sheddable_us": 0, "expected_block": 0.25,
}  # fmt: skip
DEADLINES = {
    "deadline_critical_us": 50_000, "deadline_standard_us": 200_000, "deadline_sheddable_us": 900_000,
    "token_us": 20.0,
}  # fmt: skip


def waiting(**more: Any) -> QueueContext:
    handed = jnp.array([0.0, 0.0, 5e4])
    return queue([1, 2, 3], [10_000, 20_000, 30_000], expected=[0, 8, 0], handed=handed, **more)


def test_by_its_defaults_it_is_intent_tiered() -> None:
    mine = asked(intent_slack, waiting(), **TIERS, **DEADLINES)
    np.testing.assert_array_equal(mine, asked(intent_tiered, waiting(), **TIERS))


def test_slack_takes_its_share_away() -> None:
    plain = asked(intent_slack, waiting(), **TIERS, **DEADLINES)
    mine = asked(intent_slack, waiting(), slack_share=0.5, **TIERS, **DEADLINES)
    slack = -asked(slo_slack, waiting(), **DEADLINES)
    np.testing.assert_allclose(plain - mine, 0.5 * slack, rtol=1e-12)


def test_tiers_are_open_from_one_depth_on_down_to_another() -> None:
    """Of the distances 8 and 3 from the lowest tier a quarter is left while few wait."""
    numbers = {"busy_depth": 10.0, "stay": 0.5, "calm_share": 0.25}
    policy = intent_slack.with_numbers(**numbers, **TIERS)
    params, found = policy.values(), []
    state = policy.start(params, SHAPE)
    base = asked(intent_tiered, waiting(), **(TIERS | {"base_critical": 1.0, "base_standard": 1.0}))
    for depth in (10, 11, 6, 5, 10):
        context = dataclasses.replace(waiting(), queue_depth=jnp.int32(depth))
        with runtime_infinity(jnp.float64(np.inf)):
            urgency, state = policy.decide(params, state, context)
        found.append(np.asarray(urgency) - base)
    calm, busy = [2.0, 0.75, 0.0], [8.0, 3.0, 0.0]
    np.testing.assert_allclose(found, [calm, busy, busy, calm, calm], atol=1e-12)

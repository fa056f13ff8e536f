"""Static keys order requests as the simulated priorities do."""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from blis_jax.cluster.named_policies import numbered
from blis_jax.core.types import SLO_CLASSES
from blis_jax.policies.contexts import QueueContext
from sweeps.promote.llmd import deployment
from sweeps.promote.llmd.deployment import CLASSES, order_of
from tests.policies.made import SHAPE
from tests.sweeps.promote.promotions import promotion


def urgency(given: str, classes: list[str], arrivals_us: list[int], now_us: int) -> np.ndarray:
    """The simulated priority of waiting requests."""
    from blis_jax.core.types import RequestView

    policy = numbered(promotion(given).arm.config).priority
    count = len(classes)
    zeros = jnp.zeros(count, jnp.int32)
    with jax.enable_x64(True):
        codes = jnp.asarray([SLO_CLASSES.index(name) for name in classes], jnp.int32)
        view = RequestView(codes, zeros, jnp.asarray(arrivals_us, jnp.int32), zeros, zeros, zeros)
        context = QueueContext(
            view, jnp.ones(count, bool), zeros, zeros, jnp.int32(9), jnp.int32(now_us), jnp.int32(0), None
        )  # fmt: skip
        params = jax.tree.map(jnp.asarray, policy.values())
        found, _ = policy.decide(params, policy.start(params, SHAPE), context)
        return np.asarray(found)


@pytest.mark.parametrize("given", ["iter13_class_lead@found", "idea1_tiered_cascade"])
def test_the_key_orders_as_the_simulated_priority(given: str) -> None:
    order = order_of(promotion(given), promotion(given).arm.config)
    assert order is not None and order.is_exact
    rng = np.random.default_rng(3)
    classes = [CLASSES[place] for place in rng.integers(0, len(CLASSES), 64)]
    arrivals = rng.integers(0, 4_000_000, 64).tolist()
    first, later = (urgency(given, classes, arrivals, now) for now in (4_000_000, 9_000_000))
    keys = [at / 1000 - order.leads_ms[name] for at, name in zip(arrivals, classes, strict=True)]
    for a, b in itertools.combinations(range(64), 2):
        if abs(keys[a] - keys[b]) > 1.0:  # offsets are whole ms
            assert (keys[a] < keys[b]) == (first[a] > first[b]) == (later[a] > later[b])


def test_grace_periods_are_approximate() -> None:
    order = order_of(
        promotion("iter01_priority_cascade"), promotion("iter01_priority_cascade").arm.config
    )
    assert order is not None and not order.is_exact
    # (base ÷ 1e-5 per µs) in ms, minus the grace period
    assert order.leads_ms["critical"] == 1000 and order.leads_ms["standard"] == 500 - 100
    assert order.leads_ms["sheddable"] == 100 - 200


def test_deadlines_are_leads_below_zero() -> None:
    given = promotion("iter14_deadline_urgency@found")
    order = order_of(given, given.arm.config)
    assert order is not None and not order.is_exact
    assert order.leads_ms["critical"] == -165 and order.leads_ms["standard"] == -450


def test_first_come_first_served_needs_no_key() -> None:
    given = promotion("iter00_baseline")
    assert order_of(given, given.arm.config) is None


def test_the_cpu_tier_in_gib() -> None:
    given = promotion("iter00_baseline")
    # 44,000 blocks × 16 tokens × 2 × 32 layers × 8 heads × 128 × 2 bytes
    assert deployment.offload_gib(given, given.arm.config) == pytest.approx(
        44_000 * 16 * 131_072 / 2**30, abs=1e-3
    )


def test_the_threshold_of_most_requests_stands_for_all() -> None:
    given = promotion("iter05_simplified")
    assert deployment.prefill_threshold(given, given.arm.config) == (256, False)
    whole = promotion("iter13_class_lead@found")
    assert deployment.prefill_threshold(whole, whole.arm.config) == (0, True)

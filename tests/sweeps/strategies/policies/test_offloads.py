"""What goes to the CPU tier, by what its room is worth."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from blis_jax import ClusterConfig
from blis_jax.core.exact import runtime_infinity
from blis_jax.core.types import RequestView
from blis_jax.engine.mechanism import mechanism
from blis_jax.errors import ConfigError
from blis_jax.policies import NoState, OffloadContext, Policy, offload_policy
from sweeps.strategies.policies.memory import content_worth, forecast_offload

CRITICAL, STANDARD, SHEDDABLE, BATCH = 1, 2, 3, 4

MEMORY = "sweeps/strategies/policies/memory.py"


def worth(
    policy: Policy, classes: list[int], takers: list[int], demand: Any = None, **numbers: float
) -> list[float]:
    """What room for these contents is worth."""
    with jax.enable_x64(True), runtime_infinity(np.float64(np.inf)):
        whole = [jnp.asarray(one, jnp.int32) for one in (classes, takers)]
        none = jnp.zeros(len(classes), jnp.int32)
        counts = {name: jnp.int32(value) for name, value in (demand or {}).items()}
        context = OffloadContext(
            request=RequestView(whole[0], none, none, none, none, none),
            num_takers=whole[1],
            instance=jnp.int32(0),
            **counts,
        )
        params = policy.with_numbers(**numbers).values()
        return np.asarray(policy.decide(params, NoState(), context)[0]).tolist()


def test_by_default_all_contents_are_alike() -> None:
    assert (
        worth(content_worth, [CRITICAL, STANDARD, 0, SHEDDABLE, BATCH], [1, 9, 1, 2, 1]) == [1] * 5
    )


def test_a_class_and_further_requests_add_worth() -> None:
    numbers = {"critical": 3, "sheddable": 0, "per_taker": 0.5}
    classes = [CRITICAL, STANDARD, SHEDDABLE, BATCH]
    assert worth(content_worth, classes, [1, 3, 1, 2], **numbers) == [3.0, 2.0, 0.0, 0.5]


def test_a_content_that_few_requests_took_gets_no_room() -> None:
    assert worth(content_worth, [CRITICAL] * 3, [1, 2, 3], least_takers=2) == [0.0, 1.0, 1.0]


def test_a_forecast_counts_what_is_in_use_and_what_comes() -> None:
    demand = {"num_blocks": 100, "num_used_blocks": 60, "num_waiting_blocks": 25, "num_running": 10}
    assert worth(forecast_offload, [0, 0], [1, 1], demand) == [1.0, 1.0]  # 95 of 100, more than 90
    assert worth(forecast_offload, [0], [1], demand, ahead=0.5) == [0.0]  # 77.5
    assert worth(forecast_offload, [0], [1], demand, limit=0.95) == [0.0]  # as many is not more


def test_without_a_tier_the_policy_is_refused() -> None:
    with pytest.raises(ConfigError, match="content_worth says what goes to the CPU tier"):
        mechanism(ClusterConfig(offload_policy=f"{MEMORY}:content_worth"))


def test_what_august_cannot_know_is_refused() -> None:
    config = ClusterConfig(
        revision="blis-2026-08", kv_cpu_blocks=10, offload_policy=f"{MEMORY}:forecast_offload"
    )
    with pytest.raises(ConfigError, match="copies blocks whatever the demand is"):
        mechanism(config)


def test_an_unknown_name_is_refused_with_what_there_is() -> None:
    with pytest.raises(ConfigError, match=r"offload_policy 'lru'.* use one of none"):
        ClusterConfig(offload_policy="lru")


def test_an_offload_policy_keeps_nothing_in_mind() -> None:
    with pytest.raises(ConfigError, match="an offload policy has no memory and no draws"):
        offload_policy(is_random=True)

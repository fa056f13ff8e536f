"""The decode pool's own router: who it decides for, with which numbers, and nothing where nothing is said of it."""

from typing import Any

import numpy as np
import pytest

from blis_jax import ClusterConfig, ConfigError, simulate
from blis_jax.engine.mechanism import chosen, mechanism, params
from blis_jax.policies import Policies, registry, routing_policy
from tests.policies.movement.test_pools import config
from tests.support.scenes import Prompt, table_of, workload_of

GROUPS = [{"count": 2, "role": "prefill"}, {"count": 3, "role": "decode"}]
PROMPTS = [Prompt(20_000 * place, 160, 4) for place in range(6)]  # each alone in the cluster


def instances(cluster: ClusterConfig, policies: Policies | None = None) -> list[int]:
    table = table_of(workload_of(PROMPTS))
    found: list[int] = simulate(cluster, table, policies=policies).requests.instance.tolist()
    return found


@pytest.mark.slow
def test_the_decode_pool_is_routed_in_by_its_own_policy() -> None:
    plain = config(GROUPS)
    assert instances(plain) == [2] * 6
    assert instances(plain.replace(decode_routing_policy="round-robin")) == [2, 3, 4, 2, 3, 4]
    # prompts that are not split are routed in the decode pool too
    own = plain.replace(decode_routing_policy="round-robin", pools_split_above_tokens=1000)
    assert instances(own) == [2, 3, 4, 2, 3, 4]


@routing_policy()
def to_the_last(params: Any, state: Any, context: Any) -> Any:
    """The last instance of the table."""
    return np.int32(context.snapshots.is_active.shape[0] - 1) + 0 * context.now_us, state


def test_policies_are_handed_in_for_the_decode_pool() -> None:
    assert instances(config(GROUPS), Policies(decode_routing=to_the_last)) == [4] * 6


def scorers_of(cluster: ClusterConfig) -> list[tuple[str, float]]:
    decode = chosen(cluster).decode
    assert decode is not None
    return [(one.name, weight) for one, weight in decode.scorers]


def test_what_is_not_given_is_the_clusters() -> None:
    weighted = config(GROUPS, routing_policy="weighted", routing_scorers="load-balance:2")
    assert chosen(weighted).decode is None
    picked = weighted.replace(decode_routing_picker="random-best")
    decode = chosen(picked).decode
    assert decode is not None
    assert decode.routing.name == "weighted" and decode.picker.name == "random_best"
    assert scorers_of(picked) == [("load_balance", 2.0)]
    assert scorers_of(picked.replace(decode_routing_scorers="queue-depth:3")) == [
        ("queue_depth", 3.0)
    ]
    other = config(GROUPS, decode_routing_policy="weighted")
    assert len(scorers_of(other)) == 3  # the default ones


def test_numbers_go_to_their_own_router() -> None:
    cluster = config(
        GROUPS,
        routing_policy="power-of-two",
        decode_routing_picker="first-best",
        policy_numbers={"routing.candidates": 3},
    )
    both = params(cluster).policy
    assert both.routing.candidates == both.pool_routers[0].routing.candidates == 3
    own = params(cluster.replace(**{"decode_routing.candidates": 4})).policy
    assert (own.routing.candidates, own.pool_routers[0].routing.candidates) == (3, 4)
    assert (
        cluster.replace(**{"decode_routing.candidates": 4}).value("decode_routing.candidates") == 4
    )


def test_nothing_is_compiled_for_a_cluster_that_hands_nothing_over() -> None:
    plain = ClusterConfig(num_instances=2, routing_policy="least-loaded")
    idle = plain.replace(decode_routing_policy="round-robin")
    assert mechanism(idle) == mechanism(plain)
    assert params(idle).policy.pool_routers == ()
    assert mechanism(config(GROUPS)).pool_routers == ()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"decode_routing_policy": "robin"}, "decode_routing_policy 'robin' is not known; use one"),
        (
            {"decode_routing_picker": "best"},
            "decode_routing_picker 'best' .* weighted-random.*, same",
        ),
        (
            {"decode_routing_policy": "weighted", "decode_routing_scorers": "queue-depth"},
            "decode_routing_scorers: 'queue-depth' is not name:weight",
        ),
        (
            {"decode_routing_policy": "weighted", "decode_routing_scorers": "depth:1"},
            "decode_routing_scorers 'depth' is not known",
        ),
        ({"policy_numbers": {"decode_routing.gain": 1}}, "has no number 'gain'|no number"),
    ],
)
def test_wrong_settings_are_refused_by_their_names(changes: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        config(GROUPS, **changes)


def test_a_policy_of_another_kind_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"policies\.decode_routing is a policy of kind scorer"):
        Policies(decode_routing=registry.find("scorer", "queue-depth"))

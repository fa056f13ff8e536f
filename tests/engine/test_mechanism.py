"""What a configuration compiles to, where that is not plain."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from blis_jax import Policies
from blis_jax.cluster.config import ClusterConfig
from blis_jax.core.types import PolicyParams
from blis_jax.engine.mechanism import has_priorities, mechanism, without_effect
from blis_jax.engine.phases.policy_calls import combined_scores, without_matches
from blis_jax.errors import ConfigError
from blis_jax.policies import HandOver, hand_over_policy, scorer
from blis_jax.policies.reading import CACHES
from blis_jax.policies.routing.by_score import shares_of
from tests.policies.test_contract import gateway_scenes

PRECISE = {
    "precise_kv_routing": True,
    "routing_policy": "weighted",
    "routing_scorers": "prefix-affinity:3,queue-depth:2",
}


@scorer(keeps_own_index=True)
def by_own_index(params: Any, state: Any, context: Any) -> Any:
    """Blocks matched, in hundreds."""
    del params
    return context.snapshots.prefix_match_blocks.astype("float64") / 100.0, state


@scorer()
def by_index(params: Any, state: Any, context: Any) -> Any:
    """The same, by the router's index."""
    del params
    return context.snapshots.prefix_match_blocks.astype("float64") / 100.0, state


@hand_over_policy()
def nowhere(params: Any, state: Any, context: Any) -> Any:
    """Nobody moves."""
    return HandOver(jnp.array(False), jnp.zeros(())), state


def test_the_caches_feed_the_index_where_a_policy_looks_at_it() -> None:
    config = ClusterConfig(**PRECISE)
    assert mechanism(config).is_precise and without_effect(config) is None
    off = config.replace(precise_kv_routing=False)
    assert not mechanism(off).is_precise and without_effect(off) is None


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"routing_policy": "round-robin"}, "no effect on round-robin routing"),
        ({"routing_scorers": "queue-depth:1"}, "no effect on weighted routing"),
        ({"kv_cpu_blocks": 5}, "set kv_cpu_blocks to 0"),
    ],
)
def test_where_precise_routing_does_nothing_there_is_a_sentence(
    changes: dict[str, Any], words: str
) -> None:
    line = without_effect(ClusterConfig(**(PRECISE | changes)))
    assert line is not None and words in line


def test_a_mechanism_without_a_reader_is_that_without_the_flag() -> None:
    config = ClusterConfig(precise_kv_routing=True)
    assert mechanism(config) == mechanism(config.replace(precise_kv_routing=False))
    own = Policies(scorers=((by_own_index, 1.0),))
    assert not mechanism(config, own).is_precise and mechanism(config, own).uses_prefix_index


def test_caches_may_feed_the_index_where_requests_move() -> None:
    made = mechanism(ClusterConfig(**PRECISE), Policies(hand_over=nowhere))
    assert made.is_precise and made.moves_requests


def test_an_index_of_its_own_is_empty_where_the_caches_feed_the_router_s() -> None:
    with jax.enable_x64(True):
        cases = gateway_scenes(by_own_index, 3)
        one = jax.tree.map(lambda leaf: leaf[0], cases)
        matched = np.arange(len(one.snapshots.prefix_match_blocks), dtype=np.int32)
        seen = dataclasses.replace(one.snapshots, prefix_match_blocks=matched)
        context = dataclasses.replace(one, snapshots=seen)
        params: Any = PolicyParams(
            None,
            None,
            (by_index.values(), by_own_index.values()),
            np.array([1.0, 3.0]),
            None,
            None,
            None,
            np.uint64(0),
        )
        shares = shares_of(params.scorer_weights)
        asked = (by_index, by_own_index), params, [None, None], context, [None, None], shares
        fed, *_ = combined_scores(*asked, is_precise=True)
        usual, *_ = combined_scores(*asked)
        np.testing.assert_allclose(usual, matched / 100, rtol=1e-12)
        np.testing.assert_allclose(fed, matched / 400, rtol=1e-12)
        assert not np.any(without_matches(seen).prefix_match_blocks)


@pytest.mark.parametrize("name", ["precise-prefix-cache", "no-hit-lru"])
def test_only_august_has_a_copy_of_the_caches(name: str) -> None:
    config = ClusterConfig(routing_policy="weighted", routing_scorers=f"{name}:1,queue-depth:1")
    assert mechanism(config.replace(revision="blis-2026-08")).reads(CACHES)
    for changes in ({}, {"corrected": True}, {"load_refresh_interval": 1000}):
        sentence = f"the scorer {name} reads .* which only blis-2026-08 has; take that profile"
        with pytest.raises(ConfigError, match=sentence):
            mechanism(config.replace(**changes))


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, False),
        ({"scheduler": "priority-fcfs"}, False),
        ({"priority_policy": "slo-based"}, True),  # whatever the scheduler makes of it
        ({"revision": "blis-2026-08"}, False),
        ({"revision": "blis-2026-08", "scheduler": "sjf"}, False),
        ({"revision": "blis-2026-08", "scheduler": "priority-fcfs"}, True),
    ],
)
def test_inversions_count_where_blis_counts_them(settings, expected):
    assert has_priorities(mechanism(ClusterConfig(**settings))) is expected

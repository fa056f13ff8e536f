"""What `lora_config` says: as BLIS writes it, numbers as Go reads them, and what is refused with which sentence."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from blis_jax.cluster.adapters import check_clients, load_times, overheads, reserved_bytes
from blis_jax.cluster.config import ClusterConfig
from blis_jax.errors import ConfigError


def cluster(adapters: list[dict[str, Any]], **keys: Any) -> ClusterConfig:
    config = {"adapter_capacity": 2, "adapters": adapters} | keys
    return ClusterConfig(revision="blis-2026-08", latency_model="blackbox", lora_config=config)


def test_a_load_takes_its_base_and_both_parts_are_rounded_up() -> None:
    numbers = {
        "load_base_latency_us": 5000.75,
        "load_bandwidth_bytes_us": 777.7,
        "footprint_bytes_per_rank": 123456.7,
    }
    assert load_times(cluster([{"id": "a", "rank": 8}], **numbers)) == [6271]
    assert load_times(cluster([{"id": "a", "rank": 8}])) == [1508]


def test_the_nearest_tier_counts_and_of_two_the_lower_one() -> None:
    ranks = [4, 8, 12, 13, 24, 25, 999]
    config = cluster([{"id": f"r{rank}", "rank": rank} for rank in ranks])
    assert overheads(config) == [0.02, 0.02, 0.02, 0.035, 0.035, 0.06, 0.06]
    own = {"16": {"k6": 1, "k7": 4}, 64: {"k7": 2}}
    of_own = cluster([{"id": "a", "rank": 40}, {"id": "b", "rank": 41}], step_overhead_tiers=own)
    assert overheads(of_own) == [0.25, 0.0]
    none = cluster([{"id": "a", "rank": 40}], step_overhead_tiers={})
    assert overheads(none) == [0.0]


def test_memory_is_kept_for_the_largest_rank_in_every_slot() -> None:
    config = cluster([{"id": "a", "rank": 8}, {"id": "b", "rank": 64}])
    assert reserved_bytes(config) == 2 * 64 * 2_000_000


def test_whole_numbers_may_have_an_exponent_or_a_fraction_as_in_go() -> None:
    config = cluster([{"id": "a", "rank": 16.0}], adapter_capacity="1e1")
    assert config.lora_config.adapters[0].rank == 16
    assert config.lora_adapter_capacity == 10
    assert cluster([{"id": "a", "rank": 16.9}]).lora_config.adapters[0].rank == 16


@pytest.mark.parametrize(
    ("adapters", "keys", "said"),
    [
        ([{"id": "a", "rank": 0.5}], {}, "rank: got 0, allowed is a whole number between 1"),
        ([{"id": "a", "rank": float("inf")}], {}, "allowed is a whole number"),
        ([{"id": "a", "rank": True}], {}, "allowed is a whole number"),
        ([{"id": "a", "rank": 2**31}], {}, "whole number between 1 and"),
        ([{"id": "a", "rank": 8}], {"adapter_capacity": 0}, "must be above 0"),
        ([{"id": "a", "rank": 8}], {"footprint_bytes_per_rank": 1e18}, "would take|would reserve"),
        ([{"id": "", "rank": 8}], {}, "id is empty"),
        ([{"id": "a", "rank": 8}, {"id": "a", "rank": 9}], {}, "given twice"),
    ],
)
def test_what_cannot_be_is_refused(
    adapters: list[dict[str, Any]], keys: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        cluster(adapters, **keys)


@pytest.mark.parametrize(
    ("adapter", "model", "said"),
    [
        ("a", None, "and a client that names it has no model"),
        ("a", "other", "has the model 'other'"),
        ("b", "m", "does not declare it"),
    ],
)
def test_clients_are_refused_whether_or_not_a_request_of_theirs_arrives(
    adapter: str, model: str | None, said: str
) -> None:
    config = cluster([{"id": "a", "rank": 8, "base_model": "m"}])
    check_clients(config, ())
    check_clients(config, [SimpleNamespace(adapter="a", model="m"), SimpleNamespace(model=None)])
    with pytest.raises(ConfigError, match=said):
        check_clients(config, [SimpleNamespace(adapter=adapter, model=model)])

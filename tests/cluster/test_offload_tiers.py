"""What a `--kv-offload-config` file says, and what follows for a cluster."""

from typing import Any

import pytest

from blis_jax import ClusterConfig
from blis_jax.cluster import offload_tiers
from blis_jax.cluster.setting_values import all_values, config_of_values
from blis_jax.errors import ConfigError

TIER = {"type": "fs", "root_dir": "/kv", "direct_io": True}
DEVICES = {
    "disk": {
        "read_bandwidth": 4000.0,
        "write_bandwidth": 2500.0,
        "base_latency": 100.0,
        "saturation_queue_depth": 8,
        "single_transfer_fraction": 0.25,
        "buffered_read_bandwidth": 1800.0,
        "buffered_saturation_queue_depth": 3,
    }
}


def tier_of(entry: dict[str, Any]) -> offload_tiers.SecondaryTier:
    config = {"cpu_bytes_to_use": 10**9, "secondary_tiers": [TIER | entry]}
    return offload_tiers.config_of(config, "file", DEVICES).secondary_tiers[0]


def config(**offload: Any) -> ClusterConfig:
    return ClusterConfig(
        revision="blis-2026-08", kv_offload_config={"cpu_bytes_to_use": 10**9} | offload
    )


def test_a_class_gives_what_the_tier_does_not_say():
    tier = tier_of({"device_class": "disk", "base_latency": 7.0, "n_read_threads": 2})
    assert (tier.read_bandwidth, tier.base_latency) == (4000.0, 7.0)
    assert (tier.n_read_threads, tier.n_write_threads) == (2, 16)


def test_through_the_page_cache_a_class_has_other_numbers_where_it_says_so():
    tier = tier_of({"device_class": "disk", "direct_io": False})
    assert (tier.read_bandwidth, tier.write_bandwidth) == (1800.0, 2500.0)
    assert (tier.saturation_queue_depth, tier.single_transfer_fraction) == (3, 0.25)


def test_the_cpu_has_room_for_whole_blocks():
    assert offload_tiers.cpu_capacity(config(cpu_bytes_to_use=125841465)) == 60
    assert offload_tiers.cpu_capacity(ClusterConfig(revision="blis-2026-08")) == 0


def test_numbers_and_empty_texts_are_read_as_go_reads_them():
    made = config(cpu_bytes_to_use="4e9", eviction_policy="", secondary_tiers=[
        TIER | {"device_class": "", "locality": "", "n_read_threads": 2.0,
                "read_bandwidth": 1, "write_bandwidth": 2, "base_latency": 3}
    ]).kv_offload_config  # fmt: skip
    assert made.cpu_bytes_to_use == 4 * 10**9
    (tier,) = made.secondary_tiers
    assert (tier.read_bandwidth, tier.write_bandwidth, tier.n_read_threads) == (1.0, 2.0, 2)
    with pytest.raises(ConfigError, match="whole number between 1"):
        config(cpu_bytes_to_use=0.5)


def test_settings_survive_as_plain_values():
    tier = TIER | {"device_class": "nvme_gen3", "latency_jitter_stddev": 0.5}
    made = config(secondary_tiers=[tier], offload_prompt_only=False)
    assert config_of_values(all_values(made)) == made


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"revision": "blis-2026-02"}, "blis-2026-08"),
        ({"kv_cpu_blocks": 5}, "kv_cpu_blocks"),
        ({"kv_offload_config": {"cpu_bytes_to_use": 5}}, "less than"),
    ],
)
def test_what_does_not_go_together_is_refused(changes: dict[str, Any], said: str):
    given = {"revision": "blis-2026-08", "kv_offload_config": {"cpu_bytes_to_use": 10**9}}
    with pytest.raises(ConfigError, match=said):
        ClusterConfig(**given | changes)


def test_the_header_of_a_trace_brings_the_tiers_back_with_its_own_numbers():
    tier = TIER | {"device_class": "disk", "direct_io": False, "locality": "REMOTE"}
    said = {"cpu_bytes_to_use": 10**9, "tokens_per_hash": 64, "secondary_tiers": [tier]}
    block = offload_tiers.header_of(offload_tiers.config_of(said, "file", DEVICES), 16, 131072)
    (row,) = block["secondary_tiers"]
    assert (block["block_size"], block["tokens_per_hash"], block["eviction_policy"]) == (
        16,
        64,
        "lru",
    )
    assert (row["device_class"], row["read_bandwidth"], row["n_read_threads"]) == (
        "disk",
        1800.0,
        16,
    )
    made = offload_tiers.of_header(block, "t.yaml")  # "disk" is no class of BLIS's defaults
    assert made.secondary_tiers[0].saturation_queue_depth == 3
    assert offload_tiers.header_of(made, 32, 131072) == block
    replayed = ClusterConfig(revision="blis-2026-08", kv_offload_config=made)
    assert offload_tiers.cpu_capacity(replayed) == 10**9 // 131072
    assert config_of_values(all_values(replayed)) == replayed
    with pytest.raises(ConfigError, match="4 blocks per chunk"):
        offload_tiers.of_header(block | {"blocks_per_chunk": 4}, "t.yaml")

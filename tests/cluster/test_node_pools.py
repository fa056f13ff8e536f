"""BLIS's node pools as groups of instances."""

from typing import Any

import pytest

from blis_jax.cluster.config import AUGUST, ClusterConfig
from blis_jax.cluster.instance_groups import per_instance
from blis_jax.errors import ConfigError


def pool(name: str, gpu_type: str, memory: float, **changes: Any) -> dict[str, Any]:
    return {
        "name": name,
        "gpu_type": gpu_type,
        "gpus_per_node": 3,
        "gpu_memory_gib": memory,
        "initial_nodes": 1,
        "min_nodes": 1,
        "max_nodes": 1,
    } | changes


POOLS = [pool("h", "H100", 80.0), pool("l", "L40S", 48.0, initial_nodes=2)]


def cluster(pools: Any, **settings: Any) -> ClusterConfig:
    used = {"revision": AUGUST, "model": "meta-llama/llama-3.1-8b-instruct", "hardware": "H100"}
    instances = pools if isinstance(pools, dict) else {"node_pools": pools}
    return ClusterConfig(**(used | {"num_instances": 4} | settings), instances=instances)


def test_instances_fill_the_nodes_in_order():
    """As recorded: 26,312 blocks on an H100 and 11,567 on an L40S, at the speed of the cluster's GPU."""
    config = cluster(POOLS)
    assert [(group.name, group.count) for group in config.instances] == [("h", 3), ("l", 1)]
    assert per_instance(config, "total_kv_blocks") == [26_312] * 3 + [11_567]
    assert per_instance(config, "hardware") == ["H100"] * 4


def test_an_instance_stays_on_one_node():
    """Of three GPUs two instances with two GPUs each cannot have any."""
    config = cluster(POOLS, tp=2, num_instances=3)
    assert [(group.name, group.count) for group in config.instances] == [("h", 1), ("l", 2)]


def test_memory_is_that_of_the_first_pool_of_a_kind():
    """As in BLIS, which looks a kind of GPU up."""
    config = cluster([pool("a", "H100", 80.0), pool("b", "H100", 48.0)])
    assert per_instance(config, "total_kv_blocks") == [26_312] * 4


def test_given_blocks_are_those_of_all():
    config = cluster(POOLS, total_kv_blocks=500)
    assert per_instance(config, "total_kv_blocks") == [500] * 4


def test_longest_request_fits_into_the_smaller_cache():
    """Each instance has a limit of its own."""
    config = cluster([pool("h", "H100", 80.0), pool("s", "SMALL", 24.0)])
    blocks = per_instance(config, "total_kv_blocks")
    assert 0 < blocks[3] * 16 < 131_072
    assert per_instance(config, "max_model_len") == [131_072] * 3 + [blocks[3] * 16]


@pytest.mark.parametrize(
    ("pools", "settings", "words"),
    [
        (POOLS, {"num_instances": 10}, "room for 9 instances of 1 GPUs"),
        (POOLS, {"revision": "blis-2026-02"}, "node_pools are of blis-2026-08"),
        ([pool("h", "H100", 0.0)], {}, "gpu_memory_gib must be above 0"),
        ([pool("h", "H100", 80.0, gpus_per_node=0)], {}, "gpus_per_node must be a whole number"),
        ([pool("h", "", 80.0)], {}, "gpu_type must be a text"),
        ([pool("h", "H100", 80.0, colour="red")], {}, "the key 'colour' is unknown"),
        ({"node_pools": []}, {}, "must be a list of pools"),
        ({"node_pools": POOLS, "autoscaler": {}}, {}, "the autoscaler of blis-2026-08 is not"),
        (
            {"node_pools": POOLS, "instance_lifecycle": {"loading_delay": {"mean": 1.0}}},
            {},
            "set warm_start_initial_instances to true",
        ),
    ],
)
def test_what_cannot_be_used_is_refused(pools: Any, settings: dict[str, Any], words: str):
    with pytest.raises(ConfigError, match=words):
        cluster(pools, **settings)

"""BLIS's node pools as groups of instances."""

from typing import Any

import pytest

from blis_jax.cluster.config import AUGUST, ClusterConfig
from blis_jax.cluster.instance_groups import per_instance, roles
from blis_jax.core.types import IDLE
from blis_jax.core.views import FleetParams
from blis_jax.engine.mechanism import params
from blis_jax.errors import ConfigError, ConfigWarning, UnsupportedError


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


POOLS = [pool("h", "H100", 80.0), pool("l", "L40S", 48.0, initial_nodes=2, max_nodes=2)]


def scaled(**numbers: Any) -> dict[str, Any]:
    return {"node_pools": POOLS, "autoscaler": {"interval_us": 500_000} | numbers}


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
        (POOLS, {"revision": "blis-2026-02"}, "node_pools are of blis-2026-08"),
        ([pool("h", "H100", 0.0)], {}, "gpu_memory_gib: got 0.0, allowed is a number above 0"),
        ([pool("h", "H100", 2e9)], {}, "a number above 0 and at most 1e"),
        ([pool("h", "H100", 80.0, gpus_per_node=0)], {}, "a whole number at least 1"),
        ([pool("h", "", 80.0)], {}, "gpu_type: .* allowed is a text"),
        ([pool("h", "H100", 80.0, colour="red")], {}, "the key 'colour' is unknown"),
        ({"node_pools": []}, {}, "must be a list of pools"),
        ([pool("h", "H100", 80.0), pool("h", "H100", 80.0)], {}, "there is a pool 'h' already"),
        ([pool("h", "H100", 80.0, initial_nodes=2)], {}, "max_nodes is 1, below initial_nodes"),
        ([pool("h", "H100", 80.0, cost_per_hour=-1)], {}, "cost_per_hour: got -1, allowed is"),
        ({"autoscaler": {"interval": 5}}, {}, "the key 'interval' is unknown"),
        ({"autoscaler": {"interval_us": -1}}, {}, "interval_us: got -1, allowed is a number"),
        (scaled(analyzer={"kv_cache_threshold": 1.5}), {}, "kv_cache_threshold must be above 0"),
        (scaled(analyzer={"scale_down_boundary": 0.9}), {}, "must be below scale_up_threshold"),
        (scaled(hpa_scrape_delay={"mean": "1"}), {}, "mean: got '1', allowed is a number at"),
        ({"instance_lifecycle": {"drain_policy": "WAIT"}}, {}, "the key 'drain_policy' is unknown"),
        (
            {"instance_lifecycle": {"warm_start_initial_instances": 1}},
            {},
            "got 1, allowed is true or false",
        ),
    ],
)
def test_what_cannot_be_used_is_refused(pools: Any, settings: dict[str, Any], words: str):
    with pytest.raises(ConfigError, match=words):
        cluster(pools, **settings)


def test_instances_without_room_never_start_as_in_blis() -> None:
    with pytest.warns(
        ConfigWarning, match="room for 9 instances of 1 GPUs, but num_instances is 10"
    ):
        config = cluster(POOLS, num_instances=10)
    assert config == cluster(POOLS, num_instances=9)


def test_without_nodes_no_instance_is_there() -> None:
    """A fleet of nobody, with which the router turns all requests away."""
    with pytest.warns(ConfigWarning, match="room for 0 instances"):
        none = cluster([pool("h", "H100", 80.0, initial_nodes=0)])
    assert params(none, num_rows=8).cluster[FleetParams].num_first == 0
    with pytest.raises(UnsupportedError, match="room for 9 instances"):
        cluster(POOLS, num_instances=10, tenant_budgets="0=0.5")


def test_an_instance_that_is_made_beside_pools_is_in_none() -> None:
    """As in BLIS, which gives it the cluster's settings and the node's memory."""
    pools = {"prefill_instances": 1, "decode_instances": 1, "decode_tp": 2, "pd_decider": "always"}
    config = cluster(scaled(), num_instances=2, **pools)
    made = params(config, num_rows=4).cluster
    assert made.roles.tolist() == [1, 2, IDLE, IDLE]
    blocks = per_instance(config, "total_kv_blocks")
    assert blocks[0] == 26_312 != blocks[1]
    assert made.total_kv_blocks.tolist() == [*blocks, 26_312, 26_312]


def test_pools_on_other_gpus_are_of_other_kinds_where_no_nodes_are() -> None:
    """The autoscaler tells those go first whose kind is the first by name; nothing has a price there."""
    pools = {"prefill_instances": 1, "decode_instances": 1, "prefill_hardware": "A100-80"}
    config = cluster({"autoscaler": {"interval_us": 500_000}}, num_instances=3, **pools)
    assert params(config).cluster[FleetParams].row_kind.tolist() == [0, 1, 1]


def test_pools_are_placed_first_to_last():
    """Blocks follow the GPUs of the node and those of the pool; the sum is that of what was asked for."""
    roles_ = {"prefill_instances": 3, "decode_instances": 2, "decode_tp": 2}
    config = cluster(POOLS, num_instances=5, pd_decider="always", **roles_)
    blocks = per_instance(config, "total_kv_blocks")
    alone = cluster([pool("l", "L40S", 48.0)], tp=2, num_instances=1)
    assert blocks == [26_312] * 3 + per_instance(alone, "total_kv_blocks") * 2
    with pytest.warns(ConfigWarning, match="room for 3 instances"):
        short = cluster([POOLS[0]], num_instances=5, pd_decider="always", **roles_)
    assert roles(short) == [1, 1, 1] and short.cluster_policy == "saturation-autoscaler"
    with pytest.raises(ConfigError, match="the pools add up to 5"):
        cluster([POOLS[0]], num_instances=4, **roles_)


def test_an_autoscaler_is_a_cluster_policy_with_the_numbers_of_the_file():
    """Zeros of the analyzer stand for BLIS's defaults."""
    delays = {"loading_delay": {"mean": 1.5, "stddev": 0.5}, "warm_start_initial_instances": True}
    analyzer = {"kv_cache_threshold": 0.02, "scale_up_threshold": 0}
    given = scaled(analyzer=analyzer, hpa_scrape_delay={"mean": 2}) | {"instance_lifecycle": delays}
    config = cluster(given)
    assert config.cluster_policy == "saturation-autoscaler"
    numbers = {
        "interval_us": 500_000,
        "kv_cache_threshold": 0.02,
        "scale_up_threshold": 0.8,
        "scale_down_boundary": 0.4,
        "avg_input_tokens": 512,
        "scrape_delay_mean_s": 2,
        "loading_delay_mean_s": 1.5,
        "loading_delay_stddev_s": 0.5,
        "warm_start": 1,
    }
    for name, value in numbers.items():
        assert getattr(config, f"saturation_autoscaler_{name}") == value, name
    assert [(pool.gpu_type, pool.nodes) for pool in config.node_pools] == [("H100", 1), ("L40S", 2)]
    # a copy keeps them, and a number that is given counts before the file's
    assert config.replace(routing_policy="least-loaded").node_pools == config.node_pools
    mine = cluster(given, saturation_autoscaler_interval_us=250_000.0)
    assert mine.saturation_autoscaler_interval_us == 250_000


def test_without_ticks_and_loading_nothing_acts():
    """As in BLIS, whose first instances are there at once then."""
    for given in (
        {"node_pools": POOLS},
        {"node_pools": POOLS, "autoscaler": {}},
        {"instance_lifecycle": {"loading_delay": {"mean": 1.0}}},
    ):
        assert cluster(given).cluster_policy == "none"
    loads = {"node_pools": POOLS, "instance_lifecycle": {"loading_delay": {"mean": 1.0}}}
    assert cluster(loads).saturation_autoscaler_interval_us == 0

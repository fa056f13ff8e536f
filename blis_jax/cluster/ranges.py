"""What numbers the settings of a cluster may have."""

from __future__ import annotations

from typing import TYPE_CHECKING

from blis_jax.cluster import disaggregation, flow_settings
from blis_jax.cluster.setting_checks import demand
from blis_jax.policies import registry

if TYPE_CHECKING:
    from blis_jax.cluster.config import ClusterConfig

POSITIVE: tuple[str, ...] = ("total_kv_blocks", "block_size_in_tokens", "max_num_running_reqs")
POSITIVE += ("max_num_scheduled_tokens", "dp")
NOT_NEGATIVE: tuple[str, ...] = ("admission_latency", "routing_latency", "horizon")
NOT_NEGATIVE += ("snapshot_refresh_interval", "long_prefill_token_threshold")
NOT_NEGATIVE += ("slo_prefill_critical", "slo_prefill_sheddable")
NOT_NEGATIVE += ("kv_cpu_blocks", "kv_transfer_base_latency")
NOT_NEGATIVE += ("load_refresh_interval", "prefix_index_delay", "network_delay")
NOT_NEGATIVE += ("cache_signal_delay", "max_model_len", *disaggregation.NOT_NEGATIVE)
POSITIVE += flow_settings.POSITIVE
NOT_NEGATIVE += flow_settings.NOT_NEGATIVE
SHARES: tuple[str, ...] = ("kv_offload_threshold", "gpu_memory_utilization", "prefix_index_loss")
MAX_INSTANCES = 2**15 - 1  # instances are numbered in 16 bits in the golden format
# a gateway has a prefix index and states of its own
MOST: dict[str, int] = {"num_instances": MAX_INSTANCES, "num_gateways": 64}


def check_ranges(config: ClusterConfig) -> None:
    """Refuses numbers outside their ranges.

    Raises:
        ConfigError: the sentence begins with the setting's name.
    """
    for name in POSITIVE:
        demand(config, name, lambda value: value > 0, "above 0")
    for name in NOT_NEGATIVE:
        demand(config, name, lambda value: value >= 0, "at least 0")
    for name in SHARES:
        demand(config, name, lambda value: 0 <= value <= 1, "between 0 and 1")
    for name, setting in registry.settings().items():
        demand(config, name, setting.number.permits, setting.number.allowed)
    demand(config, "kv_transfer_bandwidth", lambda value: value > 0, "above 0")
    for name, most in MOST.items():
        demand(config, name, range(1, most + 1).__contains__, f"between 1 and {most}")

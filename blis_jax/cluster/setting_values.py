"""All settings of a configuration as plain values."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from blis_jax.cluster import disaggregation
from blis_jax.cluster.flow_settings import FlowSettings
from blis_jax.cluster.instance_groups import InstanceGroup
from blis_jax.cluster.node_pools import NodePool
from blis_jax.errors import ConfigError
from blis_jax.policies import registry

if TYPE_CHECKING:
    from blis_jax.cluster.config import ClusterConfig

# numbers of policies that the first records were made with, in the order in which they were hashed; what is declared
# later counts only where it is given
_FIRST_NUMBERS = (
    "token_bucket_capacity",
    "token_bucket_refill_rate",
    "slo_gated_threshold",
    "class_gated_standard",
    "class_gated_sheddable",
    "class_gated_probability",
    "slo_scorer_bias_critical",
    "slo_scorer_bias_sheddable",
    "slo_base_critical",
    "slo_base_standard",
    "slo_base_sheddable",
    "slo_age_weight",
    "slo_threshold_standard",
    "slo_threshold_sheddable",
    "load_adaptive_low",
    "load_adaptive_high",
    "slo_deadline_critical",
    "slo_deadline_standard",
    "slo_deadline_sheddable",
    "slo_deadline_least_left",
    "cached_block_priority",
)
# other settings that came after the first records, with the values that these were made under
_LATER: dict[str, Any] = {
    "latency_model": "auto",
    "dp": 1,
    "model_config": "",
    "moe_comm_backend": "",
    "gpu_memory_utilization": 0.9,
    "routing_picker": "first-best",
    "policy_numbers": (),
    "instances": (),
    "node_pools": (),
    "cluster_policy": registry.NONE,
    "hand_over_policy": registry.NONE,
    "victim_policy": registry.NONE,
    "offload_policy": registry.NONE,
    "decode_routing_policy": registry.SAME,
    "decode_routing_scorers": "",
    "decode_routing_picker": registry.SAME,
    "load_refresh_interval": 0,
    "snapshot_phases": "aligned",
    "in_flight_counts": True,
    "prefix_index_delay": 0,
    "prefix_index_loss": 0.0,
    "network_delay": 0,
    "preemption_mode": "restart",
    "num_gateways": 1,
    "precise_kv_routing": False,
    "revision": "blis-2026-02",
    "cache_signal_delay": 50_000,
    "max_model_len": 0,
    **disaggregation.SETTINGS,
} | {field.name: field.default for field in dataclasses.fields(FlowSettings)}


# settings that BLIS has no flags for
OUR_POLICY_SETTINGS: tuple[str, ...] = (
    "routing_picker",
    "policy_numbers",
    "cluster_policy",
    "hand_over_policy",
    "victim_policy",
    "offload_policy",
    *registry.DECODE_SETTINGS.values(),
    "load_refresh_interval",
    "snapshot_phases",
    "in_flight_counts",
    "prefix_index_delay",
    "num_gateways",
    *(field.name for field in dataclasses.fields(FlowSettings)),
    "prefix_index_loss",
    "network_delay",
    "preemption_mode",
    "tier_shed_threshold",
    "tier_shed_min_priority",
    "gaie_qd_threshold",
    "gaie_kv_threshold",
    "slo_deadline_critical",
    "slo_deadline_standard",
    "slo_deadline_sheddable",
    "slo_deadline_least_left",
    "cached_block_priority",
    "class_gated_standard",
    "class_gated_sheddable",
    "class_gated_probability",
    *(name for name, one in registry.settings().items() if one.number.setting is None),
)


def plain_value(value: Any) -> Any:
    """A setting's value as JSON has it; groups of instances with what was given of them."""
    if isinstance(value, InstanceGroup | NodePool):
        return value.plain()
    return [plain_value(one) for one in value] if isinstance(value, tuple) else value


def all_values(config: ClusterConfig) -> dict[str, Any]:
    """All settings by name, groups of instances only where there are some."""
    values = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
    lists = ("instances", "node_pools")
    given = {name: plain_value(values[name]) for name in lists if values[name]}
    return {name: value for name, value in values.items() if name not in lists} | given


def values_for_hash(config: ClusterConfig) -> dict[str, Any]:
    """What identifies a configuration; a later setting only where it is given, so that old hashes hold."""
    later = _LATER | {
        name: one.number.default
        for name, one in registry.settings().items()
        if name not in _FIRST_NUMBERS
    }
    values = all_values(config)
    values = {name: values[name] for name in _FIRST_NUMBERS} | values
    return {
        name: value for name, value in values.items() if name not in later or value != later[name]
    }


def config_of_values(values: Mapping[str, Any]) -> ClusterConfig:
    """The configuration whose `all_values` these are, as JSON has them.

    Raises:
        ConfigError: a setting or a policy is not known here, or has another meaning than where they were written.
    """
    from blis_jax.cluster.config import FIELDS, ClusterConfig, refuse_unknown

    refuse_unknown(name for name in values if name not in FIELDS)
    config = ClusterConfig(**values)
    for name, value in all_values(config).items():
        if name in values and plain_value(value) != plain_value(values[name]):
            raise ConfigError(
                f"setting {name}: {values[name]!r} was written and {value!r} is read; another version of blis_jax "
                "wrote it"
            )
    return config

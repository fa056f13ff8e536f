"""Convert all settings of a configuration to plain values and back."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from blis_jax.cluster.adapters import LoraConfig
from blis_jax.cluster.config import FIELDS, ClusterConfig, refuse_unknown
from blis_jax.cluster.instance_groups import InstanceGroup
from blis_jax.cluster.named_policies import as_pairs, is_policy_number
from blis_jax.cluster.node_pools import NodePool
from blis_jax.cluster.offload_tiers import KvOffloadConfig
from blis_jax.cluster.speculation import SpeculativeConfig
from blis_jax.errors import ConfigError

# settings in the hash of every record; a later setting is hashed only if it was given, so that old hashes stay valid
OF_FIRST_RECORDS = (
    "model", "hardware", "tp", "alpha_coeffs", "beta_coeffs", "total_kv_blocks", "block_size_in_tokens",
    "max_num_running_reqs", "max_num_scheduled_tokens", "long_prefill_token_threshold", "num_instances",
    "admission_policy", "admission_latency", "routing_latency", "routing_policy", "routing_scorers", "priority_policy",
    "scheduler", "slo_priority_bridge", "slo_prefill", "slo_prefill_critical", "slo_prefill_sheddable",
    "slo_preemption", "snapshot_refresh_interval", "kv_cpu_blocks", "kv_offload_threshold", "kv_transfer_bandwidth",
    "kv_transfer_base_latency", "horizon", "variant", "corrected", "token_bucket_capacity", "token_bucket_refill_rate",
    "slo_gated_threshold", "slo_scorer_bias_critical", "slo_scorer_bias_sheddable", "slo_base_critical",
    "slo_base_standard", "slo_base_sheddable", "slo_age_weight", "slo_threshold_standard", "slo_threshold_sheddable",
    "load_adaptive_low", "load_adaptive_high",
)  # fmt: skip


_PLAIN = InstanceGroup | NodePool | LoraConfig | KvOffloadConfig | SpeculativeConfig


def is_later(config: ClusterConfig, name: str) -> bool:
    """Return whether the earliest saved records lack this setting and the configuration has its default value."""
    return name not in OF_FIRST_RECORDS and getattr(config, name) == FIELDS[name].default


def plain_value(value: object) -> Any:
    """Return a setting's value as JSON values; of groups of instances, the values that were given."""
    if isinstance(value, _PLAIN):
        return value.plain()
    return [plain_value(element) for element in value] if isinstance(value, tuple) else value


def all_values(config: ClusterConfig) -> dict[str, Any]:
    """Return all settings by name; groups of instances are left out if there are none."""
    values = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
    lists = ("instances", "node_pools", "lora_config", "kv_offload_config", "speculative_config")
    values_of_lists = {
        name: plain_value(values[name]) for name in lists if values[name] != FIELDS[name].default
    }
    return {name: value for name, value in values.items() if name not in lists} | values_of_lists


def config_of_values(values: Mapping[str, Any]) -> ClusterConfig:
    """Return the configuration from which `all_values` returned these values, given as read from JSON.

    Raises:
        ConfigError: a setting or policy is unknown here, or its meaning has changed since the values were written.
    """
    values = dict(values)
    numbers = {name: values.pop(name) for name in list(values) if is_policy_number(name)}
    refuse_unknown(name for name in values if name not in FIELDS)
    if numbers:
        values["policy_numbers"] = as_pairs({**dict(values.get("policy_numbers", ())), **numbers})
    config = ClusterConfig(**values)
    for name, value in all_values(config).items():
        if name in values and plain_value(value) != plain_value(values[name]):
            raise ConfigError(
                f"setting {name}: {values[name]!r} was written and {value!r} is read; another version of blis_jax "
                "wrote it"
            )
    return config

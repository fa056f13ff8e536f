import json

import pytest

from blis_jax.cluster.config import ClusterConfig
from blis_jax.cluster.instance_groups import InstanceGroup
from blis_jax.cluster.setting_values import all_values, config_of_values
from blis_jax.errors import ConfigError
from sweeps.strategies.arms import arm_of

SETTINGS = (
    {},
    {"num_instances": 3, "policy_numbers": {"slo_base_critical": 7.5}, "tp": 2, "hardware": "H100"},
    {"instances": (InstanceGroup(2), InstanceGroup(1, total_kv_blocks=900))},
    {"revision": "blis-2026-08", "latency_model": "trained-physics"},
)


@pytest.mark.parametrize("settings", SETTINGS)
def test_a_configuration_follows_from_its_values(settings: dict) -> None:
    config = ClusterConfig().replace(**{k: v for k, v in settings.items() if k != "policy_numbers"})
    config = config.replace(**settings.get("policy_numbers", {}))
    assert config_of_values(json.loads(json.dumps(all_values(config)))) == config


@pytest.mark.parametrize("arm", ["iter00_baseline", "iter08_token_budget@published"])
def test_arms_of_the_ledger_follow_from_theirs(arm: str) -> None:
    config = arm_of(arm).config
    assert config_of_values(json.loads(json.dumps(all_values(config)))) == config


def test_values_of_another_version_are_refused() -> None:
    values = all_values(ClusterConfig())
    with pytest.raises(ConfigError, match="setting 'num_servers' is unknown"):
        config_of_values(values | {"num_servers": 3})
    # the groups bring their number with them
    with pytest.raises(ConfigError):
        config_of_values(values | {"num_instances": 2, "instances": [{"count": 1}]})

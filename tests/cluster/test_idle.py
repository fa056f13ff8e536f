"""Settings that change nothing: what they need, and instances that are not there."""

from __future__ import annotations

import pytest

from blis_jax.cluster.config import ClusterConfig
from blis_jax.cluster.idle import idle_settings, refuse_absent_instances
from blis_jax.errors import ConfigError
from blis_jax.latency.registry import lookup
from sweeps.strategies.arms import arm_of


@pytest.mark.parametrize(
    ("settings", "needs"),
    [
        ({"outage_at_time_s": 10}, ("cluster_policy", ("outage-at",))),
        ({"max_gateway_queue_depth": 3}, ("flow_control", ())),
        ({"kv_offload_threshold": 0.5}, ("kv_cpu_blocks", ())),
        ({"outage_at_time_s": 10, "cluster_policy": "outage-at"}, None),
        ({"max_gateway_queue_depth": 3, "flow_control": True}, None),
        ({"slo_age_weight": 1e-5, "priority_policy": "slo-tiered"}, None),
        ({"num_instances": 3, "max_num_running_reqs": 8}, None),
    ],
)
def test_settings_that_nothing_reads(settings, needs) -> None:
    found = list(idle_settings(ClusterConfig(**settings), settings))
    assert found == ([] if needs is None else [(next(iter(settings)), *needs)])


def test_an_arm_with_such_a_setting_is_refused_unless_it_says_that_it_is_off() -> None:
    with pytest.raises(
        ConfigError, match="kv_offload_threshold has no effect without kv_cpu_blocks"
    ):
        arm_of("vllm:kv_offload_threshold=0.9")
    arm_of("vllm:kv_offload_threshold=0.9;kv_cpu_blocks=0")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"cluster_policy": "outage-at", "outage_at_instance": 2}, "must be 0 to 1, .* got 2"),
        (
            {"cluster_policy": "autoscaler", "autoscaler_min_instances": 3, "autoscaler_max_instances": 2},
            "at most autoscaler_max_instances",
        ),
    ],
)  # fmt: skip
def test_instances_that_are_not_there(settings, words) -> None:
    config = ClusterConfig(num_instances=2, **settings)
    with pytest.raises(ConfigError, match=words):
        refuse_absent_instances(config)
    refuse_absent_instances(config.replace(cluster_policy="none"))


def test_a_model_gpu_or_tp_takes_its_published_fit() -> None:
    for told in ({"tp": 1}, {"hardware": "A100-80"}, {"model": "qwen/qwen3-14b"}):
        fit = lookup(told.get("model", ClusterConfig.model), told.get("hardware"), told.get("tp"))
        config = ClusterConfig(**told)
        assert (config.alpha_coeffs, config.beta_coeffs) == (fit.alpha, fit.beta)
        assert (config.hardware, config.tp) == (fit.gpu, fit.tp)
        assert config.total_kv_blocks == fit.total_kv_blocks
        assert ClusterConfig().replace(**told) == config
        given = ClusterConfig(**told, beta_coeffs=(1.0, 2.0, 3.0))
        assert (
            given.beta_coeffs == (1.0, 2.0, 3.0)
            and given.alpha_coeffs == ClusterConfig.alpha_coeffs
        )
    with pytest.warns(
        match="step times stay those of meta-llama/llama-3.1-8b-instruct on 2 H100: no"
    ):
        ClusterConfig(model="no/such")

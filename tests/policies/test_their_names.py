"""vLLM's and llm-d's names mean ours, in Python, arms, groups of instances and options."""

from __future__ import annotations

import pytest
import yaml

from blis_jax import ClusterConfig, ConfigError
from blis_jax.cluster.config import FIELDS
from blis_jax.cluster.instance_groups import KEYS, groups_of
from blis_jax.commands.help import spellings
from blis_jax.policies import registry
from blis_jax.policies.their_names import POLICIES, SETTINGS
from sweeps.strategies.arms import arm_of
from tests.support.recorded.reference_data import REPO_ROOT

VALUES = {"scheduling_policy": "sjf", "tensor_parallel_size": 4, "gpu": "H200"}
# older releases: a scorer of its own; now its producer feeds the common one
FORMER = {"precise-prefix-cache-scorer": "prefix-cache-scorer"}


@pytest.mark.parametrize(("theirs", "ours"), SETTINGS.items())
@pytest.mark.filterwarnings("ignore:step times stay")
def test_a_setting_under_vllms_name(theirs: str, ours: str) -> None:
    value = VALUES.get(theirs, 3)
    assert ours in FIELDS and theirs not in FIELDS
    config = ClusterConfig(**{theirs: value})
    assert config == ClusterConfig(**{ours: value}) == ClusterConfig().replace(**{theirs: value})
    assert ours in config.given
    arm = arm_of(f"vllm:latency_model=trained-physics;{theirs}={value}")
    assert arm.config == arm_of(f"vllm:latency_model=trained-physics;{ours}={value}").config
    assert ours in arm.given
    assert theirs.replace("_", "-") in spellings(ours.replace("_", "-"))
    if ours in KEYS:
        assert groups_of([{theirs: value}]) == groups_of([{ours: value}])


@pytest.mark.parametrize("make", [lambda **given: ClusterConfig(**given), ClusterConfig().replace])
def test_one_setting_under_two_names_is_refused(make: type[ClusterConfig]) -> None:
    with pytest.raises(ConfigError, match="max_num_seqs and max_num_running_reqs are the same"):
        make(max_num_seqs=3, max_num_running_reqs=3)
    with pytest.raises(ConfigError, match=r"arm 'vllm:.*are the same setting"):
        arm_of("vllm:max_num_seqs=3;max_num_running_reqs=3")


def test_problems_have_the_name_that_was_given() -> None:
    with pytest.raises(ConfigError, match=r"^max_num_seqs must be above 0"):
        ClusterConfig(max_num_seqs=0)
    with pytest.raises(ConfigError, match=r"^max_num_running_reqs must be above 0"):
        ClusterConfig(max_num_running_reqs=0)
    with pytest.raises(ConfigError, match="': max_num_batched_tokens must be above 0"):
        arm_of("vllm:max_num_batched_tokens=0")
    with pytest.raises(ConfigError, match="did you mean 'max_num_batched_tokens'"):
        arm_of("vllm:max_num_batched_token=512")
    with pytest.raises(ConfigError, match="did you mean 'queue-scorer'"):
        arm_of("llm-d-default:routing_scorers=queue-score:1")


def test_scorers_and_pickers_have_the_types_of_llmds_plugins() -> None:
    config = arm_of("llm-d-default:routing_scorers.queue-scorer=9").config
    assert dict(config.scorers())["waiting-requests"] == 9.0
    for kind, names in POLICIES.items():
        assert set(names.values()) <= set(registry.NAMES[kind])
        assert not set(names) & set(registry.NAMES[kind])


def test_a_plugin_type_means_the_policy_that_a_promotion_writes_as_it() -> None:
    text = (REPO_ROOT / "sweeps/promote/maps/data/policies.yaml").read_text(encoding="utf-8")
    plugins = {row["policy"]: row.get("plugin") for row in yaml.safe_load(text)}
    for kind in ("scorer", "picker"):
        for theirs, ours in POLICIES[kind].items():
            assert plugins[f"{kind}/{ours}"] == FORMER.get(theirs, theirs)


@pytest.mark.parametrize(
    ("written", "ours"),
    [
        ("NVIDIA H100 80GB HBM3", "H100"), ("NVIDIA-A100-SXM4-80GB", "A100-80"), ("a100-80gb", "A100-80"),
        ("h200", "H200"),
        # other memory or bandwidth than what is described, or not known
        ("NVIDIA H100 NVL", "NVIDIA H100 NVL"), ("A100-SXM4-40GB", "A100-SXM4-40GB"), ("A100", "A100"), ("L4", "L4"),
    ],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore:step times stay")
def test_gpus_as_drivers_and_people_write_them(written: str, ours: str) -> None:
    assert ClusterConfig(gpu=written).hardware == ours


@pytest.mark.parametrize(
    ("theirs", "here"),
    [
        ("cache_aware", "routing_scorers=prefix-affinity:3"), ("least_request", "least-loaded takes"),
        ("random", "power_of_two_candidates=1"), ("session-affinity", "hashes.py:session_hashed"),
    ],
)  # fmt: skip
def test_routers_of_others_are_told_what_does_that_here(theirs: str, here: str) -> None:
    with pytest.raises(ConfigError, match="is not known; use one of round-robin") as refused:
        arm_of(f"vllm:routing_policy={theirs}")
    assert here in str(refused.value)
    settings = "routing_policy=power-of-two;power_of_two_candidates=1"
    assert arm_of(f"vllm:{settings}").config.power_of_two_candidates == 1
    assert arm_of("vllm:routing_policy=sweeps/strategies/policies/hashes.py:session_hashed")

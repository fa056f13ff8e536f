"""Arms from texts: where a configuration comes from, what replaces it, and what is refused."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from blis_jax.cluster.config import ClusterConfig
from blis_jax.cluster.revisions import seen_as
from blis_jax.errors import ConfigError
from blis_jax.latency.registry import lookup
from sweeps.strategies.arms import arm_of, arms_of
from sweeps.strategies.file import SHORT_NAMES, load_strategy
from sweeps.strategies.moved import arguments
from sweeps.strategies.space import space_of


def test_strategy_point_parameter_and_setting() -> None:
    plain = arm_of("iter08_token_budget")
    assert plain.config.max_num_scheduled_tokens == 2048 and plain.strategy is not None
    best = arm_of("iter08_token_budget@published")
    assert best.config.max_num_scheduled_tokens == 962
    assert best.config.slo_base_critical == 12.9382
    changed = arm_of("mine=iter08_token_budget@published:max_tokens=1024;num_instances=4")
    assert changed.name == "mine"
    assert changed.config == best.config.replace(max_num_scheduled_tokens=1024, num_instances=4)


@pytest.mark.parametrize(("short", "whole"), SHORT_NAMES.items())
def test_a_short_name_is_a_strategy_at_its_point(short: str, whole: str) -> None:
    changed = f"{short}:num_instances=3"
    assert arm_of(short).config == arm_of(whole).config and arm_of(short).name == short
    assert arm_of(changed).config == arm_of(whole).config.replace(num_instances=3)


def test_override_follows_a_parameter() -> None:
    assert arm_of("iter08_token_budget:prefill_crit=0").config.slo_prefill_sheddable == 0
    assert arm_of("iter08_token_budget:prefill_crit=8").config.slo_prefill_sheddable == 256


def test_numbers_that_yaml_takes_for_texts() -> None:
    found = arm_of("iter08_token_budget@published:age_weight=2e-5").config
    assert found.slo_age_weight == 2e-5
    assert (
        arm_of("baseline:priority_policy=slo-tiered;slo_age_weight=1e-6").config.slo_age_weight
        == 1e-6
    )


def test_scorers_whole_or_one_weight() -> None:
    whole = arm_of("baseline:routing_scorers=prefix-affinity:3,queue-depth:2")
    assert dict(whole.config.scorers()) == {"prefix-affinity": 3.0, "queue-depth": 2.0}
    one = arm_of("iter00_baseline:routing_scorers.queue-depth=5")
    assert dict(one.config.scorers())["queue-depth"] == 5.0


def test_result_of_a_search(tmp_path: Path) -> None:
    config = arm_of("iter08_token_budget@published").config
    path = tmp_path / "found.json"
    path.write_text(json.dumps({"cli_args": arguments(config)}))
    assert arm_of(f"found={path}").config == config


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("iter08_tokn_budget", "did you mean"),
        ("iter08_token_budget@best", "has published"),
        ("it08_opt@published", "no named points"),
        ("iter08_token_budget:max_token=3", "max_tokens"),
        ("iter08_token_budget:max_tokens", "not NAME=VALUE"),
        ("baseline:num_instances=0", "num_instances"),
        ("baseline:num_instances=2;num_instances=3", "given twice"),
        ("baseline:routing_scorers.queue-depth=many", "queue-depth"),
        ("vllm:routing_scorers=queue-depth:1", "give routing_policy=weighted too"),
        ("", "does not have the form"),
        ("nowhere.json", "nowhere.json"),
    ],
)
def test_refusals_name_the_part(text: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        arm_of(text)


def test_the_servers_of_vllm_and_llmd() -> None:
    """The defaults of release 0.27.1: a budget of 8,192 tokens and 1,024 sequences, on an A100 2,048 and 256."""
    plain, routed = arm_of("vllm").config, arm_of("llm-d-default").config
    assert (plain.max_num_scheduled_tokens, plain.max_num_running_reqs) == (8192, 1024)
    assert (plain.long_prefill_token_threshold, plain.kv_cpu_blocks, plain.tp) == (0, 0, 1)
    assert plain.total_kv_blocks == lookup(plain.model, "H100", 1).total_kv_blocks
    assert plain.corrected and plain.preemption_mode == "recompute"
    assert routed == plain.replace(
        routing_policy="weighted",
        routing_scorers="prefix-affinity:3,waiting-requests:2,kv-utilization:2",
        routing_picker="random-best",
        snapshot_refresh_interval=50_000,
        load_refresh_interval=50_000,
    )
    older = arm_of("vllm:hardware=A100-80").config
    assert older.beta_coeffs == lookup(plain.model, "A100-80", 1).beta
    assert (older.max_num_scheduled_tokens, older.max_num_running_reqs) == (2048, 256)
    for written in ("gpu=A100-80", "hardware=NVIDIA-A100-SXM4-80GB", "gpu=a100-80gb"):
        assert arm_of(f"vllm:{written}").config == older
    chosen = arm_of("vllm:hardware=A100-80;max_num_running_reqs=64").config
    assert (chosen.max_num_scheduled_tokens, chosen.max_num_running_reqs) == (2048, 64)
    assert arm_of("vllm:tp=2;hardware=A100-80").config.tp == 2
    assert arm_of("vllm:tp=2").config.total_kv_blocks == 66_069  # in BLIS both GPUs count twice
    assert arm_of("iter00_baseline:corrected=true").config.total_kv_blocks == 132_139
    computed = arm_of("vllm:latency_model=trained-physics;hardware=L40S").config
    whole = ClusterConfig(latency_model="trained-physics", hardware="L40S", tp=1)
    assert (computed.beta_coeffs, computed.total_kv_blocks) == (
        whole.beta_coeffs,
        whole.total_kv_blocks,
    )


@pytest.mark.parametrize(
    ("text", "is_real", "is_corrected"),
    [
        ("baseline", False, False),
        ("baseline", True, True),
        ("baseline:corrected=false", True, False),
        ("baseline:hand_over_policy=pools", False, True),
        ("baseline:hand_over_policy=pools;corrected=false", False, False),
        ("baseline:instances=[{count: 2, role: prefill}, {count: 2, role: decode}]", False, True),
        ("baseline:instances=[{count: 2}, {count: 2, kv_cpu_blocks: 0}]", False, False),
    ],
)
def test_what_stands_for_real_servers_has_no_defects_of_blis(
    text: str, is_real: bool, is_corrected: bool
) -> None:
    (arm,) = arms_of([text], is_real=is_real)
    assert arm.config.corrected == is_corrected
    assert arm.config.replace(corrected=False) == arm_of(text).config.replace(corrected=False)


def test_arms_beside_pools_are_corrected_too() -> None:
    """Else pools would be judged without the defects that their rival has."""
    pools = "pools=baseline:hand_over_policy=pools"
    assert [arm.config.corrected for arm in arms_of(["baseline", pools])] == [True, True]
    exact = arms_of(["baseline:corrected=false", pools])
    assert [arm.config.corrected for arm in exact] == [False, True]


def test_names_of_arms_differ() -> None:
    with pytest.raises(ConfigError, match="LABEL="):
        arms_of(["baseline", "baseline"])


def test_a_space_under_named_signals_has_them_at_every_point() -> None:
    """Weights are searched by the names of the file, whatever the router reads in their place."""
    space = space_of(load_strategy("iter08_token_budget")).served(False, "llm-d-router-0.10")
    for shares in (0.0, 0.7, 1.0):
        point = space.at([shares] * len(space.dimensions))
        config = space.config_at(point)
        plain = dataclasses.replace(space, signals=None).config_at(point)
        assert config == seen_as(plain, "llm-d-router-0.10") != plain


@pytest.mark.parametrize(
    ("settings", "most"),
    [
        ("gpu=A100-80;max_num_batched_tokens=128", 128),
        ("max_num_batched_tokens=4096", 1024),
        ("max_num_batched_tokens=512", 512),
    ],
)
def test_a_budget_alone_lowers_the_most_requests_of_a_server(settings, most):
    assert arm_of(f"vllm:{settings}").config.max_num_running_reqs == most


def test_a_file_that_extends_a_server_may_give_the_budget_alone(tmp_path):
    path = tmp_path / "small.yaml"
    path.write_text("name: small\nextends: vllm\nmechanism: {max_num_batched_tokens: 300}\n")
    assert arm_of(str(path)).config.max_num_running_reqs == 300
    assert arm_of(f"{path}:max_num_batched_tokens=200").config.max_num_running_reqs == 200


def test_more_requests_than_tokens_are_refused_as_in_vllm():
    with pytest.raises(ConfigError, match="max_num_batched_tokens 8192 is below max_num_seqs 9000"):
        arm_of("vllm:max_num_seqs=9000")

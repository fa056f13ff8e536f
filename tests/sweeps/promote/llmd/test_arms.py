"""The configuration files of every shipped strategy, and of policies from files."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from sweeps.promote.llmd.arms import REPORT, arms_of_promotion, config_files
from sweeps.promote.llmd.findings import findings_of
from sweeps.promote.llmd.roles import PodRoles, with_roles
from sweeps.promote.promotion import NotMappedError
from sweeps.strategies.file import list_library
from tests.sweeps.promote.promotions import (
    MINE,
    NOT_IN_THE_TARGET,
    TARGET,
    generated,
    plugins,
    promotion,
    read_yaml,
    read_yamls,
)

ARMS = "configs/arms"


def made(given: str, **options: Any) -> dict[str, Any]:
    """The files of a promotion, YAML as data."""
    found = promotion(given, **options)
    files = config_files(found, plugins(found))
    return {
        path: list(read_yamls(text)) if path.endswith(".yaml") else text
        for path, text in files.items()
    }


def picker(files: dict[str, Any], arm: str = "treatment") -> dict[str, Any]:
    return files[f"{ARMS}/{arm}/endpoint-picker-config.yaml"][0]


def parameters(config: dict[str, Any], kind: str) -> Any:
    return next(one.get("parameters") for one in config["plugins"] if one["type"] == kind)


@pytest.mark.parametrize("name", list_library())
def test_a_shipped_strategy_gives_valid_files_or_a_sentence(name: str) -> None:
    given = promotion(name)
    if name in NOT_IN_THE_TARGET:
        with pytest.raises(NotMappedError) as caught:
            config_files(given, plugins(given))
        assert f"{NOT_IN_THE_TARGET[name]} ({name}.yaml, line " in str(caught.value)
        assert "proposal: " in str(caught.value)
        return
    files = config_files(given, plugins(given))
    assert findings_of(files, TARGET) == []
    assert {f"{ARMS}/{arm}/vllm-flags.yaml" for arm in ("baseline", "control", "treatment")} <= set(
        files
    )


@pytest.mark.parametrize("name", list_library())
def test_without_a_generated_plugin_there_is_a_sentence_with_the_place(name: str) -> None:
    given = promotion(name)
    needed = [one.simulated_name for one in plugins(given) if one.kind == "scorer"]
    if needed and name not in NOT_IN_THE_TARGET:
        with pytest.raises(
            NotMappedError, match=rf"routing_scorers\.\S+ \({name}\.yaml, line \d+\)"
        ):
            config_files(given, ())


def test_two_runs_give_the_same_bytes() -> None:
    given = promotion("iter16_class_gate@found")
    assert config_files(given, plugins(given)) == config_files(given, plugins(given))


def test_weights_are_written_out_under_max_score_picker() -> None:
    profile = picker(made("iter00_baseline"))["schedulingProfiles"][0]["plugins"]
    weights = {step["pluginRef"]: step.get("weight") for step in profile}
    assert weights == {
        "prefix-cache-scorer": 3.0,
        "queue-scorer": 2.0,
        "kv-cache-utilization-scorer": 2.0,
        "max-score-picker": None,
    }


def test_always_admit_lifts_the_thresholds_that_shed_by_default() -> None:
    config = picker(made("iter00_baseline"))
    assert parameters(config, "utilization-detector")["queueDepthThreshold"] == 999_999_999
    assert config["flowControl"] == {"saturationDetector": {"pluginRef": "utilization-detector"}}
    assert "featureGates" not in config


def test_arms_are_overlays_that_list_only_what_they_change() -> None:
    files = made("iter13_class_lead@found")
    overlay = files[f"{ARMS}/treatment/scenario-overlay.yaml"][0]
    assert set(overlay) == {"decode", "router"} and set(overlay["decode"]) == {"vllm"}
    batching = files[f"{ARMS}/ablation-batching/scenario-overlay.yaml"][0]
    assert list(batching) == ["decode"]


def test_an_ablation_arm_changes_one_layer() -> None:
    arms, notes = arms_of_promotion(promotion("iter16_class_gate@found"))
    base, treatment = arms["baseline"], arms["treatment"]
    assert arms["ablation-admission"] == base.replace(
        admission_policy=treatment.admission_policy, **dict(treatment.policy_numbers)
    )
    assert arms["control"] == base and notes == []


def test_a_strategy_of_one_layer_has_no_ablation() -> None:
    arms, _ = arms_of_promotion(promotion("iter06_no_chunk"))
    assert list(arms) == ["baseline", "control", "treatment"]


def test_the_control_arm_runs_the_plugins_without_effect() -> None:
    control = picker(made("iter16_class_gate@found"), "control")
    weights = {
        step["pluginRef"]: step.get("weight")
        for step in control["schedulingProfiles"][0]["plugins"]
    }
    assert weights["load-balance-scorer"] == 0.0 and weights["queue-scorer"] == 2.0
    assert parameters(control, "class-gated-admitter")["probability"] == 0.0
    assert parameters(picker(made("iter16_class_gate@found")), "class-gated-admitter") == {
        "standard_load": 194.12259463255234,
        "sheddable_load": 198.624872019131,
        "probability": 0.434417222344866,
    }


def priorities(files: dict[str, Any], arm: str = "treatment") -> dict[str, int]:
    rows = files[f"{ARMS}/{arm}/scenario-overlay.yaml"][0]["router"]["inferenceObjectives"]
    return {one["name"]: one["priority"] for one in rows}


def test_a_class_that_a_plugin_reads_has_its_priority() -> None:
    files = made("iter16_class_gate@found")
    assert priorities(files)["slo-critical"] == 4 and priorities(files)["slo-sheddable"] == -2
    assert set(priorities(files, "baseline").values()) == {0}
    assert "clients see 500 and not 429" in files[REPORT]


def test_an_order_by_class_is_written_into_requests_for_the_engine() -> None:
    files = made("iter13_class_lead@found")
    leads = parameters(picker(files), "engine-priority")
    assert leads["slo-critical"] > leads["slo-standard"] > leads["slo-sheddable"] == 0
    assert parameters(picker(files, "control"), "engine-priority") is None
    for arm in ("baseline", "ablation-routing"):
        assert "engine-priority" not in [one["type"] for one in picker(files, arm)["plugins"]]
    assert "featureGates" not in picker(files)  # the order is kept where the requests wait
    flags = files[f"{ARMS}/treatment/vllm-flags.yaml"][0]
    assert flags["scheduling-policy"] == "priority"


def test_the_model_that_is_loaded_is_the_one_that_is_served() -> None:
    model = made("iter00_baseline")[f"{ARMS}/baseline/scenario-overlay.yaml"][0]["model"]
    assert model["name"] == model["huggingfaceId"] == "meta-llama/Llama-3.1-8B-Instruct"
    assert model["path"] == f"models/{model['name']}"


def test_a_pod_holds_its_cpu_tier() -> None:
    decode = made("iter13_class_lead@found")[f"{ARMS}/baseline/scenario-overlay.yaml"][0]["decode"]
    assert "--kv-offloading-size 85.938" in decode["vllm"]["customCommand"]
    assert decode["resources"]["limits"]["memory"] == "150Gi"


def test_arms_with_a_plugin_run_its_image() -> None:
    files = made("iter13_class_lead@found")
    images = {
        arm: files[f"{ARMS}/{arm}/scenario-overlay.yaml"][0]["router"]["epp"].get("image")
        for arm in ("baseline", "control", "treatment")
    }
    assert images["baseline"] is None
    own = {"registry": "quay.io/example", "repository": "endpoint-picker", "tag": "promoted"}
    assert images["control"] == images["treatment"] == own


def test_a_gate_without_a_plugin_becomes_a_detector_with_a_whole_threshold() -> None:
    given = promotion("iter00_baseline:admission_policy=slo-gated;slo_gated_threshold=20.4")
    files = config_files(given, ())
    assert findings_of(files, TARGET) == []
    config = read_yaml(files[f"{ARMS}/treatment/endpoint-picker-config.yaml"])
    assert parameters(config, "utilization-detector") == {
        "queueDepthThreshold": 20,
        "kvCacheUtilThreshold": 1.0,
    }
    assert "sheds somewhat earlier" in files[REPORT]


def test_every_setting_in_effect_is_in_the_report() -> None:
    text = made("iter08_token_budget@published")[REPORT]
    for setting in (
        "max_num_scheduled_tokens",
        "kv_offload_threshold",
        "slo_prefill_critical",
        "slo_base_critical",
    ):
        assert f"| `{setting}` |" in text
    assert "here 256, that of the class with the most requests" in text
    assert "`slo_gated_threshold`" not in text


def test_a_policy_of_a_file_is_configured_with_its_numbers(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(MINE)
    given = promotion(
        f"iter00_baseline:routing_scorers=prefix-affinity~1+{tmp_path}/mine.py:calm~2"
    )
    files = config_files(given, plugins(given))
    assert findings_of(files, TARGET) == []
    config = read_yaml(files[f"{ARMS}/treatment/endpoint-picker-config.yaml"])
    assert parameters(config, "calm-scorer") == {"scale": 8.0}
    assert "mine.py:calm" in files[REPORT]
    for path, text in files.items():
        assert str(tmp_path) not in text.replace(given.given, ""), path


POOLS = ({"count": 2, "role": "prefill"}, {"count": 2, "role": "decode"})


def with_instances(groups: Any, target: str = TARGET, **settings: Any) -> Any:
    given = promotion("iter00_baseline")
    config = given.arm.config.replace(**({"instances": groups, "kv_cpu_blocks": 0} | settings))
    base = type(given.baseline)("base", given.baseline.config.replace(kv_cpu_blocks=0))
    return type(given)(given.given, type(given.arm)("roles", config), base, target)


def test_roles_bring_their_filters_and_a_handler() -> None:
    files = config_files(with_instances(POOLS), ())
    assert findings_of(files, TARGET) == []
    document = read_yaml(files[f"{ARMS}/treatment/endpoint-picker-config.yaml"])
    first = {one["name"]: one["plugins"][0]["pluginRef"] for one in document["schedulingProfiles"]}
    assert first == {"prefill": "prefill-filter", "decode": "decode-filter"}
    rest = [one["plugins"][1:] for one in document["schedulingProfiles"]]
    assert rest[0] == rest[1] and rest[0][-1] == {"pluginRef": "max-score-picker"}
    overlay = read_yaml(files[f"{ARMS}/treatment/scenario-overlay.yaml"])
    assert (overlay["prefill"]["enabled"], overlay["prefill"]["replicas"]) == (True, 2)
    assert overlay["vllmCommon"]["kvTransfer"]["connector"] == "NixlConnector"
    base = read_yaml(files[f"{ARMS}/baseline/scenario-overlay.yaml"])
    assert overlay["prefill"]["vllm"] == base["decode"]["vllm"]
    assert "prefill" not in base and "kvTransfer" not in base["vllmCommon"]


def test_roles_of_the_baseline_alone_are_taken_away_from_the_others() -> None:
    given = with_instances(POOLS)
    files = config_files(dataclasses.replace(given, arm=given.baseline, baseline=given.arm), ())
    assert findings_of(files, TARGET) == []
    overlay = read_yaml(files[f"{ARMS}/treatment/scenario-overlay.yaml"])
    assert overlay["prefill"] == overlay["vllmCommon"]["kvTransfer"] == {"enabled": False}


@pytest.mark.parametrize(
    ("target", "above", "decider", "numbers"),
    [
        (TARGET, 0, "always-disagg-pd-decider", None),
        (TARGET, 500, "prefix-based-pd-decider", {"nonCachedTokens": 1, "promptTokens": 501}),
        (
            "llm-d-inference-scheduler@main-520af478",
            500,
            "prefix-based-pd-decider",
            {"nonCachedTokens": 501},
        ),
    ],
)
def test_the_decider_moves_the_prompts_that_pools_split(
    target: str, above: int, decider: str, numbers: dict[str, int] | None
) -> None:
    pools = {"hand_over_policy": "pools", "pools_split_above_tokens": above}
    files = config_files(with_instances(POOLS, target, **pools), ())
    assert findings_of(files, target) == []
    document = read_yaml(files[f"{ARMS}/treatment/endpoint-picker-config.yaml"])
    assert parameters(document, "disagg-profile-handler")["deciders"] == {"prefill": decider}
    assert parameters(document, decider) == numbers


def test_decode_pods_alone_need_no_handler() -> None:
    files = config_files(with_instances(({"count": 3, "role": "decode"},)), ())
    document = read_yaml(files[f"{ARMS}/treatment/endpoint-picker-config.yaml"])
    (profile,) = document["schedulingProfiles"]
    assert profile["plugins"][0] == {"pluginRef": "decode-filter"}
    assert "disagg-profile-handler" not in {one["type"] for one in document["plugins"]}


@pytest.mark.parametrize("use", ["", "decode", "prefill-decode"])
@pytest.mark.parametrize("before", ["", "decode", "prefill-decode"])
def test_roles_are_put_in_place_of_others(before: str, use: str) -> None:
    plain = picker(made("iter13_class_lead@found"))
    document = with_roles(with_roles(plain, PodRoles(before)), PodRoles(use))
    assert document == with_roles(plain, PodRoles(use))
    assert (document == plain) == (use == "")


def test_a_cpu_tier_and_pools_want_the_same_connector() -> None:
    with pytest.raises(NotMappedError, match=r"kv_cpu_blocks .*; proposal: set kv_cpu_blocks to 0"):
        config_files(with_instances(POOLS, kv_cpu_blocks=1000), ())


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ("iter00_baseline:max_num_scheduled_tokens=128", "128 tokens for 256 sequences"),
        ("iter00_baseline:admission_policy=class-gated", "admission_policy .*class-gated"),
        ("iter00_baseline:routing_policy=power-of-two", "no filter draws candidates at random"),
        ("iter01_priority_cascade:priority_policy=inverted-slo", "a deliberately bad policy"),
        (
            "iter00_baseline:hand_over_policy=pools;decode_routing_policy=least-loaded",
            "decode_routing_policy .*this command writes the same scorers and picker for both pools",
        ),
        (
            "iter00_baseline:model=example/unknown;alpha_coeffs=[1,2,3];beta_coeffs=[1,2,3]",
            "models.yaml, or set kv_cpu_blocks to 0",
        ),
    ],
)
def test_what_the_target_has_not_is_one_sentence_with_a_proposal(given: str, sentence: str) -> None:
    found = promotion(given)
    generated = plugins(found) if "cascade" in given else ()
    with pytest.raises(NotMappedError, match=rf"{sentence}.*"):
        config_files(found, generated)
    with pytest.raises(NotMappedError, match="; proposal: "):
        config_files(found, generated)


@pytest.mark.parametrize(
    "name", ["iter00_baseline", "iter13_class_lead@found", "iter16_class_gate@found"]
)
def test_an_older_version_of_the_target_is_a_file(name: str) -> None:
    given = dataclasses.replace(promotion(name), target="llm-d-inference-scheduler@main-520af478")
    files = config_files(given, plugins(given))
    assert findings_of(files, given.target) == []
    document = read_yaml(files[f"{ARMS}/treatment/endpoint-picker-config.yaml"])
    assert "saturationDetector" in document
    assert "allow-experimental-plugins" not in "".join(files.values())
    assert "unknown-field" in {
        one.rule for one in findings_of(config_files(promotion(name), plugins(given)), given.target)
    }


def test_an_order_without_a_key_is_the_plugin_s_in_the_router_s_queue() -> None:
    given = promotion("iter06_sjf")
    order = generated("order", "sjf", "sjf-ordering-policy", signals=("request.input_len",))
    files = config_files(given, [order])
    assert findings_of(files, TARGET) == []
    document = read_yaml(files[f"{ARMS}/treatment/endpoint-picker-config.yaml"])
    (band,) = document["flowControl"]["priorityBands"]
    assert band["orderingPolicyRef"] == "sjf-ordering-policy"
    flags = read_yaml(files[f"{ARMS}/treatment/vllm-flags.yaml"])
    assert flags["scheduling-policy"] == "fcfs"


def test_numbers_find_the_plugin_s_own_spelling() -> None:
    given = promotion("iter00_baseline:admission_policy=slo-gated;slo_gated_threshold=20.5")
    gate = generated(
        "admission", "slo-gated", "slo-gated-admitter", parameters={"loadThreshold": 1.0}
    )
    files = config_files(given, [gate])
    found = {
        arm: parameters(
            read_yaml(files[f"{ARMS}/{arm}/endpoint-picker-config.yaml"]), gate.type_name
        )
        for arm in ("treatment", "control")
    }
    assert found == {"treatment": {"loadThreshold": 20.5}, "control": {"loadThreshold": 1e12}}


FLOW = (
    "flow_control=true;saturation_detector=concurrency;max_concurrency=12;max_gateway_queue_depth=77;"
    "per_band_capacity=33;request_ttl=5000000;usage_limit_threshold=0.8;fairness_policy=round-robin"
)


def test_flow_control_is_written_as_it_is_set() -> None:
    config = picker(made(f"iter00_baseline:{FLOW}"))
    flow = config["flowControl"]
    assert config["featureGates"] == ["flowControl"]
    assert (flow["maxRequests"], flow["defaultRequestTTL"]) == ("77", "5000000us")
    assert parameters(config, "concurrency-detector")["maxConcurrency"] == 12
    assert parameters(config, "static-usage-limit-policy") == {"threshold": 0.8}
    assert [band["priority"] for band in flow["priorityBands"]] == [4, 3, 0, -1, -2, -3]
    assert {band["maxRequests"] for band in flow["priorityBands"]} == {"33"}
    assert flow["priorityBands"][0]["fairnessPolicyRef"] == "round-robin-fairness-policy"


def test_a_band_without_a_limit_is_not_bounded_by_the_target() -> None:
    flow = picker(made("iter00_baseline:flow_control=true"))["flowControl"]
    assert {band["maxRequests"] for band in flow["priorityBands"]} == {"1000000000"}
    assert "maxRequests" not in flow


def test_a_gate_of_the_target_s_own_has_its_thresholds() -> None:
    config = picker(made("iter00_baseline:admission_policy=gaie-legacy;gaie_kv_threshold=0.7"))
    assert parameters(config, "utilization-detector") == {
        "queueDepthThreshold": 5,
        "kvCacheUtilThreshold": 0.7,
    }


def test_cache_events_reach_the_precise_index() -> None:
    config = picker(made("iter00_baseline:routing_scorers=precise-prefix-cache~2+queue-depth~1"))
    sources = {one["pluginRef"]: one["extractors"] for one in config["dataLayer"]["sources"]}
    events = sources["endpoint-notification-source"]
    assert events == [{"pluginRef": "precise-prefix-cache-producer"}]
    assert parameters(config, "precise-prefix-cache-producer")["tokenProcessorConfig"] == {
        "blockSize": 16
    }
    first = config["schedulingProfiles"][0]["plugins"][0]
    assert first == {"pluginRef": "precise-prefix-cache-scorer", "weight": 2.0}

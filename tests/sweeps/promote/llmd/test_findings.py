"""Every rule finds its planted defect, and nothing where none is planted."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from blis_jax.errors import ConfigError
from sweeps.promote.llmd.findings import findings_of
from tests.sweeps.promote.llmd.sound import (
    CONFIG,
    FLAGS,
    MIX,
    OVERLAY,
    PLUGINS,
    documents,
    pools,
    texts,
)

TARGET = "llm-d-router@0.10.0"
PREFILL, DECODE = 0, 1  # profiles of pods with roles
HANDLER = "disagg-profile-handler"
Plant = Callable[[dict[str, Any]], Any]


def plugin(files: dict[str, Any], kind: str) -> dict[str, Any]:
    return next(one for one in files[CONFIG]["plugins"] if one["type"] == kind)


def profile(files: dict[str, Any], at: int = 0) -> list[dict[str, Any]]:
    steps: list[dict[str, Any]] = files[CONFIG]["schedulingProfiles"][at]["plugins"]
    return steps


def numbers(files: dict[str, Any], kind: str) -> dict[str, Any]:
    given: dict[str, Any] = plugin(files, kind)["parameters"]
    return given


def objective(files: dict[str, Any]) -> dict[str, Any]:
    first: dict[str, Any] = files[OVERLAY]["router"]["inferenceObjectives"][0]
    return first


TEN: dict[str, Plant] = {
    "unknown-field": lambda files: files[CONFIG].update(schedulingProfile=[]),
    "wrong-reference": lambda files: profile(files)[3].update(pluginRef="queue-depth"),
    "quantity-as-integer": lambda files: files[CONFIG]["flowControl"].update(maxRequests=500),
    "wrong-group": lambda files: files[CONFIG].update(apiVersion="llm-d.ai/v1"),
    "pod-memory": lambda files: (
        files[FLAGS].update({"kv-offloading-size": 80.0, "kv-offloading-backend": "native"})
        or files[OVERLAY]["decode"]["vllm"].update(
            customCommand="vllm serve m --kv-offloading-size 80.0"
        )
    ),
    "negative-block": lambda files: plugin(files, "approx-prefix-cache-producer")[
        "parameters"
    ].update(blockSizeTokens=-64),
    "alpha-plugin-without-flag": lambda files: files[OVERLAY]["router"]["epp"].pop("flags"),
    "priority-sign": lambda files: objective(files).update(priority=-4),
    "missing-decode-filter": lambda files: profile(files).pop(0),
    "batched-tokens-below-sequences": lambda files: files[FLAGS].update({"max-num-seqs": 2048}),
}
FURTHER: dict[str, Plant] = {
    "duplicate-name": lambda files: files[CONFIG]["plugins"].append({"type": "queue-scorer"}),
    "unknown-gate": lambda files: files[CONFIG].update(featureGates=["flowControl", "flow"]),
    "flow-control-without-gate": lambda files: files[CONFIG].pop("featureGates"),
    "weight-on-non-scorer": lambda files: profile(files)[4].update(weight=1.0),
    "weight-not-written": lambda files: profile(files)[3].pop("weight"),
    "picker-not-written": lambda files: profile(files).pop(),
    "admitter-in-profile": lambda files: profile(files).append({"pluginRef": "probabilistic-admitter"}),
    "unknown-plugin-type": lambda files: files[CONFIG]["plugins"].append({"type": "queue-depth"}),
    "deprecated": lambda files: files[CONFIG].update(apiVersion="inference.networking.x-k8s.io/v1alpha1"),
    "handler-missing": lambda files: files[CONFIG]["schedulingProfiles"].append(
        {"name": "other", "plugins": [{"pluginRef": "decode-filter"}]}
    ),
    "block-size-below-least": lambda files: plugin(files, "approx-prefix-cache-producer")[
        "parameters"
    ].update(blockSizeTokens=16),
    "threshold-not-integer": lambda files: plugin(files, "concurrency-detector").update(
        parameters={"maxConcurrency": 96.5}
    ),
    "unit-string": lambda files: files[CONFIG]["flowControl"].update(defaultRequestTTL="60"),
    "order-across-bands": lambda files: files[CONFIG]["flowControl"]["priorityBands"].append(
        {"priority": -1, "orderingPolicyRef": "slo-deadline-ordering-policy"}
    ),
    "zero-means-default": lambda files: files[CONFIG]["flowControl"]["priorityBands"][0].update(maxRequests="0"),
    "weights-under-random-picker": lambda files: plugin(files, "max-score-picker").update(
        name="max-score-picker", type="weighted-random-picker"
    ),
    "missing-field": lambda files: objective(files).pop("priority"),
    "wrong-type": lambda files: objective(files).update(priority="high"),
    "not-allowed": lambda files: files[FLAGS].update({"scheduling-policy": "sjf"}),
    "chunked-prefill-model-length": lambda files: files[FLAGS].update(
        {"enable-chunked-prefill": False, "max-model-len": 4096}
    ),
    "chunked-prefill-off": lambda files: files[FLAGS].update(
        {"enable-chunked-prefill": False, "max-model-len": 512, "long-prefill-token-threshold": 256}
    ),
    "offload-half": lambda files: files[FLAGS].update({"kv-offloading-size": 8.0}),
    "priority-negated-once": lambda files: plugin(files, "engine-priority")["parameters"].update(
        {"slo-critical": -900.0}
    ),
    "image-unset": lambda files: files[OVERLAY]["router"]["epp"]["image"].update(tag="SET-ME"),
    "flags-differ": lambda files: files[FLAGS].update({"max-num-seqs": 128}),
    "sheds-by-default": lambda files: [files[CONFIG].pop("featureGates"), files[CONFIG].pop("flowControl")],
}  # fmt: skip
OTHER_PLACES: list[tuple[str, Plant]] = [
    ("negative-block", lambda files: files[FLAGS].update({"block-size": -16})),
    ("image-unset", lambda files: files[OVERLAY]["router"]["epp"].pop("image")),
    (
        "not-allowed",
        lambda files: files[MIX]["trafficClasses"][0].update(headers={"x-llm-d-slo-ttft": "9"}),
    ),
    ("wrong-reference", lambda files: files[MIX]["trafficClasses"][0].update(objective="x")),
    (
        "duplicate-name",
        lambda files: files[OVERLAY]["router"]["inferenceObjectives"].append(
            {"name": "slo-critical", "priority": 4}
        ),
    ),
    ("priority-sign", lambda files: files[MIX]["trafficClasses"][0].update(priority=-4)),
    (
        "wrong-reference",
        lambda files: files[CONFIG]["flowControl"]["saturationDetector"].update(
            pluginRef="queue-scorer"
        ),
    ),
    ("unknown-field", lambda files: plugin(files, "queue-scorer").update(config={})),
    ("unknown-field", lambda files: files[MIX]["load"].update(rate=1)),
    ("unknown-field", lambda files: files[FLAGS].update({"max-num-partial-prefills": 2})),
]


def swapped(files: dict[str, Any]) -> None:
    """Each profile has the other's filter."""
    for at, filter_ in ((PREFILL, "decode-filter"), (DECODE, "prefill-filter")):
        profile(files, at)[0]["pluginRef"] = filter_


def picker_moved(files: dict[str, Any]) -> None:
    """The decode profile's picker stands in the prefill profile."""
    profile(files, PREFILL).append(profile(files, DECODE).pop())


def two_pickers(files: dict[str, Any]) -> None:
    """One profile has no picker, and the file has two."""
    files[CONFIG]["plugins"].append({"type": "random-picker"})
    profile(files, PREFILL)[-1] = {"pluginRef": "random-picker"}
    profile(files, DECODE).pop()


ROLES: dict[str, tuple[str, Plant]] = {
    "no filter for decode": ("missing-decode-filter", lambda files: profile(files, DECODE).pop(0)),
    "no filter for prefill": ("missing-prefill-filter", lambda files: profile(files, PREFILL).pop(0)),
    "no filters at all": ("missing-decode-filter", lambda files: [profile(files, at).pop(0) for at in (0, 1)]),
    "the filter last": (
        "missing-decode-filter", lambda files: profile(files, DECODE).append(profile(files, DECODE).pop(0))
    ),
    "the other role": ("wrong-role-filter", swapped),
    "one wrong role": ("wrong-role-filter", lambda files: profile(files, DECODE)[0].update(pluginRef="prefill-filter")),
    "both filters": (
        "wrong-role-filter", lambda files: profile(files, DECODE).insert(1, {"pluginRef": "prefill-filter"})
    ),
    "encoders": (
        "wrong-role-filter",
        lambda files: [files[CONFIG]["plugins"].append({"type": "encode-filter"}),
                       profile(files, PREFILL).insert(1, {"pluginRef": "encode-filter"})],
    ),
    "a picker in the other profile": ("several-pickers", picker_moved),
    "no picker, and two to choose from": ("picker-not-written", two_pickers),
    "another picker for one role": (
        "profiles-differ",
        lambda files: [files[CONFIG]["plugins"].append({"type": "random-picker"}),
                       profile(files, PREFILL)[-1].update(pluginRef="random-picker")],
    ),
    "another weight for one role": ("profiles-differ", lambda files: profile(files, DECODE)[-2].update(weight=9.0)),
    "a scorer for one role alone": ("profiles-differ", lambda files: profile(files, PREFILL).pop(-2)),
    "no profile for prefill": ("profile-missing", lambda files: files[CONFIG]["schedulingProfiles"].pop(PREFILL)),
    "no profile for decode": ("profile-missing", lambda files: files[CONFIG]["schedulingProfiles"].pop(DECODE)),
    "a profile that nothing runs": (
        "profile-not-run", lambda files: files[CONFIG]["schedulingProfiles"][DECODE].update(name="default")
    ),
    "profiles that change places": (
        "wrong-role-filter",
        lambda files: numbers(files, HANDLER)["profiles"].update(decode="prefill", prefill="decode"),
    ),
    "no handler": ("handler-missing", lambda files: files[CONFIG]["plugins"].remove(plugin(files, HANDLER))),
    "headers are no handler": ("handler-missing", lambda files: plugin(files, HANDLER).update(
        type="disagg-headers-handler", parameters={})),
    "two handlers": (
        "several-handlers", lambda files: files[CONFIG]["plugins"].append({"type": "single-profile-handler"})
    ),
    "no decider": ("decider-missing", lambda files: numbers(files, HANDLER).pop("deciders")),
    "a decider of another kind": (
        "wrong-reference", lambda files: numbers(files, HANDLER)["deciders"].update(prefill="queue-scorer")
    ),
    "a decider that is not there": (
        "wrong-reference", lambda files: numbers(files, HANDLER)["deciders"].update(prefill="always")
    ),
    "a decider that never says so": (
        "decider-without-effect",
        lambda files: numbers(files, "prefix-based-pd-decider").update(nonCachedTokens=0),
    ),
    "no connector": ("kv-connector-missing", lambda files: files[OVERLAY].pop("vllmCommon")),
    "a tier that takes the connector": (
        "kv-connector-missing",
        lambda files: files[OVERLAY]["decode"]["vllm"].update(customCommand="vllm serve m --kv-offloading-size 8"),
    ),
    "no prefill pods": ("no-prefill-pods", lambda files: files[OVERLAY].pop("prefill")),
}  # fmt: skip
ONE_PROFILE: dict[str, tuple[str, Plant]] = {
    "requests to prefill pods": (
        "wrong-role-filter",
        lambda files: [files[CONFIG]["plugins"].append({"type": "prefill-filter"}),
                       profile(files)[0].update(pluginRef="prefill-filter")],
    ),
    "no filter and pods with roles": (
        "missing-decode-filter",
        lambda files: [profile(files).pop(0), files[CONFIG]["plugins"].remove({"type": "decode-filter"})],
    ),
}  # fmt: skip


def rules(files: dict[str, Any]) -> set[str]:
    return {one.rule for one in findings_of(texts(files), TARGET)}


def test_sound_files_have_no_finding() -> None:
    assert findings_of(texts(documents()), TARGET) == []


@pytest.mark.parametrize("rule", [*TEN, *FURTHER])
def test_a_planted_defect_is_found_by_name(rule: str) -> None:
    files = documents()
    (TEN | FURTHER)[rule](files)
    assert rule in rules(files)


@pytest.mark.parametrize("name", [*ROLES, *ONE_PROFILE])
def test_a_defect_of_roles_is_found(name: str) -> None:
    files = pools() if name in ROLES else documents()
    assert rules(files) == set()
    rule, plant = (ROLES | ONE_PROFILE)[name]
    plant(files)
    found = [one for one in findings_of(texts(files), TARGET) if one.rule == rule]
    assert found and all(one.message.strip() for one in found)
    assert found[0].severity == ("IMPORTANT" if rule == "profiles-differ" else "CRITICAL")


def test_the_ten_defects_close_a_gate() -> None:
    assert len(TEN) == 10
    for rule, plant in TEN.items():
        files = documents()
        plant(files)
        found = findings_of(texts(files), TARGET)
        assert any(one.rule == rule and one.severity == "CRITICAL" for one in found), rule


@pytest.mark.parametrize("place", range(len(OTHER_PLACES)))
def test_a_defect_is_found_in_other_places_too(place: int) -> None:
    rule, plant = OTHER_PLACES[place]
    files = documents()
    plant(files)
    assert rule in rules(files)


def test_a_sentence_says_what_where_and_the_fix() -> None:
    files = documents()
    profile(files)[3].update(pluginRef="queue-score")
    (found,) = findings_of(texts(files), TARGET)
    assert found.path == CONFIG
    assert "plugins[3].pluginRef names 'queue-score'" in found.message
    assert found.message.endswith("did you mean 'queue-scorer'?")


def test_a_configuration_inside_an_overlay_is_checked_too() -> None:
    files = documents()
    inner = texts({CONFIG: files[CONFIG] | {"schedulingProfile": []}})[CONFIG]
    files[OVERLAY]["router"]["epp"]["pluginsCustomConfig"] = {"custom-plugins.yaml": inner}
    assert "unknown-field" in rules(files)


def test_an_overlay_s_text_that_is_no_yaml_is_a_finding() -> None:
    files = documents()
    files[OVERLAY]["router"]["epp"]["pluginsCustomConfig"] = {"custom-plugins.yaml": "a: [1"}
    assert rules(files) == {"unreadable"}


def test_plugins_of_the_promotion_are_known_with_their_parameters() -> None:
    files = documents()
    plugin(files, "queue-scorer").update(
        type="calm-scorer", name="queue-scorer", parameters={"scale": 8.0}
    )
    assert "unknown-plugin-type" in rules(files)
    declared = {
        "type": "calm-scorer", "kind": "scorer", "stability": "Alpha", "simulated": "calm",
        "package": "pkg/calm", "parameters": {"scale": 8.0},
    }  # fmt: skip
    files[PLUGINS].append(declared)
    assert rules(files) == set()
    declared["parameters"] = {"gain": 8.0}
    assert rules(files) == {"unknown-field"}


def test_a_file_that_is_no_yaml_is_a_finding() -> None:
    assert [one.rule for one in findings_of({FLAGS: "a: [1"}, TARGET)] == ["unreadable"]


@pytest.mark.parametrize(
    "content", [3, "text", [], {"plugins": 3, "schedulingProfiles": [4]}, None]
)
@pytest.mark.parametrize("path", [CONFIG, FLAGS, OVERLAY, MIX, PLUGINS])
def test_any_content_gives_findings_and_no_traceback(path: str, content: object) -> None:
    findings_of(texts({path: content}), TARGET)


def test_an_unknown_target_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"use one of .*llm-d-router@0.10.0"):
        findings_of({}, "llm-d-router@0.9.0")


def changed_somewhere(content: Any, rng: random.Random) -> None:
    """Puts something else in one place."""
    node = content
    while True:
        key = rng.choice(list(node)) if isinstance(node, dict) else rng.randrange(len(node))
        inner = node[key]
        if not isinstance(inner, (dict, list)) or not inner or rng.random() < 0.3:
            node[key] = rng.choice([None, -1, "x", [], {}, {"a": 1}, [[1]], 3.5, True])
            return
        node = inner


@pytest.mark.parametrize("seed", range(8))
def test_a_change_in_any_place_gives_findings_and_no_traceback(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(40):
        files = rng.choice((documents, pools))()
        changed_somewhere(files, rng)
        findings_of(texts(files), TARGET)

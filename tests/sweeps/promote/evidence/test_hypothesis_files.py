"""The hypotheses of a promotion: what they cover, and that they are well formed."""

from __future__ import annotations

import copy
import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from blis_jax.errors import ConfigError
from sweeps.promote.evidence.hypotheses import (
    HypothesisDocument,
    inventory,
    parse_hypotheses,
    scenario_workload,
)
from sweeps.promote.evidence.hypothesis_files import hypothesis_files, origin_findings
from sweeps.promote.evidence.profiles import README, profile_files
from sweeps.promote.evidence.verdicts import hypothesis_findings
from sweeps.promote.llmd.arms import config_files
from sweeps.promote.llmd.documents import PICKERS
from sweeps.promote.llmd.findings import findings_of
from sweeps.promote.maps import DICTIONARY, GapRow, rows_of
from sweeps.promote.promotion import Files
from sweeps.strategies.file import list_library
from tests.support.recorded.reference_data import REPO_ROOT
from tests.support.rotation import rotating
from tests.sweeps.promote.promotions import (
    MINE,
    NOT_IN_THE_TARGET,
    TARGET,
    maps_of,
    plugins,
    promotion,
    read_yaml,
)

pytestmark = pytest.mark.usefixtures("known_saturation")


@functools.cache
def made(given: str, ledger: Path = REPO_ROOT, **more: str) -> Files:
    found = promotion(given)
    return hypothesis_files(found, {**maps_of(given), **more}, ledger)


@functools.cache
def plain(given: str) -> dict[str, Any]:
    found: dict[str, Any] = read_yaml(made(given)["hypotheses.yaml"])
    return found


def document(given: str, **options: Any) -> HypothesisDocument:
    return parse_hypotheses(made(given, **options)["hypotheses.yaml"])


def of_track(found: HypothesisDocument, track: str) -> dict[str, Any]:
    return {one.id: one for one in found.hypotheses if one.track == track}


@pytest.mark.parametrize(
    "name",
    rotating(list_library(), always=["iter08_token_budget", "iter21_intent", "routing14_kv_gate"]),
)
def test_every_shipped_strategy_has_all_three_tracks(name: str) -> None:
    found = document(name)
    assert all(of_track(found, track) for track in "ABC")
    assert any(one.expected.direction != "same" for one in of_track(found, "A").values())


def test_track_b_covers_map_c_and_every_stale_signal_that_is_read() -> None:
    found = promotion("joint_all_layers")
    maps = maps_of("joint_all_layers")
    hypotheses = of_track(
        parse_hypotheses(hypothesis_files(found, maps, REPO_ROOT)["hypotheses.yaml"]), "B"
    )
    for gap in rows_of(GapRow):
        assert hypotheses[f"B-{gap.id}"].origin == f"Map C: {gap.id}"
    stale = [
        row["name"]
        for row in read_yaml(maps[DICTIONARY])["map_b"]
        if row["used"] and row.get("gap")
    ]
    assert {
        "snapshots.effective_load",
        "snapshots.prefix_match_blocks",
        "snapshots.kv_utilization",
    } <= set(stale)
    tested = {one.origin.partition(";")[0] for one in hypotheses.values() if "fresh" in one.id}
    assert tested == {f"Map B: {name}" for name in stale}


def test_a_row_that_the_dictionary_gains_is_tested_too() -> None:
    found = promotion("iter00_baseline")
    maps = dict(maps_of("iter00_baseline"))
    dictionary = read_yaml(maps[DICTIONARY])
    dictionary["map_c"].append(dictionary["map_c"][0] | {"id": "another-gap"})
    maps[DICTIONARY] = yaml.safe_dump(dictionary)
    text = hypothesis_files(found, maps, REPO_ROOT)["hypotheses.yaml"]
    assert "B-another-gap" in of_track(parse_hypotheses(text), "B")


def test_track_c_covers_the_pinned_inventory_within_five_per_cent() -> None:
    found = of_track(document("iter13_class_lead@found"), "C")
    pinned = inventory()
    origins = {one.origin.partition(" ")[2] for one in found.values()}
    assert origins == {f"config/scenarios/{one.name}.yaml" for one in pinned.scenarios}
    for one in found.values():
        assert (one.expected.direction, one.expected.tolerance) == ("same", 5.0)
        assert pinned.commit[:12] in one.origin


def test_the_inventory_has_each_scenario_once_and_all_shapes() -> None:
    pinned = inventory()
    names = [one.name for one in pinned.scenarios]
    assert len(names) == len(set(names)) == 38 and pinned.commit.startswith("8bc9f1dd")
    assert {"guides/optimized-baseline", "guides/flow-control", "guides/pd-disaggregation"} <= set(
        names
    )
    for one in pinned.scenarios:
        assert not any(client.slo_class for client in scenario_workload(one.workload).clients)
    own = {
        "sanity_random",
        "shared_prefix_synthetic",
        "shared_prefix_synthetic_heavy",
        "random_concurrent",
    }
    for one in pinned.scenarios:
        assert one.instead or one.profile in own or one.profile.startswith("guide_")


def test_track_a_keeps_the_direction_that_the_ledger_confirmed() -> None:
    found = of_track(document("iter13_class_lead@found"), "A")
    assert list(found) == ["A-13.1", "A-13.2", "A-13.3", "A-13.4", "A-control"]
    directions = [one.expected.direction for one in found.values()]
    assert directions == ["lower", "lower", "higher", "same", "same"]
    first = found["A-13.1"]
    assert first.metric.path == "summary.traffic_classes.critical.ttft_ms"
    assert isinstance(first.expected.magnitude_sim, Mapping)
    assert first.expected.magnitude_sim["high"] < -70
    assert first.origin.startswith("ledger row 13, claim")
    assert first.workload.rate == 2000 and first.operating_point.share == 20.0


def test_another_point_s_rows_are_named_and_not_taken() -> None:
    found = document("iter05_simplified:max_num_scheduled_tokens=1000")
    assert list(of_track(found, "A")) == ["A-objective", "A-control"]
    assert any("max_num_scheduled_tokens=1024" in one.reason for one in found.not_transferred)
    assert "A-8.1" in of_track(document("iter05_simplified:max_num_scheduled_tokens=1024"), "A")


def test_a_shape_along_a_setting_is_not_transferred_and_says_so() -> None:
    (left,) = [one for one in document("iter08_instances").not_transferred if one.row == "8-inst"]
    assert "a shape along a setting" in left.reason


def test_without_a_ledger_the_objective_is_tested(tmp_path: Path) -> None:
    found = of_track(document("iter13_class_lead@found", ledger=tmp_path), "A")
    assert found["A-objective"].expected.magnitude_sim == "not measured"
    assert "no row of the ledger" in found["A-objective"].origin


def test_a_policy_from_a_file_has_hypotheses(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(MINE)
    found = document(f"iter00_baseline:routing_scorers={tmp_path}/mine.py:calm~1")
    assert "B-fresh-snapshots.batch-size" in of_track(found, "B")


def test_objectives_come_from_the_configuration_and_headers_from_the_queue_s_deadlines() -> None:
    given = promotion("iter13_class_lead@found")
    files = config_files(given, plugins(given))
    found = of_track(document("iter13_class_lead@found", **files), "A")["A-13.1"]
    classes = {one["name"]: one for one in found.workload.classes}
    assert classes["critical"]["objective"] == "slo-critical"
    assert "ttft_header_ms" not in classes["critical"]
    by_deadline = "flow_control=true;dispatch_order=slo-deadline;slo_targets=critical=120000"
    own = of_track(document(f"iter13_class_lead@found:{by_deadline}"), "A")["A-objective"]
    headers = {one["name"]: one.get("ttft_header_ms") for one in own.workload.classes}
    assert headers == {"critical": 120, "standard": None, "sheddable": None}


def test_two_runs_give_the_same_bytes() -> None:
    first, second = (made.__wrapped__("iter16_class_gate@found") for _ in range(2))
    assert first == second


def test_the_page_has_every_hypothesis() -> None:
    files = made("iter13_class_lead@found")
    for one in parse_hypotheses(files["hypotheses.yaml"]).hypotheses:
        assert one.id in files["hypotheses.md"]


def test_without_a_dictionary_there_is_a_sentence() -> None:
    with pytest.raises(ConfigError, match="run the stage maps"):
        hypothesis_files(promotion("iter00_baseline"), {})


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"diagnostic": "  "}, "diagnostic"),
        ({"diagnostic": ""}, "diagnostic"),
        ({"type": "Equivalence"}, "does not go with type"),
        ({"family": "Robustness"}, "does not go with type"),
        ({"vvuq": "Verification"}, "does not go with type"),
        ({"runs": 2}, "a number of at least 3"),
        ({"profile": {}}, "give either a harness"),
        ({"profile": {"harness": "guidellm", "reason": "no"}}, "give either a harness"),
        ({"id": "A-other"}, "begins with the track"),
        ({"other": 1}, "other"),
    ],
)
def test_what_is_not_allowed_is_refused(change: dict[str, Any], sentence: str) -> None:
    content = copy.deepcopy(plain("iter00_baseline"))
    content["hypotheses"] = [one for one in content["hypotheses"] if one["track"] == "B"][:2]
    content["hypotheses"][0] |= change
    with pytest.raises(ConfigError, match=sentence):
        parse_hypotheses(yaml.safe_dump(content))


# Hypotheses that were edited are checked again


def rules(change: Any) -> list[tuple[str, str]]:
    given, maps = promotion("iter00_baseline"), maps_of("iter00_baseline")
    made = hypothesis_files(given, maps, REPO_ROOT)
    document = read_yaml(made["hypotheses.yaml"])
    change(document["hypotheses"])
    files = {**maps, **made, "hypotheses.yaml": yaml.safe_dump(document)}
    found = [*hypothesis_findings(files), *origin_findings(given, files, REPO_ROOT)]
    return [(one.rule, one.message) for one in found if one.path == "hypotheses.yaml"]


def without(name: str) -> Any:
    def change(found: list[dict[str, Any]]) -> None:
        found[:] = [one for one in found if one["id"] != name]

    return change


def test_what_the_stage_makes_is_what_it_comes_from() -> None:
    assert rules(lambda _: None) == []


@pytest.mark.parametrize(
    ("name", "origin"),
    [
        ("B-lora-affinity", "Map C: lora-affinity"),
        ("B-fresh-snapshots.kv-utilization", "Map B: snapshots.kv_utilization"),
        ("C-guides-flow-control", "guides/flow-control.yaml"),
    ],
)
def test_a_hypothesis_that_was_taken_out_is_missed(name: str, origin: str) -> None:
    ((rule, message),) = rules(without(name))
    assert rule == "not-of-its-origin" and f"{name} is missing" in message and origin in message


def test_a_pair_that_is_not_legal_is_found() -> None:
    ((rule, message),) = rules(lambda found: found[0].update(type="Monotonicity"))
    assert rule == "hypothesis-not-readable" and "does not go with type" in message


# Benchmark profiles of tracks A and B


USUAL = (
    "iter00_baseline",
    "iter10_multiturn",
    "iter13_class_lead@found",
    "iter16_class_gate@found",
)
OTHERS = [name for name in list_library() if name not in (*USUAL, *NOT_IN_THE_TARGET)]


@functools.cache
def with_profiles(name: str) -> tuple[Files, Files]:
    """Files of all stages up to the profiles, and the profiles."""
    given = promotion(name)
    before = {**maps_of(name), **config_files(given, plugins(given))}
    before |= hypothesis_files(given, before, REPO_ROOT)
    return before, profile_files(before["hypotheses.yaml"], before)


@pytest.mark.parametrize(
    "name", [*USUAL, *(pytest.param(name, marks=pytest.mark.slow) for name in OTHERS)]
)
def test_profiles_pass_the_closed_schemas_beside_the_configuration(name: str) -> None:
    before, profiles = with_profiles(name)
    assert len(profiles) > 10
    assert findings_of({**before, **profiles}, TARGET) == []


def test_each_hypothesis_has_a_profile_or_a_reason() -> None:
    before, profiles = with_profiles("iter13_class_lead@found")
    for one in parse_hypotheses(before["hypotheses.yaml"]).hypotheses:
        harness = one.profile.harness
        experiment = f"experiments/{one.scene}-{harness}.yaml"
        assert (experiment in profiles) == (one.track in "AB" and harness is not None)
        if experiment in profiles:
            path = (
                f"profiles/{harness}/{read_yaml(profiles[experiment])['experiment']['profile']}.in"
            )
            assert path in profiles and f"| {one.id} | `{path}` |" in profiles[README]
        assert harness or one.profile.reason
        assert f"| {one.id} |" in profiles[README]


POOLS = "prefill-decode"
ROLE_FILTERS = {"decode": ["decode-filter"], POOLS: ["prefill-filter", "decode-filter"]}


def test_a_scenario_with_roles_has_a_stand_in_with_roles_or_says_what_it_lacks() -> None:
    before, _ = with_profiles("iter13_class_lead@found")
    found = {one.id: one for one in parse_hypotheses(before["hypotheses.yaml"]).hypotheses}
    for scenario in inventory().scenarios:
        one = found[f"C-{scenario.name.replace('/', '-')}"]
        lacks = [each for each in one.preconditions if "prefill pods" in each]
        assert one.pods == scenario.pods and (scenario.roles == POOLS) == bool(one.pods)
        assert len(lacks) == (scenario.roles == "decode")
    two, other = found["C-guides-pd-disaggregation"], found["C-guides-wide-ep-lws"]
    assert two.workload.name == other.workload.name
    assert two.simulated_scene != other.simulated_scene != f"workload-{other.workload.name}"


def test_a_baseline_scenario_has_arms_or_an_honest_reason() -> None:
    before, made = with_profiles("iter13_class_lead@found")
    found = {one.id: one for one in parse_hypotheses(before["hypotheses.yaml"]).hypotheses}
    for scenario in inventory().scenarios:
        one = found[f"C-{scenario.name.replace('/', '-')}"]
        path = f"experiments/{scenario.experiment}.yaml"
        line = next(line for line in made[README].splitlines() if f"| {one.id} |" in line)
        if scenario.left_out:
            assert f"| none | no profile: {scenario.left_out}" in line
            continue
        assert f"`{path}`" in line
        arms = {arm.pop("name"): arm for arm in read_yaml(made[path])["setup"]["treatments"]}
        assert set(arms) == {"baseline", "control", "treatment"}
        assert all(key.startswith("router.") for arm in arms.values() for key in arm)
        assert arms["baseline"] != arms["treatment"]
        for arm in arms.values():
            document = read_yaml(arm[PICKERS]["custom-plugins.yaml"])
            filters = [one["plugins"][0]["pluginRef"] for one in document["schedulingProfiles"]]
            assert filters == ROLE_FILTERS.get(scenario.roles, filters)
            assert (scenario.roles != "") == filters[-1].endswith("decode-filter")
            assert ("disagg-profile-handler" in str(document)) == (scenario.roles == POOLS)
            assert arm["router.epp.flags.v"] == "2"  # the logs of all arms are alike
    assert sum(not one.left_out for one in inventory().scenarios) >= 23
    scenes = [one.scene for one in found.values() if one.track == "C"]
    assert len(set(scenes)) == len(scenes)  # the runs of one scenario say nothing of another


@pytest.mark.parametrize("name", USUAL)
def test_no_two_scenes_are_the_same_test(name: str) -> None:
    """Each differs by its profile, or by what its experiment sets up."""
    _, made = with_profiles(name)
    tests = []
    for path in made:
        if path.startswith("experiments/") and "track-c" not in path:
            experiment = read_yaml(made[path])
            harness, file = (experiment["experiment"][key] for key in ("harness", "profile"))
            tests.append(
                (made[f"profiles/{harness}/{file}.in"], yaml.safe_dump(experiment["setup"]))
            )
    assert len(tests) > 3 and len(set(tests)) == len(tests)
    files = [text for path, text in made.items() if path.startswith("profiles/")]
    assert len(set(files)) == len(files)


def test_the_engine_s_priority_is_written_but_where_its_absence_is_the_stress() -> None:
    _, made = with_profiles("iter13_class_lead@found")
    usual, without = (
        read_yaml(made[f"experiments/{name}-priority-mix.yaml"])["setup"]["treatments"]
        for name in ("workload-mixed", "gap-priority-not-forwarded")
    )
    writes = [
        [
            one["name"]
            for one in arms
            if "slo-critical:"
            in one.get("router.epp.pluginsCustomConfig", {}).get("custom-plugins.yaml", "")
        ]
        for arms in (usual, without)
    ]
    assert writes == [["treatment", "ablation-order"], []]


def test_a_rate_that_one_process_cannot_send_is_shared_by_pods() -> None:
    _, made = with_profiles("iter13_class_lead@found")
    load = read_yaml(made["profiles/priority-mix/workload-mixed.yaml.in"])["load"]
    experiment = read_yaml(made["experiments/workload-mixed-priority-mix.yaml"])
    pods = experiment["setup"]["constants"]["harness.loadParallelism"]
    assert (pods, pods * load["rate_per_second"], pods * load["total_requests"]) == (5, 2000, 1000)


def test_prompts_begin_with_the_shared_prefix() -> None:
    _, made = with_profiles("iter13_class_lead@found")
    (first, *_) = read_yaml(made["profiles/priority-mix/workload-mixed.yaml.in"])["trafficClasses"]
    head, variation, _ = first["request"]["promptTemplate"].partition("{variation}")
    assert len(head.split()) == 512 and variation and first["request"]["promptRepeat"] == 1


def test_a_burst_is_as_long_as_its_requests_and_a_steady_load_is_long() -> None:
    before, profiles = with_profiles("iter00_baseline")
    path = next(one for one in profiles if one.startswith("profiles/inference-perf/workload"))
    load = read_yaml(profiles[path])["load"]
    assert load["stages"] == [{"rate": 2000.0, "duration": 1}]
    steady = before["hypotheses.yaml"].replace("share: 20.0", "share: 0.5")
    load = read_yaml(profile_files(steady, before)[path])["load"]
    assert load["stages"][0]["duration"] == 60


def test_conversations_are_guidellm_s() -> None:
    _, profiles = with_profiles("iter10_multiturn:scheduler=fcfs;priority_policy=constant")
    profile = read_yaml(
        next(
            text for path, text in profiles.items() if path.startswith("profiles/guidellm/workload")
        )
    )
    assert profile["spec"]["data"][0]["turns"] > 1


def test_ends_are_the_model_s_own_where_that_is_the_question() -> None:
    _, profiles = with_profiles("iter00_baseline")
    ends = {
        path.rpartition("/")[2]: read_yaml(text)["server"]["ignore_eos"]
        for path, text in profiles.items()
        if path.startswith("profiles/inference-perf/")
    }
    assert ends.pop("gap-real-output-lengths.yaml.in") is False
    assert ends and set(ends.values()) == {True}

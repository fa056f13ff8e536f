"""Reports made by simulation: their form, their mark, and what they confirm."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import jsonschema
import pytest
import yaml

from blis_jax import ClusterConfig
from blis_jax.errors import ConfigError
from blis_jax.workload.spec import load_builtin
from sweeps.promote.evidence.concerns import TARGET_PROFILE, concern_named, concerns, scene_of
from sweeps.promote.evidence.judging import judge
from sweeps.promote.evidence.runs import scenes_of
from sweeps.promote.evidence.simulation import simulate
from sweeps.promote.maps import GapRow, rows_of
from sweeps.promote.promotion import ARMS, Promotion
from sweeps.runs.experiment import Experiment
from sweeps.strategies.arms import arm_of
from tests.support.recorded.reference_data import REPO_ROOT
from tests.sweeps.promote.made_reports import (
    CRITICAL,
    TTFT,
    equivalence,
    hypothesis,
    metric_of,
)

SCHEMA = REPO_ROOT.parent / "shared" / "data" / "llmd_schemas" / "br_v0_2_1_json_schema.json"
BASELINE = "iter00_baseline"
SHORT = "short=iter00_baseline:max_num_scheduled_tokens=400"  # the same program with another number
SEEDS = (42, 43, 44, 45, 46, 47)
FASTER = hypothesis(metric=metric_of(CRITICAL, "p99", "ms", "lower"))
ALL_FASTER = hypothesis(id="A-2")
SAME = equivalence(metric=metric_of(TTFT, "mean", "ms", "lower"))
TARGETS = {"critical": 100.0}


def promotion(treatment: str) -> Promotion:
    return Promotion(treatment, arm_of(treatment), arm_of(BASELINE), "llm-d-router@0.10.0")


def simulated(treatment: str, num_requests: int = 120) -> dict[str, str]:
    one = promotion(treatment)
    scene = scene_of({"workload": {"name": "mixed"}}, "mixed", one, num_requests)  # as it was found
    arms = dict.fromkeys(ARMS, one.baseline.config) | {"treatment": one.arm.config}
    return simulate(scene, arms, SEEDS, "translation")


@pytest.fixture(scope="module")
def worse() -> Mapping[str, str]:
    """Prompts that are cut into small steps."""
    return simulated(SHORT)


def test_reports_have_the_published_form(worse: Mapping[str, str]) -> None:
    texts = [text for path, text in worse.items() if path.endswith("report.yaml")]
    documents = [yaml.safe_load(text) for text in texts]
    assert len(documents) == 18
    for document in documents:
        assert "evidence: simulated" in document["run"]["keywords"]
        assert "time" not in document["run"]
    assert len({document["run"]["uid"] for document in documents}) == 18
    if not SCHEMA.is_file():
        pytest.skip("no ../shared/data/llmd_schemas here")
    schema = json.loads(SCHEMA.read_text(encoding="utf-8"))
    for document in documents:
        jsonschema.validate(document, schema)


def test_reports_are_the_same_bytes_again(worse: Mapping[str, str]) -> None:
    assert simulated(SHORT) == worse


def test_a_planted_regression_is_caught_by_track_c(worse: Mapping[str, str]) -> None:
    (found,) = judge([SAME], scenes_of(worse), TARGETS)
    assert (found.verdict.word, found.evidence) == ("refuted", "simulated")
    assert "worse by more than 5 %" in found.verdict.reason
    control = found.changes["control - baseline"].reading.mean
    assert (control.mean, control.low, control.high) == (0, 0, 0)


def test_a_strategy_against_itself_confirms_nothing() -> None:
    found = judge([FASTER, ALL_FASTER, SAME], scenes_of(simulated(BASELINE)), TARGETS)
    assert {one.verdict.word for one in found} == {"inconclusive"}
    assert {one.problem for one in found} == {"same stack"}


@pytest.mark.parametrize(
    "treatment",
    [
        "iter08_token_budget@published",
        pytest.param("iter13_class_lead@found", marks=pytest.mark.slow),
    ],
)
def test_a_known_better_strategy_is_confirmed(treatment: str) -> None:
    reports = simulated(treatment, 1000)
    (found,) = judge([FASTER], scenes_of(reports), TARGETS)
    assert (found.verdict.word, found.evidence) == ("confirmed", "simulated")
    assert found.changes["treatment - baseline"].reading.mean.high < -50


@pytest.mark.slow
def test_shed_requests_have_rows() -> None:
    """Half of the requests are turned away, so latencies alone are not believed."""
    one = promotion("gated=iter00_baseline:admission_policy=slo-gated;slo_gated_threshold=0.5")
    scene = scene_of({"track": "A", "workload": {"name": "mixed"}}, "mixed", one, 120)
    arms = dict.fromkeys(ARMS, one.baseline.config) | {"treatment": one.arm.config}
    files = simulate(scene, arms, SEEDS, "translation")
    document = json.loads(files["evidence/reports/mixed/treatment/seed-42/results.json"])
    statuses = [row["status_code"] for row in document["requests"]]
    assert (
        statuses.count(500) == document["summary"]["errors"] > 10
    )  # as the target's director answers
    (found,) = judge([ALL_FASTER], scenes_of(files), TARGETS)
    assert (
        found.verdict.word == "inconclusive" and "requests served in time" in found.verdict.reason
    )


def test_a_run_that_does_not_end_has_no_report(monkeypatch: pytest.MonkeyPatch) -> None:
    from sweeps.promote.evidence import simulation

    monkeypatch.setattr(simulation, "WHOLE", ())
    assert simulated(BASELINE) == {}


# --- concerns -------------------------------------------------------------------------------------


def test_every_row_of_map_c_is_a_concern() -> None:
    named = [one.gap for one in concerns()]
    assert {row.id for row in rows_of(GapRow)} == set(named) - {
        ""
    }  # the target's profile is of no row
    reasons = {one.name: one.about for one in concerns() if not one.is_simulated}
    assert reasons == {
        "lora-affinity": "no scene has requests for adapters",
        "client-retries": "the engine can give a request up at a deadline, but none that was given up or turned "
        "away comes back",
        "denial-is-500": "the same denials; only their answer differs, and the dry run writes it",
        "band-limits": "per_band_capacity with flow_control",
        "image-with-plugins": "not simulated",
    }
    for one in concerns():
        assert one.about and one.title


def test_the_target_s_profile_has_its_signals() -> None:
    """Scrapes, the count in flight, ties at random, and what the target's own scorers see."""
    one = promotion("iter13_class_lead@found")
    spec = scene_of({"workload": {"name": "mixed"}}, "mixed", one, 100).spec
    profile = concern_named(TARGET_PROFILE)
    config, _ = profile.applied(one.baseline.config, spec)
    assert (config.load_refresh_interval, config.snapshot_phases) == (50_000, "drawn")
    assert config.in_flight_counts and config.routing_picker == "random-best"
    assert config.scorers() == [
        ("approx-prefix-cache", 3.0), ("waiting-requests", 2.0), ("kv-utilization", 2.0),
    ]  # fmt: skip
    judged = scene_of({"track": "A", "workload": {"name": "mixed"}}, "mixed", one, 100)
    assert judged.concern is not None and judged.concern.name == TARGET_PROFILE


def test_concerns_change_what_they_say() -> None:
    one = promotion(BASELINE)
    spec = scene_of({"workload": {"name": "mixed"}}, "mixed", one, 100).spec
    config = one.baseline.config

    def changed(name: str) -> Any:
        return concern_named(name).applied(config, spec)

    slow = changed("mixed-gpus")[0].instances
    assert [group.count for group in slow] == [4, 4]
    assert changed("prefix-block-64")[0].total_kv_blocks == config.total_kv_blocks // 4
    outage = changed("pod-failure")[0]
    assert (outage.cluster_policy, outage.value("outages_mttr_s")) == (
        "outages",
        pytest.approx(0.02),
    )
    roles = [(group.count, group.role) for group in changed("pd-roles")[0].instances]
    assert roles == [(2, "prefill"), (6, "decode")]
    laws = {client.output_distribution.type for client in changed("real-output-lengths")[1].clients}
    assert laws == {"pareto_lognormal"}
    assert changed("epp-replicas")[0].num_gateways == 2
    assert changed("four-replicas")[0].num_gateways == 4
    assert changed("blind-replicas")[0].in_flight_counts is False
    gates = [changed(name)[0] for name in ("stale-is-saturated", "detector")]
    assert {gate.admission_policy for gate in gates} == {"stale-gated"}
    assert [gate.stale_gated_num_stale for gate in gates] == [1, 0]
    assert all(gate.load_refresh_interval == 50_000 for gate in gates)
    with pytest.raises(ConfigError, match="not simulated yet: no scene has requests for adapters"):
        changed("lora-affinity")
    with pytest.raises(ConfigError, match="is no row of Map C; did you mean 'mixed-gpus'"):
        concern_named("mixed-gpu")


@pytest.mark.parametrize(("pods", "counts"), [((1, 2), [2, 6]), ((1, 1), [4, 4])])
def test_a_scenario_with_roles_is_simulated_in_pools(
    pods: tuple[int, int], counts: list[int]
) -> None:
    one = promotion("iter13_class_lead@found")
    entry = {
        "track": "C",
        "workload": {"name": "mixed"},
        "pods": dict(zip(("prefill", "decode"), pods, strict=True)),
    }
    scene = scene_of(entry, "pools", one, 100)
    plain = scene_of({"track": "C", "workload": {"name": "mixed"}}, "plain", one, 100)
    for config in (one.baseline.config, one.arm.config):
        groups = scene.config_with_concern(config).instances
        assert [(group.role, group.count) for group in groups] == [
            ("prefill", counts[0]),
            ("decode", counts[1]),
        ]
    assert scene.config_with_concern(one.arm.config).hand_over_policy == "pools"
    assert scene.key != plain.key and plain.concern is None


def test_a_detector_does_not_replace_a_gate_of_the_strategy() -> None:
    config = arm_of("iter00_baseline:admission_policy=slo-gated").config
    spec = scene_of({"workload": {"name": "mixed"}}, "mixed", promotion(BASELINE), 100).spec
    with pytest.raises(ConfigError, match=r"slo-gated is the strategy's own; the detector would"):
        concern_named("stale-is-saturated").applied(config, spec)
    one_alone = arm_of("iter00_baseline:num_instances=1").config
    with pytest.raises(ConfigError, match="1 of 1 instances cannot be stale"):
        concern_named("stale-is-saturated").applied(one_alone, spec)
    with pytest.raises(ConfigError, match="a late half needs two instances or more"):
        concern_named("start-up").applied(one_alone, spec)


@pytest.mark.slow
def test_half_of_the_instances_start_late() -> None:
    """Of two instances one is paid for from two fifths of the arrivals' time on, and works then."""

    one = promotion(BASELINE)
    spec = scene_of({"workload": {"name": "mixed"}}, "mixed", one, 400).spec
    config = arm_of("iter00_baseline:num_instances=2").config
    late = concern_named("start-up").applied(config, spec)[0]
    record = Experiment.on(spec, (42,), "reference").record(late, 42)
    first_us = [
        record.requests.arrival_us[record.requests.instance == place].min() for place in (0, 1)
    ]
    assert first_us[0] < 20_000 and first_us[1] >= 0.4 * 400 / 2000 * 1e6
    paid_us = record.instances.paid_us
    assert 0 < paid_us[1] <= paid_us[0] - 80_000


def test_a_hypothesis_of_track_b_has_the_concern_of_its_row() -> None:
    one = promotion(BASELINE)
    entry = {
        "track": "B",
        "origin": "Map C: pod-failure",
        "workload": {"name": "mixed", "rate": 500},
    }
    scene = scene_of(entry, "B-outage", one, 50)
    assert scene.concern is not None and scene.concern.name == "pod-failure"
    assert (scene.spec.aggregate_rate, scene.spec.num_requests) == (500, 50)
    assert scene.about == "workload mixed with pod-failure"
    with pytest.raises(ConfigError, match="not simulated yet"):
        scene_of({"track": "B", "origin": "Map C: lora-affinity"}, "B-lora", one, 50)


def test_the_targets_signals_are_those_of_the_august_profile_too() -> None:
    change = concern_named(TARGET_PROFILE).change
    assert change is not None
    august = ClusterConfig(revision="blis-2026-08", snapshot_refresh_interval=5_000_000)
    seen = change(august, load_builtin("mixed"))
    assert seen == august.replace(snapshot_refresh_interval=50_000)
    february = change(ClusterConfig(), load_builtin("mixed"))
    assert february.load_refresh_interval == february.snapshot_refresh_interval == 50_000

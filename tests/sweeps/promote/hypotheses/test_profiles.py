"""Benchmark profiles of tracks A and B."""

from __future__ import annotations

import functools

import pytest

from sweeps.promote.checks.findings import findings_of
from sweeps.promote.configs.stage import config_files
from sweeps.promote.hypotheses.document import parse_hypotheses
from sweeps.promote.hypotheses.profiles import README, profile_files
from sweeps.promote.hypotheses.stage import hypothesis_files
from sweeps.promote.promotion import Files
from sweeps.strategies.file import list_library
from tests.support.recorded.reference_data import REPO_ROOT
from tests.sweeps.promote.promotions import (
    NOT_IN_THE_TARGET,
    TARGET,
    maps_of,
    plugins,
    promotion,
    read_yaml,
)

pytestmark = pytest.mark.usefixtures("known_saturation")
USUAL = (
    "iter00_baseline",
    "iter10_multiturn",
    "iter13_class_lead@found",
    "iter16_class_gate@found",
)
OTHERS = [name for name in list_library() if name not in (*USUAL, *NOT_IN_THE_TARGET)]


@functools.cache
def made(name: str) -> tuple[Files, Files]:
    """Files of all stages up to the profiles, and the profiles."""
    given = promotion(name)
    before = {**maps_of(name), **config_files(given, plugins(given))}
    before |= hypothesis_files(given, before, REPO_ROOT)
    return before, profile_files(before["hypotheses.yaml"])


@pytest.mark.parametrize(
    "name", [*USUAL, *(pytest.param(name, marks=pytest.mark.slow) for name in OTHERS)]
)
def test_profiles_pass_the_closed_schemas_beside_the_configuration(name: str) -> None:
    before, profiles = made(name)
    assert len(profiles) > 10
    assert findings_of({**before, **profiles}, TARGET) == []


def test_each_hypothesis_has_a_profile_or_a_reason() -> None:
    before, profiles = made("iter13_class_lead@found")
    for one in parse_hypotheses(before["hypotheses.yaml"]).hypotheses:
        path = f"profiles/{one.profile.harness}/{one.id.lower()}.yaml.in"
        assert (path in profiles) == (one.track in "AB" and one.profile.harness is not None)
        assert one.profile.harness or one.profile.reason
        assert f"| {one.id} |" in profiles[README]


def test_a_metric_by_class_is_measured_by_priority_mix_with_the_deadline_header() -> None:
    _, profiles = made("iter13_class_lead@found")
    profile = read_yaml(profiles["profiles/priority-mix/a-13.1.yaml.in"])
    headers = {
        one["name"]: one["headers"]["x-llm-d-slo-ttft-ms"] for one in profile["trafficClasses"]
    }
    assert headers == {"critical": "0", "standard": "33151", "sheddable": "33510"}
    assert sum(one["weight"] for one in profile["trafficClasses"]) == pytest.approx(1)
    assert profile["load"]["rate_per_second"] == 2000 and profile["load"]["duration_seconds"] == 1


def test_a_burst_is_as_long_as_its_requests_and_a_steady_load_is_long() -> None:
    before, profiles = made("iter13_class_lead@found")
    load = read_yaml(profiles["profiles/inference-perf/a-control.yaml.in"])["load"]
    assert load["stages"] == [{"rate": 2000.0, "duration": 1}]
    steady = before["hypotheses.yaml"].replace("share: 20.0", "share: 0.5")
    load = read_yaml(profile_files(steady)["profiles/inference-perf/a-control.yaml.in"])["load"]
    assert load["stages"][0]["duration"] == 60


def test_conversations_are_guidellm_s() -> None:
    _, profiles = made("iter10_multiturn")
    profile = read_yaml(profiles["profiles/guidellm/a-control.yaml.in"])
    assert profile["spec"]["data"][0]["turns"] > 1


def test_ends_are_the_model_s_own_where_that_is_the_question() -> None:
    _, profiles = made("iter00_baseline")
    path = "profiles/inference-perf/b-{}.yaml.in"
    ends = {
        name: read_yaml(profiles[path.format(name)])["server"]["ignore_eos"]
        for name in ("real-output-lengths", "epp-replicas")
    }
    assert ends == {"real-output-lengths": False, "epp-replicas": True}

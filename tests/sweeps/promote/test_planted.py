"""Defects planted in the files of a promotion: each is a finding at its gate, under a rule that says what it is."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import pytest
import yaml

from sweeps.promote import gates
from sweeps.promote.evidence.hypotheses import hypotheses_of
from sweeps.promote.evidence.hypothesis_files import document_of
from sweeps.promote.evidence.judging import judge
from sweeps.promote.evidence.runs import FOLDER, scenes_of
from sweeps.promote.evidence.survival import Survival, SurvivalRow
from sweeps.promote.evidence.verdicts import (
    SURVIVAL,
    VERDICTS,
    ended,
    survival_files,
    translation_of,
    ttft_targets,
    verdicts_document,
)
from sweeps.promote.gates import findings_at
from sweeps.promote.promotion import Files
from sweeps.promote.stages import STAGES, StageWork, before
from sweeps.promote.store import wide_yaml
from tests.sweeps.promote.made_reports import by_class, row
from tests.sweeps.promote.promotions import promotion

pytestmark = [pytest.mark.lenient_promotion, pytest.mark.slow]
GIVEN = "iter16_class_gate@found"
ARM = "configs/arms/treatment"
PICKER, OVERLAY = f"{ARM}/endpoint-picker-config.yaml", f"{ARM}/scenario-overlay.yaml"
PLUGINS = "go/pkg/epp/framework/plugins"
SCORER = f"{PLUGINS}/scheduling/scorer/loadbalance/load_balance.go"
VECTORS = f"{PLUGINS}/scheduling/scorer/loadbalance/testdata/vectors.json"
BASE = "configs/arms/baseline/scenario-overlay.yaml"
GATE = f"{PLUGINS}/requestcontrol/admitter/classgated/class_gated.go"
Edit = Callable[[dict[str, str]], object]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Saturation and Go have tests of their own, and what a stage makes of the same files is made once."""
    monkeypatch.setattr("sweeps.promote.evidence.tracks.saturation_rate", lambda *given: 863.0)
    monkeypatch.setattr(gates, "check_go", lambda *given: [])
    monkeypatch.setattr(gates, "_made", lambda name, *given: of_stage(name))
    monkeypatch.setattr("sweeps.promote.evidence.hypothesis_files.document_of", document_once)


_DOCUMENT_OF = document_of


def document_once(given: Any, files: Files, *more: Any, **named: Any) -> Any:
    made = {path: files[path] for name in ("maps", "translate") for path in of_stage(name)}
    return _once(tuple(sorted(made.items())), more, tuple(named.items()))


@functools.cache
def _once(made: tuple[tuple[str, str], ...], more: tuple[Any, ...], named: Any) -> Any:
    return _DOCUMENT_OF(promotion(GIVEN), dict(made), *more, **dict(named))


@functools.cache
def of_stage(name: str) -> Files:
    """What a stage makes, once."""
    files: dict[str, str] = {}
    for earlier in before(name):
        files |= of_stage(earlier)
    return dict(STAGES[name].make(StageWork(promotion(GIVEN), files)))


@functools.cache
def sound() -> Files:
    """All files up to gate 3; the verdicts are those of made reports of one scene."""
    given = promotion(GIVEN)
    files: dict[str, str] = {}
    for name in ("maps", "translate", "hypothesise", "tests"):
        files |= of_stage(name)
    one = next(each for each in hypotheses_of(files) if each.track == "A")
    for arm in ("baseline", "control", "treatment"):
        for run in range(6):
            ttft = (20.0 if arm == "treatment" else 90.0) + run
            document = by_class(f"{arm}-{run}", [row(ttft_ms=ttft)] * 100, ttft)
            document["summary"]["offered"] = {"requests": 100, "seconds": 0.01}
            path = f"{FOLDER}/{one.scene}/{arm}/run-{run}/results.json"
            files[path] = ended(json.dumps(document))
    scenes = scenes_of(files)
    found = judge(hypotheses_of(files), scenes, ttft_targets(given))
    files[VERDICTS] = wide_yaml(verdicts_document(found, scenes, translation_of(files)))
    none = SurvivalRow("none", "As simulated", "no concern", "survives", {}, None, (90.0, 20.0))
    table = Survival(GIVEN, "iter00_baseline", "mixed", "ttft_p99_ms", (), (42, 43), (none,))
    files |= survival_files(given, table.plain())
    return MappingProxyType(files)


def replaced(path: str, old: str, new: str) -> Edit:
    def edit(files: dict[str, str]) -> None:
        assert re.search(old, files[path]), (path, old)
        files[path] = re.sub(old, new, files[path], count=1)

    return edit


def in_hypothesis(name: str, change: Callable[[dict[str, Any]], Any]) -> Edit:
    def edit(files: dict[str, str]) -> None:
        document = yaml.safe_load(files["hypotheses.yaml"])
        change(next(each for each in document["hypotheses"] if each["id"].startswith(name)))
        files["hypotheses.yaml"] = yaml.safe_dump(document)

    return edit


def in_profile(change: Callable[[dict[str, Any]], Any]) -> Edit:
    def edit(files: dict[str, str]) -> None:
        path = next(one for one in files if one.startswith("profiles/priority-mix/workload"))
        document = yaml.safe_load(files[path])
        change(document)
        files[path] = yaml.safe_dump(document)

    return edit


def in_verdicts(change: Callable[[dict[str, Any]], Any]) -> Edit:
    def edit(files: dict[str, str]) -> None:
        document = yaml.safe_load(files[VERDICTS])
        change(next(one for one in document["verdicts"] if one["run_ids"]))
        files[VERDICTS] = wide_yaml(document)

    return edit


def swapped(one: str, other: str) -> Edit:
    """Texts of two folders change places, file by file."""

    def edit(files: dict[str, str]) -> None:
        pairs = [(path, path.replace(one, other)) for path in files if one in path]
        assert pairs
        for first, second in pairs:
            files[first], files[second] = files[second], files[first]

    return edit


def in_scenario(roles: str, old: str, new: str) -> Edit:
    """The first picker for a baseline scenario whose pods have such roles has another text."""

    def edit(files: dict[str, str]) -> None:
        ends = f"random_concurrent-{roles}.yaml"
        replaced(next(path for path in files if path.endswith(ends)), old, new)(files)

    return edit


def removed(part: str) -> Edit:
    """The first file with this in its path is gone."""
    return lambda files: files.pop(next(path for path in sorted(files) if part in path))


def halved(part: str) -> Edit:
    """Every file with this in its path ends after half of its lines."""

    def edit(files: dict[str, str]) -> None:
        for path in [path for path in files if part in path]:
            lines = files[path].splitlines(keepends=True)
            files[path] = "".join(lines[: len(lines) // 2])

    return edit


def in_document(key: str, value: Any) -> Edit:
    def edit(files: dict[str, str]) -> None:
        document = yaml.safe_load(files["hypotheses.yaml"])
        files["hypotheses.yaml"] = yaml.safe_dump(document | {key: value})

    return edit


def in_reports(old: str, new: str) -> Edit:
    """The first report of the treatment has another text."""

    def edit(files: dict[str, str]) -> None:
        replaced(next(path for path in sorted(files) if "/treatment/run" in path), old, new)(files)

    return edit


def twice(files: dict[str, str]) -> None:
    document = yaml.safe_load(files[VERDICTS])
    document["verdicts"].append(next(one for one in document["verdicts"] if one["run_ids"]))
    files[VERDICTS] = wide_yaml(document)


def renamed_runs(files: dict[str, str]) -> None:
    """The treatment's runs have the names of other seeds."""
    for path in [path for path in files if "/treatment/run-" in path]:
        files[path.replace("/run-", "/run-9")] = files.pop(path)


def both(*edits: Edit) -> Edit:
    def edit(files: dict[str, str]) -> None:
        for one in edits:
            one(files)

    return edit


PLANTED: Mapping[str, tuple[int, str, Edit]] = {
    # gate 1
    "a weight": (1, "not-the-strategy", replaced(PICKER, r"weight: 3\.\d*", "weight: 0.3")),
    "a weight below zero": (1, "not-allowed", replaced(PICKER, r"weight: 3\.\d*", "weight: -3.0")),
    "a threshold": (
        1,
        "not-the-strategy",
        replaced(PICKER, "probability: 0.4", "probability: 0.9"),
    ),
    "a lead": (1, "not-the-strategy", replaced(PICKER, r"slo-critical: \d+", "slo-critical: 1")),
    "a comment on freshness": (
        1,
        "freshness-comment",
        replaced(SCORER, r"\t+// Freshness here: .*\n", ""),
    ),
    "a freshness that is another": (
        1,
        "freshness-comment",
        replaced(GATE, "at once", "in an hour"),
    ),
    "the copy in an overlay": (
        1,
        "not-the-strategy",
        replaced(OVERLAY, r"weight: 3\.\d*", "weight: 4.0"),
    ),
    "a flag of the engine": (
        1,
        "not-the-strategy",
        replaced(f"{ARM}/vllm-flags.yaml", r"max-num-seqs: \d+", "max-num-seqs: 64"),
    ),
    "memory of the pods": (1, "pod-memory", replaced(BASE, "memory: 150Gi", "memory: 80Gi")),
    "the model that is loaded": (
        1,
        "not-the-strategy",
        replaced(BASE, "path: models/.*", "path: models/Qwen/Qwen3-32B"),
    ),
    "no image": (1, "image-unset", replaced(OVERLAY, "tag: promoted", "tag: SET-ME")),
    "a row of Map C": (
        1,
        "not-the-strategy",
        replaced("translation-dictionary.yaml", "id: pod-failure", "id: pod-failures"),
    ),
    "a registration": (
        1,
        "not-the-strategy",
        replaced("go/registration.patch", r"\+\tfwkplugin.*\n", ""),
    ),
    "a test vector": (1, "not-the-strategy", replaced(VECTORS, r'"size": 4', '"size": 1')),
    "a priority's sign": (
        1,
        "priority-sign",
        replaced(OVERLAY, r"(name: slo-critical\n\s+priority:) 4", r"\1 -4"),
    ),
    "an operation of the Go code": (
        1,
        "not-the-strategy",
        replaced(SCORER, r"return result\n", "return nil\n"),
    ),
    "a line of a Go test": (
        1,
        "not-the-strategy",
        replaced(SCORER.replace(".go", "_test.go"), "1e-12", "1e-2"),
    ),
    "a file of Go less": (1, "not-the-strategy", lambda files: files.pop(GATE)),
    "the report of the translation": (
        1,
        "not-the-strategy",
        replaced("configs/translation-report.md", r"see 500 and not 429", "see 429"),
    ),
    "arms that change places": (1, "not-the-strategy", swapped("arms/control/", "arms/treatment/")),
    "an arm less": (1, "not-the-strategy", removed("arms/ablation")),
    "half of the vectors": (1, "not-the-strategy", halved("vectors.json")),
    "a stability": (1, "not-the-strategy", replaced("go/registration.patch", "Alpha", "Stable")),
    "another image": (
        1,
        "not-the-strategy",
        replaced(OVERLAY, "repository: [a-z-]+", "repository: another-picker"),
    ),
    "a bound in the factory": (1, "not-the-strategy", replaced(GATE, r"> 1\b", "> 2")),
    "flag and command alike": (
        1,
        "not-the-strategy",
        both(
            replaced(f"{ARM}/vllm-flags.yaml", r"max-num-seqs: \d+", "max-num-seqs: 64"),
            replaced(BASE, r"max-num-seqs \d+", "max-num-seqs 64"),
        ),
    ),
    "a freshness on the page of the maps": (
        1,
        "not-the-strategy",
        replaced("translation-dictionary.md", "at once", "in an hour"),
    ),
    "a row of the plugins": (
        1,
        "not-the-strategy",
        replaced("configs/generated-plugins.yaml", "stability: Alpha", "stability: Stable"),
    ),
    # gate 2
    "another target": (2, "not-of-its-origin", in_document("target", "llm-d-router@main-ebab6879")),
    "another commit of the inventory": (
        2,
        "not-of-its-origin",
        in_document("inventory", "llm-d/llm-d-benchmark@" + 40 * "0"),
    ),
    "another strategy": (2, "not-of-its-origin", in_document("strategy", "iter13_class_lead")),
    "a magnitude": (
        2,
        "not-of-its-origin",
        in_hypothesis(
            "A-", lambda one: one["expected"].update(magnitude_sim="not measured at all")
        ),
    ),
    "the number of runs": (
        2,
        "not-of-its-origin",
        in_hypothesis("C-", lambda one: one.update(runs=9)),
    ),
    "a control less": (
        2,
        "arm-missing",
        in_hypothesis("A-", lambda one: one.update(arms=["baseline", "treatment"])),
    ),
    "another scene": (
        2,
        "not-of-its-origin",
        in_hypothesis("C-", lambda one: one.update(scene="workload-mixed")),
    ),
    "what is better": (
        2,
        "metric-not-in-reports",
        in_hypothesis("C-", lambda one: one["metric"].update(better="higher")),
    ),
    "a saturation and its share": (
        2,
        "not-of-its-origin",
        in_hypothesis(
            "A-",
            lambda one: one["operating_point"].update(
                saturation_rate=one["operating_point"]["saturation_rate"] * 2,
                share=one["operating_point"]["share"] / 2,
            ),
        ),
    ),
    "a knob of a profile": (
        2,
        "not-of-its-origin",
        in_hypothesis("B-client-retries", lambda one: one.update(knobs={"timeout_s": 600})),
    ),
    "a row that is not transferred": (
        2,
        "not-of-its-origin",
        in_document("not_transferred", [{"row": "99", "reason": "so"}]),
    ),
    "a precondition": (
        2,
        "not-of-its-origin",
        in_hypothesis("A-", lambda one: one.update(preconditions=one["preconditions"][1:])),
    ),
    "a share of saturation": (
        2,
        "not-of-its-origin",
        in_hypothesis("A-", lambda one: one["operating_point"].update(share=0.1)),
    ),
    "the page of the hypotheses": (
        2,
        "not-of-its-origin",
        replaced("hypotheses.md", "Track A", "Track Z"),
    ),
    "a hypothesis less": (
        2,
        "not-of-its-origin",
        lambda files: files.update({"hypotheses.yaml": without(files, "B-pod-failure")}),
    ),
    "a tolerance": (
        2,
        "not-of-its-origin",
        in_hypothesis("C-", lambda one: one["expected"].update(tolerance=50.0)),
    ),
    "a direction": (
        2,
        "not-of-its-origin",
        in_hypothesis("A-", lambda one: one["expected"].update(direction="higher")),
    ),
    "a diagnostic": (
        2,
        "not-of-its-origin",
        in_hypothesis("B-", lambda one: one.update(diagnostic="It is nothing.")),
    ),
    "the load": (
        2,
        "not-of-its-origin",
        in_hypothesis("A-", lambda one: one["workload"].update(rate=2.0)),
    ),
    "a stress": (
        2,
        "not-of-its-origin",
        in_hypothesis("B-metric-staleness", lambda one: one.update(setup={})),
    ),
    "a metric's name": (
        2,
        "metric-not-in-reports",
        in_hypothesis("A-", lambda one: one["metric"].update(path=one["metric"]["path"] + "ec")),
    ),
    "a statistic": (
        2,
        "metric-not-in-reports",
        in_hypothesis("A-", lambda one: one["metric"].update(statistic="p98")),
    ),
    "a unit": (
        2,
        "metric-not-in-reports",
        in_hypothesis("A-", lambda one: one["metric"].update(unit="tokens/s")),
    ),
    "a harness without classes": (
        2,
        "mechanism-not-sent",
        in_hypothesis("A-", lambda one: one.update(profile={"harness": "inference-perf"})),
    ),
    "an engine's order that nobody sends": (
        2,
        "mechanism-not-sent",
        replaced(PICKER, r"- type: engine-priority\n  parameters:\n(    .*\n)+", ""),
    ),
    # gate 3
    "a time in a report": (3, "verdict-not-of-reports", in_reports(r"(\d+\.\d)", "1.0")),
    "a report less": (3, "verdict-not-of-reports", removed("/treatment/run")),
    "reports that change places": (
        3,
        "verdict-not-of-reports",
        swapped("/baseline/run", "/treatment/run"),
    ),
    "other seeds": (3, "verdict-not-of-reports", renamed_runs),
    "half of a report": (3, "verdict-not-of-reports", halved("/treatment/run-1")),
    "a verdict twice": (3, "verdicts-incomplete", twice),
    "a verdict less": (
        3,
        "verdicts-incomplete",
        lambda files: files.update({VERDICTS: less_one(files[VERDICTS])}),
    ),
    "an identity": (
        3,
        "verdict-not-of-reports",
        replaced(VERDICTS, "translation: [0-9a-f]{4}", "translation: 0000"),
    ),
    "half of a profile": (3, "unreadable", halved("profiles/priority-mix/workload")),
    "a profile less": (3, "not-of-its-hypothesis", removed("profiles/priority-mix/workload")),
    "an experiment of track C less": (3, "not-of-its-hypothesis", removed("experiments/track-c")),
    "the harness's patch": (
        3,
        "not-of-its-hypothesis",
        replaced("profiles/priority-mix/harness.patch", r"\n\+", "\n+ "),
    ),
    "an arm of an experiment": (
        3,
        "not-of-its-hypothesis",
        lambda files: files.update(
            {
                path: text.replace("name: treatment", "name: control", 1)
                for path, text in files.items()
                if path.startswith("experiments/workload")
            }
        ),
    ),
    "a row of the survival table": (
        3,
        "survival-not-of-its-data",
        replaced(SURVIVAL, "verdict: survives", "verdict: reversed"),
    ),
    "a verdict": (
        3,
        "verdict-not-of-reports",
        in_verdicts(
            lambda one: one.update(
                verdict="refuted" if one["verdict"] == "confirmed" else "confirmed"
            )
        ),
    ),
    "a reason": (
        3,
        "verdict-not-of-reports",
        in_verdicts(lambda one: one.update(reason="4 of 4 runs")),
    ),
    "a figure": (
        3,
        "verdict-not-of-reports",
        in_verdicts(lambda one: one["changes"].update(other={})),
    ),
    "evidence that is measured": (
        3,
        "verdict-not-of-reports",
        lambda files: files.update(
            {VERDICTS: files[VERDICTS].replace("evidence: measured", "evidence: simulated", 1)}
        ),
    ),
    "a field of a verdict": (3, "verdicts-unreadable", in_verdicts(lambda one: one.pop("reason"))),
    "an experiment's arms": (
        3,
        "not-of-its-hypothesis",
        lambda files: files.update({"experiments/" + name: "arms: []\n" for name in experiments()}),
    ),
    "a scenario's role filter less": (
        3,
        "missing-decode-filter",
        in_scenario("prefill-decode", r"- pluginRef: decode-filter\n *", ""),
    ),
    "a scenario's role that is another": (
        3,
        "wrong-role-filter",
        in_scenario("prefill-decode", "- pluginRef: decode-filter", "- pluginRef: prefill-filter"),
    ),
    "a scenario's picker in the other profile": (
        3,
        "several-pickers",
        in_scenario("prefill-decode", "(- pluginRef: max-score-picker)", r"\1\n          \1"),
    ),
    "prompts that move where nothing moves them": (
        3,
        "roles-of-the-scenario",
        swapped("benchmark-sanity_random-decode", "benchmark-random_concurrent-prefill-decode"),
    ),
    "a scenario with roles and a picker without": (
        3,
        "roles-of-the-scenario",
        swapped("perf-sanity_random-decode.yaml", "perf-shared_prefix_synthetic.yaml"),
    ),
    "the script that evaluates": (
        3,
        "not-of-its-hypothesis",
        replaced("tests/evaluate.sh", "validate", "status"),
    ),
    "a field of a profile": (
        3,
        "unknown-field",
        in_profile(lambda one: one["load"].update(rate_per_sec=one["load"].pop("rate_per_second"))),
    ),
    "a header": (
        3,
        "not-allowed",
        in_profile(
            lambda one: one["trafficClasses"][0].update(headers={"x-llm-d-slo-tttf-ms": "1"})
        ),
    ),
    "an objective": (
        3,
        "wrong-reference",
        in_profile(lambda one: one["trafficClasses"][0].update(objective="slo-crit")),
    ),
    "a load": (
        3,
        "not-of-its-hypothesis",
        in_profile(lambda one: one["load"].update(rate_per_second=6.0)),
    ),
}


def less_one(text: str) -> str:
    document = yaml.safe_load(text)
    return wide_yaml(document | {"verdicts": document["verdicts"][1:]})


def experiments() -> list[str]:
    return [one.partition("/")[2] for one in of_stage("tests") if one.startswith("experiments/")]


def without(files: Mapping[str, str], name: str) -> str:
    document = yaml.safe_load(files["hypotheses.yaml"])
    document["hypotheses"] = [one for one in document["hypotheses"] if one["id"] != name]
    return yaml.safe_dump(document)


@pytest.mark.parametrize("gate", [1, 2, 3])
def test_sound_files_are_not_called_other_than_they_are(gate: int) -> None:
    found = {one.rule for one in findings_at(promotion(GIVEN), gate, sound())}
    assert not found & {rule for _, rule, _ in PLANTED.values()}


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_defect_is_found(name: str) -> None:
    gate, rule, plant = PLANTED[name]
    files = dict(sound())
    plant(files)
    assert files != dict(sound())
    assert rule in {one.rule for one in findings_at(promotion(GIVEN), gate, files)}

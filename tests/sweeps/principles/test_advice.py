"""A strategy held against the catalogue: which rules speak up, and which keep still."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path

import pytest

from sweeps.principles import __main__ as command
from sweeps.principles.advice import case_of
from sweeps.principles.catalogue import WorkloadChoice, load_catalogue, workload_named
from sweeps.principles.facts import Case, facts_of
from sweeps.principles.rules import AGAINST, NO_EFFECT, RELIES, touches
from sweeps.strategies.arms import arm_of
from tests.sweeps.tiny import TINY

BASE = "iter00_baseline"
TIERS = "priority_policy=slo-tiered;scheduler=priority-fcfs"


def found(text: str, workload: str | None = None, **changes: float) -> set[tuple[str, str, str]]:
    case = case_of(arm_of(text), 42)
    if workload is not None:
        spec = workload_named(WorkloadChoice(name=workload, **changes))
        case = Case(case.config, spec, facts_of(case.config, spec, 42), case.strategy)
    return {(touch.principle, touch.relation, touch.setting) for touch in touches(case)}


SCORERS, AFFINITY = "routing_scorers", "routing_scorers.prefix-affinity"
CASES = [
    # strategy, what must be found, a twin, of which it must not be
    (BASE, ("S2", AGAINST, f"{SCORERS}.kv-utilization"), f"{BASE}:{SCORERS}=queue-depth:1"),
    (
        f"{BASE}:total_kv_blocks=2000",
        ("RP-6", AGAINST, f"{SCORERS}.kv-utilization"),
        BASE,
    ),
    (
        f"{BASE}:{SCORERS}=prefix-affinity:4,queue-depth:1",
        ("RP-10", AGAINST, AFFINITY),
        f"{BASE}:{SCORERS}=prefix-affinity:3,queue-depth:2",
    ),
    (
        f"{BASE}:{SCORERS}=prefix-affinity:2,queue-depth:2",
        ("RP-10", NO_EFFECT, AFFINITY),
        f"{BASE}:{SCORERS}=prefix-affinity:3,queue-depth:2",
    ),
    (
        f"{BASE}:{SCORERS}=prefix-affinity:3,queue-depth:2",
        ("RP-10", RELIES, AFFINITY),
        f"{BASE}:{SCORERS}=prefix-affinity:9,queue-depth:2",
    ),
    (f"{BASE}:{SCORERS}=prefix-affinity:1", ("F2", AGAINST, AFFINITY), BASE),
    (
        "idea3_gated_cascade",
        ("S1", AGAINST, f"{SCORERS}.slo-priority"),
        "iter07_nonorthogonal:routing_scorers=prefix-affinity:3,slo-priority:2,queue-depth:2",
    ),
    (
        f"{BASE}:{SCORERS}=queue-depth:1;snapshot_refresh_interval=9000",
        ("RP-12", NO_EFFECT, "snapshot_refresh_interval"),
        f"{BASE}:snapshot_refresh_interval=9000",
    ),
    (
        f"{BASE}:{SCORERS}=kv-utilization:1;snapshot_refresh_interval=9000",
        ("F6", AGAINST, "snapshot_refresh_interval"),
        f"{BASE}:snapshot_refresh_interval=4000",
    ),
    ("iter07_multiprefix", ("S13", RELIES, AFFINITY), BASE),
    ("iter10_multiturn", ("F3", RELIES, AFFINITY), BASE),
    (
        f"{BASE}:admission_policy=slo-gated;{TIERS}",
        ("C-19", AGAINST, "scheduler"),
        f"{BASE}:admission_policy=slo-gated",
    ),
    (BASE, ("RP-9", AGAINST, "admission_policy"), f"{BASE}:admission_policy=slo-gated"),
    (f"{BASE}:{TIERS}", ("S6", RELIES, "scheduler"), BASE),
    (
        f"{BASE}:admission_policy=slo-gated;slo_gated_threshold=60",
        ("S8", AGAINST, "slo_gated_threshold"),
        f"{BASE}:admission_policy=slo-gated;slo_gated_threshold=20",
    ),
    (f"{BASE}:slo_priority_bridge=true", ("C-20", NO_EFFECT, "slo_priority_bridge"), BASE),
    ("iter02_load_adaptive", ("S7", NO_EFFECT, "priority_policy"), "iter05_simplified"),
    (
        f"{BASE}:{TIERS};slo_age_weight=1e-7",
        ("S5", AGAINST, "slo_age_weight"),
        f"{BASE}:{TIERS}",
    ),
    (f"{BASE}:{TIERS}", ("S5", RELIES, "slo_age_weight"), BASE),
    (BASE, ("S9", AGAINST, "long_prefill_token_threshold"), "iter05_simplified"),
    ("iter05_simplified", ("S16", AGAINST, "slo_prefill"), "iter04_slo_prefill"),
    ("iter04_slo_prefill", ("S10", RELIES, "slo_prefill"), BASE),
    ("iter09_slo_preemption", ("S15", AGAINST, "slo_preemption"), f"{BASE}:slo_preemption=true"),
    (f"{BASE}:slo_preemption=true", ("S15", NO_EFFECT, "slo_preemption"), BASE),
    (
        f"{BASE}:total_kv_blocks=2000",
        ("S12", RELIES, "total_kv_blocks"),
        f"{BASE}:total_kv_blocks=9000",
    ),
    ("joint_all_layers", ("S3", AGAINST, "parameters"), "iter08_token_budget"),
    ("joint_all_layers", ("S4", RELIES, "mechanism"), BASE),
]


@pytest.mark.parametrize(("text", "expected", "twin"), CASES, ids=[case[1][0] for case in CASES])
def test_rule_and_its_twin(text: str, expected: tuple[str, str, str], twin: str) -> None:
    assert expected in found(text)
    assert expected not in found(twin)


def test_shedding_judged_by_latency_alone() -> None:
    case = case_of(arm_of("iter03_gated_admission"), 42)
    assert case.strategy is not None
    careless = case.strategy.model_copy(update={"constraints": ()})
    touched = {touch.principle for touch in touches(dataclasses.replace(case, strategy=careless))}
    assert "RP-11" in touched
    assert "RP-11" not in {touch.principle for touch in touches(case)}


def test_rules_on_load() -> None:
    priorities = ("RP-5", NO_EFFECT, "scheduler")
    assert priorities in found(f"{BASE}:{TIERS}", "lowload")
    assert priorities not in found(f"{BASE}:{TIERS}", "orth")
    ties = ("F8", AGAINST, "routing_policy")
    assert ties in found(f"{BASE}:routing_policy=least-loaded", "lowload")
    assert ties not in found(f"{BASE}:routing_policy=least-loaded", "orth")


def test_every_rule_speaks_of_an_entry() -> None:
    known = load_catalogue().entries
    for text, (principle, _, _), _ in CASES:
        assert principle in known, text


def test_facts_of_a_workload() -> None:
    config = arm_of(BASE).config
    facts = facts_of(config, workload_named(WorkloadChoice(name="orth")), 42)
    assert facts.least_share == pytest.approx(0.5)
    assert facts.most_share == pytest.approx(512 / 576)
    assert facts.has_equal_laws and facts.num_prefixes == 1
    # 2,000/s of 257 tokens that nobody has cached, at 17.67 µs on 8 instances
    assert facts.prefill_load == pytest.approx(2000 * 257 * 17.67e-6 / 8, rel=0.1)
    assert not facts_of(config, workload_named(WorkloadChoice(name="mixed_slo")), 42).has_equal_laws


def test_leaving_a_scorer_out() -> None:
    case = case_of(arm_of(BASE), 42)
    changes = case.without_scorer("queue-depth")
    assert dict(case.config.replace(**changes).scorers()) == {
        "prefix-affinity": 3.0,
        "kv-utilization": 2.0,
    }
    alone = case_of(arm_of(f"{BASE}:{SCORERS}=queue-depth:1"), 42)
    assert alone.without_scorer("queue-depth") == {}


def test_the_command_advises_and_measures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    strategy, output = tmp_path / "mine.yaml", tmp_path / "found.json"
    strategy.write_text(
        TINY.replace(
            "priority_policy: slo-tiered", "priority_policy: slo-tiered, slo_priority_bridge: true"
        )
    )
    monkeypatch.chdir(tmp_path)
    words = ["--strategy", str(strategy), "--only", "C-20,S5", "--measure", "--output", str(output)]
    assert command.main(words) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert shown.startswith(f"Asked: Which principles does {strategy} rely on or contradict?")
    assert (
        "slo_priority_bridge has no effect, by C-20 (holds in the catalogue, not run here)" in shown
    )
    assert "slo_priority_bridge=False: every request exactly as before" in shown
    findings = json.loads(output.read_text())["findings"]
    assert [entry["principle"] for entry in findings] == ["C-20", "S5"]
    assert findings[0]["measured"] and not findings[1]["measured"]


def test_measurement_compares_by_class(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    strategy = tmp_path / "mine.yaml"
    strategy.write_text(
        TINY.replace("num_instances: 2,", "num_instances: 1, long_prefill_token_threshold: 64,")
    )
    monkeypatch.chdir(tmp_path)
    assert command.main(["--strategy", str(strategy), "--only", "S9", "--measure"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    rows = re.findall(r"(\w+) TTFT P99 [^a-z]* ms, \S+ %.*?, (\w+)", shown)
    assert [slo_class for slo_class, _ in rows] == ["critical", "sheddable", "all"]
    assert rows[0][1] in ("better", "unclear")


def test_a_wrong_strategy_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--strategy", "iter05_simplifed"]) == 2
    said = capsys.readouterr().err
    assert "did you mean" in said and said.count("\n") == 1

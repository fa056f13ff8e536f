"""Files of a promotion with made-up verdicts, for tests of its documents."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml

from blis_jax.statistics.intervals import Estimate
from sweeps.promote.evidence.hypotheses import hypotheses_of
from sweeps.promote.evidence.judging import judge
from sweeps.promote.evidence.runs import scenes_of
from sweeps.promote.evidence.survival import Survival, SurvivalRow
from sweeps.promote.evidence.verdicts import SURVIVAL, VERDICTS, verdicts_document
from sweeps.promote.promotion import Promotion
from sweeps.strategies.arms import arm_of
from tests.sweeps.promote.made_reports import TTFT, three_arms

SLOW = (0.300, 0.310, 0.290, 0.300, 0.295, 0.305)
FAST = (0.200, 0.212, 0.188, 0.201, 0.195, 0.2055)
METRIC = {"path": TTFT, "statistic": "p99", "unit": "ms", "better": "lower"}
PATCH = """\
--- a/cmd/epp/runner/runner.go
+++ b/cmd/epp/runner/runner.go
@@ -1,2 +1,3 @@
 package runner
+// registered
 // end
"""
RUNNER = "package runner\n// end\n"


def entry(name: str, **changes: Any) -> dict[str, Any]:
    """A hypothesis as the file has it."""
    return {
        "id": name,
        "track": name[0],
        "statement": f"Under mixed requests the treatment has a better TTFT ({name}).",
        "family": "Cross-policy comparative",
        "vvuq": "Validation",
        "type": "Dominance",
        "metric": METRIC,
        "expected": {
            "direction": "same" if name[0] == "C" else "lower",
            "magnitude_sim": {"percent": -33.0},
            "tolerance": 5.0,
        },
        "arms": ["baseline", "control", "treatment"],
        "workload": {
            "name": "mixed",
            "rate": 2000.0,
            "requests": 1000,
            "prompt": {"mean": 256.0},
            "output": {"mean": 128.0},
        },
        "operating_point": {"saturation_rate": 1000.0, "share": 2.0, "measured_by": "simulation"},
        "profile": {"harness": "inference-perf"},
        "scene": name,
        "preconditions": ["an offered load below saturation"],
        "runs": 3,
        "mechanism": "Critical requests are first.",
        "diagnostic": "If it fails, the engine ignores priorities.",
        "origin": "row 13 of the ledger",
    } | changes


ENTRIES = [
    entry("A-gain"), entry("A-reversed"), entry("A-open"),
    entry("B-outage", origin="Map C: pod-failure"), entry("B-lora", origin="Map C: lora-affinity"),
    entry("C-same"), entry("C-worse"),
]  # fmt: skip


def text_of(entries: list[dict[str, Any]]) -> str:
    """The file of hypotheses."""
    head = {
        "strategy": "iter13_class_lead@found", "baseline": "iter00_baseline", "target": "llm-d-router@0.10.0",
        "inventory": "llm-d/llm-d-benchmark@8bc9f1d",
    }  # fmt: skip
    return yaml.safe_dump(head | {"hypotheses": entries})


def reports(is_simulated: bool) -> dict[str, str]:
    """A gain, a loss, nothing clear, an outage without the gain, an equivalence and a regression."""
    pairs = {
        "A-gain": (SLOW, FAST),
        "A-reversed": (FAST, SLOW),
        "A-open": (SLOW[:2], FAST[:2]),
        "B-outage": (FAST, SLOW),
        "C-same": (SLOW, [1.01 * value for value in SLOW]),
        "C-worse": (SLOW, [1.2 * value for value in SLOW]),
    }
    files: dict[str, str] = {}
    for scene, (before, after) in pairs.items():
        for path, text in three_arms(before, after).items():
            text = text.replace("uid: ", f"uid: {scene}-")
            if is_simulated:
                text = text.replace("keywords: []", "keywords: ['evidence: simulated']")
            files[path.replace("/mixed/", f"/{scene}/")] = text
    return files


def survival() -> Survival:
    """Two concerns with runs, one without."""
    change = {"ttft_p99_ms[critical]": Estimate(-75.0, -80.0, -70.0, 64)}
    rows = (
        SurvivalRow("none", "As simulated", "no concern", "survives", change, None),
        SurvivalRow(
            "pod-failure", "A pod fails", "one is down", "survives", change, Estimate(1, -1, 3, 64)
        ),
        SurvivalRow(
            "priority-not-forwarded",
            "No priorities",
            "fcfs",
            "reversed",
            change,
            Estimate(9, 8, 10, 64),
        ),
        SurvivalRow(
            "lora-affinity", "Adapters", "none here", "not simulated yet: none here", {}, None
        ),
    )
    main = "ttft_p99_ms[critical]"
    return Survival(
        "iter13_class_lead@found", "baseline", "mixed", main, (main,), tuple(range(64)), rows
    )


def promotion() -> Promotion:
    """The ledger's best strategy."""
    return Promotion(
        "iter13_class_lead@found",
        arm_of("iter13_class_lead@found"),
        arm_of("iter00_baseline"),
        "llm-d-router@0.10.0",
    )


def files(is_simulated: bool, entries: list[dict[str, Any]] | None = None) -> Mapping[str, str]:
    """Everything before the documents."""
    made = {
        "hypotheses.yaml": text_of(entries or ENTRIES),
        "go/pkg/epp/framework/plugins/a/a.go": "package a\n",
        "go/registration.patch": PATCH,
        "gates/gate-1.findings.yaml": yaml.safe_dump(
            {
                "findings": [
                    {"severity": "IMPORTANT", "rule": "a-rule", "path": "a.go", "message": "look"}
                ]
            }
        ),
        "gates/gate-1.decision.yaml": yaml.safe_dump(
            {"decision": "approve", "signed_off_by": "A. Reviewer", "reason": "read"}
        ),
    } | reports(is_simulated)
    hypotheses, scenes = hypotheses_of(made), scenes_of(made)
    found = judge(
        hypotheses, scenes, {"critical": 100.0}, {"B-lora": "not simulated yet: no adapters"}
    )
    made[VERDICTS] = yaml.safe_dump(verdicts_document(found, scenes, "abc"), sort_keys=False)
    made[SURVIVAL] = yaml.safe_dump(survival().plain(), sort_keys=False)
    return made

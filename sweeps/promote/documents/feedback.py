"""What refuted hypotheses teach the simulator and the search, as files.

A refuted hypothesis of track A becomes a structural hypothesis (the model lacks or misplaces a part), one of track B a
concern to model, one of track C a constraint for the search, in the form of a strategy file's `constraints`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml

from sweeps.ledger.rows.vocabulary import DOMINANCE, STRUCTURAL, VALIDATION
from sweeps.promote.documents.content import PromotionContent, Verdict, main_change
from sweeps.promote.evidence.hypothesis import PromotedHypothesis
from sweeps.tracks.verdicts import REFUTED

FOLDER = "feedback"
NOTHING = f"{FOLDER}/README.md"


def feedback_files(content: PromotionContent) -> dict[str, str]:
    """A file for each refuted hypothesis; a page that says so where there is none."""
    makers = {"A": _structural, "B": _concern, "C": _constraint}
    folders = {"A": "structural", "B": "concerns", "C": "constraints"}
    found: dict[str, str] = {}
    for one in content.verdicts:
        if one["verdict"] == REFUTED:
            document = makers[one["track"]](content.hypotheses[one["id"]], one)
            text = yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=110)
            found[f"{FOLDER}/{folders[one['track']]}/{one['id']}.yaml"] = text
    lines = [
        f"- [{path.removeprefix(f'{FOLDER}/')}]({path.removeprefix(f'{FOLDER}/')})"
        for path in found
    ]
    body = "\n".join(lines) or "No hypothesis was refuted, so there is nothing to feed back."
    return found | {
        NOTHING: f"# Feedback to the simulator\n\nEvidence: {content.evidence}.\n\n{body}\n"
    }


def _seen(verdict: Verdict) -> dict[str, Any]:
    main = main_change(verdict)
    return {
        "refuted": verdict["id"],
        "evidence": verdict["evidence"],
        "reason": verdict["reason"],
        "change_percent": main["percent"] if main else None,
        "run_ids": list(verdict["run_ids"]),
    }


def _structural(hypothesis: PromotedHypothesis, verdict: Verdict) -> dict[str, Any]:
    entry = hypothesis.whole
    return {
        "kind": "structural-hypothesis",
        "statement": f"The part of the model that makes “{entry['statement']}” behaves otherwise on the cluster, "
        f"seen in {hypothesis.metric.path} ({hypothesis.metric.statistic}).",
        "family": STRUCTURAL,
        "vvuq": VALIDATION,
        "type": DOMINANCE,
        "mechanism": entry.get("mechanism"),
        "diagnostic": entry.get("diagnostic"),
        "seen": _seen(verdict),
    }


def _concern(hypothesis: PromotedHypothesis, verdict: Verdict) -> dict[str, Any]:
    entry = hypothesis.whole
    return {
        "kind": "concern-to-model",
        "concern": entry.get("origin"),
        "statement": entry["statement"],
        "what_to_model": entry.get("mechanism"),
        "diagnostic": entry.get("diagnostic"),
        "seen": _seen(verdict),
    }


def _constraint(hypothesis: PromotedHypothesis, verdict: Verdict) -> dict[str, Any]:
    main: Mapping[str, Any] = main_change(verdict) or {}
    before, limit = main.get("first_mean"), hypothesis.tolerance_percent / 100
    is_lower_better = hypothesis.metric.better == "lower"
    factor = 1 + limit if is_lower_better else 1 - limit
    return {
        "kind": "search-constraint",
        "scene": hypothesis.scene,
        "report_metric": {"path": hypothesis.metric.path, "statistic": hypothesis.metric.statistic},
        "constraint": {
            "metric": metric_name(hypothesis),
            "direction": "min" if is_lower_better else "max",
            "threshold": None if before is None else round(before * factor * to_ms(hypothesis), 6),
        },
        "seen": _seen(verdict),
    }


def metric_name(hypothesis: PromotedHypothesis) -> str | None:
    """The metric of searches that is this figure of a report, if there is one."""
    *above, name = hypothesis.metric.path.split(".")
    names = {
        "time_to_first_token": "ttft", "ttft_ms": "ttft", "request_latency": "e2e", "latency_ms": "e2e",
        "time_per_output_token": "tpot", "tpot_ms": "tpot",
    }  # fmt: skip
    if name == "output_token_rate":
        return "output_tokens_per_s"
    if name not in names:
        return None
    statistic = "mean" if hypothesis.metric.statistic == "mean" else hypothesis.metric.statistic
    slo_class = f"[{above[-1]}]" if above[:2] == ["summary", "traffic_classes"] else ""
    return f"{names[name]}_{statistic}_ms{slo_class}"


def to_ms(hypothesis: PromotedHypothesis) -> float:
    """How many ms the metric's unit is; 1 for what is no time."""
    return 1000.0 if hypothesis.metric.unit in ("s", "s/token") else 1.0

"""Make stage 6: findings on every hypothesis, the promotion report, and feedback to simulator and search.

A refuted hypothesis of track A becomes a structural hypothesis (the model lacks or misplaces a part), of track B a
concern to model, of track C a constraint for the search, in the form of a strategy file's `constraints`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from blis_jax.files.strict_yaml import read_yaml
from sweeps.claims.words import (
    CONFIRMED,
    DOMINANCE,
    INCONCLUSIVE,
    REFUTED,
    STRUCTURAL,
    VALIDATION,
    WITH_NUANCE,
)
from sweeps.promote.evidence.hypotheses import TransferHypothesis, hypotheses_of
from sweeps.promote.evidence.reports import FIGURES
from sweeps.promote.evidence.runs import FEWEST_RUNS
from sweeps.promote.evidence.verdicts import SURVIVAL, VERDICTS
from sweeps.promote.promotion import Files, Promotion
from sweeps.promote.store import (
    GATES,
    NOT_MEASURED,
    decision_path,
    findings_path,
    percent,
    render,
    wide_yaml,
)

TRACKS = {
    "A": "what the simulation found",
    "B": "what a real cluster has beside it",
    "C": "what must not change",
}
Verdict = Mapping[str, Any]


@dataclass(frozen=True)
class PromotionContent:
    """Provide the contents of the documents: hypotheses with verdicts, the survival table, and the gates."""

    promotion: Promotion
    files: Files

    @cached_property
    def document(self) -> dict[str, Any]:
        """Return the verdicts document as the evaluator wrote it."""
        document: dict[str, Any] = read_yaml(self.files[VERDICTS], VERDICTS)
        return document

    @cached_property
    def survival(self) -> dict[str, Any]:
        """Return the survival table."""
        table: dict[str, Any] = read_yaml(self.files[SURVIVAL], SURVIVAL)
        return table

    @cached_property
    def hypotheses(self) -> dict[str, TransferHypothesis]:
        """Return the hypotheses by id."""
        return {hypothesis.id: hypothesis for hypothesis in hypotheses_of(self.files)}

    @property
    def verdicts(self) -> list[Verdict]:
        """Return the verdicts in the order of the hypotheses."""
        verdicts: list[Verdict] = self.document["verdicts"]
        return verdicts

    @property
    def evidence(self) -> str:
        """Return `simulated`, `measured` or `mixed`."""
        return str(self.document["evidence"])

    def counts(self) -> list[dict[str, Any]]:
        """Return one row for each track, with the number of verdicts by word."""
        rows = []
        for track, about in TRACKS.items():
            judged = [verdict["verdict"] for verdict in self.verdicts if verdict["track"] == track]
            words = {word: judged.count(word) for word in (CONFIRMED, REFUTED, INCONCLUSIVE)}
            sets = {
                tuple(verdict["run_ids"])
                for verdict in self.verdicts
                if verdict["track"] == track and verdict["verdict"] == CONFIRMED
            }
            rows.append(
                {
                    "track": track,
                    "about": about,
                    "total": len(judged),
                    "different": len(sets),
                    **words,
                }
            )
        return rows

    def gates(self) -> list[dict[str, Any]]:
        """Return one row for each gate, with its findings and its decision."""
        rows = []
        for gate in GATES:
            checked, decided = (
                read_yaml(self.files.get(path, ""), path) or {}
                for path in (findings_path(gate), decision_path(gate))
            )
            listed = checked.get("findings", [])
            severities = [finding["severity"] for finding in listed]
            words = [f"{severities.count(name)} {name}" for name in dict.fromkeys(severities)]
            rows.append(
                {
                    "number": gate,
                    "list": listed,
                    "findings": ", ".join(words) or "none",
                    "decision": decided.get("decision"),
                    "by": decided.get("signed_off_by"),
                    "reason": decided.get("reason"),
                }
            )
        return rows


def main_change(verdict: Verdict) -> Mapping[str, Any] | None:
    """Return the subject's change from the baseline, the first of the changes; None if nothing was compared."""
    return next(iter(verdict["changes"].values()), None)


FOLDER = "documents/findings"
CONTROL_CHANGE = "control - baseline"


def findings_files(content: PromotionContent) -> dict[str, str]:
    """Return a page for each hypothesis, by path: eleven sections, filled from data or with "not measured"."""
    return {
        f"{FOLDER}/{verdict['id']}.md": render(
            "findings.md.j2",
            h=content.hypotheses[verdict["id"]].plain(),
            v=verdict,
            main=main_change(verdict),
            control=verdict["changes"].get(CONTROL_CHANGE),
            resolution=resolution_of(verdict),
            target=content.promotion.target,
            fewest_runs=FEWEST_RUNS,
        )
        for verdict in content.verdicts
    }


def resolution_of(verdict: Verdict) -> str:
    """Return the ledger's word for a verdict; every refuted hypothesis counts as a wrong model."""
    if verdict["verdict"] == CONFIRMED:
        is_partial = verdict["status"] == WITH_NUANCE
        return "Partial confirmation with surprise" if is_partial else "Clean confirmation"
    if verdict["verdict"] == REFUTED:
        return "Refuted - wrong mental model"
    return "Converged to open question"


FEEDBACK = "feedback"
NOTHING = f"{FEEDBACK}/README.md"


def feedback_files(content: PromotionContent) -> dict[str, str]:
    """Return a file for each refuted hypothesis, and a page that lists these files or says that there are none."""
    makers = {"A": _structural, "B": _concern, "C": _constraint}
    folders = {"A": "structural", "B": "concerns", "C": "constraints"}
    feedback: dict[str, str] = {}
    for verdict in content.verdicts:
        if verdict["verdict"] == REFUTED:
            document = makers[verdict["track"]](content.hypotheses[verdict["id"]], verdict)
            text = wide_yaml(document)
            feedback[f"{FEEDBACK}/{folders[verdict['track']]}/{verdict['id']}.yaml"] = text
    lines = [
        f"- [{path.removeprefix(f'{FEEDBACK}/')}]({path.removeprefix(f'{FEEDBACK}/')})"
        for path in feedback
    ]
    body = "\n".join(lines) or "No hypothesis was refuted, so there is nothing to feed back."
    return feedback | {
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


def _structural(hypothesis: TransferHypothesis, verdict: Verdict) -> dict[str, Any]:
    entry = hypothesis.plain()
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


def _concern(hypothesis: TransferHypothesis, verdict: Verdict) -> dict[str, Any]:
    entry = hypothesis.plain()
    return {
        "kind": "concern-to-model",
        "concern": entry.get("origin"),
        "statement": entry["statement"],
        "what_to_model": entry.get("mechanism"),
        "diagnostic": entry.get("diagnostic"),
        "seen": _seen(verdict),
    }


def _constraint(hypothesis: TransferHypothesis, verdict: Verdict) -> dict[str, Any]:
    main: Mapping[str, Any] = main_change(verdict) or {}
    before, limit = main.get("first_mean"), hypothesis.expected.tolerance / 100
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


def metric_name(hypothesis: TransferHypothesis) -> str | None:
    """Return the search metric that corresponds to the hypothesis's figure; None if there is none."""
    *above, name = hypothesis.metric.path.split(".")
    figure = next((each for each in FIGURES if name in (each.name, each.by_class)), None)
    if figure is None or not figure.metric:
        return None
    if not figure.by_class:
        return figure.metric
    slo_class = f"[{above[-1]}]" if name == figure.by_class else ""
    return f"{figure.metric}_{hypothesis.metric.statistic}_ms{slo_class}"


def to_ms(hypothesis: TransferHypothesis) -> float:
    """Return the factor that converts the metric's unit to ms; 1 for units that are not s."""
    return 1000.0 if hypothesis.metric.unit in ("s", "s/token") else 1.0


REPORT = "documents/promotion-report.md"
_BULKY = "evidence/reports/"


def document_files(promotion: Promotion, files: Files) -> dict[str, str]:
    """Return all documents of stage 6, by path."""
    content = PromotionContent(promotion, files)
    return {**findings_files(content), **feedback_files(content), REPORT: _report(content)}


def _report(content: PromotionContent) -> str:
    def change(verdict: Verdict, name: str) -> str:
        changed = verdict["changes"].get(name)
        return percent(changed["percent"]) if changed else NOT_MEASURED

    paths = sorted(path for path in content.files if not path.startswith(_BULKY))
    return render(
        "report.md.j2",
        promotion=content.promotion,
        document=content.document,
        counts=content.counts(),
        survival=content.survival,
        gates=content.gates(),
        paths=paths,
        change=change,
    )

"""What the documents are made of, read from the files of earlier stages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from blis_jax.files.strict_yaml import read_yaml
from sweeps.promote.evidence.hypothesis import PromotedHypothesis, hypotheses_of
from sweeps.promote.evidence.stage import SURVIVAL, VERDICTS
from sweeps.promote.promotion import Files, Promotion
from sweeps.promote.stages import GATES, decision_path, findings_path
from sweeps.tracks.verdicts import CONFIRMED, INCONCLUSIVE, REFUTED

TRACKS = {
    "A": "what the simulation found",
    "B": "what a real cluster has beside it",
    "C": "what must not change",
}
Verdict = Mapping[str, Any]


@dataclass(frozen=True)
class PromotionContent:
    """Verdicts with their hypotheses, the table of what the gain survives, and the gates."""

    promotion: Promotion
    files: Files

    @cached_property
    def document(self) -> dict[str, Any]:
        """The verdicts, as the evaluator wrote them."""
        found: dict[str, Any] = read_yaml(self.files[VERDICTS], VERDICTS)
        return found

    @cached_property
    def survival(self) -> dict[str, Any]:
        """The table of what the gain survives."""
        found: dict[str, Any] = read_yaml(self.files[SURVIVAL], SURVIVAL)
        return found

    @cached_property
    def hypotheses(self) -> dict[str, PromotedHypothesis]:
        """By id."""
        return {one.id: one for one in hypotheses_of(self.files)}

    @property
    def verdicts(self) -> list[Verdict]:
        """In the order of the hypotheses."""
        found: list[Verdict] = self.document["verdicts"]
        return found

    @property
    def evidence(self) -> str:
        """Simulated, measured or mixed."""
        return str(self.document["evidence"])

    def counts(self) -> list[dict[str, Any]]:
        """Verdicts by track."""
        rows = []
        for track, about in TRACKS.items():
            mine = [one["verdict"] for one in self.verdicts if one["track"] == track]
            words = {word: mine.count(word) for word in (CONFIRMED, REFUTED, INCONCLUSIVE)}
            rows.append({"track": track, "about": about, "total": len(mine), **words})
        return rows

    def gates(self) -> list[dict[str, Any]]:
        """Findings and decisions."""
        rows = []
        for gate in GATES:
            found, decided = (
                read_yaml(self.files.get(path, ""), path) or {}
                for path in (findings_path(gate), decision_path(gate))
            )
            listed = found.get("findings", [])
            severities = [one["severity"] for one in listed]
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
    """The subject against the baseline, if it was compared: the first of the changes."""
    return next(iter(verdict["changes"].values()), None)

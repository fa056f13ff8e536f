"""FINDINGS of every hypothesis: eleven sections, each filled from data or "not measured"."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sweeps.promote.documents.content import PromotionContent, Verdict, main_change
from sweeps.promote.documents.render import NOT_MEASURED, percent, render
from sweeps.promote.evidence.hypothesis import PromotedHypothesis
from sweeps.promote.evidence.preconditions import FEWEST_RUNS
from sweeps.tracks.verdicts import CONFIRMED, REFUTED, WITH_NUANCE

FOLDER = "documents/findings"
CONTROL_CHANGE = "control - baseline"


def findings_files(content: PromotionContent) -> dict[str, str]:
    """One page for each hypothesis, by path."""
    return {
        f"{FOLDER}/{one['id']}.md": render(
            "findings.md.j2", **_values(content, content.hypotheses[one["id"]], one)
        )
        for one in content.verdicts
    }


def _values(
    content: PromotionContent, hypothesis: PromotedHypothesis, verdict: Verdict
) -> dict[str, Any]:
    main = main_change(verdict)
    fields = ("family", "vvuq", "type", "origin", "mechanism", "diagnostic", "arms", "runs")
    entry: dict[str, Any] = {**dict.fromkeys(fields), **hypothesis.whole}
    return {
        "h": entry | {"arms": hypothesis.arms, "origin": _words(entry["origin"])},
        "v": verdict,
        "resolution": resolution_of(verdict),
        "magnitude": _words((entry.get("expected") or {}).get("magnitude_sim")),
        "workload": _words(entry.get("workload") or entry.get("profile")),
        "preconditions": _words(entry.get("preconditions")),
        "control": verdict["changes"].get(CONTROL_CHANGE),
        "against": _against(verdict),
        "audit": _audit(verdict, entry),
        "scope": _scope(content, verdict),
        "num_runs": main["num_runs"] if main else None,
        "implications": _implications(verdict),
        "command": "python -m sweeps.promote validate --output DIR "
        + ("--dry-run" if verdict["evidence"] == "simulated" else "--reports REPORTS"),
    }


def resolution_of(verdict: Verdict) -> str:
    """In the words of the ledger; a refuted hypothesis of a simulation has no better word than the model's."""
    if verdict["verdict"] == CONFIRMED:
        is_partial = verdict["status"] == WITH_NUANCE
        return "Partial confirmation with surprise" if is_partial else "Clean confirmation"
    if verdict["verdict"] == REFUTED:
        return "Refuted - wrong mental model"
    return "Converged to open question"


def _words(value: Any) -> str | None:
    """Plain data on one line."""
    if value is None:
        return None
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_words(one)}" for name, one in value.items())
    if isinstance(value, list | tuple):
        return "; ".join(str(_words(one)) for one in value)
    return str(value)


def _against(verdict: Verdict) -> list[str]:
    """The strongest objections that the data allow."""
    found = []
    if verdict["evidence"] == "simulated":
        found.append(
            "The same simulator that found the strategy judges it; a cluster may differ in every row of Map C."
        )
    main = main_change(verdict)
    if main is None:
        return [*found, f"There are no figures: {verdict['reason']}."]
    if main["num_as_expected"] < main["num_runs"]:
        found.append(
            f"{main['num_runs'] - main['num_as_expected']} of {main['num_runs']} runs are not as expected."
        )
    control = verdict["changes"].get(CONTROL_CHANGE)
    if control is None:
        found.append("Without a control, the plugin path and the policy cannot be told apart.")
    elif verdict["evidence"] == "simulated":
        found.append(
            "The simulator has no framework overhead, so the control says nothing about it."
        )
    found.append(f"{main['num_runs']} runs of one workload are not all workloads.")
    return found


def _audit(verdict: Verdict, entry: Mapping[str, Any]) -> list[tuple[str, str]]:
    main = main_change(verdict)
    runs = main["num_runs"] if main else 0
    has_control = "treatment - control" in verdict["changes"]
    return [
        (f"{FEWEST_RUNS} runs or more per arm", "yes" if runs >= FEWEST_RUNS else f"no, {runs}"),
        ("paired: the same requests in all arms", "yes" if main else NOT_MEASURED),
        ("one dimension varies (ED-1)", "yes" if main else NOT_MEASURED),
        ("also run where the effect should vanish (ED-2)", "control arm" if has_control else NOT_MEASURED),
        ("preconditions checked (ED-3)", "yes" if main else f"no: {verdict['problem'] or verdict['reason']}"),
        ("diagnostic clause", "yes" if entry["diagnostic"] else "no"),
        ("every run is named", "yes" if verdict["run_ids"] else "no"),
    ]  # fmt: skip


def _scope(content: PromotionContent, verdict: Verdict) -> str:
    if verdict["evidence"] != "measured":
        return (
            f"Simulated with blis_jax for {content.promotion.target}: one model, one set of latency coefficients, this "
            "workload. What holds on a cluster is not measured."
        )
    return f"Measured for {content.promotion.target}, with the stacks that the reports name, on this workload."


def _implications(verdict: Verdict) -> str:
    main = main_change(verdict)
    change = percent(main["percent"]) if main else NOT_MEASURED
    if verdict["verdict"] == CONFIRMED:
        return f"The change may claim a change against the baseline of {change} ({verdict['evidence']})."
    if verdict["verdict"] == REFUTED:
        return f"The change must not claim this ({change}, {verdict['evidence']}); `feedback/` says what follows."
    return "The change must not claim this; it needs runs on a cluster."

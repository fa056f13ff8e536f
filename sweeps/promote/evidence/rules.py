"""Rule checkers of the gates behind the hypotheses and behind the verdicts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from blis_jax.errors import ConfigError
from blis_jax.files.strict_yaml import read_yaml
from sweeps.promote.evidence.hypothesis import BASELINE, hypotheses_of, hypotheses_path
from sweeps.promote.evidence.priority_mix import CLASSES, GOODPUT
from sweeps.promote.evidence.reports import AGGREGATE, UNITS
from sweeps.promote.evidence.stage import VERDICTS
from sweeps.promote.promotion import Files, Finding
from sweeps.tracks.verdicts import CONFIRMED, INCONCLUSIVE, REFUTED

TRACKS = ("A", "B", "C")


def hypothesis_findings(files: Files) -> list[Finding]:
    """What the evaluator could not judge, or what would be judged by the wrong figure."""
    return list(_hypothesis_findings(files))


def _hypothesis_findings(files: Files) -> Iterator[Finding]:
    path = hypotheses_path(files)
    try:
        hypotheses = hypotheses_of(files)
    except ConfigError as error:
        yield Finding("CRITICAL", "hypothesis-not-readable", path, str(error))
        return
    for track in TRACKS:
        if not any(one.track == track for one in hypotheses):
            yield Finding(
                "CRITICAL", "track-is-empty", path, f"track {track} has no hypothesis; add one"
            )
    for one in hypotheses:
        metric = one.metric
        if not metric.path.startswith((f"{AGGREGATE}.", f"{CLASSES}.", f"summary.{GOODPUT}")):
            message = f"{one.id}: {metric.path} is in no report; use a path below {AGGREGATE} or {CLASSES}"
            yield Finding("CRITICAL", "metric-not-in-reports", path, message)
        if metric.unit not in UNITS:
            message = f"{one.id}: unit {metric.unit!r} is unknown; use one of {', '.join(UNITS)}"
            yield Finding("CRITICAL", "unit-unknown", path, message)
        if "inter_token_latency" in metric.path and metric.statistic != "mean":
            message = f"{one.id}: percentiles of the inter-token latency count chunks; use time_per_output_token"
            yield Finding("CRITICAL", "chunks-for-tokens", path, message)
        wanted = dict.fromkeys((BASELINE, *one.references, one.subject))
        missing = [arm for arm in wanted if arm not in one.arms]
        if missing:
            message = (
                f"{one.id}: arm {missing[0]} is missing, so the plugin path and the policy are one"
            )
            yield Finding("IMPORTANT", "arm-missing", path, message)
        if one.track == "C" and not one.is_equivalence:
            message = f"{one.id}: track C says that nothing changes; expect `same` with a tolerance"
            yield Finding("IMPORTANT", "track-c-is-no-equivalence", path, message)


def evidence_findings(files: Files) -> list[Finding]:
    """What a person must know of the verdicts before anything is written of them."""
    return list(_evidence_findings(files))


def _evidence_findings(files: Files) -> Iterator[Finding]:
    if VERDICTS not in files:
        yield Finding("CRITICAL", "no-verdicts", VERDICTS, "there are no verdicts; run validate")
        return
    document = read_yaml(files[VERDICTS], VERDICTS)
    verdicts: list[dict[str, Any]] = document["verdicts"]
    known = {one.id for one in hypotheses_of(files)}
    judged = {one["id"] for one in verdicts}
    for name in sorted(known ^ judged):
        what = "has no verdict" if name in known else "is no hypothesis"
        yield Finding(
            "CRITICAL", "verdicts-incomplete", VERDICTS, f"{name} {what}; run validate again"
        )
    if document["evidence"] != "measured":
        message = "the evidence is simulated: no cluster has confirmed anything, and every document says so"
        yield Finding("IMPORTANT", "evidence-simulated", VERDICTS, message)
    for one in verdicts:
        yield from _of_verdict(one)
    if not any(one["track"] == "A" and one["verdict"] == CONFIRMED for one in verdicts):
        message = "no hypothesis of track A is confirmed, so there is no gain to propose; reject, or bring reports"
        yield Finding("CRITICAL", "no-gain", VERDICTS, message)


def _of_verdict(one: dict[str, Any]) -> Iterator[Finding]:
    name, reason = one["id"], one["reason"]
    if one["verdict"] != INCONCLUSIVE and not one["run_ids"]:
        message = f"{name} is {one['verdict']} without a run; every verdict names its runs"
        yield Finding("CRITICAL", "verdict-without-runs", VERDICTS, message)
    if one["problem"] == "malformed":
        yield Finding(
            "CRITICAL", "report-malformed", VERDICTS, f"{name}: {reason}; replace the file"
        )
    elif one["track"] == "C" and one["verdict"] == REFUTED:
        yield Finding(
            "CRITICAL",
            "regression",
            VERDICTS,
            f"{name} is refuted: {reason}; keep the change out of it",
        )
    elif one["verdict"] == REFUTED:
        yield Finding(
            "IMPORTANT", "refuted", VERDICTS, f"{name} is refuted: {reason}; say so in the change"
        )
    elif one["verdict"] == INCONCLUSIVE:
        severity = "SUGGESTION" if "not simulated yet" in reason else "IMPORTANT"
        yield Finding(severity, "inconclusive", VERDICTS, f"{name} is inconclusive: {reason}")  # type: ignore[arg-type]

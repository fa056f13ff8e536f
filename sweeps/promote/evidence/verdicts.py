"""Make stage 5: reports, the verdicts that follow from them, and the survival table; and the rules of gates 2 and 3."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from jinja2 import UndefinedError

from blis_jax.errors import ConfigError, closest
from blis_jax.files.atomic_write import finite
from blis_jax.files.content import digest
from blis_jax.files.strict_yaml import read_mapping, read_yaml
from blis_jax.metrics.measure import DEFAULT_TARGETS
from blis_jax.statistics.intervals import Estimate
from blis_jax.traces.measured.llmd_report import AGGREGATE
from sweeps.claims.words import CONFIRMED, INCONCLUSIVE, REFUTED
from sweeps.promote.evidence.concerns import scene_of
from sweeps.promote.evidence.hypotheses import (
    MetricPath,
    TransferHypothesis,
    hypotheses_of,
    hypotheses_path,
)
from sweeps.promote.evidence.judging import ArmChange, TransferFinding, judge, runs_of
from sweeps.promote.evidence.reports import CLASSES, FIGURES, GOODPUT, QUANTILES
from sweeps.promote.evidence.runs import FOLDER, SceneRuns, scenes_of
from sweeps.promote.evidence.simulation import simulate
from sweeps.promote.evidence.survival import EvidenceParts, page_of, simulated_concerns, survival_of
from sweeps.promote.promotion import ARMS, BASELINE, TREATMENT, Files, Finding, Promotion, Severity
from sweeps.promote.store import hashes_of, wide_yaml
from sweeps.runs.experiment import targets_of

VERDICTS = "evidence/verdicts.yaml"
SURVIVAL, SURVIVAL_PAGE = "evidence/survival.yaml", "evidence/survival.md"
_DIGITS = 6


def evidence_files(
    promotion: Promotion, files: Files, options: Mapping[str, Any], parts: EvidenceParts
) -> dict[str, str]:
    """Return the reports, the verdicts and the survival table, by path.

    Args:
        promotion: the strategy and its baseline.
        files: the files of the earlier stages.
        options: `seeds` of a dry run, or `reports` (texts by path); also `survival_seeds` and `num_requests`.
        parts: stores what has been simulated.
    """

    hypotheses = hypotheses_of(files)
    identity = translation_of(files)
    absent: dict[str, str] = {}
    num_scenes = 0 if "reports" in options else len({each.simulated_scene for each in hypotheses})
    parts.expect(num_scenes + len(simulated_concerns()), "scenes and concerns")
    if "reports" in options:
        reports = {f"{FOLDER}/{path}": ended(text) for path, text in options["reports"].items()}
    else:
        reports, of_scene = _simulated(promotion, hypotheses, options, identity, parts)
        absent = {each.id: of_scene.get(each.simulated_scene, "") for each in hypotheses}
    scenes = scenes_of(reports)
    findings = judge(hypotheses, scenes, ttft_targets(promotion), absent)
    first = 42
    seeds = range(first, first + options["survival_seeds"])
    table = survival_of(promotion, seeds, options["num_requests"], parts=parts)
    verdicts = wide_yaml(verdicts_document(findings, scenes, identity))
    return {**reports, VERDICTS: verdicts, **survival_files(promotion, table.plain())}


def survival_files(promotion: Promotion, table: Mapping[str, Any]) -> dict[str, str]:
    """Return the survival table, given in plain form, as a data file and as a page."""
    command = f"blis-jax promote survival {promotion.given} --seeds {len(table['seeds'])}"
    return {SURVIVAL: wide_yaml(dict(table)), SURVIVAL_PAGE: page_of(table, command)}


def ended(text: str) -> str:
    """Return a text with a newline at its end."""
    return text if text.endswith("\n") else f"{text}\n"


def translation_of(files: Files) -> str:
    """Return the identity of a translation: a hash of all files made before the hypotheses."""
    folder = hypotheses_path(files).rpartition("/")[0]
    before = {
        path: text
        for path, text in files.items()
        if not path.startswith(("tests/", "evidence/", "gates/", "profiles/"))
        and path.rpartition("/")[0] != (folder or "/")
        and path != hypotheses_path(files)
    }
    return digest(hashes_of(before))[:16]


def ttft_targets(promotion: Promotion) -> dict[str, float]:
    """Return by class the TTFT in ms within which a request is in time: the strategy's targets, else the defaults."""

    strategy = promotion.arm.strategy
    targets = DEFAULT_TARGETS if strategy is None else targets_of(strategy)
    return {name: limits["ttft_ms"] for name, limits in targets.items() if "ttft_ms" in limits}


def _simulated(
    promotion: Promotion,
    hypotheses: Sequence[TransferHypothesis],
    options: Mapping[str, Any],
    identity: str,
    parts: EvidenceParts,
) -> tuple[dict[str, str], dict[str, str]]:
    """Return the simulated reports of all scenes by path, and by scene the reason why a scene has none."""

    arms = {arm: promotion.baseline.config for arm in ARMS if arm != TREATMENT}
    arms[TREATMENT] = promotion.arm.config
    reports: dict[str, str] = {}
    absent: dict[str, str] = {}
    for name, hypothesis in {each.simulated_scene: each for each in hypotheses}.items():
        try:
            with parts.step(name):
                scene = scene_of(hypothesis.plain(), name, promotion, options["num_requests"])
                simulated = functools.partial(simulate, scene, arms, options["seeds"], identity)
                made = parts.of(f"scene {name}", simulated)
        except ConfigError as error:
            absent[name] = str(error)
            continue
        if not made:
            absent[name] = "on no seed did every arm come to its end"
        reports |= made
    return reports, absent


# --- the verdicts as data -------------------------------------------------------------------------


def verdicts_document(
    findings: Sequence[TransferFinding], scenes: Mapping[str, SceneRuns], identity: str
) -> dict[str, Any]:
    """Return the verdicts as plain data, with everything that the documents state about them."""
    runs = [run for arms in scenes.values() for of_arm in arms.values() for run in of_arm.values()]
    ids = sorted({uid for run in runs for uid in run.uids})
    clusters = sorted(
        {
            str(report.at("run.cid"))
            for run in runs
            for report in run.reports
            if report.at("run.cid")
        }
    )
    kinds = sorted({run.evidence for run in runs}) or ["simulated"]
    return {
        "evidence": kinds[0] if len(kinds) == 1 else "mixed",
        "identities": {"translation": identity, "cluster": clusters, "run": digest(ids)[:16]},
        "num_reports": sum(len(run.reports) for run in runs),
        "verdicts": [_verdict(finding) for finding in findings],
    }


def _verdict(finding: TransferFinding) -> dict[str, Any]:
    hypothesis = finding.hypothesis
    return {
        "id": hypothesis.id,
        "track": hypothesis.track,
        "verdict": finding.verdict.word,
        "status": finding.verdict.finer,
        "evidence": finding.evidence,
        "problem": finding.problem,
        "reason": finding.verdict.reason,
        "scene": hypothesis.scene,
        "metric": hypothesis.metric.model_dump(),
        "expected": hypothesis.direction,
        "tolerance_percent": hypothesis.expected.tolerance,
        "changes": {name: _change(change) for name, change in finding.changes.items()},
        "run_ids": list(finding.run_ids),
    }


def _change(change: ArmChange) -> dict[str, Any]:
    return {
        "first_mean": rounded(change.first_mean),
        "second_mean": rounded(change.second_mean),
        "percent": _interval(change.reading.mean),
        "num_runs": len(change.reading.per_seed),
        "num_as_expected": change.num_as_expected,
    }


def _interval(estimated: Estimate) -> dict[str, Any]:
    return {name: rounded(getattr(estimated, name)) for name in ("mean", "low", "high")}


def rounded(value: float) -> float | None:
    """Return a number rounded to six decimals; None for NaN and infinity."""
    return finite(value, _DIGITS)


TRACKS = ("A", "B", "C")
_STATISTICS = ("mean", "stddev", "min", "max", *QUANTILES)


def metric_problem(metric: MetricPath, classes: Sequence[str]) -> str:
    """Return why no report has the figure, or what is wrong with its statistic, unit or direction; empty if fine."""
    share = ("higher", ("fraction", "ratio", "percent"))
    known: dict[str, tuple[str, tuple[str, ...]]] = {
        figure.path: (figure.better, figure.units) for figure in FIGURES
    }
    known[f"summary.{GOODPUT}"] = share
    for slo_class in classes:
        known |= {
            f"{CLASSES}.{slo_class}.{figure.by_class}": (figure.better, figure.units)
            for figure in FIGURES
            if figure.by_class
        }
        known[f"{CLASSES}.{slo_class}.{GOODPUT}"] = share
    if metric.path not in known:
        return f"{metric.path} is in no report{closest(metric.path, list(known))}"
    better, units = known[metric.path]
    statistics = _STATISTICS if metric.path.startswith(AGGREGATE) else ("mean", "p50", "p95", "p99")
    if metric.path.endswith(GOODPUT) or ".throughput." in metric.path:
        statistics = ("mean",)
    if metric.statistic not in statistics:
        return f"{metric.path} has no {metric.statistic}; use one of {', '.join(statistics)}"
    if metric.unit not in units:
        return f"{metric.path} is in {' or '.join(units)}, not in {metric.unit}"
    return "" if metric.better == better else f"of {metric.path}, {better} is better"


def hypothesis_findings(files: Files) -> Iterator[Finding]:
    """Yield a finding for each hypothesis that could not be judged, or would be judged by the wrong figure."""
    path = hypotheses_path(files)
    try:
        hypotheses = hypotheses_of(files)
    except ConfigError as error:
        yield Finding("CRITICAL", "hypothesis-not-readable", path, str(error))
        return
    for track in TRACKS:
        if not any(hypothesis.track == track for hypothesis in hypotheses):
            yield Finding(
                "CRITICAL", "track-is-empty", path, f"track {track} has no hypothesis; add one"
            )
    for hypothesis in hypotheses:
        metric = hypothesis.metric
        problem = metric_problem(
            metric, [str(each["name"]) for each in hypothesis.workload.classes]
        )
        if problem:
            message = f"{hypothesis.id}: {problem}"
            yield Finding("CRITICAL", "metric-not-in-reports", path, message)
        if "inter_token_latency" in metric.path and metric.statistic != "mean":
            message = f"{hypothesis.id}: percentiles of the inter-token latency count chunks; use time_per_output_token"
            yield Finding("CRITICAL", "chunks-for-tokens", path, message)
        wanted = dict.fromkeys((BASELINE, *hypothesis.references, hypothesis.subject))
        missing = [arm for arm in wanted if arm not in hypothesis.arms]
        if missing:
            message = f"{hypothesis.id}: arm {missing[0]} is missing, so the plugin path and the policy are one"
            yield Finding("IMPORTANT", "arm-missing", path, message)
        if hypothesis.track == "C" and not hypothesis.is_equivalence:
            message = f"{hypothesis.id}: track C says that nothing changes; expect `same` with a tolerance"
            yield Finding("IMPORTANT", "track-c-is-no-equivalence", path, message)


def evidence_findings(files: Files) -> Iterator[Finding]:
    """Yield what a person must know about the verdicts before documents are based on them."""
    if VERDICTS not in files:
        yield Finding("CRITICAL", "no-verdicts", VERDICTS, "there are no verdicts; run validate")
        return
    document = _verdicts_of(files)
    if document is None:
        message = "it is not of the form that validate writes; run validate again"
        yield Finding("CRITICAL", "verdicts-unreadable", VERDICTS, message)
        return
    verdicts: list[dict[str, Any]] = document["verdicts"]
    known = {hypothesis.id for hypothesis in hypotheses_of(files)}
    judged = Counter(verdict["id"] for verdict in verdicts)
    for name in sorted(name for name in {*known, *judged} if judged[name] != (name in known)):
        what = "is no hypothesis" if name not in known else f"has {judged[name]} verdicts"
        yield Finding(
            "CRITICAL", "verdicts-incomplete", VERDICTS, f"{name} {what}; run validate again"
        )
    if document["evidence"] != "measured":
        message = "the evidence is simulated: no cluster has confirmed anything, and every document says so"
        yield Finding("IMPORTANT", "evidence-simulated", VERDICTS, message)
    for row in verdicts:
        yield from _of_verdict(row)
    if not any(verdict["track"] == "A" and verdict["verdict"] == CONFIRMED for verdict in verdicts):
        message = "no hypothesis of track A is confirmed, so there is no gain to propose; reject, or bring reports"
        yield Finding("CRITICAL", "no-gain", VERDICTS, message)


def _survival_findings(promotion: Promotion, files: Files) -> Iterator[Finding]:
    try:
        made = survival_files(promotion, read_mapping(files.get(SURVIVAL, "{}"), SURVIVAL))
        is_so = made.items() <= files.items()
    except (ConfigError, LookupError, TypeError, UndefinedError):
        is_so = SURVIVAL not in files
    if not is_so:
        message = "it is not of the form that validate writes, or not what its page shows; run validate again"
        yield Finding("CRITICAL", "survival-not-of-its-data", SURVIVAL, message)


_OF_DOCUMENT = ("evidence", "identities", "num_reports")
_OF_VERDICT = {"id", "track", "verdict", "problem", "reason", "run_ids"}


def _verdicts_of(files: Files) -> dict[str, Any] | None:
    """Return the verdicts as data; None if the file is missing or does not have the right form."""
    try:
        document = read_yaml(files.get(VERDICTS, ""), VERDICTS)
    except ConfigError:
        return None
    if not isinstance(document, dict) or not {"verdicts", *_OF_DOCUMENT} <= set(document):
        return None
    rows = document["verdicts"]
    is_of_form = isinstance(rows, list) and all(
        isinstance(row, dict) and set(row) >= _OF_VERDICT for row in rows
    )
    return document if is_of_form else None


def verdict_findings(promotion: Promotion, files: Files) -> Iterator[Finding]:
    """Yield verdicts that the folder's reports do not support, and a survival table that differs from its page."""
    yield from _survival_findings(promotion, files)
    there = _verdicts_of(files)
    if there is None:
        return  # told by another rule
    scenes = scenes_of(files)
    said = {verdict.get("id"): verdict.get("reason", "") for verdict in there["verdicts"]}
    hypotheses = hypotheses_of(files)
    # why a scene has no reports is known where they are made
    absent = {
        hypothesis.id: said.get(hypothesis.id, "")
        for hypothesis in hypotheses
        if not runs_of(hypothesis, scenes)
    }
    findings = judge(hypotheses, scenes, ttft_targets(promotion), absent)
    made = wide_yaml(verdicts_document(findings, scenes, translation_of(files)))
    again = read_yaml(made, VERDICTS)
    wanted = {verdict["id"]: verdict for verdict in again["verdicts"]}
    for name in _OF_DOCUMENT:
        if there[name] != again[name]:
            message = f"{name} is not what the reports say; run validate again"
            yield Finding("CRITICAL", "verdict-not-of-reports", VERDICTS, message)
    for row in there["verdicts"]:
        other = wanted.get(row["id"], {})
        changed = [name for name in {**other, **row} if row.get(name) != other.get(name)]
        if changed:
            message = f"{row['id']}: {changed[0]} is not what its reports give; run validate again"
            yield Finding("CRITICAL", "verdict-not-of-reports", VERDICTS, message)


def _of_verdict(verdict: Mapping[str, Any]) -> Iterator[Finding]:
    name, word, reason = verdict["id"], verdict["verdict"], verdict["reason"]
    if word != INCONCLUSIVE and not verdict["run_ids"]:
        message = f"{name} is {word} without a run; every verdict names its runs"
        yield Finding("CRITICAL", "verdict-without-runs", VERDICTS, message)
    severity: Severity = "CRITICAL"
    if verdict["problem"] == "malformed":
        rule, message = "report-malformed", f"{name}: {reason}; replace the file"
    elif word == REFUTED and verdict["track"] == "C":
        rule, message = "regression", f"{name} is refuted: {reason}; keep the change out of it"
    elif word == REFUTED:
        severity, rule = "IMPORTANT", "refuted"
        message = f"{name} is refuted: {reason}; say so in the change"
    elif word == INCONCLUSIVE:
        severity = "SUGGESTION" if "not simulated yet" in reason else "IMPORTANT"
        rule, message = "inconclusive", f"{name} is inconclusive: {reason}"
    else:
        return
    yield Finding(severity, rule, VERDICTS, message)

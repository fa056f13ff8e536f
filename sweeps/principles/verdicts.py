"""The verdict on an entry from its claims: every figure beside its expected range."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

from blis_jax.files.atomic_write import plain
from blis_jax.files.journal import Journal
from sweeps.claims.grammar import Claim
from sweeps.claims.judge import ClaimReading, ClaimVerdict, judge_reading
from sweeps.claims.words import (
    BETWEEN,
    FALSIFIED,
    HOLDS,
    MET,
    NARROWER,
    NOT_MET,
    NOT_RUN,
    NOT_SUPPORTED,
    PROCESS,
    REPORTED,
    STATED,
    UNTESTED,
)
from sweeps.principles.catalogue import (
    CONTROL,
    CORE,
    SCOPE,
    Catalogue,
    Entry,
    PrincipleClaim,
    content_of,
)
from sweeps.principles.lab import (
    Lab,
    LabArm,
    arm_of,
    check_fair,
    metric_of,
    pooled_figures,
    reported_names,
)
from sweeps.principles.statistics import Bound, compute
from sweeps.strategies.moved import arguments


@dataclass(frozen=True)
class EntryFinding:
    """A claim with its figure and the verdict on it."""

    claim: PrincipleClaim
    verdict: ClaimVerdict


@dataclass(frozen=True)
class ByRole:
    """Call a claim met or not met; a core claim not met is falsified, or between `expected` and `falsified`."""

    is_core: bool
    falsified: Claim | None = None

    def decide(self, claim: Claim, reading: ClaimReading) -> tuple[str, str, str]:
        """Return the verdict, the same verdict again as the finer word, and the reason if there is no figure."""
        value, reason = reading.mean.mean, ""
        if reading.failure or math.isnan(value):
            word, reason = NOT_RUN, reading.failure or "there is no figure"
        elif claim.holds(value):
            word = MET
        else:
            is_between = self.falsified is not None and not self.falsified.holds(value)
            word = BETWEEN if is_between else FALSIFIED
        if not self.is_core and word != MET:
            word = NOT_MET
        return word, word, reason


@dataclass(frozen=True)
class Verdict:
    """The verdict of a check, with its findings."""

    entry: Entry
    verdict: str
    findings: tuple[EntryFinding, ...]
    seeds: tuple[int, ...]
    stream: str
    arms: Mapping[str, Any] = field(default_factory=dict)  # settings and figures by arm

    @property
    def agrees(self) -> bool:
        """Return whether the catalogue has the same verdict; an entry that is only stated there counts as holding."""
        recorded = HOLDS if self.entry.verdict == STATED else self.entry.verdict
        return self.verdict == recorded


def metrics_of(entries: Collection[Entry]) -> tuple[str, ...]:
    """Return the metrics that the claims of these entries need, each once; refuse an unknown name."""
    names: list[str] = []
    for entry in entries:
        for claim in entry.claims:
            wanted = [claim.metric, *claim.options.get("metrics", ())]
            names += [name for name in wanted if name not in names]
    for name in names:
        metric_of(name)
    return tuple(names)


def check(
    catalogue: Catalogue, entry: Entry, lab: Lab, seeds: tuple[int, ...], is_slow: bool = False
) -> Verdict:
    """Run the arms that an entry's claims need, and judge the claims."""
    arms = {name: arm_of(catalogue, entry, name) for name in entry.arms}
    check_fair(entry, arms)
    ready = [claim for claim in entry.claims if not _not_run(claim, arms, is_slow)]
    needed = dict.fromkeys(name for claim in ready for name in claim.arms())
    whole = [name for claim in ready if claim.kind == "differing" for name in claim.arms()]
    lab.measure([arms[name] for name in needed], seeds, whole)
    runs = {name: lab.of(arms[name], seeds) for name in needed}
    findings = []
    for claim in entry.claims:
        reason = _not_run(claim, arms, is_slow)
        reading = None if reason else compute(Bound(claim, runs, lab))
        findings.append(EntryFinding(claim, _judged(claim, reading, reason)))
    figures = {name: _described(arms[name], runs.get(name, ())) for name in arms}
    verdict = verdict_of(entry, findings)
    return Verdict(entry, verdict, tuple(findings), seeds, lab.stream, figures)


def _not_run(claim: PrincipleClaim, arms: Mapping[str, LabArm], is_slow: bool) -> str:
    if claim.is_slow and not is_slow:
        return "runs only with --slow"
    reasons = [arms[name].missing for name in claim.arms() if arms[name].missing]
    return "; ".join(dict.fromkeys(reasons))


def _judged(claim: PrincipleClaim, reading: ClaimReading | None, reason: str) -> ClaimVerdict:
    if reading is None:
        return ClaimVerdict(None, NOT_RUN, reason)
    if claim.expected is None:
        return ClaimVerdict(None, REPORTED, reading.failure, reading)
    rule = ByRole(claim.role == CORE, None if claim.falsified is None else claim.falsified.claim)
    return judge_reading(claim.expected.claim, rule, reading)


def verdict_of(entry: Entry, findings: Sequence[EntryFinding]) -> str:
    """Return the verdict on an entry from all its claims.

    A core claim that is falsified refutes the entry, whatever else could not be run. Otherwise a core claim that was
    not run, or a control that is not as expected, leaves the entry untested; a core claim between its bounds, or a
    scope claim that is not met, narrows the entry. Advice on method is `process` unless refuted.
    """
    states: dict[str, set[str]] = {CORE: set(), SCOPE: set(), CONTROL: set()}
    for finding in findings:
        states.setdefault(finding.claim.role, set()).add(finding.verdict.word)
    if FALSIFIED in states[CORE]:
        return NOT_SUPPORTED
    if entry.verdict == PROCESS:
        return PROCESS
    if NOT_RUN in states[CORE] or not states[CORE] or states[CONTROL] - {MET}:
        return UNTESTED
    if BETWEEN in states[CORE] or NOT_MET in states[SCOPE]:
        return NARROWER
    return HOLDS


def _described(arm: LabArm, runs: Sequence[Any]) -> dict[str, Any]:
    """Return an arm's settings, its workload, and the figures that every check reports, one per seed."""
    described: dict[str, Any] = {
        "workload": arm.choice.model_dump(exclude_none=True, exclude_defaults=True),
        "num_requests": arm.spec.num_requests,
    }
    if arm.config is None:
        return described | {"missing": arm.missing}
    described["settings"] = arguments(arm.config)
    if arm.config.variant != "scheduling":
        described["variant"] = arm.config.variant
    if runs:
        described["outcomes"] = [run.outcome.name for run in runs]
        described["figures"] = {
            name: [run.value(name) for run in runs] for name in reported_names(arm.spec)
        }
        pooled = pooled_figures(runs, arm.spec)
        described["figures"] |= {name: values.tolist() for name, values in pooled.items()}
    return described


def words_of(finding: EntryFinding, max_parts: int = 6) -> str:
    """Return a finding as one line: claim, figure with interval and seeds, expectation, verdict."""
    claim, verdict, reading = finding.claim, finding.verdict, finding.verdict.reading
    text = f"{claim.says}: "
    if reading is None or (verdict.reason and math.isnan(reading.mean.mean)):
        return text + f"{verdict.word} ({verdict.reason})"
    mean, figures = reading.mean, reading.parts
    text += _number(mean.mean)
    if math.isfinite(mean.low):
        text += f" [{_number(mean.low)}, {_number(mean.high)}]"
    parts = [f"{name} {_number(value)}" for name, value in figures.items() if value == value]
    failed = [name for name, value in figures.items() if value != value]
    if parts:
        metric = f"{claim.metric}: " if set(figures) <= set(claim.arms()) else ""
        text += f" ({metric}{', '.join(parts[:max_parts])})"
    if failed:
        text += f" ({'; '.join(failed)})"
    if claim.expected is None:
        return text
    text += f"; expected {claim.expected.words()}: {verdict.word}"
    if len(reading.per_seed) > 1:
        text += f", {verdict.num_holding} of {len(reading.per_seed)} seeds"
    return text + (f" [{claim.role}]" if claim.role != CORE else "")


def _number(value: float) -> str:
    if not math.isfinite(value) or (value == round(value) and abs(value) < 1e6):
        return f"{value:g}"
    if abs(value) >= 1000:
        return f"{value:.0f}"
    return f"{value:.2f}" if abs(value) >= 10 else f"{value:.3g}"


PACKAGES = ("blis_jax", "sweeps")


def code_hash() -> str:
    """Return a hash of the source and data files of the simulator and of the checks."""
    digest = hashlib.sha256()
    for package in PACKAGES:
        root = Path(str(resources.files(package)))
        files = (path for path in root.rglob("*") if path.suffix in (".py", ".yaml", ".npz"))
        for path in sorted(files):
            digest.update(str(path.relative_to(root)).encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def identity(
    catalogue: Catalogue, entry: Entry, seeds: tuple[int, ...], stream: str, slow: bool, code: str
) -> str:
    """Return a hash that is equal for two checks that run the same arms and judge them in the same way."""
    is_slow = slow and any(claim.is_slow for claim in entry.claims)
    parts = [content_of(catalogue, entry), list(seeds), stream, is_slow, code]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]


class PrinciplesRecord(Journal):
    """The record of checks, one line each, by identity."""

    def __init__(self, path: Path) -> None:
        """Open the record at a path, which need not exist."""
        super().__init__(path, "check of principles", {})
        self.checks: dict[str, dict[str, Any]] = {}

    def begin(self) -> None:
        """Keep the checks that the file already has."""
        self.checks = dict(self.lines())
        super().begin()

    def add(self, key: str, check: Mapping[str, Any]) -> None:
        """Append a check to the record."""
        self.checks[key] = dict(check)
        self.append([key, self.checks[key]])


def to_document(verdict: Verdict) -> dict[str, Any]:
    """Return a verdict as plain data: expectations, figures, and every arm's settings and figures."""
    entry = verdict.entry
    return {
        "id": entry.id,
        "statement": entry.statement,
        "evidence": entry.evidence,
        "seen": entry.seen,
        "recorded_verdict": entry.verdict,
        "verdict": verdict.verdict,
        "agrees": verdict.agrees,
        "family": entry.family,
        "vvuq": entry.vvuq,
        "type": entry.type,
        "falsified_if": entry.falsified_if,
        "remark": entry.remark,
        "seeds": list(verdict.seeds),
        "rng": verdict.stream,
        "claims": [_claim(finding) for finding in verdict.findings],
        "arms": plain(verdict.arms),
    }


def _claim(finding: EntryFinding) -> dict[str, Any]:
    claim, reading = finding.claim, finding.verdict.reading
    document: dict[str, Any] = {
        "says": claim.says,
        "role": claim.role,
        "kind": claim.kind,
        "metric": claim.metric,
        "of": claim.of,
        "to": claim.to,
        "options": claim.options,
        "expected": claim.expected and claim.expected.words(),
        "falsified": claim.falsified and claim.falsified.words(),
        "state": finding.verdict.word,
        "reason": finding.verdict.reason,
        "text": words_of(finding),
    }
    if reading is not None:
        document |= {
            "value": reading.mean.mean,
            "low": reading.mean.low,
            "high": reading.mean.high,
            "per_seed": reading.per_seed,
            "parts": reading.parts,
        }
    return {key: plain(value) for key, value in document.items()}

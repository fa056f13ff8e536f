"""From claims to the verdict on an entry: every figure beside what was expected of it."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from blis_jax.files.atomic_write import plain
from blis_jax.files.journal import Journal
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
from sweeps.principles.figures import metric_of, pooled_figures, reported_names
from sweeps.principles.lab import arm_of, check_fair
from sweeps.principles.statistics import Bound, compute

if TYPE_CHECKING:
    from sweeps.principles.lab import Lab, LabArm
    from sweeps.principles.statistics import Statistic


@dataclass(frozen=True)
class EntryFinding:
    """A claim with its figure and what became of it."""

    claim: PrincipleClaim
    state: str
    statistic: Statistic | None = None
    reason: str = ""

    @property
    def num_agreeing(self) -> int:
        """Seeds whose own figure is as expected."""
        if self.statistic is None or self.claim.expected is None:
            return 0
        return sum(self.claim.expected.holds(value) for value in self.statistic.per_seed)


@dataclass(frozen=True)
class Verdict:
    """What a check gave."""

    entry: Entry
    verdict: str
    findings: tuple[EntryFinding, ...]
    seeds: tuple[int, ...]
    stream: str
    arms: Mapping[str, Any] = field(default_factory=dict)  # settings and figures by arm

    @property
    def agrees(self) -> bool:
        """Whether the catalogue says the same; a finding that is only stated is taken to hold."""
        recorded = HOLDS if self.entry.verdict == STATED else self.entry.verdict
        return self.verdict == recorded


def metrics_of(entries: Collection[Entry]) -> tuple[str, ...]:
    """Every figure that claims of these entries ask for."""
    names: list[str] = []
    for entry in entries:
        for claim in entry.claims:
            wanted = [claim.metric, *claim.options.get("metrics", ())]
            names += [name for name in wanted if name not in names]
    for name in names:
        metric_of(name)
    return tuple(names)


def check(
    catalogue: Catalogue,
    entry: Entry,
    lab: Lab,
    seeds: tuple[int, ...],
    is_slow: bool = False,
) -> Verdict:
    """Runs what an entry's claims need, and judges them."""
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
        statistic = None if reason else compute(Bound(claim, runs, lab))
        findings.append(_judged(claim, statistic, reason))
    figures = {name: _described(arms[name], runs.get(name, ())) for name in arms}
    verdict = verdict_of(entry, findings)
    return Verdict(entry, verdict, tuple(findings), seeds, lab.stream, figures)


def _not_run(claim: PrincipleClaim, arms: Mapping[str, LabArm], is_slow: bool) -> str:
    if claim.is_slow and not is_slow:
        return "runs only with --slow"
    reasons = [arms[name].missing for name in claim.arms() if arms[name].missing]
    return "; ".join(dict.fromkeys(reasons))


def _judged(claim: PrincipleClaim, statistic: Statistic | None, reason: str) -> EntryFinding:
    if statistic is None:
        return EntryFinding(claim, NOT_RUN, reason=reason)
    if claim.expected is None:
        return EntryFinding(claim, REPORTED, statistic, statistic.failure)
    is_core = claim.role == CORE
    if statistic.failure or math.isnan(statistic.value):
        reason = statistic.failure or "there is no figure"
        return EntryFinding(claim, NOT_RUN if is_core else NOT_MET, statistic, reason)
    if claim.expected.holds(statistic.value):
        return EntryFinding(claim, MET, statistic)
    if not is_core:
        return EntryFinding(claim, NOT_MET, statistic)
    is_between = claim.falsified is not None and not claim.falsified.holds(statistic.value)
    return EntryFinding(claim, BETWEEN if is_between else FALSIFIED, statistic)


def verdict_of(entry: Entry, findings: Sequence[EntryFinding]) -> str:
    """One word for all claims.

    A core claim that is falsified refutes the entry, whatever else could not be run. Otherwise a core
    claim that was not run, or a control that is not as expected, leaves it untested; a core claim
    between its bounds, or a scope claim that is not met, narrows it. Advice on method is `process`
    unless refuted.
    """
    states: dict[str, set[str]] = {CORE: set(), SCOPE: set(), CONTROL: set()}
    for finding in findings:
        states.setdefault(finding.claim.role, set()).add(finding.state)
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
    """An arm's settings, workload, and the figures that every check reports, one a seed."""
    from sweeps.search.result import arguments

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
    """A finding as one line: claim, figure with interval and seeds, expectation, state."""
    claim, statistic = finding.claim, finding.statistic
    text = f"{claim.says}: "
    if statistic is None or (finding.reason and math.isnan(statistic.value)):
        return text + f"{finding.state} ({finding.reason})"
    text += _number(statistic.value)
    if math.isfinite(statistic.low):
        text += f" [{_number(statistic.low)}, {_number(statistic.high)}]"
    parts = [
        f"{name} {_number(value)}" for name, value in statistic.parts.items() if value == value
    ]
    failed = [name for name, value in statistic.parts.items() if value != value]
    if parts:
        metric = f"{claim.metric}: " if set(statistic.parts) <= set(claim.arms()) else ""
        text += f" ({metric}{', '.join(parts[:max_parts])})"
    if failed:
        text += f" ({'; '.join(failed)})"
    if claim.expected is None:
        return text
    text += f"; expected {claim.expected.words()}: {finding.state}"
    if len(statistic.per_seed) > 1:
        text += f", {finding.num_agreeing} of {len(statistic.per_seed)} seeds"
    return text + (f" [{claim.role}]" if claim.role != CORE else "")


def _number(value: float) -> str:
    if not math.isfinite(value) or (value == round(value) and abs(value) < 1e6):
        return f"{value:g}"
    if abs(value) >= 1000:
        return f"{value:.0f}"
    return f"{value:.2f}" if abs(value) >= 10 else f"{value:.3g}"


PACKAGES = ("blis_jax", "sweeps")


def code_hash() -> str:
    """Equal while no source and no data file of the simulator and of the checks has changed."""
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
    """Equal for two checks that run the same and judge it in the same way."""
    is_slow = slow and any(claim.is_slow for claim in entry.claims)
    parts = [content_of(catalogue, entry), list(seeds), stream, is_slow, code]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]


class PrinciplesRecord(Journal):
    """Checks by identity, a line each."""

    def __init__(self, path: Path) -> None:
        """At a path that need not exist."""
        super().__init__(path, "check of principles", {})
        self.checks: dict[str, dict[str, Any]] = {}

    def begin(self) -> None:
        """Takes over the checks that the file has."""
        self.checks = dict(self.lines())
        super().begin()

    def add(self, key: str, check: Mapping[str, Any]) -> None:
        """Appends a check."""
        self.checks[key] = dict(check)
        self.append([key, self.checks[key]])


def to_document(verdict: Verdict) -> dict[str, Any]:
    """A verdict as JSON: what was expected, what was found, and what every arm did."""
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
    claim, statistic = finding.claim, finding.statistic
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
        "state": finding.state,
        "reason": finding.reason,
        "text": words_of(finding),
    }
    if statistic is not None:
        document |= {
            "value": statistic.value,
            "low": statistic.low,
            "high": statistic.high,
            "per_seed": statistic.per_seed,
            "parts": statistic.parts,
        }
    return {key: plain(value) for key, value in document.items()}

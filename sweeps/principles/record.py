"""Checks that were made, line by line, so that a command that was stopped goes on where it was."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from blis_jax.files.journal import Journal
from sweeps.principles.catalogue import Catalogue, Entry, content_of
from sweeps.principles.verdicts import EntryFinding, Verdict, words_of

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


def plain(value: object) -> Any:
    """Without NaN and infinities, which JSON has not."""
    if isinstance(value, Mapping):
        return {str(key): plain(entry) for key, entry in value.items()}
    if isinstance(value, Iterable) and not isinstance(value, str):
        return [plain(entry) for entry in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value

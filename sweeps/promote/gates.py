"""Three gates between the stages: rule checkers find, a person decides, and a decision holds for these very files.

A gate is open while the last decision on it is an approval and every file that it was given for is as it was. Findings
are data (`gates/gate-N.findings.yaml`), a decision is a signed-off file (`gates/gate-N.decision.yaml`), and both are in
the history with the hashes of all files they are for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import yaml

from blis_jax.errors import ConfigError
from blis_jax.files.chain import digest
from sweeps.promote.promotion import Files, Finding, Promotion
from sweeps.promote.stages import (
    GATES,
    LAST_BEFORE,
    decision_path,
    findings_path,
    outputs_of,
    state_of,
    up_to,
)
from sweeps.promote.store import CHECKED, DECIDED, PromotionStore, hashes_of, sha256

APPROVE, REJECT = "approve", "reject"
CRITICAL, IMPORTANT, SUGGESTION = "CRITICAL", "IMPORTANT", "SUGGESTION"
SEVERITIES = (CRITICAL, IMPORTANT, SUGGESTION)


class GateClosedError(ConfigError):
    """A stage that waits behind a gate, or a decision that a gate does not take; commands end with exit code 3."""


@dataclass(frozen=True)
class GateState:
    """Whether a gate is open; if not, why, and what to do."""

    gate: int
    is_open: bool
    detail: str
    needs_check: bool = False  # findings for the files as they are have not been made yet


# --- what a gate looks at -------------------------------------------------------------------------


def files_at(store: PromotionStore, gate: int) -> dict[str, str]:
    """The files on disk that a gate is about: of every stage before it."""
    return store.read(outputs_of(store, up_to(LAST_BEFORE[gate])))


def findings_at(promotion: Promotion, gate: int, files: Files) -> list[Finding]:
    """What the rule checkers say of the files at a gate, the gravest first."""
    from sweeps.promote.evidence.rules import evidence_findings, hypothesis_findings

    if gate == 3:
        found = evidence_findings(files)
    else:
        from sweeps.promote.checks.findings import findings_of

        found = list(findings_of(files, promotion.target))
    if gate == 1:
        from sweeps.promote.golang.toolchain import check_go

        found += check_go(files)
    if gate == 2:
        found += hypothesis_findings(files)
    return sorted(
        found, key=lambda one: (SEVERITIES.index(one.severity), one.rule, one.path, one.message)
    )


def check(store: PromotionStore, promotion: Promotion, gate: int) -> list[Finding]:
    """Makes the findings of a gate for the files as they are, and keeps them."""
    _refuse_unfinished(store, gate)
    files = files_at(store, gate)
    found = findings_at(promotion, gate, files)
    artifacts = hashes_of(files)
    text = _yaml(
        {
            "gate": gate,
            "artifacts": digest(artifacts),
            "findings": [asdict(one) for one in found],
        }
    )
    store.write(findings_path(gate), text)
    counts = {name: sum(one.severity == name for one in found) for name in SEVERITIES}
    content = {"gate": gate, "artifacts": artifacts, "findings": counts, "file": sha256(text)}
    store.append(CHECKED, content)
    return found


def _refuse_unfinished(store: PromotionStore, gate: int) -> None:
    for stage in up_to(LAST_BEFORE[gate]):
        state = state_of(store, stage)
        if not state.is_usable:
            more = f" ({state.detail})" if state.detail else ""
            raise GateClosedError(
                f"gate {gate} cannot be looked at: stage {stage.name} is {state.word}{more}; "
                f"run `{stage.name}` first"
            )


# --- decisions ------------------------------------------------------------------------------------


def decide(store: PromotionStore, gate: int, decision: str, by: str, reason: str) -> None:
    """A person's decision on the findings that were made for the files as they are.

    Raises:
        GateClosedError: there are no findings for these files, or a CRITICAL one is to be approved.
        ConfigError: nobody signs, or no reason is given.
    """
    for name, text in (("--by", by), ("--reason", reason)):
        if not text.strip():
            raise ConfigError(f"{name} is empty; a decision has a name and a reason")
    _refuse_unfinished(store, gate)
    files = files_at(store, gate)
    checked = _current_check(store, gate, hashes_of(files))
    if checked is None:
        raise GateClosedError(
            f"gate {gate}: there are no findings for the files as they are; run `gate {gate}` and read them"
        )
    count = checked["findings"][CRITICAL]
    if decision == APPROVE and count:
        found = f"{count} {CRITICAL} finding{'s' * (count > 1)}"
        raise GateClosedError(
            f"gate {gate} stays closed: {found} in {findings_path(gate)}; put the cause right, run "
            f"`gate {gate}` again, or reject"
        )
    artifacts = hashes_of(files)
    text = _yaml(
        {
            "gate": gate,
            "decision": decision,
            "reason": " ".join(reason.split()),
            "signed_off_by": " ".join(by.split()),
            "artifacts": digest(artifacts),
            "findings": checked["file"],
        }
    )
    store.write(decision_path(gate), text)
    content = {
        "gate": gate, "decision": decision, "by": by, "reason": reason, "artifacts": artifacts,
        "file": sha256(text),
    }  # fmt: skip
    store.append(DECIDED, content)


def _current_check(
    store: PromotionStore, gate: int, artifacts: Mapping[str, str]
) -> Mapping[str, Any] | None:
    """The findings' record, if they are for these files and their own file is as it was written."""
    checked = store.last(CHECKED, gate=gate)
    if checked is None or checked["artifacts"] != artifacts:
        return None
    path = findings_path(gate)
    return checked if hashes_of(store.read([path])).get(path) == checked["file"] else None


# --- open or closed -------------------------------------------------------------------------------


def gate_state(store: PromotionStore, gate: int) -> GateState:
    """Whether a gate is open for the files as they are."""
    artifacts = hashes_of(files_at(store, gate))
    decided = store.last(DECIDED, gate=gate)
    checked = _current_check(store, gate, artifacts)
    if decided is not None:
        path = decision_path(gate)
        is_intact = hashes_of(store.read([path])).get(path) == decided["file"]
        changed = _changed(decided["artifacts"], artifacts)
        if decided["decision"] == APPROVE and not changed and is_intact:
            return GateState(gate, True, f"approved by {decided['by']}: {decided['reason']}")
        again = f"run `gate {gate}`, read the findings, and approve again"
        if changed:
            what = f"{changed} was changed after {decided['by']} decided on it"
            return GateState(gate, False, f"{what}; restore it, or {again}", checked is None)
        if not is_intact:
            return GateState(
                gate, False, f"{path} is not as it was signed; {again}", checked is None
            )
        return GateState(gate, False, f"rejected by {decided['by']}: {decided['reason']}")
    if checked is None:
        return GateState(gate, False, f"no findings yet; run `gate {gate}`", True)
    return GateState(gate, False, f"waits for a decision: {counted(checked['findings'])}")


def require_open(store: PromotionStore, last: int) -> None:
    """Refuses to go on behind a gate that is closed, or behind one before it.

    Raises:
        GateClosedError: with the reason.
    """
    for gate in GATES[:last]:
        state = gate_state(store, gate)
        if not state.is_open:
            raise GateClosedError(f"gate {gate} is closed: {state.detail}")


def counted(findings: Mapping[str, int]) -> str:
    """Findings in numbers."""
    return ", ".join(f"{findings.get(name, 0)} {name}" for name in SEVERITIES)


def count_of(found: Sequence[Finding]) -> dict[str, int]:
    """Findings by severity."""
    return {name: sum(one.severity == name for one in found) for name in SEVERITIES}


def _changed(old: Mapping[str, str], new: Mapping[str, str]) -> str:
    """One file that differs, with how many more; empty if none does."""
    names = [name for name in sorted({*old, *new}) if old.get(name) != new.get(name)]
    more = f" (and {len(names) - 1} more)" if len(names) > 1 else ""
    return f"{names[0]}{more}" if names else ""


def _yaml(document: Mapping[str, Any]) -> str:
    return yaml.safe_dump(dict(document), sort_keys=False, allow_unicode=True, width=110)

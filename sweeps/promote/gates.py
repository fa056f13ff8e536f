"""The three gates of a promotion: the findings of rule checkers, a person's decisions, and the run through all stages.

A decision holds for exact files: a gate is open while the last decision on it is an approval and every file that
the approval covers is unchanged. Findings are data (`gates/gate-N.findings.yaml`), a decision is a signed-off file
(`gates/gate-N.decision.yaml`), and the history records both with the hashes of all files that they cover.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from blis_jax.errors import ConfigError
from blis_jax.files.content import digest
from sweeps.promote.evidence.hypothesis_files import origin_findings
from sweeps.promote.evidence.verdicts import (
    evidence_findings,
    hypothesis_findings,
    verdict_findings,
)
from sweeps.promote.golang.target import NO_GO, check_go
from sweeps.promote.llmd.documents import remade_findings
from sweeps.promote.llmd.findings import findings_of
from sweeps.promote.promotion import (
    CRITICAL,
    Files,
    Finding,
    GateClosedError,
    Promotion,
    Severity,
    count_of,
    counted,
    gravest_first,
)
from sweeps.promote.stages import (
    APPROVE,
    EDITED,
    STAGES,
    TESTS,
    TRANSLATE,
    VALIDATE,
    Stage,
    StageWork,
    before_gate,
    current_check,
    files_at,
    gate_state,
    joined,
    kept_options,
    outputs_of,
    run_stage,
    state_of,
)
from sweeps.promote.store import (
    CHECKED,
    DECIDED,
    GATES,
    MADE,
    PromotionStore,
    decision_path,
    findings_path,
    hashes_of,
    sha256,
    wide_yaml,
)

Say = Callable[[str], None]

# --- what a gate looks at -------------------------------------------------------------------------


def _of_translation(promotion: Promotion, files: Files) -> list[Finding]:
    return [
        *findings_of(files, promotion.target),
        *check_go(files, promotion.target),
        *_remade(promotion, files, ("maps", TRANSLATE), "not-the-strategy", "the strategy"),
    ]


def _remade(
    promotion: Promotion, files: Files, stages: Sequence[str], rule: str, origin: str
) -> Iterator[Finding]:
    for name in stages:
        yield from remade_findings(_made(name, promotion, files), files, rule, origin)


def _made(name: str, promotion: Promotion, files: Files) -> Files:
    return joined(STAGES[name].make(StageWork(promotion, files)))


def _of_hypotheses(promotion: Promotion, files: Files) -> list[Finding]:
    return [
        *findings_of(files, promotion.target),
        *hypothesis_findings(files),
        *origin_findings(promotion, files),
    ]


def _of_evidence(promotion: Promotion, files: Files) -> list[Finding]:
    return [
        *findings_of(files, promotion.target),
        *_remade(promotion, files, (TESTS,), "not-of-its-hypothesis", "hypotheses.yaml"),
        *evidence_findings(files),
        *verdict_findings(promotion, files),
    ]


CHECKS: dict[int, Callable[[Promotion, Files], list[Finding]]] = {
    1: _of_translation,
    2: _of_hypotheses,
    3: _of_evidence,
}


def _edited(store: PromotionStore, gate: int) -> Iterator[Finding]:
    """Yield files that a stage made and a person edited (CRITICAL for evidence), and files that no stage made."""
    for name in before_gate(gate):
        made = store.last(MADE, stage=name)
        outputs: Mapping[str, str] = made["outputs"] if made else {}
        there = hashes_of(store.read(outputs))
        for path in (path for path, sha in there.items() if sha != outputs[path]):
            severity: Severity = CRITICAL if path.startswith("evidence/") else "IMPORTANT"
            message = f"it is not what the stage {name} made; make the stage again, or say why in the decision"
            yield Finding(severity, "edited-by-hand", path, message)
    known = outputs_of(store, tuple(STAGES))
    for folder in sorted({path.partition("/")[0] for path in known if "/" in path}):
        for file in sorted((store.folder / folder).rglob("*")):
            path = file.relative_to(store.folder).as_posix()
            if file.is_file() and path not in known:
                message = "no stage made it, so no bundle has it; take it away, or say why in the decision"
                yield Finding("IMPORTANT", "not-of-a-stage", path, message)


def findings_at(promotion: Promotion, gate: int, files: Files) -> list[Finding]:
    """Return the findings of a gate's rule checkers on the files, the gravest first."""
    return gravest_first(CHECKS[gate](promotion, files))


def check(store: PromotionStore, promotion: Promotion, gate: int) -> list[Finding]:
    """Compute and store the findings of a gate for the current files."""
    _refuse_unfinished(store, gate)
    files = files_at(store, gate)
    findings = gravest_first([*findings_at(promotion, gate, files), *_edited(store, gate)])
    artifacts = hashes_of(files)
    listed = [asdict(finding) for finding in findings]
    text = wide_yaml({"gate": gate, "artifacts": digest(artifacts), "findings": listed})
    store.write(findings_path(gate), text)
    counts = count_of(findings)
    is_run = all(finding.rule != NO_GO for finding in findings)
    content = {
        "gate": gate, "artifacts": artifacts, "findings": counts, "file": sha256(text), "go": is_run,
    }  # fmt: skip
    store.append(CHECKED, content)
    return findings


def _refuse_unfinished(store: PromotionStore, gate: int) -> None:
    for name in before_gate(gate):
        state = state_of(store, name)
        if not state.is_usable:
            raise GateClosedError(
                f"gate {gate} cannot be looked at: stage {name} is {state.words}; run `{name}` first"
            )


# --- decisions ------------------------------------------------------------------------------------


def decide(
    store: PromotionStore,
    gate: int,
    decision: str,
    by: str,
    reason: str,
    *,
    without_go: bool = False,
) -> None:
    """Record a person's decision on the findings for the current files.

    Raises:
        GateClosedError: the current files have no findings, or a CRITICAL one is to be approved; or no Go toolchain
            has run and `without_go` is false.
        ConfigError: the name or the reason is empty.
    """
    for name, text in (("--by", by), ("--reason", reason)):
        if not text.strip():
            raise ConfigError(f"{name} is empty; a decision has a name and a reason")
    _refuse_unfinished(store, gate)
    artifacts = hashes_of(files_at(store, gate))
    checked = current_check(store, gate, artifacts)
    if checked is None:
        raise GateClosedError(
            f"gate {gate}: there are no findings for the files as they are; run `gate {gate}` and read them"
        )
    count = checked["findings"][CRITICAL]
    if decision == APPROVE and count:
        raise GateClosedError(
            f"gate {gate} stays closed: {count} {CRITICAL} finding{'s' * (count > 1)} in {findings_path(gate)}; put "
            f"the cause right, run `gate {gate}` again, or reject"
        )
    is_untested = not checked.get("go", True)
    if decision == APPROVE and is_untested and not without_go:
        raise GateClosedError(
            f"gate {gate} stays closed: no Go toolchain has compiled and tested the plugins; install the extra "
            f"`promote`, run `gate {gate}` again, or say --without-go"
        )
    if decision == APPROVE and is_untested:
        reason = f"{reason} (The plugins were neither compiled nor tested.)"
    signed = {
        "gate": gate, "decision": decision, "reason": " ".join(reason.split()),
        "signed_off_by": " ".join(by.split()), "artifacts": digest(artifacts), "findings": checked["file"],
    }  # fmt: skip
    text = wide_yaml(signed)
    store.write(decision_path(gate), text)
    content = {
        "gate": gate, "decision": decision, "by": by, "reason": reason, "artifacts": artifacts,
        "file": sha256(text),
    }  # fmt: skip
    store.append(DECIDED, content)


# --- through the gates ----------------------------------------------------------------------------


def pass_gate(store: PromotionStore, promotion: Promotion, gate: int, say: Say) -> None:
    """Pass an open gate; at a closed gate, compute the findings, print them, and say what a person must decide.

    Raises:
        GateClosedError: the gate is closed.
    """
    state = gate_state(store, gate)
    if state.is_open:
        say(f"gate {gate}: {state.detail}")
        return
    if state.needs_check:
        findings = check(store, promotion, gate)
        say(f"gate {gate}: {counted(count_of(findings))} in {findings_path(gate)}")
        for finding in findings:
            say(f"  {described(finding)}")
        if "changed" in state.detail:
            raise GateClosedError(f"gate {gate} is closed: {state.detail}")
        state = gate_state(store, gate)
    step = f"`blis-jax promote approve {gate} --output {store.folder} --by 'NAME <ADDRESS>' --reason TEXT`"
    if not may_be_approved(state.detail):
        step = "put its CRITICAL findings right and call this command again"
    raise GateClosedError(
        f"gate {gate} is closed: {state.detail}; read {findings_path(gate)}, then {step}, or reject"
    )


def may_be_approved(detail: str) -> bool:
    """Return whether the state of a closed gate, given in words, mentions no CRITICAL finding."""
    return re.search(r"\b[1-9]\d* CRITICAL", detail) is None


def described(finding: Finding) -> str:
    """Return a finding on one line."""
    return f"{finding.severity} {finding.rule}: {finding.path}: {finding.message}"


def run_all(
    store: PromotionStore,
    promotion: Promotion,
    evidence: Mapping[str, Any],
    say: Say,
    *,
    may_overwrite: bool = False,
    is_resumed: bool = False,
) -> None:
    """Run every stage that is not up to date, until a gate is closed.

    Raises:
        GateClosedError: a gate waits for a person's decision.
    """
    passed = 0
    for stage in STAGES.values():
        for gate in GATES[passed : stage.behind]:
            pass_gate(store, promotion, gate, say)
        passed = stage.behind
        options = _options_of(store, stage, evidence, promotion)
        state = state_of(store, stage.name, kept_options(options))
        if state.is_usable:
            note = f", {state.detail}" if state.word == EDITED else ""
            say(f"{stage.name}: up to date{note}")
        else:
            made = run_stage(
                store, promotion, stage.name, options,
                may_overwrite=may_overwrite, is_resumed=is_resumed,
            )  # fmt: skip
            say(f"{stage.name}: {len(made)} files")


def _options_of(
    store: PromotionStore, stage: Stage, evidence: Mapping[str, Any], promotion: Promotion
) -> Mapping[str, Any]:
    """Return the options of a stage; validation without new evidence keeps the options of its last run."""
    if stage.name == TRANSLATE:
        return {"image": promotion.image}
    if stage.name != VALIDATE:
        return {}
    made = store.last(MADE, stage=VALIDATE)
    if not evidence and made is None:
        raise ConfigError(
            "there is no evidence yet: give --reports DIR with benchmark reports, or --dry-run to make them by "
            "simulation"
        )
    kept: Mapping[str, Any] = evidence or (made or {})["options"]
    return kept


def status_lines(store: PromotionStore) -> list[str]:
    """Return lines with the state of the promotion: each gate, open or closed, and each stage, made or not."""
    identity = store.identity()
    lines = [f"{identity['strategy']} against {identity['baseline']} for {identity['target']}"]
    passed = 0
    for stage in STAGES.values():
        for gate in GATES[passed : stage.behind]:
            opening = gate_state(store, gate)
            lines.append(f"  gate {gate}: {opening.word}, {opening.detail}")
        passed = stage.behind
        state, made = state_of(store, stage.name), store.last(MADE, stage=stage.name)
        count = f", {len(made['outputs'])} files" if made and state.is_usable else ""
        detail = f": {state.detail}" if state.detail else ""
        lines.append(f"  {stage.name}: {state.word}{count}{detail}")
    return lines

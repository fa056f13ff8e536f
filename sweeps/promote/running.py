"""Runs the stages of a promotion in their order, as far as its gates are open."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from blis_jax.errors import ConfigError
from blis_jax.progress import phase
from sweeps.promote.gates import (
    GateClosedError,
    check,
    count_of,
    counted,
    gate_state,
    require_open,
)
from sweeps.promote.promotion import Finding, Promotion
from sweeps.promote.stages import (
    BY_NAME,
    EDITED,
    GATES,
    LAST_BEFORE,
    STAGES,
    Stage,
    StageWork,
    before,
    edited_files,
    files_before,
    findings_path,
    joined,
    state_of,
)
from sweeps.promote.store import MADE, PromotionStore, hashes_of

Say = Callable[[str], None]
VALIDATE = "validate"


def run_stage(
    store: PromotionStore,
    promotion: Promotion,
    stage: Stage,
    options: Mapping[str, Any],
    *,
    may_overwrite: bool = False,
) -> list[str]:
    """Makes one stage; the paths of its files.

    Raises:
        GateClosedError: a gate before it is closed, or an earlier stage is not made.
        ConfigError: a person has edited its files.
    """
    for earlier in before(stage.name):
        state = state_of(store, earlier)
        if not state.is_usable:
            more = f" ({state.detail})" if state.detail else ""
            raise GateClosedError(
                f"stage {stage.name} needs stage {earlier.name}, which is {state.word}{more}; run it first"
            )
    require_open(store, stage.behind)
    edited = edited_files(store, stage)
    if edited and not may_overwrite:
        raise ConfigError(
            f"{edited[0]} was edited by hand and would be lost; give --overwrite to make stage {stage.name} again"
        )
    files = files_before(store, stage.name)
    with phase(f"stage {stage.name}"):
        made = joined(stage.make(StageWork(promotion, files, options)))
    store.write_stage(stage.name, hashes_of(files), kept_options(options), made)
    return list(made)


def kept_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options as the history keeps them: texts of reports by their hashes."""
    reports = options.get("reports")
    return dict(options) | ({"reports": hashes_of(reports)} if reports is not None else {})


def run_all(
    store: PromotionStore,
    promotion: Promotion,
    evidence: Mapping[str, Any],
    say: Say,
    *,
    may_overwrite: bool = False,
) -> None:
    """Makes every stage that is not current, up to the first closed gate.

    Raises:
        GateClosedError: at a gate that waits for a person.
    """
    for stage in STAGES:
        for gate in GATES:
            if stage is _after(gate):
                pass_gate(store, promotion, gate, say)
        options = _options_of(store, stage, evidence)
        state = state_of(store, stage, kept_options(options))
        if state.is_usable:
            note = f", {state.detail}" if state.word == EDITED else ""
            say(f"{stage.name}: up to date{note}")
            continue
        made = run_stage(store, promotion, stage, options, may_overwrite=may_overwrite)
        say(f"{stage.name}: {len(made)} files")


def _options_of(
    store: PromotionStore, stage: Stage, evidence: Mapping[str, Any]
) -> Mapping[str, Any]:
    """Only the validation has options; without new ones its evidence stays as it is."""
    if stage.name != VALIDATE:
        return {}
    if evidence:
        return evidence
    made = store.last(MADE, stage=VALIDATE)
    if made is not None:
        kept: Mapping[str, Any] = made["options"]
        return kept
    raise ConfigError(
        "there is no evidence yet: give --reports DIR with benchmark reports, or --dry-run to make them by simulation"
    )


def _after(gate: int) -> Stage:
    return STAGES[STAGES.index(BY_NAME[LAST_BEFORE[gate]]) + 1]


def pass_gate(store: PromotionStore, promotion: Promotion, gate: int, say: Say) -> None:
    """Goes through an open gate; at a closed one makes the findings and says what a person has to decide.

    Raises:
        GateClosedError: the gate is closed.
    """
    state = gate_state(store, gate)
    if state.is_open:
        say(f"gate {gate}: {state.detail}")
        return
    if state.needs_check:
        found = check(store, promotion, gate)
        say(f"gate {gate}: {counted(count_of(found))} in {findings_path(gate)}")
        for one in found:
            say(f"  {described(one)}")
        was = state.detail
        state = gate_state(store, gate)
        if "changed" in was:
            raise GateClosedError(f"gate {gate} is closed: {was}")
    raise GateClosedError(f"gate {gate} is closed: {state.detail}; {decision_advice(store, gate)}")


def decision_advice(store: PromotionStore, gate: int) -> str:
    """What a person types."""
    return (
        f"read {findings_path(gate)}, then `python -m sweeps.promote approve {gate} --output {store.folder} "
        "--by NAME --reason TEXT`, or reject"
    )


def described(finding: Finding) -> str:
    """A finding on one line."""
    return f"{finding.severity} {finding.rule}: {finding.path}: {finding.message}"


def status_lines(store: PromotionStore) -> list[str]:
    """What is made, which gate is open, what comes next."""
    identity = store.identity()
    lines = [
        f"{identity['strategy']} against {identity['baseline']} for {identity['target']}",
    ]
    for stage in STAGES:
        for gate in GATES:
            if stage is _after(gate):
                state = gate_state(store, gate)
                lines.append(
                    f"  gate {gate}: {'open' if state.is_open else 'closed'}, {state.detail}"
                )
        found = state_of(store, stage)
        made = store.last(MADE, stage=stage.name)
        count = f", {len(made['outputs'])} files" if made and found.is_usable else ""
        lines.append(
            f"  {stage.name}: {found.word}{count}{': ' + found.detail if found.detail else ''}"
        )
    return lines

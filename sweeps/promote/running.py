"""Run the stages of a promotion in their order, as far as its three gates are open."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from blis_jax.errors import ConfigError
from blis_jax.progress import phase
from sweeps.promote.evidence.survival import journaled
from sweeps.promote.gates import gate_state, pass_gate, require_open
from sweeps.promote.options import NAME
from sweeps.promote.promotion import GateClosedError, Promotion
from sweeps.promote.stages import (
    EDITED,
    STAGES,
    TRANSLATE,
    VALIDATE,
    Stage,
    StageWork,
    before,
    edited_files,
    files_before,
    joined,
    state_of,
)
from sweeps.promote.store import GATES, MADE, PromotionStore, hashes_of

Say = Callable[[str], None]
JOURNAL = "validate.jsonl"


# --- stages ---------------------------------------------------------------------------------------


def run_stage(
    store: PromotionStore,
    promotion: Promotion,
    name: str,
    options: Mapping[str, Any],
    *,
    may_overwrite: bool = False,
    is_resumed: bool = False,
) -> list[str]:
    """Make a stage, and return the paths of its files; a validation goes on from its journal if it is resumed.

    Raises:
        GateClosedError: a gate before it is closed, or an earlier stage is not made.
        ConfigError: a person has edited its files.
    """
    for earlier in before(name):
        state = state_of(store, earlier)
        if not state.is_usable:
            raise GateClosedError(
                f"stage {name} needs stage {earlier}, which is {state.words}; run it first"
            )
    require_open(store, STAGES[name].behind)
    edited = edited_files(store, name)
    if edited and not may_overwrite:
        raise ConfigError(
            f"{edited[0]} was edited by hand and would be lost; give --overwrite to make stage {name} again"
        )
    if name == TRANSLATE:
        options = {"image": promotion.image}
    files = files_before(store, name)
    inputs, kept = hashes_of(files), kept_options(options)
    if name != VALIDATE:
        with phase(f"stage {name}"):
            made = joined(STAGES[name].make(StageWork(promotion, files, options)))
        store.write_stage(name, inputs, kept, made)
        return list(made)
    content = {"files": inputs, "options": kept}
    journal = store.folder / JOURNAL
    with journaled(NAME, f"stage {name}", journal, content, is_resumed) as parts:
        made = joined(STAGES[name].make(StageWork(promotion, files, options, parts)))
        store.write_stage(name, inputs, kept, made)
    return list(made)


def kept_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options as the history keeps them: texts of reports by their hashes."""
    reports = options.get("reports")
    return dict(options) | ({"reports": hashes_of(reports)} if reports is not None else {})


def run_all(
    store: PromotionStore,
    promotion: Promotion,
    evidence: Mapping[str, Any],
    say: Say,
    *,
    may_overwrite: bool = False,
    is_resumed: bool = False,
) -> None:
    """Make every stage that is not current, up to the first closed gate.

    Raises:
        GateClosedError: at a gate that waits for a person.
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
    """Return the options of translation and validation; without new ones the evidence stays as it is."""
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
    """Return what is made, which gate is open, what comes next."""
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

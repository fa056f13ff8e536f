"""Define the stages in their order, report the state of each stage and gate, and run a stage.

A stage is a value: a name, the gate before it, and a pure function from the files of all earlier stages and the
options to files. A stage is current as long as these inputs have the same hashes as when the stage was last made.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from blis_jax.errors import ConfigError
from blis_jax.progress import phase
from sweeps.promote import NAME
from sweeps.promote.bundle import bundle_files
from sweeps.promote.evidence.hypotheses import hypotheses_path
from sweeps.promote.evidence.hypothesis_files import hypothesis_files
from sweeps.promote.evidence.profiles import profile_files, script_files
from sweeps.promote.evidence.survival import EvidenceParts, journaled
from sweeps.promote.evidence.verdicts import evidence_files
from sweeps.promote.golang.plugins import plugins_of
from sweeps.promote.llmd.arms import config_files
from sweeps.promote.maps import maps_files
from sweeps.promote.pages import document_files
from sweeps.promote.promotion import Files, GateClosedError, Promotion, counted
from sweeps.promote.store import (
    BEGAN,
    CHECKED,
    DECIDED,
    GATES,
    MADE,
    Hashes,
    PromotionStore,
    decision_path,
    findings_path,
    hashes_of,
)

NOT_MADE, INCOMPLETE, STALE, EDITED, DONE = "not made", "incomplete", "stale", "edited", "done"
TRANSLATE, TESTS, VALIDATE = "translate", "tests", "validate"


@dataclass(frozen=True)
class StageWork:
    """Hold the inputs of a stage; its options are plain values."""

    promotion: Promotion
    files: Files  # of all earlier stages, behind the last gate findings and decisions too
    options: Mapping[str, Any] = field(default_factory=dict)
    parts: EvidenceParts = field(default_factory=EvidenceParts)


@dataclass(frozen=True)
class Stage:
    """Describe a stage: a step that makes files; `behind` is the gate that must be open before it, 0 for none."""

    name: str
    behind: int
    make: Callable[[StageWork], Files]


def _translate(work: StageWork) -> Files:
    plugins = plugins_of(work.promotion)
    return joined(plugins.files, config_files(work.promotion, plugins.generated))


def _tests(work: StageWork) -> Files:
    hypotheses = work.files[hypotheses_path(work.files)]
    return joined(profile_files(hypotheses, work.files), script_files(work.promotion))


def _validate(work: StageWork) -> Files:
    return evidence_files(work.promotion, work.files, work.options, work.parts)


STAGES = {
    stage.name: stage
    for stage in (
        Stage("maps", 0, lambda work: maps_files(work.promotion)),
        Stage(TRANSLATE, 0, _translate),
        Stage("hypothesise", 1, lambda work: hypothesis_files(work.promotion, work.files)),
        Stage(TESTS, 2, _tests),
        Stage(VALIDATE, 2, _validate),
        Stage("document", 3, lambda work: document_files(work.promotion, work.files)),
        Stage("bundle", 3, lambda work: bundle_files(work.promotion, work.files)),
    )
}


def translated_image(store: PromotionStore) -> str | None:
    """Return the endpoint picker's image in the last translation; None if there is none."""
    made = store.last(MADE, stage=TRANSLATE) if store.is_begun else None
    return None if made is None else made["options"].get("image")


def joined(*parts: Files) -> dict[str, str]:
    """Return the files of all parts; a path in two parts is a programming error."""
    files: dict[str, str] = {}
    for path, text in ((path, text) for part in parts for path, text in part.items()):
        if path in files:
            raise AssertionError(f"two parts of a promotion write {path}")
        if not text.endswith("\n"):
            raise AssertionError(f"{path} does not end with a newline")
        files[path] = text
    return dict(sorted(files.items()))


def before(name: str) -> tuple[str, ...]:
    """Return the names of the stages before a stage."""
    names = tuple(STAGES)
    return names[: names.index(name)]


def before_gate(gate: int) -> tuple[str, ...]:
    """Return the names of the stages whose files a gate covers."""
    return tuple(name for name, stage in STAGES.items() if stage.behind < gate)


# --- their state ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class StageState:
    """Hold the state of a stage: one of the words above, and a sentence with details."""

    word: str
    detail: str = ""

    @property
    def is_usable(self) -> bool:
        """Return whether later stages may use the stage's files, which includes edited files."""
        return self.word in (DONE, EDITED)

    @property
    def words(self) -> str:
        """Return the word, with the sentence in parentheses."""
        return self.word + (f" ({self.detail})" if self.detail else "")


def outputs_of(store: PromotionStore, names: tuple[str, ...]) -> dict[str, str]:
    """Return the hashes that the files of these stages had when the stages were last made."""
    made = (store.last(MADE, stage=name) for name in names)
    return {path: digest for record in made if record for path, digest in record["outputs"].items()}


def files_before(store: PromotionStore, name: str) -> dict[str, str]:
    """Return the files on disk that a stage reads: those of earlier stages and, behind the last gate, of all gates."""
    paths = list(outputs_of(store, before(name)))
    if STAGES[name].behind == GATES[-1]:
        paths += [path(gate) for gate in GATES for path in (findings_path, decision_path)]
    return store.read(paths)


def state_of(
    store: PromotionStore, name: str, options: Mapping[str, Any] | None = None
) -> StageState:
    """Return the state of a stage; if `options` are given, the stage is stale unless it was made with them."""
    began, made = store.last(BEGAN, stage=name), store.last(MADE, stage=name)
    if began is None:
        return StageState(NOT_MADE)
    if made is None or made["number"] < began["number"]:
        return StageState(INCOMPLETE, _how_far(store, began["outputs"]))
    there = hashes_of(store.read(made["outputs"]))
    missing = [path for path in made["outputs"] if path not in there]
    if missing:
        return StageState(INCOMPLETE, f"{missing[0]} is missing")
    inputs = hashes_of(files_before(store, name))
    if inputs != made["inputs"]:
        return StageState(STALE, f"{changes_between(made['inputs'], inputs)[0]} has changed since")
    if options is not None and dict(options) != made["options"]:
        changed = changes_between(made["options"], options)[0]
        return StageState(STALE, f"it was made with another {changed}")
    edited = [path for path, digest in made["outputs"].items() if there[path] != digest]
    return StageState(EDITED, f"{', '.join(edited)} edited by hand") if edited else StageState(DONE)


def edited_files(store: PromotionStore, name: str) -> list[str]:
    """Return files of a stage whose text the stage never wrote: edits that a new run would destroy."""
    known = store.ever_written(name)
    there = hashes_of(store.read(tuple(known)))
    return [path for path, digest in there.items() if digest not in known[path]]


def _how_far(store: PromotionStore, planned: Hashes) -> str:
    there = hashes_of(store.read(planned))
    count = sum(there.get(path) == digest for path, digest in planned.items())
    return f"it was cut off, {count} of {len(planned)} files are written"


def changes_between(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Return the names whose values differ or that only one of the mappings has."""
    return [name for name in sorted({*old, *new}) if old.get(name) != new.get(name)]


# --- gates: open or closed ------------------------------------------------------------------------

APPROVE, REJECT = "approve", "reject"


def files_at(store: PromotionStore, gate: int) -> dict[str, str]:
    """Return the files on disk that a gate covers: those of every stage before the gate."""
    return store.read(outputs_of(store, before_gate(gate)))


def current_check(
    store: PromotionStore, gate: int, artifacts: Mapping[str, str]
) -> Mapping[str, Any] | None:
    """Return the record of a gate's findings if they are about these files and unedited; else None."""
    checked = store.last(CHECKED, gate=gate)
    if checked is None or checked["artifacts"] != artifacts:
        return None
    return checked if store.holds(findings_path(gate), checked["file"]) else None


@dataclass(frozen=True)
class GateState:
    """Hold whether a gate is open; if not, why, and what to do."""

    gate: int
    is_open: bool
    detail: str
    needs_check: bool = False  # findings for the files as they are have not been made yet

    @property
    def word(self) -> str:
        """Return `open` or `closed`."""
        return "open" if self.is_open else "closed"


def gate_state(store: PromotionStore, gate: int) -> GateState:
    """Return the state of a gate for the current files."""
    artifacts = hashes_of(files_at(store, gate))
    decided = store.last(DECIDED, gate=gate)
    checked = current_check(store, gate, artifacts)
    if decided is None and checked is None:
        return GateState(gate, False, f"no findings yet; run `gate {gate}`", True)
    if decided is None:
        findings = counted((checked or {})["findings"])
        return GateState(gate, False, f"waits for a decision: {findings}")
    path, by = decision_path(gate), decided["by"]
    names = changes_between(decided["artifacts"], artifacts)
    more = f" (and {len(names) - 1} more)" if len(names) > 1 else ""
    changed = f"{names[0]}{more}" if names else ""
    is_intact = store.holds(path, decided["file"])
    again = f"run `gate {gate}`, read the findings, and approve again"
    if decided["decision"] == APPROVE and not changed and is_intact:
        return GateState(gate, True, f"approved by {by}: {decided['reason']}")
    if changed:
        what = f"{changed} was changed after {by} decided on it; restore it, or {again}"
        return GateState(gate, False, what, checked is None)
    if not is_intact:
        return GateState(gate, False, f"{path} is not as it was signed; {again}", checked is None)
    return GateState(gate, False, f"rejected by {by}: {decided['reason']}")


def require_open(store: PromotionStore, last: int) -> None:
    """Refuse to continue unless the gate `last` and all gates before it are open.

    Raises:
        GateClosedError: a gate is closed; the message says why.
    """
    for gate in GATES[:last]:
        state = gate_state(store, gate)
        if not state.is_open:
            raise GateClosedError(f"gate {gate} is closed: {state.detail}")


# --- a stage is made ------------------------------------------------------------------------------

JOURNAL = "validate.jsonl"


def run_stage(
    store: PromotionStore,
    promotion: Promotion,
    name: str,
    options: Mapping[str, Any],
    *,
    may_overwrite: bool = False,
    is_resumed: bool = False,
) -> list[str]:
    """Run a stage and return the paths of its files; with `is_resumed`, a validation continues from its journal.

    Raises:
        GateClosedError: a gate before the stage is closed, or an earlier stage is not up to date.
        ConfigError: a person has edited the stage's files, and `may_overwrite` is false.
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
    """Return options as the history stores them: texts of reports are replaced by their hashes."""
    reports = options.get("reports")
    return dict(options) | ({"reports": hashes_of(reports)} if reports is not None else {})

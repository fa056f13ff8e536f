"""The stages in their order, what each is made of, and what state each is in.

A stage is a pure function: the files of all earlier stages and the options in, files out. It is current as long as
these inputs are what they were when it was made.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from sweeps.promote.promotion import Files, Promotion
from sweeps.promote.store import BEGAN, MADE, Hashes, PromotionStore, hashes_of

NOT_MADE, INCOMPLETE, STALE, EDITED, DONE = "not made", "incomplete", "stale", "edited", "done"


@dataclass(frozen=True)
class StageWork:
    """What a stage may look at."""

    promotion: Promotion
    files: Files  # of all earlier stages, findings and decisions included
    options: Mapping[str, Any] = field(
        default_factory=dict
    )  # plain values; part of what it is made of


@dataclass(frozen=True)
class Stage:
    """A step that makes files; `behind` is the gate that must be open before it, 0 if none."""

    name: str
    about: str
    behind: int
    make: Callable[[StageWork], Files]


# --- what the stages do ---------------------------------------------------------------------------
# Imported when a stage runs: a command that only asks for the status needs none of it.


def _maps(work: StageWork) -> Files:
    from sweeps.promote.maps.stage import maps_files

    return maps_files(work.promotion)


def _translate(work: StageWork) -> Files:
    from sweeps.promote.configs.stage import config_files
    from sweeps.promote.golang.plugins import plugins_of

    plugins = plugins_of(work.promotion)
    return joined(plugins.files, config_files(work.promotion, plugins.generated))


def _hypothesise(work: StageWork) -> Files:
    from sweeps.promote.hypotheses.stage import hypothesis_files

    return hypothesis_files(work.promotion, work.files)


def _tests(work: StageWork) -> Files:
    from sweeps.promote.evidence.hypothesis import hypotheses_path
    from sweeps.promote.evidence.script import script_files
    from sweeps.promote.hypotheses.profiles import profile_files

    return joined(
        profile_files(work.files[hypotheses_path(work.files)]), script_files(work.promotion)
    )


def _validate(work: StageWork) -> Files:
    from sweeps.promote.evidence.stage import evidence_files

    return evidence_files(work.promotion, work.files, work.options)


def _document(work: StageWork) -> Files:
    from sweeps.promote.documents.stage import document_files

    return document_files(work.promotion, work.files)


def _bundle(work: StageWork) -> Files:
    from sweeps.promote.documents.bundle import bundle_files

    return bundle_files(work.promotion, work.files)


STAGES = (
    Stage("maps", "which interface, signal and gap each part of the strategy meets", 0, _maps),
    Stage("translate", "Go plugins, EndpointPickerConfig, objectives, vLLM flags", 0, _translate),
    Stage("hypothesise", "what must hold on a cluster, what may break it, what must not change", 1, _hypothesise),
    Stage("tests", "benchmark profiles and the evaluation script", 2, _tests),
    Stage("validate", "a verdict on every hypothesis from benchmark reports", 2, _validate),
    Stage("document", "findings, promotion report, feedback", 3, _document),
    Stage("bundle", "the change as a branch, a patch and a text for reviewers", 3, _bundle),
)  # fmt: skip
BY_NAME = {stage.name: stage for stage in STAGES}
GATES = (1, 2, 3)
LAST_BEFORE = {
    1: "translate",
    2: "hypothesise",
    3: "validate",
}  # the last stage that a gate looks at


def findings_path(gate: int) -> str:
    """Where the findings of a gate are."""
    return f"gates/gate-{gate}.findings.yaml"


def decision_path(gate: int) -> str:
    """Where a person's decision on a gate is."""
    return f"gates/gate-{gate}.decision.yaml"


def joined(*parts: Files) -> dict[str, str]:
    """All files; the same path from two parts is a defect."""
    found: dict[str, str] = {}
    for part in parts:
        for path, text in part.items():
            if path in found:
                raise AssertionError(f"two parts of a promotion write {path}")
            if not text.endswith("\n"):
                raise AssertionError(f"{path} does not end with a newline")
            found[path] = text
    return dict(sorted(found.items()))


def before(name: str) -> tuple[Stage, ...]:
    """The stages before one."""
    return STAGES[: STAGES.index(BY_NAME[name])]


def up_to(name: str) -> tuple[Stage, ...]:
    """The stages up to one, itself included."""
    return (*before(name), BY_NAME[name])


# --- their state ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class StageState:
    """What became of a stage: one of the words above, and a sentence where there is more to say."""

    word: str
    detail: str = ""

    @property
    def is_usable(self) -> bool:
        """Whether later stages may build on its files; a person may have edited them."""
        return self.word in (DONE, EDITED)


def outputs_of(store: PromotionStore, stages: tuple[Stage, ...]) -> dict[str, str]:
    """The hashes that the stages' files had when they were last made."""
    found: dict[str, str] = {}
    for stage in stages:
        made = store.last(MADE, stage=stage.name)
        found |= made["outputs"] if made else {}
    return found


def files_before(store: PromotionStore, name: str) -> dict[str, str]:
    """The files on disk that a stage is made of: those of earlier stages; behind the last gate, of all gates too."""
    names = list(outputs_of(store, before(name)))
    if BY_NAME[name].behind == GATES[-1]:
        names += [path(gate) for gate in GATES for path in (findings_path, decision_path)]
    return store.read(names)


def state_of(
    store: PromotionStore, stage: Stage, options: Mapping[str, Any] | None = None
) -> StageState:
    """What became of a stage; `options`, where they are given, must be those that it was made with."""
    began, made = store.last(BEGAN, stage=stage.name), store.last(MADE, stage=stage.name)
    if began is None:
        return StageState(NOT_MADE)
    if made is None or made["number"] < began["number"]:
        return StageState(INCOMPLETE, _how_far(store, began["outputs"]))
    there = hashes_of(store.read(made["outputs"]))
    missing = [name for name in made["outputs"] if name not in there]
    if missing:
        return StageState(INCOMPLETE, f"{missing[0]} is missing")
    inputs = hashes_of(files_before(store, stage.name))
    if inputs != made["inputs"]:
        return StageState(STALE, f"{_first_change(made['inputs'], inputs)} has changed since")
    if options is not None and dict(options) != made["options"]:
        name = _first_change(made["options"], options)
        return StageState(STALE, f"it was made with another {name}")
    edited = [name for name, digest in made["outputs"].items() if there[name] != digest]
    if edited:
        return StageState(EDITED, f"{', '.join(edited)} edited by hand")
    return StageState(DONE)


def edited_files(store: PromotionStore, stage: Stage) -> list[str]:
    """Files of a stage with a text that it never wrote: what a person would lose if it is made again."""
    known = store.ever_written(stage.name)
    there = hashes_of(store.read(tuple(known)))
    return [name for name, digest in there.items() if digest not in known[name]]


def _how_far(store: PromotionStore, planned: Hashes) -> str:
    there = hashes_of(store.read(planned))
    count = sum(there.get(name) == digest for name, digest in planned.items())
    return f"it was cut off, {count} of {len(planned)} files are written"


def _first_change(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    names = sorted({*old, *new})
    return next(name for name in names if old.get(name) != new.get(name))

"""Rules across the files of one arm: flags of the picker, roles, engine flags in the overlay, shedding."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sweeps.promote.checks.documents import Document, Documents
from sweeps.promote.checks.kubernetes_rules import class_of
from sweeps.promote.checks.picker_rules import FLOW_GATE, PickerConfig
from sweeps.promote.checks.target_types import TargetTypes
from sweeps.promote.promotion import Finding

BASELINE = "baseline"  # folder of the arm whose overlay the others change
ROLE_LABEL = "llm-d.ai/role"


def arm_findings(documents: Documents, target: TargetTypes) -> Iterator[Finding]:
    """Findings that need several files."""
    for document in documents.of("endpoint-picker-config"):
        config = PickerConfig(document, target)
        beside = Documents([one for one in documents.found if one.folder == document.folder], [])
        overlays = [one for one in documents.of("scenario-overlay") if _is_of(one, document)]
        yield from _alpha(config, overlays)
        yield from _roles(config, beside, overlays)
        if _sheddable(beside):
            yield from _shed_by_default(config)
    yield from _flags_agree(documents)
    yield from _objectives_agree(documents)


def _is_of(overlay: Document, document: Document) -> bool:
    """Whether an overlay counts for an arm: its own, or the baseline's, which it changes."""
    above, _, _ = document.folder.rpartition("/")
    return overlay.folder in (document.folder, f"{above}/{BASELINE}" if above else BASELINE)


def _part(document: Document, *keys: str) -> Any:
    found = document.content
    for key in keys:
        found = found.get(key) if isinstance(found, dict) else None
    return found


def _alpha(config: PickerConfig, overlays: list[Document]) -> Iterator[Finding]:
    flag = config.target.alpha_flag
    names = [str(one.get("type")) for one in config.plugins]
    alpha = [
        name
        for name in names
        if name in config.target.plugins and config.target.plugins[name].stability == "Alpha"
    ]
    flags = [_part(one, "router", "epp", "flags") for one in overlays]
    is_set = any(str(one.get(flag)).lower() == "true" for one in flags if isinstance(one, dict))
    if alpha and flag and not is_set:
        message = (
            f"{', '.join(alpha)} is Alpha, and the picker does not start without --{flag}; set "
            f'router.epp.flags.{flag}: "true" in the overlay beside it'
        )
        yield config.finding("CRITICAL", "alpha-plugin-without-flag", message)


def _roles(
    config: PickerConfig, documents: Documents, overlays: list[Document]
) -> Iterator[Finding]:
    """With roles, a profile that serves decoding begins with decode-filter."""
    types = [str(one.get("type")) for one in config.plugins]
    prefill = [_part(one, "prefill") for one in overlays]
    has_prefill = any(isinstance(one, dict) and one.get("enabled") for one in prefill)
    labels = [
        _part(one, "spec", "selector", "matchLabels") for one in documents.of("inference-pool")
    ]
    has_label = any(isinstance(one, dict) and ROLE_LABEL in one for one in labels)
    if not (has_prefill or has_label or {"prefill-filter", "disagg-profile-handler"} & set(types)):
        return
    for index, profile in enumerate(config.profiles):
        steps = [str(step.get("pluginRef")) for step in config.steps(profile)]
        used = [str((config.by_name.get(step) or {}).get("type")) for step in steps]
        if "prefill-filter" not in used and used[:1] != ["decode-filter"]:
            message = (
                f"schedulingProfiles[{index}]: the pool has roles, and the profile does not begin with "
                "decode-filter; add it as the first plugin"
            )
            yield config.finding("CRITICAL", "missing-decode-filter", message)


def _sheddable(documents: Documents) -> bool:
    """Whether some objective may be shed."""
    priorities = [
        _part(one, "spec", "priority")
        for one in documents.of("inference-objective")
        if class_of(one)
    ]
    return any(isinstance(one, int) and one < 0 for one in priorities)


def _shed_by_default(config: PickerConfig) -> Iterator[Finding]:
    types = [str(one.get("type")) for one in config.plugins]
    if FLOW_GATE not in config.gates and "utilization-detector" not in types:
        message = (
            "an objective has priority < 0 and no detector is written, so the default one sheds it at a queue of 5; "
            "write utilization-detector with the thresholds that are meant"
        )
        yield config.finding("IMPORTANT", "sheds-by-default", message)


_FLAG = re.compile(r"--(no-)?([a-z][a-z-]*)(?:[= ]([^\s\\]+))?")


def flags_of(command: str) -> dict[str, str]:
    """The flags of a command line; false for those with `no-`."""
    found = {}
    for no, name, value in _FLAG.findall(command):
        found[name] = "false" if no else value if value and not value.startswith("--") else "true"
    return found


def _flags_agree(documents: Documents) -> Iterator[Finding]:
    """What the overlay passes to vLLM is what the flags file says."""
    files = {one.folder: one for one in documents.of("vllm-flags")}
    for overlay in documents.of("scenario-overlay"):
        command = _part(overlay, "decode", "vllm", "customCommand")
        flags = files.get(overlay.folder)
        if not isinstance(command, str) or flags is None or not isinstance(flags.content, dict):
            continue
        passed = flags_of(command)
        for name, value in flags.content.items():
            wanted = str(value).lower() if isinstance(value, bool) else str(value)
            if passed.get(name) != wanted:
                message = (
                    f"decode.vllm.customCommand passes {name} = {passed.get(name, 'nothing')}, and "
                    f"{flags.path} has {wanted}; write the same number"
                )
                yield Finding("CRITICAL", "flags-differ", overlay.path, message)


def _objectives_agree(documents: Documents) -> Iterator[Finding]:
    """The overlay's objectives are the objects' beside it, and a profile's classes name those of some arm."""
    everywhere = list(documents.of("inference-objective"))
    for overlay in documents.of("scenario-overlay"):
        listed = _part(overlay, "router", "inferenceObjectives")
        known = _priorities([one for one in everywhere if one.folder == overlay.folder])
        for one in listed if isinstance(listed, list) else ():
            if isinstance(one, dict):
                yield from _agrees(overlay, known, one.get("name"), one.get("priority"))
    for profile in documents.of("profile-priority-mix"):
        classes = _part(profile, "trafficClasses")
        for one in classes if isinstance(classes, list) else ():
            if isinstance(one, dict):
                known = _priorities(everywhere)
                yield from _agrees(profile, known, one.get("objective"), one.get("priority"))


def _priorities(objectives: Sequence[Document]) -> dict[str, set[str]]:
    """The priorities that each objective has in some arm."""
    found: dict[str, set[str]] = {}
    for one in objectives:
        name = str(_part(one, "metadata", "name"))
        found.setdefault(name, set()).add(str(_part(one, "spec", "priority")))
    return found


def _agrees(
    document: Document, known: Mapping[str, set[str]], name: Any, priority: Any
) -> Iterator[Finding]:
    if not known:
        return
    name = str(name)
    if name not in known:
        message = f"names the objective {name!r}; there are {', '.join(known)}"
        yield Finding("CRITICAL", "wrong-reference", document.path, message)
    elif str(priority) not in known[name]:
        has = " or ".join(sorted(known[name]))
        message = f"objective {name} has priority {priority} here and {has} in its object; write one of them"
        yield Finding("CRITICAL", "priority-sign", document.path, message)

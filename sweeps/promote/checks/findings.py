"""Find what is wrong with the files of a promotion: breaches of schemas, and what no schema can say.

The rules are about Kubernetes objects, vLLM's flags, and files of one arm that must agree. They take documents that
keep their schemas, so they ask no type again; what breaks its schema is told first.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sweeps.promote.checks.documents import (
    Document,
    Documents,
    TargetTypes,
    documents_of,
    schema,
    schema_findings,
    target_types,
)
from sweeps.promote.checks.picker_rules import FLOW_GATE, PickerConfig, picker_findings, repeated
from sweeps.promote.hypotheses.files import coverage_findings
from sweeps.promote.maps.rows import CLASS_LABEL, CLASS_PRIORITY
from sweeps.promote.promotion import BASELINE, Files, Finding, Severity

_ORDER: tuple[Severity, ...] = ("CRITICAL", "IMPORTANT", "SUGGESTION")
ROLE_LABEL = "llm-d.ai/role"
POOL, OBJECTIVE = "inference-pool", "inference-objective"
CONFIG, OVERLAY = "endpoint-picker-config", "scenario-overlay"


def findings_of(files: Files, target: str) -> list[Finding]:
    """Return what the rules find in files, worst first; files that no rule knows are left alone.

    Args:
        files: texts by path. The files of one arm lie in one folder.
        target: NAME@VERSION, whose plugin types count.

    Raises:
        ConfigError: the target is unknown, or jsonschema is not installed.
    """
    types, documents = target_types(target), documents_of(files)
    findings, sound = {*documents.broken, *coverage_findings(files)}, Documents()
    for document in documents.found:
        breaches = list(schema_findings(document.content, schema(document.what), document.path))
        findings |= set(breaches)
        if not breaches:
            sound.found.append(document)
    generated = [row for document in sound.of("generated-plugins") for row in document.content]
    types = types.with_rows(generated)
    for document in sound.of(CONFIG):
        findings |= set(picker_findings(document, types))
    for rule in (_objects, _flags, _offsets, _flags_agree, _objectives_agree):
        findings |= set(rule(sound))
    findings |= {*_versions(sound, types), *_arms(sound, types)}
    return sorted(
        findings,
        key=lambda finding: (
            _ORDER.index(finding.severity), finding.path, finding.rule, finding.message,
        ),
    )  # fmt: skip


def _critical(document: Document, rule: str, message: str) -> Finding:
    return Finding("CRITICAL", rule, document.path, message)


def _part(document: Document, *keys: str) -> Any:
    """Return what stands below some keys; an empty mapping if one of them is missing."""
    part = document.content
    for key in keys:
        part = part.get(key, {})
    return part


# --- Kubernetes objects -----------------------------------------------------------------------------


def _versions(documents: Documents, target: TargetTypes) -> Iterator[Finding]:
    wanted = {POOL: target.pool_api_version, OBJECTIVE: target.objective_api_version}
    for document in documents.of(*wanted):
        version, allowed = document.content["apiVersion"], wanted[document.what]
        if version != allowed:
            message = (
                f"{document.content['kind']} {_name(document)}: apiVersion is {version!r}, allowed is {allowed}; "
                "an object of another group is ignored"
            )
            yield _critical(document, "wrong-group", message)


def _name(document: Document) -> str:
    return str(document.content["metadata"]["name"])


def _objects(documents: Documents) -> Iterator[Finding]:
    """Yield findings about objectives and pools; each folder is an arm of its own."""
    for folder in sorted({document.folder for document in documents.of(POOL, OBJECTIVE)}):
        pools, objectives = (
            [document for document in documents.of(kind) if document.folder == folder]
            for kind in (POOL, OBJECTIVE)
        )
        names = [_name(pool) for pool in pools]
        for pool in pools:
            for port, _ in repeated(
                str(row["number"]) for row in pool.content["spec"]["targetPorts"]
            ):
                message = (
                    f"InferencePool {_name(pool)}: port {port} is there twice; each port is an endpoint of its "
                    "own"
                )
                yield _critical(pool, "duplicate-port", message)
        for objective in objectives:
            reference = objective.content["spec"]["poolRef"]["name"]
            if names and reference not in names:
                message = (
                    f"InferenceObjective {_name(objective)}: poolRef names {reference!r}; there is "
                    f"{', '.join(names)}"
                )
                yield _critical(objective, "wrong-reference", message)
        for name, count in repeated(map(_name, objectives)):
            first = next(objective for objective in objectives if _name(objective) == name)
            message = f"objective {name} is there {count} times; keep one"
            yield _critical(first, "duplicate-name", message)
        yield from _priority_order(objectives)


def class_of(objective: Document) -> str | None:
    """Return the simulated class that an objective stands for."""
    label = _part(objective, "metadata", "labels").get(CLASS_LABEL)
    return label if label in CLASS_PRIORITY else None


def _priority(objective: Document) -> int:
    return int(objective.content["spec"].get("priority", 0))


def _priority_order(objectives: Sequence[Document]) -> Iterator[Finding]:
    """Yield classes with less than one below them: higher means more important."""
    known = {class_of(objective): objective for objective in objectives}
    for above, below in itertools.pairwise(name for name in CLASS_PRIORITY if name in known):
        first, second = _priority(known[above]), _priority(known[below])
        if first < second:
            message = (
                f"{above} has priority {first} and {below} {second}; in llm-d higher is more important, so change "
                "the sign"
            )
            yield _critical(known[above], "priority-sign", message)


# --- vLLM's flags, and the request priority that is negated once --------------------------------------


def _flags(documents: Documents) -> Iterator[Finding]:
    for document in documents.of("vllm-flags"):
        flags = document.content
        tokens, sequences = flags["max-num-batched-tokens"], flags["max-num-seqs"]
        length = flags.get("max-model-len")
        if tokens < sequences:
            message = (
                f"max-num-batched-tokens is {tokens} and max-num-seqs {sequences}; vLLM wants at least as many tokens "
                "as sequences"
            )
            yield _critical(document, "batched-tokens-below-sequences", message)
        if flags.get("enable-chunked-prefill", True):
            continue
        if length is None or tokens < length:
            message = (
                f"no-enable-chunked-prefill with max-num-batched-tokens {tokens} and max-model-len "
                f"{length or 'not written'}; vLLM refuses to start unless the tokens reach the length"
            )
            yield _critical(document, "chunked-prefill-model-length", message)
        if flags.get("long-prefill-token-threshold", 0) > 0:
            message = "long-prefill-token-threshold cuts prompts only with chunked prefill on; leave one out"
            yield _critical(document, "chunked-prefill-off", message)


def _offsets(documents: Documents) -> Iterator[Finding]:
    """Yield pairs of classes in the wrong order; a policy may order sheddable, batch and background as it likes."""
    least_urgent = [name for name, priority in CLASS_PRIORITY.items() if priority < 0]
    pairs = list(itertools.product(("critical", "standard"), ("standard", *least_urgent)))
    for document in documents.of("engine-priority"):
        offsets = {name: row["offset_ms"] for name, row in document.content["classes"].items()}
        for above, below in pairs:
            if above in offsets and below in offsets and offsets[above] < offsets[below]:
                message = (
                    f"{above} has offset {offsets[above]} ms and {below} {offsets[below]} ms; the key is arrival minus "
                    "offset and lower is earlier in vLLM, so the sign was changed more than once"
                )
                yield _critical(document, "priority-negated-once", message)


# --- across the files of an arm -----------------------------------------------------------------------


def _arms(documents: Documents, target: TargetTypes) -> Iterator[Finding]:
    for document in documents.of(CONFIG):
        config = PickerConfig(document.content, target)
        beside = Documents([one for one in documents.found if one.folder == document.folder])
        overlays = [overlay for overlay in documents.of(OVERLAY) if _is_of(overlay, document)]
        yield from _alpha(document, config, overlays)
        yield from _roles(document, config, beside, overlays)
        priorities = [_priority(one) for one in beside.of(OBJECTIVE) if class_of(one)]
        has_detector = FLOW_GATE in config.gates or "utilization-detector" in config.types
        if min(priorities, default=0) < 0 and not has_detector:
            message = (
                "an objective has priority < 0 and no detector is written, so the default one sheds it at a queue of "
                "5; write utilization-detector with the thresholds that are meant"
            )
            yield Finding("IMPORTANT", "sheds-by-default", document.path, message)


def _is_of(overlay: Document, document: Document) -> bool:
    """Return whether an overlay counts for an arm: its own, or the baseline's, which it changes."""
    above, _, _ = document.folder.rpartition("/")
    return overlay.folder in (document.folder, f"{above}/{BASELINE}" if above else BASELINE)


def _alpha(
    document: Document, config: PickerConfig, overlays: Sequence[Document]
) -> Iterator[Finding]:
    flag, kinds = config.target.alpha_flag, config.target.plugins
    alpha = [name for name in config.types if name in kinds and kinds[name].stability == "Alpha"]
    flags = [_part(overlay, "router", "epp", "flags").get(flag) for overlay in overlays]
    if alpha and flag and "true" not in (str(value).lower() for value in flags):
        message = (
            f"{', '.join(alpha)} is Alpha, and the picker does not start without --{flag}; set "
            f'router.epp.flags.{flag}: "true" in the overlay beside it'
        )
        yield _critical(document, "alpha-plugin-without-flag", message)


def _roles(
    document: Document, config: PickerConfig, beside: Documents, overlays: Sequence[Document]
) -> Iterator[Finding]:
    """Yield profiles that serve decoding in a pool with roles and do not begin with decode-filter."""
    has_prefill = any(_part(overlay, "prefill").get("enabled") for overlay in overlays)
    labels = [_part(pool, "spec", "selector", "matchLabels") for pool in beside.of(POOL)]
    has_label = any(ROLE_LABEL in label for label in labels)
    has_plugin = {"prefill-filter", "disagg-profile-handler"} & set(config.types)
    for index, profile in enumerate(config.profiles):
        used = [config.by_name.get(step["pluginRef"]) for step in profile["plugins"]]
        is_safe = "prefill-filter" in used or used[:1] == ["decode-filter"]
        if (has_prefill or has_label or has_plugin) and not is_safe:
            message = (
                f"schedulingProfiles[{index}]: the pool has roles, and the profile does not begin with "
                "decode-filter; add it as the first plugin"
            )
            yield _critical(document, "missing-decode-filter", message)


_FLAG = re.compile(r"--(no-)?([a-z][a-z-]*)(?:[= ]([^\s\\]+))?")


def flags_of(command: str) -> dict[str, str]:
    """Return the flags of a command line; false for those with `no-`."""
    flags = {}
    for no, name, value in _FLAG.findall(command):
        flags[name] = "false" if no else value if value and not value.startswith("--") else "true"
    return flags


def _flags_agree(documents: Documents) -> Iterator[Finding]:
    """Yield flags that the overlay passes to vLLM otherwise than the flags file says."""
    files = {document.folder: document for document in documents.of("vllm-flags")}
    for overlay in documents.of(OVERLAY):
        command, flags = (
            _part(overlay, "decode", "vllm", "customCommand"),
            files.get(overlay.folder),
        )
        if not command or flags is None:
            continue
        passed = flags_of(command)
        for name, value in flags.content.items():
            wanted = str(value).lower() if isinstance(value, bool) else str(value)
            if passed.get(name) != wanted:
                message = (
                    f"decode.vllm.customCommand passes {name} = {passed.get(name, 'nothing')}, and "
                    f"{flags.path} has {wanted}; write the same number"
                )
                yield _critical(overlay, "flags-differ", message)


def _objectives_agree(documents: Documents) -> Iterator[Finding]:
    """Yield objectives of overlays that differ from the objects beside them, and of profiles that no arm has."""
    everywhere = list(documents.of(OBJECTIVE))
    for overlay in documents.of(OVERLAY):
        known = _priorities([one for one in everywhere if one.folder == overlay.folder])
        for row in _part(overlay, "router", "inferenceObjectives"):
            yield from _agrees(overlay, known, row["name"], row["priority"])
    for profile in documents.of("profile-priority-mix"):
        for row in profile.content["trafficClasses"]:
            yield from _agrees(profile, _priorities(everywhere), row["objective"], row["priority"])


def _priorities(objectives: Sequence[Document]) -> dict[str, set[str]]:
    """Return the priorities that each objective has in some arm."""
    priorities: dict[str, set[str]] = {}
    for objective in objectives:
        text = str(objective.content["spec"].get("priority"))
        priorities.setdefault(_name(objective), set()).add(text)
    return priorities


def _agrees(
    document: Document, known: Mapping[str, set[str]], name: str, priority: int
) -> Iterator[Finding]:
    if known and name not in known:
        message = f"names the objective {name!r}; there are {', '.join(known)}"
        yield _critical(document, "wrong-reference", message)
    elif known and str(priority) not in known[name]:
        has = " or ".join(sorted(known[name]))
        message = f"objective {name} has priority {priority} here and {has} in its object; write one of them"
        yield _critical(document, "priority-sign", message)

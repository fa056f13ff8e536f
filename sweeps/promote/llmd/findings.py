"""Find faults in the files of a promotion: breaches of schemas, and contradictions that no schema can express.

The rules check Kubernetes objects, vLLM's flags, and files of one arm that must agree. They get only documents that
keep their schemas, so they need not check types again.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from typing import Any

from sweeps.promote.evidence.hypotheses import inventory
from sweeps.promote.evidence.hypothesis_files import mechanism_findings
from sweeps.promote.llmd.deployment import POD_MEMORY_GIB
from sweeps.promote.llmd.documents import (
    Document,
    Documents,
    TargetTypes,
    documents_of,
    schema,
    schema_findings,
    target_types,
)
from sweeps.promote.llmd.picker_rules import FLOW_GATE, PickerConfig, picker_findings, repeated
from sweeps.promote.llmd.roles import HANDLER, POOLS
from sweeps.promote.maps import CLASS_PRIORITY, objective_name
from sweeps.promote.promotion import (
    BASELINE,
    ENGINE_PRIORITY,
    UNSET,
    Files,
    Finding,
    gravest_first,
)

TIER_FLAG = "kv-offloading-size"  # GiB
LEAST_OUTSIDE_TIER_GIB = 16  # of a pod: weights while they load, the engine itself
CONFIG, OVERLAY = "endpoint-picker-config", "scenario-overlay"


def findings_of(files: Files, target: str) -> list[Finding]:
    """Return the findings of all rules on the files, gravest first; files without a schema are ignored.

    Args:
        files: texts by path. The files of one arm lie in one folder.
        target: NAME@VERSION of the endpoint picker, whose plugin types are allowed.

    Raises:
        ConfigError: the target is unknown.
    """
    types, documents = target_types(target), documents_of(files)
    findings, sound = {*documents.broken, *mechanism_findings(files)}, Documents()
    for document in documents.found:
        breaches = list(schema_findings(document.content, schema(document.what), document.path))
        findings |= set(breaches)
        if not breaches:
            sound.found.append(document)
    generated = [row for document in sound.of("generated-plugins") for row in document.content]
    types = types.with_rows(generated)
    for document in sound.of(CONFIG):
        findings |= set(picker_findings(document, types))
    for rule in (_class_priorities, _flags, _flags_agree, _profiles_agree, _pods):
        findings |= set(rule(sound))
    generated_types = {str(row["type"]) for row in generated}
    findings |= {
        *_arms(sound, types),
        *_images(sound, generated_types),
        *_roles_of_experiments(sound, types),
    }
    return gravest_first(findings)


def _critical(document: Document, rule: str, message: str) -> Finding:
    return Finding("CRITICAL", rule, document.path, message)


def _part(document: Document, *keys: str) -> Any:
    """Return the value below these keys; an empty mapping if a key is missing."""
    part = document.content
    for key in keys:
        part = part.get(key, {})
    return part


# --- priorities of the classes ------------------------------------------------------------------------


def _class_priorities(documents: Documents) -> Iterator[Finding]:
    """Yield classes whose objective has a lower priority than that of a less important class."""
    for overlay in documents.of(OVERLAY):
        rows = _part(overlay, "router", "inferenceObjectives")
        for name, count in repeated(str(row["name"]) for row in rows):
            message = f"objective {name} is there {count} times; keep one"
            yield _critical(overlay, "duplicate-name", message)
        known = {str(row["name"]): int(row["priority"]) for row in rows}
        for above, below in itertools.pairwise(
            name for name in map(objective_name, CLASS_PRIORITY) if name in known
        ):
            if known[above] < known[below]:
                message = (
                    f"{above} has priority {known[above]} and {below} {known[below]}; in llm-d higher is more "
                    "important, so change the sign"
                )
                yield _critical(overlay, "priority-sign", message)


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


def _leads(document: Document) -> Iterator[Finding]:
    """Yield pairs of classes whose leads are in the wrong order; those below standard may have any order."""
    least_urgent = [name for name, priority in CLASS_PRIORITY.items() if priority < 0]
    pairs = list(itertools.product(("critical", "standard"), ("standard", *least_urgent)))
    for plugin in document.content["plugins"]:
        leads = plugin.get("parameters", {}) if plugin["type"] == ENGINE_PRIORITY else {}
        for above, below in (tuple(map(objective_name, pair)) for pair in pairs):
            if above in leads and below in leads and leads[above] < leads[below]:
                message = (
                    f"{above} has the lead {leads[above]:g} ms and {below} {leads[below]:g} ms; the key is arrival "
                    "minus lead and lower is earlier in vLLM, so the sign was changed more than once"
                )
                yield _critical(document, "priority-negated-once", message)


# --- across the files of an arm -----------------------------------------------------------------------


def _arms(documents: Documents, target: TargetTypes) -> Iterator[Finding]:
    for document in documents.of(CONFIG):
        if document.folder.endswith("experiments"):
            continue  # its flags and pods are the scenario's
        config = PickerConfig(document.content, target)
        overlays = [overlay for overlay in documents.of(OVERLAY) if _is_of(overlay, document)]
        yield from _alpha(document, config, overlays)
        yield from _roles(document, config, overlays)
        yield from _leads(document)
        priorities = [
            int(row["priority"])
            for overlay in overlays
            for row in _part(overlay, "router", "inferenceObjectives")
        ]
        has_detector = FLOW_GATE in config.gates or "utilization-detector" in config.types
        if min(priorities, default=0) < 0 and not has_detector:
            message = (
                "an objective has priority < 0 and no detector is written, so the default one sheds it at a queue of "
                "5; write utilization-detector with the thresholds that are meant"
            )
            yield Finding("IMPORTANT", "sheds-by-default", document.path, message)


def _is_of(overlay: Document, document: Document) -> bool:
    """Return whether an overlay applies to an arm's configuration: the arm's own overlay, or the baseline's."""
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
    document: Document, config: PickerConfig, overlays: Sequence[Document]
) -> Iterator[Finding]:
    """Yield pickers that filter by roles other than those of the pods, and pools between which no KV can move."""
    # its own counts first
    overlays = sorted(overlays, key=lambda overlay: overlay.folder != document.folder)
    has_prefill = _in_effect(overlays, "prefill", "enabled")
    if has_prefill and not config.use_of_roles:
        message = "the pool has roles, and no profile begins with decode-filter; add it as the first plugin"
        yield _critical(document, "missing-decode-filter", message)
    if config.use_of_roles != POOLS or not overlays:
        return
    if not has_prefill:
        message = f"{HANDLER} asks for a prefill pod, and no overlay enables one; set prefill.enabled and replicas"
        yield _critical(document, "no-prefill-pods", message)
    commands = [_part(overlay, "decode", "vllm").get("customCommand", "") for overlay in overlays]
    moves = _in_effect(overlays, "vllmCommon", "kvTransfer", "enabled")
    if not moves or any(TIER_FLAG in flags_of(command) for command in commands):
        message = (
            "prompts are to move between pods, and their engines have no connector for it: set vllmCommon.kvTransfer, "
            f"and leave --{TIER_FLAG} out, which takes its place"
        )
        yield _critical(document, "kv-connector-missing", message)


def _in_effect(overlays: Sequence[Document], *keys: str) -> bool:
    return next(
        (on for overlay in overlays if isinstance(on := _part(overlay, *keys), bool)), False
    )


def _roles_of_experiments(documents: Documents, target: TargetTypes) -> Iterator[Finding]:
    """Yield pickers of baseline scenarios that filter by roles other than those of the scenario's pods."""
    wanted = {f"{each.experiment}.yaml": each.roles for each in inventory().scenarios}
    for document in documents.of(CONFIG):
        name = document.path.rpartition("/")[2]
        use = PickerConfig(document.content, target).use_of_roles
        if name in wanted and use != wanted[name]:
            message = (
                f"a picker uses the roles of pods as {use or 'none'}, and the scenario's pods have "
                f"{wanted[name] or 'none'}; write the filters, profiles and handler of these"
            )
            yield _critical(document, "roles-of-the-scenario", message)


_FLAG = re.compile(r"--(no-)?([a-z][a-z0-9-]*)(?:[= ]([^\s\\]+))?")


def flags_of(command: str) -> dict[str, str]:
    """Return the flags of a command line as text; "false" for flags with `no-`, "true" for flags without a value."""
    flags = {}
    for no, name, value in _FLAG.findall(command):
        flags[name] = "false" if no else value if value and not value.startswith("--") else "true"
    return flags


def _flags_agree(documents: Documents) -> Iterator[Finding]:
    """Yield vLLM flags whose value in the overlay's command differs from that in the flags file."""
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


def _profiles_agree(documents: Documents) -> Iterator[Finding]:
    """Yield objectives of profiles that no arm defines, or to which no arm gives the profile's priority."""
    known: dict[str, set[int]] = {}
    for overlay in documents.of(OVERLAY):
        for row in _part(overlay, "router", "inferenceObjectives"):
            known.setdefault(str(row["name"]), set()).add(int(row["priority"]))
    for profile in documents.of("profile-priority-mix") if known else ():
        for row in profile.content["trafficClasses"]:
            name, priority = row["objective"], row["priority"]
            if name not in known:
                message = f"names the objective {name!r}; there are {', '.join(known)}"
                yield _critical(profile, "wrong-reference", message)
            elif priority not in known[name]:
                has = " or ".join(map(str, sorted(known[name])))
                message = f"objective {name} has priority {priority} here and {has} in its arms; write one of them"
                yield _critical(profile, "priority-sign", message)


def _pods(documents: Documents) -> Iterator[Finding]:
    """Yield pods with too little memory for their engine's CPU tier, and pickers whose image is not set."""
    overlays = list(documents.of(OVERLAY))
    for overlay in overlays:
        base = next(
            (candidate for candidate in overlays if candidate.folder.endswith(f"/{BASELINE}")),
            overlay,
        )
        for role in ("decode", "prefill"):
            tier = flags_of(_part(overlay, role, "vllm").get("customCommand", "")).get(TIER_FLAG)
            limits = _part(base, role, "resources", "limits") | _part(
                overlay, role, "resources", "limits"
            )
            limit = limits.get("memory", f"{POD_MEMORY_GIB}Gi")
            if tier and float(limit.removesuffix("Gi")) < float(tier) + LEAST_OUTSIDE_TIER_GIB:
                message = (
                    f"{role}.resources.limits.memory is {limit}, and the CPU tier alone takes {tier} GiB; "
                    f"give at least {LEAST_OUTSIDE_TIER_GIB} GiB more than the tier"
                )
                yield _critical(overlay, "pod-memory", message)
        image = _part(overlay, "router", "epp", "image")
        if image and image.get("tag") == UNSET:
            message = (
                "the endpoint picker has no image with the plugins; build it from the patch, and translate again with "
                "--image REGISTRY/REPOSITORY:TAG"
            )
            yield _critical(overlay, "image-unset", message)


def _images(documents: Documents, generated_types: set[str]) -> Iterator[Finding]:
    """Yield arms that use a generated plugin with the stock image."""
    for document in documents.of(CONFIG):
        used = generated_types & {str(plugin["type"]) for plugin in document.content["plugins"]}
        overlays = [
            overlay for overlay in documents.of(OVERLAY) if overlay.folder == document.folder
        ]
        if (
            used
            and overlays
            and not any(_part(overlay, "router", "epp", "image") for overlay in overlays)
        ):
            message = f"the picker's image is the stock one, which has no {sorted(used)[0]}; set router.epp.image"
            yield _critical(document, "image-unset", message)

"""Rules of the Kubernetes objects that their schemas cannot say: groups, ports, references, the sign of priorities."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

from sweeps.promote.checks.documents import Document, Documents
from sweeps.promote.checks.target_types import TargetTypes
from sweeps.promote.maps.classes import CLASS_PRIORITY
from sweeps.promote.promotion import Finding

CLASS_LABEL = "slo-class"  # of an objective: the simulated class that it stands for
POOL_GROUP = "inference.networking.k8s.io"


def kubernetes_findings(documents: Documents, target: TargetTypes) -> Iterator[Finding]:
    """Findings about objectives and pools; each folder is an arm of its own."""
    kinds = ("inference-pool", "inference-objective")
    for folder in sorted({one.folder for one in documents.of(*kinds)}):
        pools, objectives = (
            [one for one in documents.of(kind) if one.folder == folder] for kind in kinds
        )
        for pool in pools:
            yield from _version(pool, target.pool_api_version)
            yield from _ports(pool)
        for objective in objectives:
            yield from _version(objective, target.objective_api_version)
            yield from _pool_reference(objective, [_name(one) for one in pools])
        yield from _unique(objectives)
        yield from priority_order(objectives)


def _version(document: Document, wanted: str) -> Iterator[Finding]:
    given = document.content.get("apiVersion")
    if given != wanted:
        message = (
            f"{document.content.get('kind')} {_name(document)}: apiVersion is {given!r}, allowed is {wanted}; "
            "an object of another group is ignored"
        )
        yield Finding("CRITICAL", "wrong-group", document.path, message)


def _name(document: Document) -> str:
    metadata = document.content.get("metadata")
    return str(metadata.get("name")) if isinstance(metadata, dict) else "None"


def _spec(document: Document) -> dict[str, Any]:
    spec = document.content.get("spec")
    return spec if isinstance(spec, dict) else {}


def _ports(pool: Document) -> Iterator[Finding]:
    ports = _spec(pool).get("targetPorts")
    listed = ports if isinstance(ports, list) else []
    numbers = [str(one.get("number")) for one in listed if isinstance(one, dict)]
    for number in sorted({one for one in numbers if numbers.count(one) > 1}):
        message = f"InferencePool {_name(pool)}: port {number} is there twice; each port is an endpoint of its own"
        yield Finding("CRITICAL", "duplicate-port", pool.path, message)
    picker = _spec(pool).get("endpointPickerRef")
    is_service = isinstance(picker, dict) and picker.get("kind", "Service") == "Service"
    if is_service and isinstance(picker, dict) and "port" not in picker:
        message = (
            f"InferencePool {_name(pool)}: endpointPickerRef is a Service and has no port; add it"
        )
        yield Finding("CRITICAL", "missing-field", pool.path, message)


def _pool_reference(objective: Document, pools: Sequence[str]) -> Iterator[Finding]:
    reference = _spec(objective).get("poolRef")
    if not isinstance(reference, dict):
        return
    group = reference.get("group", POOL_GROUP)
    if group != POOL_GROUP:
        message = f"InferenceObjective {_name(objective)}: poolRef.group is {group!r}, allowed is {POOL_GROUP}"
        yield Finding("CRITICAL", "wrong-group", objective.path, message)
    if pools and reference.get("name") not in pools:
        message = (
            f"InferenceObjective {_name(objective)}: poolRef names {reference.get('name')!r}; there is "
            f"{', '.join(pools)}"
        )
        yield Finding("CRITICAL", "wrong-reference", objective.path, message)


def _unique(objectives: Sequence[Document]) -> Iterator[Finding]:
    names = [_name(one) for one in objectives]
    for name in sorted({one for one in names if names.count(one) > 1}):
        path = objectives[names.index(name)].path
        message = f"objective {name} is there {names.count(name)} times; keep one"
        yield Finding("CRITICAL", "duplicate-name", path, message)


def class_of(objective: Document) -> str | None:
    """The simulated class that an objective stands for."""
    metadata = objective.content.get("metadata")
    labels = metadata.get("labels") if isinstance(metadata, dict) else None
    found = labels.get(CLASS_LABEL) if isinstance(labels, dict) else None
    return found if isinstance(found, str) and found in CLASS_PRIORITY else None


def priority_order(objectives: Sequence[Document]) -> Iterator[Finding]:
    """Higher means more important: a class must not have less than one below it."""
    known = {class_of(one): one for one in objectives if class_of(one) is not None}
    order = [name for name in CLASS_PRIORITY if name in known]
    for above, below in itertools.pairwise(order):
        first = _spec(known[above]).get("priority", 0)
        second = _spec(known[below]).get("priority", 0)
        if isinstance(first, int) and isinstance(second, int) and first < second:
            message = (
                f"{above} has priority {first} and {below} {second}; in llm-d higher is more important, so change "
                "the sign"
            )
            yield Finding("CRITICAL", "priority-sign", known[above].path, message)

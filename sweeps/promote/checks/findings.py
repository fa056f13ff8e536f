"""All findings about the files of a promotion."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

from sweeps.promote.checks.arm_rules import arm_findings
from sweeps.promote.checks.closed_schemas import schema, schema_findings
from sweeps.promote.checks.documents import Documents, documents_of
from sweeps.promote.checks.engine_rules import engine_findings
from sweeps.promote.checks.kubernetes_rules import kubernetes_findings
from sweeps.promote.checks.picker_rules import picker_findings
from sweeps.promote.checks.target_types import (
    Kind,
    ParameterType,
    PluginType,
    TargetTypes,
    target_types,
)
from sweeps.promote.promotion import Files, Finding, Severity

_ORDER: tuple[Severity, ...] = ("CRITICAL", "IMPORTANT", "SUGGESTION")


def findings_of(files: Files, target: str) -> list[Finding]:
    """What the rules find in files, worst first; files that no rule knows are left alone.

    Args:
        files: texts by path. The files of one arm lie in one folder.
        target: NAME@VERSION, whose plugin types count.

    Raises:
        ConfigError: the target is unknown, or jsonschema is not installed.
    """
    documents = documents_of(files)
    types = target_types(target).with_plugins(dict(_generated(documents)))
    from sweeps.promote.hypotheses.coverage import (
        coverage_findings,  # it needs what is checked here
    )

    found = {*documents.broken, *_all(documents, types), *coverage_findings(files)}
    return sorted(
        found, key=lambda one: (_ORDER.index(one.severity), one.path, one.rule, one.message)
    )


def _all(documents: Documents, types: TargetTypes) -> Iterator[Finding]:
    for document in documents.found:
        yield from schema_findings(document.content, schema(document.what), document.path)
        if document.what == "endpoint-picker-config":
            yield from picker_findings(document, types)
    usable = Documents(
        [one for one in documents.found if isinstance(one.content, (dict, list))], []
    )
    yield from kubernetes_findings(usable, types)
    yield from engine_findings(usable)
    yield from arm_findings(usable, types)


def _generated(documents: Documents) -> Iterator[tuple[str, PluginType]]:
    """The types that the promotion's own plugins register."""
    for document in documents.of("generated-plugins"):
        for one in document.content if isinstance(document.content, list) else ():
            if not isinstance(one, dict) or one.get("kind") not in (
                "scorer",
                "admitter",
                "ordering",
            ):
                continue
            number: ParameterType = "number"
            parameters = one.get("parameters")
            names = parameters if isinstance(parameters, dict) else {}
            is_alpha = one.get("stability") == "Alpha"
            yield (
                str(one.get("type")),
                PluginType(
                    kind=cast(Kind, one["kind"]),
                    stability="Alpha" if is_alpha else "Beta",
                    parameters=dict.fromkeys(map(str, names), number),
                ),
            )

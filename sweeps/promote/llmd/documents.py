"""Read the files of a promotion as documents, and check each against its closed schema.

Schemas are files of `schemas/`, except for the parameters of plugins: those that each endpoint picker version accepts
are in `targets/`. Each breach of a schema becomes a finding with the name of its rule.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any, Literal

from jsonschema import Draft202012Validator

from blis_jax.errors import ConfigError, closest, shortened
from blis_jax.files.strict_yaml import read_documents, read_yaml
from sweeps.promote.promotion import Files, Finding, Severity
from sweeps.promote.store import checked, data_file, target_file
from sweeps.strategies.parts import ClosedPart

CONFIG, FLAGS, OVERLAY = "endpoint-picker-config.yaml", "vllm-flags.yaml", "scenario-overlay.yaml"
PLUGINS = "generated-plugins.yaml"
# files by their name; profiles and experiments are known by their folder
NAMED = {FLAGS: "vllm-flags", OVERLAY: "scenario-overlay", PLUGINS: "generated-plugins"}
PICKERS = "router.epp.pluginsCustomConfig"
HARNESSES = ("inference-perf", "guidellm", "priority-mix")


@dataclass(frozen=True)
class Document:
    """Hold one YAML document of a file, with the name of its schema."""

    path: str
    what: str  # name of its schema
    content: Any

    @property
    def folder(self) -> str:
        """Return the folder of the file, which stands for an arm."""
        return str(PurePosixPath(self.path).parent)


@dataclass
class Documents:
    """Hold the documents of a promotion, and findings on files that could not be read."""

    found: list[Document] = field(default_factory=list)
    broken: list[Finding] = field(default_factory=list)

    def of(self, *whats: str) -> Iterator[Document]:
        """Yield the non-empty documents with one of these schemas."""
        return (document for document in self.found if document.what in whats and document.content)


def documents_of(files: Files) -> Documents:
    """Return the YAML documents that have a schema; all other files are ignored."""
    documents = Documents()
    for path, text in sorted(files.items()):
        if not path.endswith((".yaml", ".yml", ".yaml.in")):
            continue
        try:
            contents = read_documents(text, path)
        except ConfigError as error:
            documents.broken.append(_unreadable(path, "is", error))
            continue
        for content in contents:
            what = _what(path)
            if what is not None:
                documents.found.append(Document(path, what, content))
                for inner in _embedded(path, what, content):
                    if isinstance(inner, Document):
                        documents.found.append(inner)
                    else:
                        documents.broken.append(inner)
    return documents


def _what(path: str) -> str | None:
    place = PurePosixPath(path)
    if place.name in NAMED:
        return NAMED[place.name]
    if place.name == CONFIG:
        return "endpoint-picker-config"
    if "profiles" in place.parts[:-1] and place.parent.name in HARNESSES:
        return f"profile-{place.parent.name}"
    is_experiment = place.parent.name == "experiments"
    return "experiment" if is_experiment and place.suffix == ".yaml" else None


def _embedded(path: str, what: str, content: Any) -> Iterator[Document | Finding]:
    """Yield the picker configurations that overlays and experiments embed as text; a finding for unreadable text."""
    for held in _holders(what, content):
        for name, text in held.items() if isinstance(held, dict) else ():
            if not isinstance(text, str):
                continue
            try:
                yield Document(path, "endpoint-picker-config", read_yaml(text, name))
            except ConfigError as error:
                yield _unreadable(path, f"{PICKERS}.{name} is", error)


def _holders(what: str, content: Any) -> Iterator[Any]:
    if what == "scenario-overlay":
        yield _below(content, *PICKERS.split("."))
    if what == "experiment":
        arms = _below(content, "setup", "treatments")
        for arm in arms if isinstance(arms, list) else ():
            yield _below(arm, PICKERS)


def _below(content: Any, *keys: str) -> Any:
    for key in keys:
        content = content.get(key) if isinstance(content, dict) else None
    return content


def _unreadable(path: str, what: str, error: ConfigError) -> Finding:
    return Finding("CRITICAL", "unreadable", path, f"{what} no YAML: {error}; write it anew")


def schema(name: str) -> Mapping[str, Any]:
    """Return a schema of `schemas/` by its name, without `.yaml`."""
    rules: Mapping[str, Any] = data_file(f"llmd/schemas/{name}.yaml")
    return rules


def schema_findings(
    document: object, rules: Mapping[str, Any], path: str, where: str = ""
) -> Iterator[Finding]:
    """Yield a CRITICAL finding for each breach of a schema; `where` names the part of the file."""
    errors = sorted(
        Draft202012Validator(rules).iter_errors(document),
        key=lambda breach: list(map(str, breach.path)),
    )
    for error in errors:
        while error.context:  # of alternatives, the one that fits best
            error = max(
                error.context, key=lambda breach: (len(breach.path), breach.validator != "required")
            )
        place = (where + _place(error.absolute_path)).strip(".") or "document"
        yield Finding("CRITICAL", _rule(error), path, f"{place}: {_message(error)}")


def _place(steps: Any) -> str:
    text = ""
    for step in steps:
        text += f"[{step}]" if isinstance(step, int) else f".{step}"
    return text.removeprefix(".")


_RULES = {
    "additionalProperties": "unknown-field",
    "required": "missing-field",
    "type": "wrong-type",
}


def _rule(error: Any) -> str:
    if error.validator in ("additionalProperties", "required"):
        return _RULES[error.validator]
    rule = error.schema.get("x-rule") if isinstance(error.schema, dict) else None
    return rule or _RULES.get(error.validator, "not-allowed")


def _message(error: Any) -> str:
    if error.validator == "additionalProperties":
        allowed = list(error.schema.get("properties", {}))
        unknown = [str(key) for key in error.instance if key not in allowed]
        hint = closest(unknown[0], allowed)
        return f"has {', '.join(unknown)}, allowed is {', '.join(allowed) or 'nothing'}{hint}"
    if error.validator == "required":
        missing = [name for name in error.validator_value if name not in error.instance]
        return f"has no {', '.join(missing)}; add it"
    if "x-message" in error.schema:
        return str(error.schema["x-message"])
    words = error.schema.get("x-allowed") or _allowed(error)
    return f"got {shortened(error.instance)}, allowed is {words}"


_WORDS = {"array": "a list", "object": "a mapping", "string": "a text", "integer": "a whole number"}
_WORDS |= {"number": "a number", "boolean": "true or false"}


def _allowed(error: Any) -> str:
    rules, value = error.schema, error.validator_value
    if error.validator == "const":
        return repr(value)
    if error.validator == "enum":
        return " or ".join(map(repr, value))
    words = _WORDS.get(str(rules.get("type")), "another type")
    ends = {
        "minimum": "at least",
        "exclusiveMinimum": "above",
        "maximum": "at most",
        "minItems": "of length at least",
        "maxItems": "of length at most",
        "minLength": "of length at least",
        "minProperties": "with entries, at least",
    }
    parts = [f"{word} {rules[key]}" for key, word in ends.items() if key in rules]
    if "pattern" in rules:
        parts.append(f"of the form {rules['pattern']}")
    return " ".join([words, *parts])


# each as a JSON schema; `x-rule` names the rule that a wrong value breaks
PARAMETER_TYPES: dict[str, dict[str, Any]] = {
    "int": {"type": "integer", "x-rule": "threshold-not-integer"},
    "count": {"type": "integer", "minimum": 0, "x-rule": "threshold-not-integer"},
    "positive": {"type": "integer", "minimum": 1, "x-rule": "threshold-not-integer"},
    "number": {"type": "number"},
    "share": {"type": "number", "minimum": 0, "maximum": 1},
    "part": {"type": "number", "exclusiveMinimum": 0, "maximum": 1},
    "flag": {"type": "boolean"},
    "text": {"type": "string", "minLength": 1},
    "duration": {
        "type": "string",
        "pattern": r"^([0-9]+(\.[0-9]+)?(ns|us|µs|ms|s|m|h))+$",
        "x-rule": "unit-string",
        "x-allowed": 'a duration in quotes with its unit, such as "200ms"',
    },
    "object": {"type": "object"},
    "list": {"type": "array"},
}
BLOCKS = {"blockSizeTokens", "lruCapacityPerServer", "maxPrefixBlocksToMatch", "lruSize"}
Kind = Literal[
    "scorer", "filter", "picker", "handler", "decider", "producer", "source", "extractor",
    "detector", "admitter", "ordering", "fairness", "usage-limit", "other",
]  # fmt: skip
ParameterType = Literal[
    "int", "count", "positive", "number", "share", "part", "flag", "text", "duration", "object",
    "list",
]  # fmt: skip


class PluginType(ClosedPart):
    """Hold a plugin type that a version of the endpoint picker registers."""

    kind: Kind
    stability: Literal["Alpha", "Beta", "Stable"] = "Beta"
    deprecated: str = ""  # what to use instead
    package: str = ""  # below the target's plugins; empty: the promotion brings it along
    parameters: dict[str, ParameterType] | None = None  # None: not recorded, taken as they are

    def closed_schema(self) -> dict[str, Any]:
        """Return the closed JSON schema of the parameters; an open one if they are not recorded."""
        if self.parameters is None:
            return {"type": "object"}
        return {
            "type": "object",
            "additionalProperties": False,
            "properties": {
                name: _negative_block(name, PARAMETER_TYPES[kind])
                for name, kind in self.parameters.items()
            },
        }


def _negative_block(name: str, schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a parameter; a block size gets a rule of its own."""
    if name not in BLOCKS:
        return schema
    return schema | {"x-rule": "negative-block", "x-allowed": "a whole number above 0"}


class TargetTypes(ClosedPart):
    """Hold the plugin types and configuration rules of one version of the endpoint picker."""

    config_api_version: str
    config_deprecated: tuple[str, ...]
    feature_gates: tuple[str, ...]
    alpha_flag: str  # empty: the version has no stability levels
    is_detector_at_top: bool = False  # saturationDetector stands beside flowControl, not in it
    least_prefix_block: int  # tokens
    plugins: dict[str, PluginType]

    def with_rows(self, generated: Sequence[Mapping[str, Any]]) -> TargetTypes:
        """Return the version with the plugin types that a promotion adds: the rows of `generated-plugins.yaml`."""
        added = {
            row["type"]: PluginType.model_validate(
                {
                    "kind": row["kind"],
                    "stability": row["stability"],
                    "parameters": dict.fromkeys(row["parameters"], "number"),
                }
            )
            for row in generated
        }
        return self.model_copy(update={"plugins": {**self.plugins, **added}})


@functools.cache
def target_types(target: str) -> TargetTypes:
    """Return the plugin types of a version NAME@VERSION.

    Raises:
        ConfigError: the version is not known.
    """
    return checked(TargetTypes, target_file(target, "types.yaml"), f"{target}/types.yaml")


# --- against what the stage makes again ---------------------------------------------------------------

_FRESHNESS = re.compile(r"(?m)^\s*// (?:Map B|Freshness here|In the simulator): .*$")


def remade_findings(made: Files, files: Files, rule: str, origin: str) -> Iterator[Finding]:
    """Yield a finding for each file that differs from what its stage would write now.

    Args:
        made: the files that the stage would write now, by path.
        files: the existing files.
        rule: the name of the findings' rule.
        origin: the source of the stage's files in words, such as "the strategy".
    """
    for path, text in made.items():
        there = files.get(path)
        if there == text:
            continue
        place = "it is missing" if there is None else _where(path, text, there)
        if path.endswith(".go") and _FRESHNESS.findall(there or "") != _FRESHNESS.findall(text):
            message = (
                "Map B's words on how old a signal is are not those of the map; translate again"
            )
            yield Finding("CRITICAL", "freshness-comment", path, message)
        is_for_people = path.startswith("profiles/") or path.endswith(".md")
        advice = "make the stage again" + ", or say why in the decision" * is_for_people
        severity: Severity = "IMPORTANT" if is_for_people else "CRITICAL"
        yield Finding(severity, rule, path, f"{place}; {advice}".replace("ORIGIN", origin))


def _where(path: str, wanted: str, there: str) -> str:
    """Return in words where a file differs from the wanted text; ORIGIN stands for the source of the text."""
    place = ""
    if path.endswith((".yaml", ".json")):
        place = _first_difference(read_documents(wanted, path), _documents(there, path))
    pairs = itertools.zip_longest(wanted.split("\n"), there.split("\n"))
    lines = (
        f"line {number} is {shortened(other)}, and ORIGIN gives {shortened(made_line)}"
        for number, (made_line, other) in enumerate(pairs, 1)
        if made_line != other
    )
    return place or next(lines)


def _documents(text: str, path: str) -> Any:
    try:
        return read_documents(text, path)
    except ConfigError:
        return None


def _first_difference(wanted: Any, there: Any, place: str = "") -> str:
    """Return in words the first difference of two plain values; empty if they are equal."""
    if isinstance(wanted, Mapping) and isinstance(there, Mapping):
        for key in {**wanted, **there}:
            difference = _first_difference(wanted.get(key), there.get(key), f"{place}.{key}")
            if difference:
                return difference
        return ""
    if isinstance(wanted, list | tuple) and isinstance(there, list | tuple):
        if len(wanted) != len(there):
            return f"{place.strip('.') or 'the file'} has {len(there)} entries, and ORIGIN gives {len(wanted)}"
        pairs = (
            _first_difference(made, other, f"{place}[{at}]")
            for at, (made, other) in enumerate(zip(wanted, there, strict=True))
        )
        return next(filter(None, pairs), "")
    is_same = wanted == there and isinstance(wanted, bool) == isinstance(there, bool)
    if is_same:
        return ""
    return f"{place.strip('.') or 'the file'} is {shortened(there)}, and ORIGIN gives {shortened(wanted)}"

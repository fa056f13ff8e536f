"""The files of a promotion as documents, sorted by what they are."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

from blis_jax.errors import ConfigError
from blis_jax.files.strict_yaml import read_documents, read_yaml
from sweeps.promote.promotion import Files, Finding

CONFIG, FLAGS, OVERLAY = "endpoint-picker-config.yaml", "vllm-flags.yaml", "scenario-overlay.yaml"
PRIORITY, PLUGINS, EXPERIMENT = "engine-priority.yaml", "generated-plugins.yaml", "experiment.yaml"
# files by their name; Kubernetes objects and profiles are known by their kind and folder
NAMED = {
    FLAGS: "vllm-flags",
    OVERLAY: "scenario-overlay",
    PRIORITY: "engine-priority",
    PLUGINS: "generated-plugins",
    EXPERIMENT: "experiment",
}
KINDS = {
    "EndpointPickerConfig": "endpoint-picker-config",
    "InferenceObjective": "inference-objective",
    "InferencePool": "inference-pool",
}
HARNESSES = ("inference-perf", "guidellm", "priority-mix")


@dataclass(frozen=True)
class Document:
    """One YAML document of a file, and what it is."""

    path: str
    what: str  # name of its schema
    content: Any

    @property
    def folder(self) -> str:
        """The folder of the file: one for each arm."""
        return str(PurePosixPath(self.path).parent)


@dataclass
class Documents:
    """The documents of a promotion, and what could not be read."""

    found: list[Document] = field(default_factory=list)
    broken: list[Finding] = field(default_factory=list)

    def of(self, *whats: str) -> Iterator[Document]:
        """Documents of some kinds whose content is a mapping or a list."""
        return (one for one in self.found if one.what in whats and one.content)


def documents_of(files: Files) -> Documents:
    """The YAML documents of files that a rule knows; others are left alone."""
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
            what = _what(path, content)
            if what is not None:
                documents.found.append(Document(path, what, content))
                for inner in _embedded(path, what, content):
                    if isinstance(inner, Document):
                        documents.found.append(inner)
                    else:
                        documents.broken.append(inner)
    return documents


def _what(path: str, content: Any) -> str | None:
    place = PurePosixPath(path)
    if place.name in NAMED:
        return NAMED[place.name]
    if place.name == CONFIG:
        return "endpoint-picker-config"
    if "profiles" in place.parts[:-1] and place.parent.name in HARNESSES:
        return f"profile-{place.parent.name}"
    kind = content.get("kind") if isinstance(content, dict) else None
    return KINDS.get(kind) if isinstance(kind, str) else None


def _embedded(path: str, what: str, content: Any) -> Iterator[Document | Finding]:
    """Configurations of the picker that an overlay holds as a text."""
    if what != "scenario-overlay" or not isinstance(content, dict):
        return
    held: Any = content
    for key in ("router", "epp", "pluginsCustomConfig"):
        held = held.get(key) if isinstance(held, dict) else None
    for name, text in held.items() if isinstance(held, dict) else ():
        if not isinstance(text, str):
            continue
        try:
            yield Document(path, "endpoint-picker-config", read_yaml(text, name))
        except ConfigError as error:
            yield _unreadable(path, f"router.epp.pluginsCustomConfig.{name} is", error)


def _unreadable(path: str, what: str, error: ConfigError) -> Finding:
    return Finding("CRITICAL", "unreadable", path, f"{what} no YAML: {error}; write it anew")

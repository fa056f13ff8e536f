"""The folder of a promotion: files of stages, decisions of people, and an append-only history.

`history.jsonl` has the form of the ledger: one record per line, each with the hash of the record before. It is the only
file with times in it. A stage is written in three steps: a record of the files to write, the files, and a record
that they are complete. So a stage that was killed is detected and written again.
"""

from __future__ import annotations

import functools
import hashlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import resources
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

import yaml
from pydantic import TypeAdapter, ValidationError

from blis_jax.errors import ConfigError, closest
from blis_jax.files import chain
from blis_jax.files.atomic_write import (
    clear_leftovers,
    finite,
    refuse_other_work,
    replacing,
    sole_writer,
)
from blis_jax.files.strict_yaml import read_mapping, read_yaml, sentence
from sweeps.promote.promotion import Files
from sweeps.tracks.problem import rendered, signed

# --- texts: YAML with the same bytes for the same data, templates ---------------------------------


NOT_MEASURED = "not measured"


_PACKAGE = resources.files("sweeps.promote")
_Checked = TypeVar("_Checked")


# --- data files -----------------------------------------------------------------------------------


@functools.cache
def data_file(path: str) -> Any:
    """Return the parsed content of a data file of this package; callers must not change it."""
    return read_yaml((_PACKAGE / path).read_text(encoding="utf-8"), path.rpartition("/")[2])


def checked(kind: type[_Checked], content: object, source: str) -> _Checked:
    """Return plain data validated as a pydantic type; error messages begin with `source`.

    Raises:
        ConfigError: a field is missing, unknown, or not allowed.
    """
    try:
        return TypeAdapter(kind).validate_python(content)
    except ValidationError as error:
        raise ConfigError(f"{source}: {sentence(error)}") from None


def target_names() -> tuple[str, ...]:
    """Return all known versions NAME@VERSION of the target."""
    return tuple(
        sorted(folder.name for folder in (_PACKAGE / "targets").iterdir() if "@" in folder.name)
    )


def check_target(target: str) -> None:
    """Refuse an unknown version of the target."""
    known = target_names()
    if target not in known:
        raise ConfigError(
            f"target {target!r} is not known; use one of {', '.join(known)}{closest(target, known)}"
        )


@functools.cache
def target_file(target: str, name: str) -> Mapping[str, Any]:
    """Return a version's file of the target, merged over the same file of the version that it extends.

    Raises:
        ConfigError: the version is not known.
    """
    check_target(target)
    path = f"targets/{target}/{name}"
    content = dict(read_mapping((_PACKAGE / path).read_text(encoding="utf-8"), path))
    base = content.pop("extends", None)
    merged: Mapping[str, Any] = (
        content if base is None else _merged(target_file(base, name), content)
    )
    return merged


def _merged(base: Any, change: Any) -> Any:
    """Return `base` with the entries of `change` merged in; None removes an entry."""
    if not isinstance(base, Mapping) or not isinstance(change, Mapping):
        return change
    merged = {**base, **{key: _merged(base.get(key), value) for key, value in change.items()}}
    return {key: value for key, value in merged.items() if value is not None}


# --- texts ----------------------------------------------------------------------------------------


class _Dumper(yaml.SafeDumper):
    """Write multi-line texts as block scalars, and no anchors."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _block(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    style = "|" if "\n" in value else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)


_Dumper.add_representer(str, _block)


def yaml_text(document: Any) -> str:
    """Return YAML text for one document, with keys in the given order."""
    return yaml.dump(document, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120)


def wide_yaml(document: Mapping[str, Any]) -> str:
    """Return YAML text for people: lines of up to 110 columns, repeated parts as anchors."""
    return yaml.safe_dump(dict(document), sort_keys=False, allow_unicode=True, width=110)


def render(name: str, **values: object) -> str:
    """Render a template; a missing value is an error."""
    filters: dict[str, Callable[..., str]] = {
        "percent": percent, "number": number, "filled": filled, "listed": listed, "short": "{:g}".format,
        "magnitude": _magnitude,
    }  # fmt: skip
    return rendered("sweeps.promote", name, filters, values)


def _magnitude(change: str | Mapping[str, float]) -> str:
    """Return a simulated change in % with its interval; words are returned as they are."""
    if isinstance(change, str):
        return change
    return "{percent:+.1f} % [{low:+.1f}, {high:+.1f}]".format(**change)


def percent(change: Any) -> str:
    """Return a change in % with its interval, from an estimate or its plain form; "not measured" if it has no mean."""
    mean, low, high = (_part(change, name) for name in ("mean", "low", "high"))
    if mean is None:
        return NOT_MEASURED
    if low is None or high is None:
        return f"{signed(mean)} % (no interval)"
    return f"{signed(mean)} % [{signed(low)}, {signed(high)}]"


def number(value: float | None) -> str:
    """Return a number with four significant digits, or whole from 1,000 on; "not measured" for None or NaN."""
    if value is None or not math.isfinite(value):
        return NOT_MEASURED
    return f"{value:.4g}" if abs(value) < 1000 else f"{value:,.0f}"


def filled(text: object) -> str:
    """Return a text on one line; "not measured" if it is empty."""
    words = " ".join(str(text).split()) if text is not None else ""
    return words or NOT_MEASURED


def _part(estimate: Any, name: str) -> float | None:
    value = estimate.get(name) if isinstance(estimate, Mapping) else getattr(estimate, name, None)
    return finite(value)


def listed(value: Any) -> str:
    """Return plain data as text on one line."""
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {listed(part)}" for name, part in value.items())
    if isinstance(value, list | tuple):
        return "; ".join(map(listed, value))
    return str(value)


# --- the folder -----------------------------------------------------------------------------------


HISTORY = "history.jsonl"
GATES = (1, 2, 3)
BEGAN, MADE, CHECKED, DECIDED = "began", "made", "checked", "decided"
Hashes = Mapping[str, str]  # path -> SHA-256 of the text


def findings_path(gate: int) -> str:
    """Return the path of a gate's findings."""
    return f"gates/gate-{gate}.findings.yaml"


def decision_path(gate: int) -> str:
    """Return the path of a person's decision on a gate."""
    return f"gates/gate-{gate}.decision.yaml"


def sha256(text: str) -> str:
    """Return the SHA-256 of a text in UTF-8."""
    return hashlib.sha256(text.encode()).hexdigest()


def hashes_of(files: Files) -> dict[str, str]:
    """Return the SHA-256 of every text by path, sorted by path."""
    return {path: sha256(files[path]) for path in sorted(files)}


@dataclass(frozen=True)
class PromotionStore:
    """Read and write a promotion's folder; see the module's docstring."""

    folder: Path

    # --- history ----------------------------------------------------------------------------------

    @property
    def history(self) -> Path:
        """Return the path of the history."""
        return self.folder / HISTORY

    def records(self) -> tuple[chain.Record, ...]:
        """Return all records of the history; refuse a broken history."""
        contents = chain.read(self.history)
        chain.check_sound(self.history, contents)
        return contents.records

    def append(self, kind: str, content: Mapping[str, Any]) -> None:
        """Append a record to the history, with the time."""
        chain.append(self.history, kind, lambda _: content)

    def last(self, kind: str, **having: Any) -> chain.Record | None:
        """Return the last record of a kind with the values `having`; None if there is none."""
        for record in reversed(self.records()):
            if record["kind"] == kind and all(
                record.get(name) == value for name, value in having.items()
            ):
                return record
        return None

    # --- the beginning ----------------------------------------------------------------------------

    @property
    def is_begun(self) -> bool:
        """Return whether the folder holds a promotion."""
        return bool(self.records()) if self.history.exists() else False

    def begin(self, identity: Mapping[str, Any]) -> None:
        """Begin a promotion in the folder; if one exists, refuse a different identity.

        Args:
            identity: the values that identify the promotion, by their name in words.
        """
        if self.is_begun:
            before = self.identity()
            advice = "give another --output, or change it back"
            refuse_other_work(self.folder, before, identity, advice)
            return
        if self.folder.is_dir() and any(
            entry.name not in (HISTORY, f".{HISTORY}.lock") for entry in self.folder.iterdir()
        ):
            raise ConfigError(
                f"{self.folder} holds files that are not of a promotion; give a new or empty folder"
            )
        self.folder.mkdir(parents=True, exist_ok=True)
        self.append(chain.BEGIN, {"version": chain.VERSION, "promotion": dict(identity)})

    def identity(self) -> dict[str, Any]:
        """Return the identity of the folder's promotion."""
        records = self.records() if self.history.exists() else ()
        if not records or "promotion" not in records[0]:
            raise ConfigError(
                f"{self.folder} holds no promotion; begin one with "
                f"`blis-jax promote STRATEGY --output {self.folder}`"
            )
        return dict(records[0]["promotion"])

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Keep other processes from writing to the folder during the `with` block."""
        with sole_writer(self.history):
            yield

    # --- files ------------------------------------------------------------------------------------

    def path(self, name: str) -> Path:
        """Return the path of a file in the folder; refuse names that lead out of it."""
        parts = PurePosixPath(name)
        if parts.is_absolute() or ".." in parts.parts or not parts.parts:
            raise ConfigError(f"{name!r} is not a path below the folder of a promotion")
        return self.folder.joinpath(*parts.parts)

    def read(self, names: Sequence[str] | Hashes) -> dict[str, str]:
        """Return the texts of the files that exist, by path."""
        texts = {}
        for name in sorted(names):
            try:
                texts[name] = self.path(name).read_bytes().decode()
            except FileNotFoundError:
                continue
            except UnicodeDecodeError:
                raise ConfigError(
                    f"{self.path(name)} is not UTF-8 text; restore it, or make its stage again"
                ) from None
        return texts

    def holds(self, name: str, digest: str) -> bool:
        """Return whether a file exists and has this SHA-256."""
        return hashes_of(self.read([name])).get(name) == digest

    def write(self, name: str, text: str) -> None:
        """Write a file atomically; leave it untouched if its text is the same."""
        path = self.path(name)
        if path.is_file() and path.read_bytes() == text.encode():
            clear_leftovers(path)
            return
        with replacing(path) as written:
            written.write_bytes(text.encode())

    def write_stage(
        self, stage: str, inputs: Hashes, options: Mapping[str, Any], files: Files
    ) -> None:
        """Write the files of a stage between two records; delete files of earlier runs that are no longer made."""
        outputs = hashes_of(files)
        content = {
            "stage": stage, "inputs": dict(inputs), "options": dict(options), "outputs": outputs,
        }  # fmt: skip
        before = self.ever_written(stage)
        self.append(BEGAN, content)
        for name in sorted(files):
            self.write(name, files[name])
        for name in before:
            if name not in files:
                self.path(name).unlink(missing_ok=True)
        self.append(MADE, content)

    def ever_written(self, stage: str) -> dict[str, set[str]]:
        """Return every path that a stage has written or begun to write, with the hashes of all its versions."""
        written: dict[str, set[str]] = {}
        for record in self.records():
            if record["kind"] == BEGAN and record["stage"] == stage:
                for name, digest in record["outputs"].items():
                    written.setdefault(name, set()).add(digest)
        return written

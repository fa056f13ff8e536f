"""The folder of a promotion: files of stages, decisions of people, and a history that is only ever appended to.

`history.jsonl` has the form of the ledger: a line a record, each with the hash of the one before. It is the only file
with a clock in it. A stage is written in three moves: a record of what is about to be written, the files, a record
that they are there. So a stage that was killed is seen, and written again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from blis_jax.errors import ConfigError
from blis_jax.files import chain
from blis_jax.files.atomic_write import clear_leftovers, refuse_other_work, replacing, sole_writer
from sweeps.promote.promotion import Files

HISTORY = "history.jsonl"
GATES = (1, 2, 3)
BEGAN, MADE, CHECKED, DECIDED = "began", "made", "checked", "decided"
Hashes = Mapping[str, str]  # path -> SHA-256 of the text


def findings_path(gate: int) -> str:
    """Return where the findings of a gate are."""
    return f"gates/gate-{gate}.findings.yaml"


def decision_path(gate: int) -> str:
    """Return where a person's decision on a gate is."""
    return f"gates/gate-{gate}.decision.yaml"


def sha256(text: str) -> str:
    """Return the hash of a text in UTF-8."""
    return hashlib.sha256(text.encode()).hexdigest()


def hashes_of(files: Files) -> dict[str, str]:
    """Return the hash of every text, in the order of the paths."""
    return {path: sha256(files[path]) for path in sorted(files)}


@dataclass(frozen=True)
class PromotionStore:
    """Hold a promotion's folder; see the module."""

    folder: Path

    # --- history ----------------------------------------------------------------------------------

    @property
    def history(self) -> Path:
        """Return the file of the records."""
        return self.folder / HISTORY

    def records(self) -> tuple[chain.Record, ...]:
        """Return what happened so far; a broken history is refused."""
        contents = chain.read(self.history)
        chain.check_sound(self.history, contents)
        return contents.records

    def append(self, kind: str, content: Mapping[str, Any]) -> None:
        """Append a record, with the time."""
        chain.append(self.history, kind, lambda _: content)

    def last(self, kind: str, **having: Any) -> chain.Record | None:
        """Return the last record of a kind with these values."""
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
        """Begin a promotion, or go on with the one that is there if it is of the same.

        Args:
            identity: what the artifacts depend on, by its name in words.
        """
        if self.is_begun:
            before = self.identity()
            advice = "give another --output, or change it back"
            refuse_other_work(self.folder, before, identity, advice)
            return
        if self.folder.is_dir() and any(
            one.name not in (HISTORY, f".{HISTORY}.lock") for one in self.folder.iterdir()
        ):
            raise ConfigError(
                f"{self.folder} holds files that are not of a promotion; give a new or empty folder"
            )
        self.folder.mkdir(parents=True, exist_ok=True)
        self.append(chain.BEGIN, {"version": chain.VERSION, "promotion": dict(identity)})

    def identity(self) -> dict[str, Any]:
        """Return what the folder is a promotion of."""
        records = self.records() if self.history.exists() else ()
        if not records or "promotion" not in records[0]:
            raise ConfigError(
                f"{self.folder} holds no promotion; begin one with "
                f"`python -m sweeps.promote STRATEGY --output {self.folder}`"
            )
        return dict(records[0]["promotion"])

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Keep other processes from writing the same folder."""
        with sole_writer(self.history):
            yield

    # --- files ------------------------------------------------------------------------------------

    def path(self, name: str) -> Path:
        """Return the place of a file; names that lead out of the folder are refused."""
        parts = PurePosixPath(name)
        if parts.is_absolute() or ".." in parts.parts or not parts.parts:
            raise ConfigError(f"{name!r} is not a path below the folder of a promotion")
        return self.folder.joinpath(*parts.parts)

    def read(self, names: Sequence[str] | Hashes) -> dict[str, str]:
        """Return the texts that are there, by path."""
        found = {}
        for name in sorted(names):
            try:
                found[name] = self.path(name).read_bytes().decode()
            except FileNotFoundError:
                continue
            except UnicodeDecodeError:
                raise ConfigError(
                    f"{self.path(name)} is not UTF-8 text; restore it, or make its stage again"
                ) from None
        return found

    def holds(self, name: str, digest: str) -> bool:
        """Return whether a file is there with this hash."""
        return hashes_of(self.read([name])).get(name) == digest

    def write(self, name: str, text: str) -> None:
        """Write a file, whole or not at all; one that is the same already is left."""
        path = self.path(name)
        if path.is_file() and path.read_bytes() == text.encode():
            clear_leftovers(path)
            return
        with replacing(path) as written:
            written.write_bytes(text.encode())

    def write_stage(
        self, stage: str, inputs: Hashes, options: Mapping[str, Any], files: Files
    ) -> None:
        """Write the files of a stage, between two records; files that it had before and has no more are removed."""
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
        """Return every path that a stage has ever been about to write, with the hashes it had."""
        found: dict[str, set[str]] = {}
        for record in self.records():
            if record["kind"] == BEGAN and record["stage"] == stage:
                for name, digest in record["outputs"].items():
                    found.setdefault(name, set()).add(digest)
        return found

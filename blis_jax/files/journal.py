"""Journals: the finished parts of a long command's work, from which an interrupted command continues."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, Self

from blis_jax.errors import ConfigError, ConfigWarning, refusing_unwritable
from blis_jax.files.atomic_write import (
    ADVICE,
    fingerprint,
    refuse_other_work,
    replacing,
    sole_writer,
    versions,
)
from blis_jax.files.chain import (
    Contents,
    Record,
    following,
    line_of,
    parse,
    whole_records,
    write_through,
)
from blis_jax.files.formats import number_of

# Work can be repeated, so a damaged, missing or misplaced line does not end the work, as it would in a ledger: the
# line is ignored with a warning.

JOURNAL_VERSION = number_of("journal")  # lines of earlier versions had no hash
JOURNAL, PART = "journal", "part"  # kinds of records


class Journal:
    """A file with a header that describes the work, and a line for each finished part of that work."""

    is_ordered: ClassVar[bool] = False  # whether a part depends on those before it

    def __init__(self, path: Path, kind: str, content: Mapping[str, Any]) -> None:
        """Describe the work: `kind` names it, `content` has the values on which its numbers depend, by name."""
        self.path, self.kind = path, kind
        prints = {name: fingerprint(value) for name, value in content.items()}
        self._is_of(path, kind, {**prints, **versions()})

    def _is_of(self, path: Path, kind: str, content: Mapping[str, Any]) -> Self:
        self.path, self.kind, self.content = path, kind, content
        header = {"version": JOURNAL_VERSION, "work": kind, "content": content}
        self._header = following(None, JOURNAL, header)
        self._last: Record | None = None  # the line that the next one follows
        return self

    @classmethod
    def of_file(cls, path: Path) -> Self:
        """Return the journal in a file, of any kind of work.

        Raises:
            ConfigError: the file is not a journal.
        """
        journal = cls(path, "", {})
        contents = parse(journal._data(), JOURNAL, JOURNAL_VERSION)
        if not contents.records:
            raise ConfigError(f"{path} is no record of runs; give what --part wrote")
        header = contents.records[0]
        return journal._is_of(path, header["work"], header["content"])

    def under(self, path: Path, kind: str) -> Self:
        """Return an empty journal at `path` with the same content, for another kind of work."""
        return type(self)(path, "", {})._is_of(path, kind, self.content)

    @contextmanager
    def held(self, is_resumed: bool) -> Iterator[None]:
        """Keep other processes from writing the journal; continue the existing file if `is_resumed`, else remove it.

        Raises:
            ConfigError: another process writes the journal, or the existing file belongs to other work.
        """
        with sole_writer(self.path):
            if is_resumed:
                self.lines()
            else:
                self.path.unlink(missing_ok=True)
            try:
                yield
            finally:  # without a finished part there is nothing to go on from, nor to be kept
                if self._data() == line_of(self._header):
                    self.path.unlink()

    def lines(self) -> list[Any]:
        """Return the finished parts; none if there is no file. Refuses a journal of other work."""
        return self._kept(self._data())[0]

    def begin(self) -> None:
        """Begin a new file, or continue the old one with its valid parts; warn of invalid lines, except a line that was
        cut off.
        """
        parts, problem = self._kept(self._data())
        if problem:
            text = f"{self.path}: {problem}; what does not count is done again"
            warnings.warn(ConfigWarning(text), stacklevel=2)
        self.rewrite(parts)

    def rewrite(self, entries: Sequence[object]) -> None:
        """Replace the file's finished parts with `entries`."""
        records = [self._header]
        for entry in entries:
            records.append(self._record(records[-1], entry))
        whole = b"".join(map(line_of, records))
        if whole != self._data():
            with refusing_unwritable(self.path), replacing(self.path) as written:
                written.write_bytes(whole)
        self._last = records[-1]

    def append(self, entry: object) -> None:
        """Add a finished part."""
        if self._last is None:
            self.begin()
        assert self._last is not None
        record = self._record(self._last, entry)
        with refusing_unwritable(self.path), self.path.open("ab") as file:
            write_through(file.fileno(), line_of(record), os.fstat(file.fileno()).st_size)
        self._last = record

    def _record(self, last: Record, entry: object) -> Record:
        # as a text, which keeps the order of names, and NaN
        content = {"of": self._header["hash"], "entry": json.dumps(entry)}
        return following(last, PART, content)

    def _kept(self, data: bytes) -> tuple[list[Any], str | None]:
        """Return the valid parts, and the problem with the others; None if there is no problem."""
        if line_of(self._header).startswith(data):  # none yet, or cut off within the first line
            return [], None
        contents = parse(data, JOURNAL, JOURNAL_VERSION)
        if not contents.records:
            raise self._without_header(data, contents)
        header, *kept = contents.records
        if header["work"] != self.kind:
            raise self._foreign()
        refuse_other_work(self.path, header["content"], self.content)
        if contents.problem and not self.is_ordered:
            ours = [record for record in whole_records(data) if record.get("of") == header["hash"]]
            numbers = {record["number"]: record for record in reversed(ours)}
            kept = [numbers[number] for number in sorted(numbers)]
        return [json.loads(record["entry"]) for record in kept], contents.problem

    def _without_header(self, data: bytes, contents: Contents) -> ConfigError:
        """Return the error for a file whose first line is not the header of a journal."""
        try:
            first = json.loads(data.split(b"\n")[0])
        except (ValueError, RecursionError):
            first = None
        if isinstance(first, dict) and first.get("version") not in (None, JOURNAL_VERSION):
            return ConfigError(f"{self.path} is a record of another version; {ADVICE}")
        if b'"kind":"%s"' % JOURNAL.encode() in data:
            return ConfigError(
                f"{self.path}: {contents.problem or 'its first line is cut off'}; {ADVICE}"
            )
        return self._foreign()

    def _foreign(self) -> ConfigError:
        return ConfigError(f"{self.path} is not a record of this work ({self.kind}); {ADVICE}")

    def _data(self) -> bytes:
        try:
            return self.path.read_bytes() if self.path.exists() else b""
        except OSError as error:
            raise ConfigError(f"{self.path} cannot be read ({error}); {ADVICE}") from None

"""Append-only records as lines of JSON, each with the hash of the record before it: for a ledger, or a journal.

A line is the canonical JSON of one record; `hash` is the SHA-256 of that text without `hash`. Large values may be
stored in files beside the chain; the hash always covers the whole record. Lines are only ever appended, under a lock,
and flushed to the disk. An unfinished line of a killed writer stays in the file: the next record holds the number and
the hash of its bytes.
"""

from __future__ import annotations

import datetime
import functools
import hashlib
import json
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from blis_jax.errors import ConfigError, refusing_unwritable
from blis_jax.files.atomic_write import is_at, replacing, sync_folder, wait_for
from blis_jax.files.content import Beside, canonical, digest
from blis_jax.files.formats import number_of

VERSION = number_of("ledger")
NOTHING = "0" * 64  # stands for the previous hash in the first record
TORN = "after_torn_line"
BEGIN = "ledger"  # kind of the first record
_OF_CHAIN = ("number", "previous", "kind", "written", TORN, "hash")

Record = Mapping[str, Any]
Make = Callable[[Sequence[Record]], Mapping[str, Any]]


@dataclass(frozen=True)
class Contents:
    """The records of a file up to the first broken one, and the problem that follows them."""

    records: tuple[Record, ...] = ()
    problem: str | None = None
    torn: bytes = b""  # an unfinished line at the end
    lacks_end: bool = False  # the last record is whole but for its end of line
    size: int = 0


def hash_of(record: Record) -> str:
    """Return the hash of a record's content, which the record must carry."""
    return digest({name: value for name, value in record.items() if name != "hash"})


def read(path: Path) -> Contents:
    """Return the records of a file; none if the file does not exist."""
    try:
        with path.open("rb") as file:
            wait_for(file.fileno(), is_shared=True)
            data = file.read()
    except FileNotFoundError:
        return Contents()
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be read ({error.strerror}); give another ledger"
        ) from None
    return parse(data, beside=Beside.of(path))


@functools.lru_cache(maxsize=1)  # one command reads the same ledger several times
def parse(
    data: bytes, begin: str = BEGIN, version: int = VERSION, beside: Beside | None = None
) -> Contents:
    """Return the complete records in a file's bytes; the result is cached, so callers must not change it.

    The first record, and no other, must be of the kind `begin` and of this `version`.
    """
    *lines, rest = data.split(b"\n")
    if rest:
        lines.append(rest)
    records: list[Record] = []
    torn: list[bytes] = []  # lines that the next record must vouch for
    for place, line in enumerate(lines, 1):
        parsed_record = parsed(line)
        if parsed_record is None:
            torn.append(line)
            continue
        record, text = parsed_record
        if record.get(TORN) != _torn_mark(torn):
            return _stopped(data, records, place - len(torn), _NO_RECORD if torn else _NO_TORN)
        try:
            record = beside.expanded(record) if beside else record
            problem = _problem(record, text == line, records)
        except ConfigError as error:
            problem = str(error)
        begins = record.get("kind") == begin and record.get("version") == version
        if not problem and begins != (not records):
            problem = f"a {begin} of version {version} begins with one record that says so"
        if problem:
            return _stopped(data, records, place, problem)
        records.append(record)
        torn = []
    if torn and not rest:
        return _stopped(data, records, len(lines) + 1 - len(torn), _NO_RECORD)
    lacks_end = bool(rest) and not torn
    return Contents(tuple(records), None, b"\n".join(torn), lacks_end, len(data))


_NO_RECORD = "it is not a record, and no record after it says that a write was cut off there"
_NO_TORN = "it speaks of an unfinished line before it, but there is none"


def parsed(line: bytes) -> tuple[Record, bytes] | None:
    """Return the record in a line as stored, and its canonical text; None if the line is not a complete JSON object."""
    try:
        record = json.loads(line.decode(), parse_constant=_refuse_constant)
        text = canonical(record).encode()
    except (ValueError, RecursionError):
        return None
    return (record, text) if isinstance(record, dict) else None


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _problem(record: Record, is_canonical: bool, before: Sequence[Record]) -> str | None:
    """Return the problem with a record that follows the records `before`; None if it is sound."""
    if hash_of(record) != record.get("hash"):
        return "its content is not what its hash was taken of"
    if not is_canonical:
        return "it is not written as records are"
    if record.get("number") != len(before):
        return f"it has number {record.get('number')} where {len(before)} follows"
    if record.get("previous") != (before[-1]["hash"] if before else NOTHING):
        return "it does not follow the record before, whose hash is another one"
    return None


def whole_records(data: bytes) -> list[Record]:
    """Return every record in `data` whose own hash is correct, wherever its line stands."""
    records = (parsed(line) for line in data.split(b"\n"))
    return [
        record[0] for record in records if record and hash_of(record[0]) == record[0].get("hash")
    ]


def following(last: Record | None, kind: str, content: Mapping[str, Any]) -> Record:
    """Return a new record that follows `last`; the first record of a file if `last` is None."""
    record: dict[str, Any] = {
        "number": last["number"] + 1 if last else 0,
        "previous": last["hash"] if last else NOTHING,
        "kind": kind,
        **content,
    }
    record["hash"] = hash_of(record)
    return record


def line_of(record: Record) -> bytes:
    """Return the line of JSON, in bytes, that stores a record."""
    return canonical(record).encode() + b"\n"


def _stopped(data: bytes, before: Sequence[Record], line: int, problem: str) -> Contents:
    name = f" ({before[-1].get('id')})" if before and before[-1].get("id") else ""
    last = f"the last good record is {len(before) - 1}{name}" if before else "no record is good"
    broken = f"line {line} is broken: {problem}; {last}"
    return Contents(tuple(before), broken, size=len(data))


def _torn_mark(lines: Sequence[bytes]) -> dict[str, Any] | None:
    """Return the byte count and hash of unfinished lines, for the record after them; None without such lines."""
    torn = b"\n".join(lines)
    return {"bytes": len(torn), "sha256": hashlib.sha256(torn).hexdigest()} if lines else None


@contextmanager
def locked(path: Path) -> Iterator[int]:
    """Lock the file, creating it if need be, against other writers; yield a descriptor to append with."""
    is_new = not path.exists()
    descriptor = _opened(path)
    try:
        wait_for(descriptor)
        while not is_at(path, descriptor):  # it was replaced meanwhile
            os.close(descriptor)
            descriptor = _opened(path)
            wait_for(descriptor)
        if is_new:
            sync_folder(path.parent)
        yield descriptor
    finally:
        os.close(descriptor)


def _opened(path: Path) -> int:
    with refusing_unwritable(path):
        return os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)


def append(path: Path, kind: str, make: Make, large: Collection[str] = ()) -> Record:
    """Append a record with the content that `make` returns for the earlier records, and return the whole record.

    `make` is called under the lock, so its checks of the earlier records still hold when the new record is written.
    Values under the names in `large` are first written to files beside the chain, so a line never refers to a missing
    file.
    """
    with locked(path) as descriptor:
        beside = Beside.of(path)
        contents = parse(_whole(descriptor), beside=beside)
        check_sound(path, contents)
        content = {"written": now(), **make(contents.records)}
        if contents.torn:
            content[TORN] = _torn_mark([contents.torn])
        record = following(contents.records[-1] if contents.records else None, kind, content)
        end = b"\n" if contents.torn or contents.lacks_end else b""
        with refusing_unwritable(path):
            line = line_of(beside.shortened(record, large))
            write_through(descriptor, end + line, contents.size)
        return record


def shorten(path: Path, large: Collection[str]) -> int:
    """Move the values under the names in `large` to files beside the chain; return how many bytes the lines lose.

    Records and their hashes do not change.
    """
    with locked(path) as descriptor:
        beside = Beside.of(path)
        data = _whole(descriptor)
        check_sound(path, parse(data, beside=beside))
        lines = data.split(b"\n")
        for place, line in enumerate(lines):
            if record := parsed(line):
                lines[place] = line_of(beside.shortened(beside.expanded(record[0]), large))[:-1]
        shorter = b"\n".join(lines)
        with refusing_unwritable(path), replacing(path) as written:
            written.write_bytes(shorter)
        return len(data) - len(shorter)


def check_sound(path: Path, contents: Contents) -> None:
    """Refuse to append to a file with a broken record."""
    if contents.problem:
        raise ConfigError(
            f"{path}: {contents.problem}; restore the file, nothing is added to a broken ledger"
        )


def content_of(record: Record) -> dict[str, Any]:
    """Return a record without the fields that the chain adds."""
    return {name: value for name, value in record.items() if name not in _OF_CHAIN}


def now() -> str:
    """Return the present time in UTC, to the second, as text."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def _whole(descriptor: int) -> bytes:
    os.lseek(descriptor, 0, os.SEEK_SET)
    parts = []
    while part := os.read(descriptor, 1 << 20):
        parts.append(part)
    return b"".join(parts)


def write_through(descriptor: int, data: bytes, size: int) -> None:
    """Append `data` to a file of `size` bytes completely, or not at all if the disk is full."""
    try:
        left = memoryview(data)
        while left:
            left = left[os.write(descriptor, left) :]
        os.fsync(descriptor)
    except OSError:
        os.ftruncate(descriptor, size)
        raise

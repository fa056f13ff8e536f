"""Append-only records as lines of JSON, each with the hash of the one before: a ledger, or a journal to go on from.

A line is the canonical JSON of one record; `hash` is the SHA-256 of that text without `hash`. Large values may stand
in files beside the chain; the hash is that of the whole record. Lines are only ever appended, under a lock, and written
through to the disk. What a killed writer left behind stays in the file: the next record says how many bytes of it there
are, and their hash.
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
NOTHING = "0" * 64  # what the first record has as the hash of the one before
TORN = "after_torn_line"
BEGIN = "ledger"  # kind of the first record
_OF_CHAIN = ("number", "previous", "kind", "written", TORN, "hash")

Record = Mapping[str, Any]
Make = Callable[[Sequence[Record]], Mapping[str, Any]]


@dataclass(frozen=True)
class Contents:
    """The records of a file, up to the first broken one, and what is wrong behind them."""

    records: tuple[Record, ...] = ()
    problem: str | None = None
    torn: bytes = b""  # an unfinished line at the end
    lacks_end: bool = False  # the last record is whole but for its end of line
    size: int = 0


def hash_of(record: Record) -> str:
    """Return the hash that a record must carry."""
    return digest({name: value for name, value in record.items() if name != "hash"})


def read(path: Path) -> Contents:
    """Return the records of a file; a file that does not exist has none."""
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
    """Return the records in the bytes of a file, whole; callers share them and must not change them.

    The first record must be of the kind `begin` and of this version, and no other may be of that kind.
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
    """Return the record in a line, as it stands there, and its canonical text; None if it is no whole JSON object."""
    try:
        record = json.loads(line.decode(), parse_constant=_refuse_constant)
        text = canonical(record).encode()
    except (ValueError, RecursionError):
        return None
    return (record, text) if isinstance(record, dict) else None


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _problem(record: Record, is_canonical: bool, before: Sequence[Record]) -> str | None:
    """Return what is wrong with a record at its place."""
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
    """Return every line that holds what its own hash was taken of, wherever it stands."""
    records = (parsed(line) for line in data.split(b"\n"))
    return [
        record[0] for record in records if record and hash_of(record[0]) == record[0].get("hash")
    ]


def following(last: Record | None, kind: str, content: Mapping[str, Any]) -> Record:
    """Return the record that comes after another one, or begins a file."""
    record: dict[str, Any] = {
        "number": last["number"] + 1 if last else 0,
        "previous": last["hash"] if last else NOTHING,
        "kind": kind,
        **content,
    }
    record["hash"] = hash_of(record)
    return record


def line_of(record: Record) -> bytes:
    """Return a record as it stands in a file."""
    return canonical(record).encode() + b"\n"


def _stopped(data: bytes, before: Sequence[Record], line: int, problem: str) -> Contents:
    name = f" ({before[-1].get('id')})" if before and before[-1].get("id") else ""
    last = f"the last good record is {len(before) - 1}{name}" if before else "no record is good"
    broken = f"line {line} is broken: {problem}; {last}"
    return Contents(tuple(before), broken, size=len(data))


def _torn_mark(lines: Sequence[bytes]) -> dict[str, Any] | None:
    """Return what a record says of unfinished lines before it; None where there are none."""
    torn = b"\n".join(lines)
    return {"bytes": len(torn), "sha256": hashlib.sha256(torn).hexdigest()} if lines else None


@contextmanager
def locked(path: Path) -> Iterator[int]:
    """Hold the file, made if need be, against other writers; yield a descriptor to append to."""
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
    """Append what `make` gives for the records so far, and return it whole.

    `make` is called while other writers wait, so what it checks still holds when its record is in. Values
    under the names in `large` are written to files beside the chain first, so a line never lacks them.
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
    """Move the values under these names to files beside the chain; return how many bytes the lines lose.

    Records and their hashes stay what they are.
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
    """Refuse to build on a file with a broken record."""
    if contents.problem:
        raise ConfigError(
            f"{path}: {contents.problem}; restore the file, nothing is added to a broken ledger"
        )


def content_of(record: Record) -> dict[str, Any]:
    """Return a record without what the chain adds to it."""
    return {name: value for name, value in record.items() if name not in _OF_CHAIN}


def now() -> str:
    """Return the time, UTC, to the second."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def _whole(descriptor: int) -> bytes:
    os.lseek(descriptor, 0, os.SEEK_SET)
    parts = []
    while part := os.read(descriptor, 1 << 20):
        parts.append(part)
    return b"".join(parts)


def write_through(descriptor: int, data: bytes, size: int) -> None:
    """Append all of the data to a file of this size or, on a full disk, nothing."""
    try:
        left = memoryview(data)
        while left:
            left = left[os.write(descriptor, left) :]
        os.fsync(descriptor)
    except OSError:
        os.ftruncate(descriptor, size)
        raise

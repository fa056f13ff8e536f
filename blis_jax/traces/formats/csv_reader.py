"""CSV files as columns, chunk by chunk, whatever the quotes and the number of fields."""

from __future__ import annotations

import csv
import gzip
import io
import itertools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np

from blis_jax.errors import ConfigError
from blis_jax.files.input_files import Unpacked, check_regular
from blis_jax.traces.columns import (
    EXTRA,
    Check,
    Column,
    Frame,
    Irregular,
    find_places,
    read_frames,
)
from blis_jax.traces.rows import Reading

ROWS_AT_ONCE = 500_000
PIECE = 2**20  # bytes of a packed file that are unpacked at once
LONGEST_FIELD = 2**31 - 1  # characters; lists of tokens are long


class Header(NamedTuple):
    """The first line that is not blank."""

    names: tuple[str, ...]
    line: int  # its number, counted from 1


def open_text(path: Path) -> IO[str]:
    """A UTF-8 text, with or without byte-order mark, unpacked where its name ends in .gz."""
    check_regular(path)
    if path.suffix == ".gz":
        unpacked = io.BufferedReader(Unpacked(gzip.GzipFile(path), path), PIECE)
        return io.TextIOWrapper(unpacked, encoding="utf-8-sig", errors="replace", newline="")
    return path.open(encoding="utf-8-sig", errors="replace", newline="")


def header_names(line: str) -> tuple[str, ...]:
    """The names in a line of CSV; none if it cannot be one."""
    try:
        return tuple(name.strip() for name in next(csv.reader([line.rstrip("\r\n")]), []))
    except csv.Error:
        return ()


def read_header(path: Path) -> Header:
    """The names in the first line that is not blank."""
    with open_text(path) as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                return Header(header_names(line), number)
    raise ConfigError(f"{path} is empty; give a trace with a header and one request per line")


def read_columns(
    path: Path, columns: Mapping[str, Column], reading: Reading, checks: Sequence[Check] = ()
) -> dict[str, np.ndarray]:
    """The columns of all good rows; blank lines are skipped, malformed rows counted."""
    header = read_header(path)
    places = find_places(path, header.names, columns)
    try:
        return read_frames(_frames(path, header, places, columns), columns, places, reading, checks)
    except Irregular:
        frames = _frames_by_line(path, header, places)
        usual_limit = csv.field_size_limit(LONGEST_FIELD)
        try:
            return read_frames(frames, columns, places, reading, checks)
        finally:
            csv.field_size_limit(usual_limit)


def _frames(
    path: Path, header: Header, places: Mapping[str, int], columns: Mapping[str, Column]
) -> Iterator[Frame]:
    """Chunks by the C parser."""
    import pandas

    extra = len(header.names)
    texts = {places[key] for key in places if columns[key].is_text}
    used = sorted(set(places.values()))
    settings: dict[str, Any] = {
        "header": None,
        "names": list(range(extra + 1)),
        "usecols": [*used, extra],
        "dtype": dict.fromkeys((*texts, extra), str),
        "keep_default_na": False,
        "na_values": {place: [""] for place in (*used, extra)},
        "skip_blank_lines": False,
        "skipinitialspace": True,
        "chunksize": ROWS_AT_ONCE,
        "low_memory": False,
        "index_col": False,
    }
    line = header.line  # of the widest line
    with open_text(path) as file:
        for _ in range(header.line):
            file.readline()
        try:
            with pandas.read_csv(_Widened(file, extra + 1), **settings) as chunks:
                for chunk in chunks:
                    cells = chunk.rename(columns={extra: EXTRA})
                    lines = line + np.arange(len(chunk))
                    is_ours = int(line == header.line)
                    yield Frame(cells[is_ours:].reset_index(drop=True), lines[is_ours:])
                    line += len(chunk)
        except pandas.errors.ParserError:
            raise Irregular from None


class _Widened:
    """A text with a line of zeros before it, from which the parser takes the number of fields.

    A field too many then lands in a column of its own, which no true row has.
    """

    def __init__(self, file: IO[str], num_fields: int) -> None:
        self.file = file
        self.first = ",".join("0" * num_fields) + "\n"

    def read(self, size: int = -1) -> str:
        """The next characters."""
        first, self.first = self.first, ""
        return first or self.file.read(size)

    def __iter__(self) -> Iterator[str]:
        return iter(self.file)


def _frames_by_line(path: Path, header: Header, places: Mapping[str, int]) -> Iterator[Frame]:
    """Chunks line by line, so that an odd quote or field count spoils only its own line."""
    import pandas

    extra = len(header.names)
    used = sorted(set(places.values()))
    with open_text(path) as file:
        numbered = itertools.islice(enumerate(file, 1), header.line, None)
        while batch := list(itertools.islice(numbered, ROWS_AT_ONCE)):
            cells = [_fields(text.rstrip("\r\n")) for _, text in batch]
            table: dict[Any, list[str | None]] = {
                place: [_field(row, place) for row in cells] for place in used
            }
            table[EXTRA] = [",".join(row[extra:]) or None for row in cells]
            frame = pandas.DataFrame(table, dtype=object)
            yield Frame(frame, np.array([number for number, _ in batch]))


def _fields(line: str) -> list[str]:
    try:
        return next(csv.reader([line], skipinitialspace=True), [])
    except csv.Error:
        return [line]


def _field(row: Sequence[str], place: int) -> str | None:
    return (row[place] or None) if place < len(row) else None

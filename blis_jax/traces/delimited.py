"""Read delimited text by columns, tolerating odd quotes and field counts: comma, semicolon, tab or bar."""

from __future__ import annotations

import csv
import io
import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from blis_jax.errors import ConfigError
from blis_jax.files import input_files
from blis_jax.files.input_files import open_text
from blis_jax.lazy import pandas
from blis_jax.traces.columns import (
    EXTRA,
    ROWS_AT_ONCE,
    Check,
    Column,
    Frame,
    Irregular,
    find_places,
    plain_name,
    read_frames,
)
from blis_jax.traces.rows import Reading

LONGEST_FIELD = 2**31 - 1  # characters; lists of tokens are long


class Header(NamedTuple):
    """The first non-blank line of a file."""

    names: tuple[str, ...]
    line: int  # its number, counted from 1
    separator: str = ","


def separator_of(line: str) -> str:
    """Return a header's separator: comma, semicolon, tab or bar, whichever occurs most often."""
    return max(",;\t|", key=line.count)


def header_names(line: str) -> tuple[str, ...]:
    """Return the names in a line of CSV; none if the line cannot be parsed as CSV."""
    text = line.rstrip("\r\n")
    try:
        return tuple(
            name.strip() for name in next(csv.reader([text], delimiter=separator_of(text)), [])
        )
    except csv.Error:
        return ()


def read_header(path: Path) -> Header:
    """Return the names in the first non-blank line."""
    with open_text(path) as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                return Header(header_names(line), number, separator_of(line))
    raise ConfigError(f"{path} is empty; give a trace with a header and one request per line")


def note_columns(names: Sequence[str], places: Mapping[str, int], reading: Reading) -> None:
    """Report which columns are read and which are ignored."""
    reading.report.read = [names[place] for place in sorted(set(places.values()))]
    read = {*places.values(), *(names.index(name) for name in names if plain_name(name) in _SUMS)}
    read_names = {names[place] for place in read}
    reading.report.add_unread(
        f"{name} (the second of this name)" if name in read_names else name
        for place, name in enumerate(names)
        if place not in read and name
    )


_SUMS = ("totaltokens",)  # of columns that are read


def read_columns(
    path: Path, columns: Mapping[str, Column], reading: Reading, checks: Sequence[Check] = ()
) -> dict[str, np.ndarray]:
    """Return the columns of all good rows; blank lines are skipped, malformed rows counted."""
    header = read_header(path)
    places = find_places(path, header.names, columns)
    if all(column.place is None for column in columns.values()):
        note_columns(header.names, places, reading)
    try:
        return read_frames(_frames(path, header, places, columns), columns, places, reading, checks)
    except Irregular:
        frames = _frames_by_line(path, header, places, columns)
        usual_limit = csv.field_size_limit(LONGEST_FIELD)
        try:
            return read_frames(frames, columns, places, reading, checks)
        finally:
            csv.field_size_limit(usual_limit)


def _frames(
    path: Path, header: Header, places: Mapping[str, int], columns: Mapping[str, Column]
) -> Iterator[Frame]:
    """Yield chunks parsed by pandas' C parser."""
    extra = len(header.names)
    texts = {places[key] for key in places if columns[key].is_text}
    used = sorted(set(places.values()))
    settings: dict[str, Any] = {
        "header": None,
        **_separated(header.separator),
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
            with pandas.read_csv(_Widened(file, extra + 1, header.separator), **settings) as chunks:
                for chunk in chunks:
                    cells = chunk.rename(columns={extra: EXTRA})
                    cells = _with_points(cells, header.separator, texts)
                    lines = line + np.arange(len(chunk))
                    is_ours = int(line == header.line)
                    yield Frame(cells[is_ours:].reset_index(drop=True), lines[is_ours:])
                    line += len(chunk)
        except pandas.errors.ParserError:
            raise Irregular from None


def _with_points(
    cells: pandas.DataFrame, separator: str, texts: Collection[int]
) -> pandas.DataFrame:
    """Return cells with decimal commas replaced by points, which pandas leaves in a column that contains text."""
    for name in cells if separator == ";" else ():
        if name != EXTRA and name not in texts and cells[name].dtype.kind == "O":
            changed = (
                cells[name]
                .astype("string")
                .str.replace(r"^\s*(-?\d+),(\d+)\s*$", r"\1.\2", regex=True)
            )
            cells[name] = changed.astype(object).where(changed.notna(), None)
    return cells


class _Widened:
    """A text preceded by a line of zeros, from which the parser infers the number of fields.

    A surplus field is then parsed into a column of its own, which is empty for every valid row.
    """

    def __init__(self, file: io.TextIOWrapper, num_fields: int, separator: str) -> None:
        self.file = file
        self.first = separator.join("0" * num_fields) + "\n"

    def read(self, size: int = -1) -> str:
        """Return the next characters."""
        first, self.first = self.first, ""
        return first or self.file.read(size)

    def __iter__(self) -> Iterator[str]:
        return iter(self.file)


def _frames_by_line(
    path: Path, header: Header, places: Mapping[str, int], columns: Mapping[str, Column]
) -> Iterator[Frame]:
    """Yield chunks parsed line by line, so that an odd quote or field count spoils only its own line."""
    extra = len(header.names)
    used = sorted(set(places.values()))
    with open_text(path) as file:
        numbered = itertools.islice(enumerate(file, 1), header.line, None)
        while batch := list(itertools.islice(numbered, ROWS_AT_ONCE)):
            cells = [_fields(text.rstrip("\r\n"), header.separator) for _, text in batch]
            table: dict[Any, list[str | None]] = {
                place: [_field(row, place) for row in cells] for place in used
            }
            table[EXTRA] = [",".join(row[extra:]) or None for row in cells]
            texts = {places[key] for key in places if columns[key].is_text}
            frame = _with_points(pandas.DataFrame(table, dtype=object), header.separator, texts)
            yield Frame(frame, np.array([number for number, _ in batch]))


def _fields(line: str, separator: str) -> list[str]:
    try:
        return next(csv.reader([line], skipinitialspace=True, delimiter=separator), [])
    except csv.Error:
        return [line]


def _field(row: Sequence[str], place: int) -> str | None:
    return (row[place] or None) if place < len(row) else None


def read_table(path: Path) -> pandas.DataFrame:
    """Return a whole table with a header; empty cells are empty texts.

    Raises:
        ConfigError: the file cannot be read.
    """
    header = input_files.read_text(path, "a table").partition("\n")[0]
    settings = {"keep_default_na": False, "skipinitialspace": True}
    try:
        return pandas.read_csv(path, **_separated(separator_of(header)), **settings)
    except ValueError as error:
        raise ConfigError(f"{path} cannot be read as CSV ({error}); correct the file") from None


def _separated(separator: str) -> dict[str, str]:
    """Return pandas' options for a separator; with semicolons, a decimal comma is allowed."""
    return {"sep": separator, "decimal": "," if separator == ";" else "."}

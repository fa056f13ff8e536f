"""CSV columns as arrays, chunk by chunk, with every malformed row named by its line."""

from __future__ import annotations

import csv
import gzip
import itertools
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple

import numpy as np

from blis_jax.errors import ConfigError
from blis_jax.traces.rows import MOST_NAMED, BadRow, Reading

if TYPE_CHECKING:
    import pandas

ROWS_AT_ONCE = 500_000
_EXTRA = "more fields than the header"


class Column(NamedTuple):
    """A column by the names it may have, or by its place."""

    names: tuple[str, ...] = ()  # compared without case, spaces, - and _
    place: int | None = None  # counted from 0; goes before names
    parse: Callable[[Any], tuple[np.ndarray, np.ndarray]] | None = None  # values and is_good
    wanted: str = ""  # what a good value is, for the message
    is_text: bool = False
    default: Any = None  # the value where the header lacks the column; None: it must be there


class Header(NamedTuple):
    """The first line that is not blank."""

    names: tuple[str, ...]
    line: int  # its number, counted from 1


def open_text(path: Path) -> IO[str]:
    """A UTF-8 text, with or without byte-order mark, unpacked where its name ends in .gz."""
    if path.suffix == ".gz":
        return gzip.open(path, "rt", encoding="utf-8-sig", errors="replace", newline="")
    return path.open(encoding="utf-8-sig", errors="replace", newline="")


def plain_name(name: str) -> str:
    """A column's name without case and separators."""
    return re.sub(r"[\s_-]+", "", name).lower()


def read_header(path: Path) -> Header:
    """The names in the first line that is not blank."""
    with open_text(path) as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                return Header(tuple(name.strip() for name in next(csv.reader([line]))), number)
    raise ConfigError(f"{path} is empty; give a trace with a header and one request per line")


def whole(low: int, high: int) -> Callable[[Any], tuple[np.ndarray, np.ndarray]]:
    """Whole numbers within bounds, also when written with a fraction of zero."""

    def parse(values: pandas.Series) -> tuple[np.ndarray, np.ndarray]:
        numbers = _as_numbers(values)
        is_good = (numbers >= low) & (numbers <= high) & (numbers == np.floor(numbers))
        return np.where(is_good, numbers, low).astype(np.int64), is_good

    return parse


def numbers(low: float, high: float) -> Callable[[Any], tuple[np.ndarray, np.ndarray]]:
    """Numbers within bounds."""

    def parse(values: pandas.Series) -> tuple[np.ndarray, np.ndarray]:
        found = _as_numbers(values).astype(np.float64)
        is_good = (found >= low) & (found <= high)
        return np.where(is_good, found, low), is_good

    return parse


def _as_numbers(values: pandas.Series) -> np.ndarray:
    """Numbers as they are, NaN for what is none; integers stay integers."""
    import pandas

    if values.dtype.kind in "iuf":
        return values.to_numpy()
    return pandas.to_numeric(values.astype(str).str.strip(), errors="coerce").to_numpy(np.float64)


def read_columns(
    path: Path, columns: Mapping[str, Column], reading: Reading, *, is_named: bool = False
) -> dict[str, np.ndarray]:
    """The columns of all good rows; blank lines are skipped, malformed rows counted.

    `is_named` puts the file's name before each line number.
    """
    header = read_header(path)
    places = _find_places(path, header, columns)
    try:
        return _read(
            path, _frames(path, header, places, columns), columns, places, reading, is_named
        )
    except _Irregular:
        frames = _frames_by_line(path, header, places)
        return _read(path, frames, columns, places, reading, is_named)


class _Irregular(Exception):
    """Quotes or field counts that the fast reader cannot follow line by line."""


class _Frame(NamedTuple):
    cells: pandas.DataFrame  # by place; a field too many under `_EXTRA`
    lines: np.ndarray  # line number of each row


def _find_places(path: Path, header: Header, columns: Mapping[str, Column]) -> dict[str, int]:
    """Where the columns stand that the header has."""
    known = {plain_name(name): place for place, name in reversed(list(enumerate(header.names)))}
    places = {}
    for key, column in columns.items():
        if column.place is not None:
            found = column.place if column.place < len(header.names) else None
        else:
            found = next((known[p] for p in map(plain_name, column.names) if p in known), None)
        if found is not None:
            places[key] = found
        elif column.default is None:
            wanted = column.names[0] if column.names else f"number {(column.place or 0) + 1}"
            raise ConfigError(
                f"{path} has no column {wanted}; its header is {', '.join(header.names)}"
            )
    return places


def _frames(
    path: Path, header: Header, places: Mapping[str, int], columns: Mapping[str, Column]
) -> Iterator[_Frame]:
    """Chunks by the C parser."""
    import pandas

    extra = len(header.names)
    texts = {places[key] for key in places if columns[key].is_text}
    used = sorted(set(places.values()))
    settings: dict[str, Any] = {
        "header": None,
        "skiprows": header.line,
        "names": list(range(extra + 1)),
        "usecols": [*used, extra],
        "dtype": dict.fromkeys((*texts, extra), str),
        "keep_default_na": False,
        "na_values": {place: [""] for place in (*used, extra)},
        "skip_blank_lines": False,
        "skipinitialspace": True,
        "encoding_errors": "replace",
        "chunksize": ROWS_AT_ONCE,
        "low_memory": False,
        "index_col": False,
    }
    line = header.line + 1
    with warnings.catch_warnings():
        warnings.simplefilter("error", pandas.errors.ParserWarning)
        try:
            with pandas.read_csv(path, **settings) as chunks:
                for chunk in chunks:
                    yield _Frame(
                        chunk.rename(columns={extra: _EXTRA}), line + np.arange(len(chunk))
                    )
                    line += len(chunk)
        except pandas.errors.EmptyDataError:
            return
        except (pandas.errors.ParserError, pandas.errors.ParserWarning):
            raise _Irregular from None


def _frames_by_line(path: Path, header: Header, places: Mapping[str, int]) -> Iterator[_Frame]:
    """Chunks line by line, so that an odd quote or field count spoils only its own line."""
    import pandas

    extra = len(header.names)
    used = sorted(set(places.values()))
    with open_text(path) as file:
        numbered = itertools.islice(enumerate(file, 1), header.line, None)
        while batch := list(itertools.islice(numbered, ROWS_AT_ONCE)):
            cells = [_fields(text) for _, text in batch]
            table: dict[Any, list[str | None]] = {
                place: [_field(row, place) for row in cells] for place in used
            }
            table[_EXTRA] = [",".join(row[extra:]) or None for row in cells]
            frame = pandas.DataFrame(table, dtype=object)
            yield _Frame(frame, np.array([number for number, _ in batch]))


def _fields(line: str) -> list[str]:
    try:
        return next(csv.reader([line], skipinitialspace=True), [])
    except csv.Error:
        return [line]


def _field(row: Sequence[str], place: int) -> str | None:
    return (row[place] or None) if place < len(row) else None


def _read(
    path: Path,
    frames: Iterator[_Frame],
    columns: Mapping[str, Column],
    places: Mapping[str, int],
    reading: Reading,
    is_named: bool,
) -> dict[str, np.ndarray]:
    parts: dict[str, list[np.ndarray]] = {key: [] for key in columns}
    num_good, num_bad = 0, 0
    first_bad: list[BadRow] = []
    for frame in frames:
        cells, lines = _without_blank_lines(frame)
        values, faults = _parsed(cells, columns, places)
        is_good = faults == 0
        if reading.limit is not None and num_good + is_good.sum() >= reading.limit:
            wanted = reading.limit - num_good
            end = int(np.searchsorted(np.cumsum(is_good), wanted)) + 1 if wanted else 0
            cells, lines, faults = cells.iloc[:end], lines[:end], faults[:end]
            is_good = is_good[:end]
            values = {key: column[:end] for key, column in values.items()}
        bad = np.flatnonzero(~is_good)
        for row in bad[: MOST_NAMED - len(first_bad)]:
            place = f"{path.name}, line {lines[row]}" if is_named else f"line {lines[row]}"
            first_bad.append(BadRow(place, _reason(cells, columns, places, row, faults[row])))
        num_good, num_bad = num_good + int(is_good.sum()), num_bad + len(bad)
        for key, column in values.items():
            parts[key].append(column[is_good])
        if num_good == reading.limit:
            break
    reading.report.add_bad(num_bad, first_bad)
    return {
        key: np.concatenate(parts[key]) if parts[key] else np.zeros(0, np.int64) for key in columns
    }


def _without_blank_lines(frame: _Frame) -> _Frame:
    is_blank = frame.cells.isna().all(axis=1).to_numpy()
    if not is_blank.any():
        return frame
    return _Frame(frame.cells[~is_blank].reset_index(drop=True), frame.lines[~is_blank])


def _parsed(
    cells: pandas.DataFrame, columns: Mapping[str, Column], places: Mapping[str, int]
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Values by column, and per row the number of its first faulty column, from 1; 0 for none."""
    faults = np.zeros(len(cells), np.int64)
    values = {}
    for number, (key, column) in enumerate(columns.items(), 1):
        if key not in places:
            values[key] = np.full(len(cells), column.default)
            continue
        found = cells[places[key]]
        if column.is_text:
            found = found.fillna("").str.strip()
            if found.str.contains("\n", regex=False).any():
                raise _Irregular
        if column.parse is None:
            values[key] = found.to_numpy(object)
            continue
        values[key], is_good = column.parse(found)
        faults = np.where((faults == 0) & ~is_good, number, faults)
    faults[cells[_EXTRA].notna().to_numpy()] = -1
    return values, faults


def _reason(
    cells: pandas.DataFrame,
    columns: Mapping[str, Column],
    places: Mapping[str, int],
    row: int,
    fault: int,
) -> str:
    import pandas

    if fault == -1:
        return _EXTRA
    key = list(columns)[fault - 1]
    column = columns[key]
    name = column.names[0] if column.names else key
    value = cells[places[key]].iloc[row]
    if pandas.isna(value) or value == "":
        return f"{name} is missing"
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    text = str(value)
    return f"{name} is {text if len(text) <= 40 else text[:37] + '...'}, not {column.wanted}"

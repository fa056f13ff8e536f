"""Parse tables in CSV or Parquet by columns, chunk by chunk, and name the faulty rows."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from blis_jax.core.types import SLO_CLASSES
from blis_jax.errors import ConfigError
from blis_jax.lazy import pandas, parquet, pyarrow
from blis_jax.traces.rows import LATEST_US, MOST_NAMED, MOST_TOKENS, BadRow, Reading, class_index

ROWS_AT_ONCE = 500_000  # of a table, as one chunk
EXTRA = "more fields than the header"  # column of surplus fields, and their message


class Column(NamedTuple):
    """A column, found by one of its names or by its position."""

    names: tuple[str, ...] = ()  # compared without case, spaces, - and _
    place: int | None = None  # counted from 0; overrides names
    parse: Callable[[Any], tuple[np.ndarray, np.ndarray]] | None = None  # values and is_good
    wanted: str = ""  # description of a good value, for errors
    is_text: bool = False
    default: object = None  # the value where the header lacks the column; None: it must be there


class Check(NamedTuple):
    """A rule on several columns of a row."""

    reason: str  # message for rows that break the rule
    is_good: Callable[[Mapping[str, np.ndarray]], np.ndarray]
    is_fault: bool = True  # otherwise such rows are left out and counted, but not malformed


class Frame(NamedTuple):
    """Some rows of a table."""

    cells: pandas.DataFrame  # by position; surplus fields, if possible, under `EXTRA`
    lines: np.ndarray  # number of each row
    unit: str = "line"  # unit of these numbers


class Irregular(Exception):
    """A table has quotes that the parser by columns cannot assign to single lines."""


def plain_name(name: str) -> str:
    """Return a column's name without case and separators."""
    return re.sub(r"[\s_-]+", "", name).lower()


def find_places(path: Path, names: Sequence[str], columns: Mapping[str, Column]) -> dict[str, int]:
    """Return the positions of the wanted columns that a table's header has.

    Raises:
        ConfigError: a column without a default is missing.
    """
    known = {plain_name(name): place for place, name in reversed(list(enumerate(names)))}
    places = {}
    for key, column in columns.items():
        if column.place is not None:
            at = column.place if column.place < len(names) else None
        else:
            at = next((known[p] for p in map(plain_name, column.names) if p in known), None)
        if at is not None:
            places[key] = at
        elif column.default is None:
            wanted = column.names[0] if column.names else f"number {(column.place or 0) + 1}"
            raise ConfigError(f"{path} has no column {wanted}; its header is {', '.join(names)}")
    return places


# --- parsers --------------------------------------------------------------------------------------


def whole(low: int, high: int) -> Callable[[Any], tuple[np.ndarray, np.ndarray]]:
    """Return a parser of whole numbers within bounds; it also accepts a fraction of zero, such as 3.0."""

    def parse(values: pandas.Series) -> tuple[np.ndarray, np.ndarray]:
        numbers = _as_numbers(values)
        is_good = (numbers >= low) & (numbers <= high) & (numbers == np.floor(numbers))
        return np.where(is_good, numbers, low).astype(np.int64), is_good

    return parse


def numbers(low: float, high: float) -> Callable[[Any], tuple[np.ndarray, np.ndarray]]:
    """Return a parser of numbers within bounds."""

    def parse(values: pandas.Series) -> tuple[np.ndarray, np.ndarray]:
        cells = _as_numbers(values).astype(np.float64)
        is_good = (cells >= low) & (cells <= high)
        return np.where(is_good, cells, low), is_good

    return parse


# 1,024 among the cells of a column of texts
_THOUSANDS = r"^(-?\d{1,3}),(\d{3})(?:,(\d{3}))?(\.\d*)?$"


def _as_numbers(values: pandas.Series) -> np.ndarray:
    """Return cells as numbers, NaN for a cell that is not a number; integers stay integers."""
    if values.dtype.kind in "iuf":
        return values.to_numpy()
    texts = values.astype(str).str.strip().str.replace(_THOUSANDS, r"\1\2\3\4", regex=True)
    return pandas.to_numeric(texts, errors="coerce").to_numpy(np.float64)


def counts(least: int, *names: str, most: int = MOST_TOKENS, default: int | None = None) -> Column:
    """Return a column of whole numbers within bounds, such as token counts."""
    wanted = f"a whole number of at least {least}"
    return Column(names, parse=whole(least, most), wanted=wanted, default=default)


def seconds(reading: Reading, *names: str, place: int | None = None) -> Column:
    """Return a column of times from 0 on, in seconds unless the reading names another unit."""
    parse = numbers(0, LATEST_US / reading.unit_us("s"))
    unit = "seconds" if reading.time_unit == "s" else reading.time_unit
    return Column(names, place, parse, wanted=f"a number of {unit} from 0 on")


def in_us(times: np.ndarray, reading: Reading) -> np.ndarray:
    """Return times, read with `seconds`, in whole µs, rounded."""
    return np.rint(times * reading.unit_us("s")).astype(np.int64)


_FIRST_YEAR, _LAST_YEAR = 1900, 2200  # nanoseconds in 64 bits reach from 1678 to 2261
A_DATE = "a date and time like 2023-11-16 18:17:03.9799600"


def dates(*names: str) -> Column:
    """Return a column of dates and times, with or without a zone (UTC if none is named), in nanoseconds."""
    return Column(names, parse=_nanoseconds, wanted=A_DATE, is_text=True)


def _nanoseconds(values: pandas.Series) -> tuple[np.ndarray, np.ndarray]:
    texts = values.str.replace(r" (UTC|GMT|Z)$", "Z", regex=True)
    times = pandas.to_datetime(texts, utc=True, format="ISO8601", errors="coerce")
    is_good = (times.dt.year >= _FIRST_YEAR) & (times.dt.year <= _LAST_YEAR)
    filled = times.where(is_good, pandas.Timestamp(0, tz="UTC"))
    return filled.dt.as_unit("ns").astype(np.int64).to_numpy(), is_good.to_numpy()


def since_first_us(times_ns: np.ndarray) -> np.ndarray:
    """Return times in ns as whole µs after the earliest time, rounded down."""
    return (times_ns - times_ns.min()) // 1000 if len(times_ns) else times_ns


def slo_classes(*names: str, default: int | None = None) -> Column:
    """Return a column of SLO classes by name, parsed to their indices; an empty cell has an index of its own, 0."""
    wanted = f"one of {', '.join(SLO_CLASSES[1:])}"
    return Column(names, parse=_classes, wanted=wanted, is_text=True, default=default)


def _classes(values: pandas.Series) -> tuple[np.ndarray, np.ndarray]:
    codes, names = pandas.factorize(values)
    indices = np.array([*(class_index(str(name)) for name in names), 0], np.int64)[codes]
    return np.maximum(indices, 0), indices >= 0


# --- rows -----------------------------------------------------------------------------------------


def read_frames(
    frames: Iterator[Frame],
    columns: Mapping[str, Column],
    places: Mapping[str, int],
    reading: Reading,
    checks: Sequence[Check] = (),
) -> dict[str, np.ndarray]:
    """Return the columns of all good rows; bad rows are reported through `reading`."""
    columns_read = _Found(columns, places, reading, checks)
    for frame in frames:
        is_blank = frame.cells.isna().all(axis=1).to_numpy()
        if is_blank.any():
            frame = Frame(frame.cells[~is_blank].reset_index(drop=True), frame.lines[~is_blank])
        columns_read.add(frame)
        if columns_read.num_good == reading.limit:
            break
    return columns_read.close()


@dataclass
class _Found:
    """Collects the columns read so far and the rows that were left out."""

    columns: Mapping[str, Column]
    places: Mapping[str, int]
    reading: Reading
    checks: Sequence[Check]
    num_good: int = 0
    num_bad: int = 0
    num_breaks: int = 0
    first_bad: list[BadRow] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.parts: dict[str, list[np.ndarray]] = {key: [] for key in self.columns}
        self.num_left_out = [0] * len(self.checks)

    def add(self, frame: Frame) -> None:
        """Add rows up to the limit of good ones."""
        values, faults = _parsed(frame.cells, self.columns, self.places)
        for number, check in enumerate(self.checks, 1):
            is_broken = (faults == 0) & ~check.is_good(values)
            faults = np.where(is_broken, len(self.columns) + number, faults)
        breaks = _line_breaks(frame.cells, faults)
        lines = frame.lines + self.num_breaks + np.cumsum(breaks) - breaks
        self.num_breaks += int(breaks.sum())
        end = self._end(faults)
        faults = faults[:end]
        self._count_bad(frame, lines, faults)
        self.num_good += int(np.count_nonzero(faults == 0))
        for key, column in values.items():
            self.parts[key].append(column[:end][faults == 0])

    def close(self) -> dict[str, np.ndarray]:
        """Return all columns, and report the rows that were left out."""
        self.reading.report.add_bad(self.num_bad, self.first_bad)
        for check, count in zip(self.checks, self.num_left_out, strict=True):
            if count:
                self.reading.report.notes.append(f"{count} {check.reason} left out")
        return {
            key: np.concatenate(parts) if parts else np.zeros(0, np.int64)
            for key, parts in self.parts.items()
        }

    def _end(self, faults: np.ndarray) -> int:
        """Return how many of these rows to read so that the good rows do not exceed the limit."""
        if self.reading.limit is None:
            return len(faults)
        wanted = self.reading.limit - self.num_good
        good = np.flatnonzero(faults == 0)
        return int(good[wanted - 1]) + 1 if len(good) >= wanted else len(faults)

    def _count_bad(self, frame: Frame, lines: np.ndarray, faults: np.ndarray) -> None:
        for number, check in enumerate(self.checks, len(self.columns) + 1):
            if not check.is_fault:
                self.num_left_out[number - len(self.columns) - 1] += int((faults == number).sum())
                faults = np.where(faults == number, 0, faults)
        bad = np.flatnonzero(faults)
        self.num_bad += len(bad)
        for row in bad[: MOST_NAMED - len(self.first_bad)].tolist():
            reason = self._reason(frame.cells, row, int(faults[row]))
            self.first_bad.append(BadRow(f"{frame.unit} {lines[row]}", reason))

    def _reason(self, cells: pandas.DataFrame, row: int, fault: int) -> str:
        if fault < 0:
            return EXTRA
        if fault > len(self.columns):
            return self.checks[fault - len(self.columns) - 1].reason
        key = list(self.columns)[fault - 1]
        column = self.columns[key]
        name = column.names[0] if column.names else key
        value = cells[self.places[key]].iloc[row]
        if pandas.isna(value) or value == "":
            return f"{name} is missing"
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        text = str(value)
        return f"{name} is {text if len(text) <= 40 else text[:37] + '...'}, not {column.wanted}"


def _line_breaks(cells: pandas.DataFrame, faults: np.ndarray) -> np.ndarray:
    """Return the number of line breaks inside each row's quotes; in a faulty row a break means a stray quote."""
    breaks = np.zeros(len(cells), np.int64)
    for name in cells:
        if cells[name].dtype.kind not in "iufb":
            texts = cells[name].fillna("").astype(str)
            if texts.str.contains("\n", regex=False).any():
                breaks += texts.str.count("\n").to_numpy(np.int64)
    if breaks[faults != 0].any():
        raise Irregular
    return breaks


def _texts(cells: pandas.Series) -> pandas.Series:
    """Return cells as texts without blanks around them; empty and missing cells become empty texts."""
    if cells.dtype.kind != "O" and pandas.api.types.is_string_dtype(cells):
        return cells.fillna("").str.strip()
    return cells.astype(object).map(str).where(cells.notna(), "").str.strip()


def _parsed(
    cells: pandas.DataFrame, columns: Mapping[str, Column], places: Mapping[str, int]
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Return values by column and, per row, the number of its first faulty column from 1 on; 0 for none."""
    faults = np.zeros(len(cells), np.int64)
    values = {}
    for number, (key, column) in enumerate(columns.items(), 1):
        if key not in places:
            values[key] = np.full(len(cells), column.default)
            continue
        cell = cells[places[key]]
        if column.is_text:
            cell = _texts(cell)
        if column.parse is None:
            values[key] = cell.to_numpy(object)
            continue
        values[key], is_good = column.parse(cell)
        faults = np.where((faults == 0) & ~is_good, number, faults)
    if EXTRA in cells:
        faults[cells[EXTRA].notna().to_numpy()] = -1
    return values, faults


# --- Parquet --------------------------------------------------------------------------------------


def need_pyarrow(path: Path) -> None:
    """Refuse a Parquet file where pyarrow, which reads and writes it, is not installed."""
    if importlib.util.find_spec("pyarrow") is None:
        raise ConfigError(f"{path} needs pyarrow; install blis-jax[parquet] or use CSV")


def parquet_names(path: Path) -> tuple[str, ...]:
    """Return the names of a Parquet file's columns.

    Raises:
        ConfigError: pyarrow is not installed, or the file is not a whole Parquet file.
    """
    need_pyarrow(path)
    try:
        return tuple(parquet.read_schema(path).names)
    except (OSError, pyarrow.ArrowException) as error:
        raise ConfigError(f"{path} is not a whole Parquet file ({error})") from None


def first_of_parquet(path: Path) -> dict[str, Any]:
    """Return the first row of a Parquet file; empty if it has none."""
    batches = parquet.ParquetFile(path).iter_batches(1)
    return next((row for batch in batches for row in batch.to_pylist()), {})


def parquet_frames(path: Path, names: Sequence[str], places: Mapping[str, int]) -> Iterator[Frame]:
    """Yield the rows of a Parquet file as `read_frames` yields those of CSV, counted from 1, `ROWS_AT_ONCE` a chunk."""
    file = parquet.ParquetFile(path)
    used = sorted(set(places.values()))
    row = 1
    for batch in file.iter_batches(ROWS_AT_ONCE, columns=[names[place] for place in used]):
        cells = batch.to_pandas().rename(columns={names[place]: place for place in used})
        yield Frame(cells, row + np.arange(len(cells)), "row")
        row += len(cells)

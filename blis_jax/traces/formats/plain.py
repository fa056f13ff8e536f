"""A table with one row per request, under common column names: CSV, JSON lines, one JSON list, or Parquet (needs
pyarrow).

A table needs an arrival and the tokens of prompt and output. This package's own names are arrival_us (or arrival_s),
input_tokens, output_tokens, and optionally slo_class, tenant, client, session, round_index, prefix_group,
prefix_tokens, request_id, timeout_us, delay_us, segment_contents and segment_ends (whole numbers with spaces between).
The format keeps everything that `TraceRows` holds, so every other format converts into it without loss. Other common
names of these columns are also read (`traces.names`); an arrival whose name has no unit is a date, or a number in the
first plausible unit.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from blis_jax.core.types import SLO_CLASSES
from blis_jax.files.atomic_write import replacing
from blis_jax.lazy import pandas
from blis_jax.traces import times
from blis_jax.traces.columns import (
    A_DATE,
    ROWS_AT_ONCE,
    Check,
    Column,
    Frame,
    counts,
    dates,
    find_places,
    first_of_parquet,
    in_us,
    need_pyarrow,
    parquet_frames,
    parquet_names,
    plain_name,
    read_frames,
    seconds,
    since_first_us,
    slo_classes,
)
from blis_jax.traces.delimited import header_names, note_columns, read_columns, read_header
from blis_jax.traces.measured.clients import CLIENTS
from blis_jax.traces.names import (
    ERRORS,
    HAS_NOT_FAILED,
    MODELS,
    NAMES,
    TIMES,
    found_name,
    further_columns,
    several_models,
    whole_prompts,
    with_unit,
)
from blis_jax.traces.read import Sniff, json_rows, sniff
from blis_jax.traces.rows import (
    DELAY,
    LATEST_US,
    NO_CODE,
    NO_DELAY,
    Reading,
    TraceRows,
    make_rows,
    number_turns,
    repeated_ids,
    sessions_of_clients,
)
from blis_jax.workload.contents import Segments

_TEXTS = ("tenant", "client", "session", "prefix_group")
_MODEL = "model"
_SEGMENTS = ("segment_contents", "segment_ends")


def matches(sniff: Sniff) -> bool:
    """Return whether the needed columns are there, or the file is Parquet; a client's figures, whose totals have such
    names, do not match.
    """
    shown = (*sniff.objects[:1], sniff.objects)
    if any(client.matches(each) for client in CLIENTS.values() for each in shown):
        return False
    listed = [sniff.names, *([*flat(row)] for row in sniff.objects[:1])]
    return sniff.is_parquet or any(
        with_unit(each, TIMES) is not None
        and all(
            found_name(each, NAMES[name]) is not None for name in ("input_tokens", "output_tokens")
        )
        for each in listed
    )


def read(
    path: Path,
    reading: Reading,
    further: Callable[[Sequence[str]], Mapping[str, Column]] | None = None,
) -> TraceRows:
    """Return the requests in the order of the file; their `others` holds the `further` columns, by name."""
    table = _Table.of(path)
    if further is not None:
        table = replace(table, further=further(table.names))
    if table.unit is not None or table.has_dates or reading.time_unit is not None:
        return _read(table, reading)
    rows, how = times.read_in_unit(partial(_read, table), replace(reading, time_unit=times.AUTO))
    reading.report, reading.time_unit = how.report, how.time_unit
    return rows


@dataclass(frozen=True)
class _Table:
    """A table's column names, its arrival column with its unit, and the parser of its rows."""

    path: Path
    names: tuple[str, ...]
    arrival: str
    unit: str | None  # in the arrival's name
    has_dates: bool
    kind: str  # csv, json or parquet
    further: Mapping[str, Column] = field(default_factory=dict)

    @classmethod
    def of(cls, path: Path) -> _Table:
        """Return a table read from `path`, from its names and its first arrival."""
        seen = sniff(path)
        first: Mapping[str, Any] = {}
        if seen.is_parquet:
            kind, names = "parquet", parquet_names(path)
            first = first_of_parquet(path)
        elif seen.objects:
            first = flat(seen.objects[0])
            kind = "json"
            names = tuple(dict.fromkeys(name for each in seen.objects for name in flat(each)))
        else:
            kind, names = "csv", read_header(path).names
            if len(seen.lines) > 1:
                first = dict(zip(names, header_names(seen.lines[1]), strict=False))
        arrival, unit = with_unit(names, TIMES) or ("arrival_us", "us")
        return cls(path, names, arrival, unit, _is_date(first.get(arrival)), kind)

    def columns(self, reading: Reading) -> dict[str, Column]:
        """Return the columns to read, under this package's names; messages on faulty rows use the file's names."""

        def named(key: str) -> str:
            return found_name(self.names, NAMES.get(key, (key,))) or key

        lists = Column(
            parse=_number_lists,
            wanted="whole numbers with spaces between",
            is_text=True,
            default="",
        )
        return {
            "arrival": self._arrival(reading),
            "input_tokens": counts(1, named("input_tokens")),
            "output_tokens": counts(0, named("output_tokens")),
            "slo_class": slo_classes("slo_class", default=0),
            "round_index": counts(0, named("round_index"), default=0),
            "prefix_tokens": counts(0, named("prefix_tokens"), default=0),
            "request_id": Column(("request_id",), parse=_ids, default=NO_CODE),
            "timeout_us": counts(0, "timeout_us", most=LATEST_US, default=0),
            **{name: Column((named(name),), is_text=True, default="") for name in _TEXTS},
            **{name: lists._replace(names=(name,)) for name in _SEGMENTS},
            _MODEL: Column((found_name(self.names, MODELS) or _MODEL,), is_text=True, default=""),
            **further_columns(self.names),
            **self.further,
            **times.delay_columns(self.names, self._arrival(reading)),
        }

    def _arrival(self, reading: Reading) -> Column:
        if self.has_dates:
            return dates(self.arrival)
        is_exact = self.unit == "us" and reading.time_unit in (None, "us")
        reading.unit_us(self.unit or "s")
        if is_exact:
            return counts(0, self.arrival, most=LATEST_US)
        column = seconds(reading, self.arrival)
        return column._replace(wanted=f"{column.wanted}, nor {A_DATE}")


def _is_date(value: object) -> bool:
    text = str(value).strip()
    return re.match(r"[0-9]{4}-[0-9]{2}-[0-9]{2}([T ]|$)|[0-9]{8}T", text) is not None


def _read(table: _Table, reading: Reading) -> TraceRows:
    columns = table.columns(reading)
    if table.kind == "csv":
        parts = read_columns(table.path, columns, reading, _CHECKS)
    else:
        places = find_places(table.path, table.names, columns)
        note_columns(table.names, places, reading)
        frames = parquet_frames if table.kind == "parquet" else _json_frames
        parts = read_frames(
            frames(table.path, table.names, places), columns, places, reading, _CHECKS
        )
    parts, notes = whole_prompts(parts)
    models = several_models(parts.pop(_MODEL))
    reading.report.notes += notes + models
    if not models:
        reading.report.add_unread(name for name in table.names if name in MODELS)
    others = {name: parts.pop(name) for name in table.further}
    time = parts.pop("arrival")
    placed = {"arrival": time, DELAY: parts.pop(DELAY)} if DELAY in parts else {}
    if table.has_dates:
        known = time[time != NO_DELAY] if placed else time
        time = since_first_us(np.maximum(time, known.min(initial=np.iinfo(np.int64).max)))
    segments = [parts.pop(name) for name in _SEGMENTS]
    rows = make_rows(
        in_us(time, reading) if time.dtype.kind == "f" else time,
        parts.pop("input_tokens"),
        parts.pop("output_tokens"),
        texts={name: parts.pop(name) for name in _TEXTS},
        segments=_segments(*segments),
        prefix_len=parts.pop("prefix_tokens"),
        **_with_ids(parts, table, reading),
    )
    has_turns = found_name(table.names, NAMES["round_index"]) is not None
    rows = rows if has_turns else sessions_of_clients(rows, reading.report.notes)
    rows = replace(rows, others={**rows.others, **others}) if others else rows
    rows = times.after_answers(rows, placed, table.names, reading) if placed else rows
    return rows if has_turns else number_turns(rows)


def write(rows: TraceRows, path: Path) -> None:
    """Write everything that the rows hold, as Parquet if the path ends in .parquet."""
    table: dict[str, Any] = {
        "arrival_us": rows.arrival_us,
        "input_tokens": rows.input_len,
        "output_tokens": rows.output_len,
        "slo_class": np.array(SLO_CLASSES, object)[rows.slo_class],
        "round_index": rows.round_index,
        "prefix_tokens": rows.prefix_len,
        "request_id": rows.request_id,
    }
    for name in _TEXTS:
        codes = getattr(rows, name)
        listed = getattr(rows, f"{name}_names")
        table[name] = np.array([*listed, ""], object)[np.where(codes < 0, len(listed), codes)]
    if rows.timeout_us.any():
        table["timeout_us"] = rows.timeout_us
    if DELAY in rows.others:
        delay_us = pandas.Series(rows.others[DELAY], dtype="Int64")
        table[DELAY] = delay_us.where(waits := delay_us != NO_DELAY)
        table["arrival_us"] = pandas.Series(rows.arrival_us, dtype="Int64").where(~waits)
    if rows.segments is not None:
        for name, values in zip(_SEGMENTS, (rows.segments.content, rows.segments.end), strict=True):
            table[name] = [" ".join(map(str, part)) for part in _split(values, rows.segments.ptr)]
    frame = pandas.DataFrame(table)
    if is_parquet := path.suffix == ".parquet":
        need_pyarrow(path)
    with replacing(path) as written:
        if is_parquet:
            frame.to_parquet(written, engine="pyarrow", index=False)
        else:
            frame.to_csv(written, index=False)


def _split(values: np.ndarray, ptr: np.ndarray) -> list[list[int]]:
    return [part.tolist() for part in np.split(values, ptr[1:-1])] if len(ptr) > 1 else []


def _ids(values: pandas.Series) -> tuple[np.ndarray, np.ndarray]:
    """Return request ids as numbers, NO_CODE for none, and less for the hash of a text; every row counts as good."""
    numbers = pandas.to_numeric(values, errors="coerce").to_numpy(np.float64)
    is_id = (numbers >= 0) & (numbers <= 2**62) & (numbers == np.floor(numbers))
    if values.dtype.kind in "iu":
        return np.where(is_id, values.to_numpy(), NO_CODE).astype(np.int64), np.ones(
            len(values), bool
        )
    ids = np.where(is_id, numbers, NO_CODE).astype(np.int64)
    if not is_id.all():
        texts = values.astype(object).where(values.notna(), "").map(str).to_numpy(object)
        hashed = (pandas.util.hash_array(texts) >> np.uint64(2)).astype(np.int64)
        ids = np.where(is_id | (texts == ""), ids, NO_CODE - 1 - hashed)
    return ids, np.ones(len(values), bool)


def _number_lists(values: pandas.Series) -> tuple[np.ndarray, np.ndarray]:
    is_good = values.str.fullmatch(r"(-?[0-9]{1,18}( +-?[0-9]{1,18})*)?").to_numpy(bool)
    return np.where(is_good, values.to_numpy(object), ""), is_good


def _with_ids(
    columns: dict[str, np.ndarray], table: _Table, reading: Reading
) -> dict[str, np.ndarray]:
    """Return the columns without request_id, so that rows are numbered, unless every row has a numeric id."""
    ids = columns["request_id"]
    if bool((ids >= 0).all()):
        return columns
    texts = ids[ids < NO_CODE]
    if repeated := len(texts) - np.unique(texts).size:
        reading.report.notes.append(repeated_ids(repeated))
    reading.report.add_unread(name for name in table.names if plain_name(name) == "requestid")
    return {name: columns[name] for name in columns if name != "request_id"}


def _segments(contents: np.ndarray, ends: np.ndarray) -> Segments | None:
    if not any(contents):
        return None
    ptr = np.cumsum([0, *(len(text.split()) for text in contents)])
    return Segments(
        ptr,
        np.array(" ".join(contents).split(), np.int64),
        np.array(" ".join(ends).split(), np.int64),
    )


def _has_fitting_segments(columns: Mapping[str, np.ndarray]) -> np.ndarray:
    is_good = np.ones(len(columns["input_tokens"]), bool)
    tokens = columns["input_tokens"] + columns["output_tokens"]
    contents, ends = (columns[name] for name in _SEGMENTS)
    for row in np.flatnonzero((contents != "") | (ends != "")):
        end = np.array(ends[row].split(), np.int64)
        is_good[row] = (
            len(end) == len(contents[row].split())
            and bool(np.all(np.diff(end, prepend=0) > 0))
            and bool(np.all(end <= tokens[row]))
        )
    return is_good


_CHECKS = (
    HAS_NOT_FAILED,
    times.NOT_BOTH,
    Check(
        "prefix_tokens is above input_tokens",
        lambda columns: columns["prefix_tokens"] <= columns["input_tokens"],
    ),
    Check(
        "segment_ends does not rise up to at most all tokens, one for each of segment_contents",
        _has_fitting_segments,
    ),
)


# --- JSON lines -----------------------------------------------------------------------------------


def flat(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a nested object by their innermost names; of equal names the outermost wins."""
    values = {
        name: "an error" if isinstance(value, Mapping) else value
        for name, value in row.items()
        if not isinstance(value, Mapping) or (name in ERRORS and value)
    }
    for inner in row.values():
        if isinstance(inner, Mapping):
            values = flat(inner) | values
    return values


def _json_frames(path: Path, names: Sequence[str], places: Mapping[str, int]) -> Iterator[Frame]:
    """Yield chunks in the form of the CSV parser's; a line that is not an object has its text in the arrival column."""
    what, numbered = json_rows(path)
    while batch := list(islice(numbered, ROWS_AT_ONCE)):
        objects = [_object(line, names[places["arrival"]]) for _, line in batch]
        cells = {
            place: [_cell(row.get(names[place])) for row in objects] for place in places.values()
        }
        frame = pandas.DataFrame(cells, dtype=object)
        yield Frame(frame, np.array([number for number, _ in batch]), what)


def _cell(value: object) -> object:
    """Return a number or None as it is, any other value as text, without half characters."""
    if value is None or isinstance(value, int | float):
        return value
    text = value if isinstance(value, str) else json.dumps(value)
    return text.encode("utf-8", "replace").decode()


def _object(line: str, arrival: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        row = None
    return flat(row) if isinstance(row, dict) else {arrival: line.strip()}

"""Our own trace: one row per request as CSV, or as Parquet where pyarrow is installed.

Columns: arrival_us (or arrival_s), input_tokens, output_tokens, and if wanted slo_class, tenant,
client, session, round_index, prefix_group, prefix_tokens, request_id, segment_contents and
segment_ends (whole numbers with spaces between). Everything that rows can hold is kept, so every
other format can be turned into this one without loss.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from blis_jax.core.types import SLO_CLASSES
from blis_jax.errors import ConfigError
from blis_jax.files.atomic_write import replacing
from blis_jax.lazy import pandas
from blis_jax.traces.columns import (
    Check,
    Column,
    Frame,
    counts,
    find_places,
    in_us,
    plain_name,
    read_frames,
    seconds,
    slo_classes,
)
from blis_jax.traces.delimited import read_columns, read_header
from blis_jax.traces.read import PARQUET_MARK, Sniff
from blis_jax.traces.rows import LATEST_US, NO_CODE, Reading, TraceRows, make_rows
from blis_jax.workload.contents import Segments

ROWS_AT_ONCE = 500_000
_TEXTS = ("tenant", "client", "session", "prefix_group")
_SEGMENTS = ("segment_contents", "segment_ends")


def matches(sniff: Sniff) -> bool:
    """Return whether the three columns are there, or the file is Parquet."""
    has_time = sniff.has_columns("arrival_us") or sniff.has_columns("arrival_s")
    return sniff.is_parquet or (has_time and sniff.has_columns("input_tokens", "output_tokens"))


def read(path: Path, reading: Reading) -> TraceRows:
    """Return the requests in the order of the file."""
    is_parquet = _is_parquet(path)
    names = _parquet_names(path) if is_parquet else read_header(path).names
    columns = _columns({plain_name(name) for name in names}, reading)
    if is_parquet:
        places = find_places(path, names, columns)
        parts = read_frames(_parquet_frames(path, places), columns, places, reading, _CHECKS)
    else:
        parts = read_columns(path, columns, reading, _CHECKS)
    time = parts.pop("arrival")
    arrival_us = in_us(time, reading) if time.dtype.kind == "f" else time
    segments = [parts.pop(name) for name in _SEGMENTS]
    return make_rows(
        arrival_us,
        parts.pop("input_tokens"),
        parts.pop("output_tokens"),
        texts={name: parts.pop(name) for name in _TEXTS},
        segments=_segments(*segments),
        prefix_len=parts.pop("prefix_tokens"),
        **_with_ids(parts),
    )


def write(rows: TraceRows, path: Path) -> None:
    """Write all that the rows hold, as Parquet where the path ends in .parquet."""
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
    if rows.segments is not None:
        for name, values in zip(_SEGMENTS, (rows.segments.content, rows.segments.end), strict=True):
            table[name] = [" ".join(map(str, part)) for part in _split(values, rows.segments.ptr)]
    frame = pandas.DataFrame(table)
    is_parquet = path.suffix == ".parquet"
    if is_parquet:
        _need_pyarrow(path)
    with replacing(path) as written:
        if is_parquet:
            frame.to_parquet(written, engine="pyarrow", index=False)
        else:
            frame.to_csv(written, index=False)


def _split(values: np.ndarray, ptr: np.ndarray) -> list[list[int]]:
    return [part.tolist() for part in np.split(values, ptr[1:-1])] if len(ptr) > 1 else []


def _columns(names: set[str], reading: Reading) -> dict[str, Column]:
    name = "arrival_us" if plain_name("arrival_us") in names else "arrival_s"
    if name == "arrival_us" and reading.time_unit in (None, "us"):
        reading.unit_us("us")
        arrival = counts(0, name, most=LATEST_US)
    else:
        arrival = seconds(reading, name)
    lists = Column(
        parse=_number_lists, wanted="whole numbers with spaces between", is_text=True, default=""
    )
    return {
        "arrival": arrival,
        "input_tokens": counts(1, "input_tokens", "input_len"),
        "output_tokens": counts(0, "output_tokens", "output_len"),
        "slo_class": slo_classes("slo_class", default=0),
        "round_index": counts(0, "round_index", default=0),
        "prefix_tokens": counts(0, "prefix_tokens", "prefix_len", default=0),
        "request_id": counts(0, "request_id", most=2**62, default=NO_CODE),
        "timeout_us": counts(0, "timeout_us", most=LATEST_US, default=0),
        **{name: Column((name,), is_text=True, default="") for name in _TEXTS},
        **{name: lists._replace(names=(name,)) for name in _SEGMENTS},
    }


def _number_lists(values: pandas.Series) -> tuple[np.ndarray, np.ndarray]:
    is_good = values.str.fullmatch(r"(-?[0-9]{1,18}( +-?[0-9]{1,18})*)?").to_numpy(bool)
    return np.where(is_good, values.to_numpy(object), ""), is_good


def _with_ids(found: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Without request_id if the file has none, so that rows are numbered."""
    has_ids = bool((found["request_id"] != NO_CODE).all())
    return found if has_ids else {name: found[name] for name in found if name != "request_id"}


def _segments(contents: np.ndarray, ends: np.ndarray) -> Segments | None:
    if not any(contents):
        return None
    ptr = np.cumsum([0, *(len(text.split()) for text in contents)])
    return Segments(
        ptr,
        np.array(" ".join(contents).split(), np.int64),
        np.array(" ".join(ends).split(), np.int64),
    )


def _has_fitting_segments(found: Mapping[str, np.ndarray]) -> np.ndarray:
    is_good = np.ones(len(found["input_tokens"]), bool)
    tokens = found["input_tokens"] + found["output_tokens"]
    contents, ends = (found[name] for name in _SEGMENTS)
    for row in np.flatnonzero((contents != "") | (ends != "")):
        end = np.array(ends[row].split(), np.int64)
        is_good[row] = (
            len(end) == len(contents[row].split())
            and bool(np.all(np.diff(end, prepend=0) > 0))
            and bool(np.all(end <= tokens[row]))
        )
    return is_good


_CHECKS = (
    Check(
        "prefix_tokens is above input_tokens",
        lambda found: found["prefix_tokens"] <= found["input_tokens"],
    ),
    Check(
        "segment_ends does not rise up to at most all tokens, one for each of segment_contents",
        _has_fitting_segments,
    ),
)


# --- Parquet --------------------------------------------------------------------------------------


def _is_parquet(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(len(PARQUET_MARK)) == PARQUET_MARK


def _need_pyarrow(path: Path) -> None:
    if importlib.util.find_spec("pyarrow") is None:
        raise ConfigError(f"{path} needs pyarrow; install blis-jax[parquet] or use CSV")


def _parquet_names(path: Path) -> tuple[str, ...]:
    _need_pyarrow(path)
    import pyarrow
    from pyarrow import parquet

    try:
        return tuple(parquet.read_schema(path).names)
    except (OSError, pyarrow.ArrowException) as error:
        raise ConfigError(f"{path} is not a whole Parquet file ({error})") from None


def _parquet_frames(path: Path, places: dict[str, int]) -> Iterator[Frame]:
    """Chunks as the CSV reader makes them, rows counted from 1."""
    from pyarrow import parquet

    file = parquet.ParquetFile(path)
    names = file.schema_arrow.names
    used = sorted(set(places.values()))
    row = 1
    for batch in file.iter_batches(ROWS_AT_ONCE, columns=[names[place] for place in used]):
        cells = batch.to_pandas().rename(columns={names[place]: place for place in used})
        yield Frame(cells, row + np.arange(len(cells)), "row")
        row += len(cells)

"""BLIS's TraceV2 as of February 2026: 22 columns as CSV, a YAML header in a second file.

The file is read as in the reference's replay: columns by position, arrival_time_us as the arrival, every row whatever
its status, and for rows of a prefix group 50 shared tokens put *before* input_tokens. Columns are identified by name if
another revision has moved them. Contents are otherwise private. Send and chunk times, modalities and the reason ratio
are checked, but change nothing in a simulation. The header is checked, and may be absent.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
from pydantic import ValidationError

from blis_jax.core.types import SLO_CLASSES
from blis_jax.errors import ConfigError
from blis_jax.files import input_files
from blis_jax.files.atomic_write import replacing, write_csv
from blis_jax.files.strict_yaml import read_mapping, sentence
from blis_jax.lazy import pandas, yaml
from blis_jax.traces.columns import Check, Column, counts, numbers, slo_classes, whole
from blis_jax.traces.delimited import read_columns
from blis_jax.traces.delimited import read_header as read_csv_header
from blis_jax.traces.read import Sniff
from blis_jax.traces.rows import LATEST_US, MOST_TOKENS, NO_CODE, Reading, TraceRows, make_rows
from blis_jax.workload.length_laws import Strict

H = TypeVar("H", bound=Strict)
PREFIX_TOKENS = 50  # of every prefix group, as in the reference's replay
COLUMNS = (
    *("request_id", "client_id", "tenant_id", "slo_class", "session_id", "round_index"),
    *("prefix_group", "streaming", "input_tokens", "output_tokens"),
    *("text_tokens", "image_tokens", "audio_tokens", "video_tokens", "reason_ratio"),
    *("arrival_time_us", "send_time_us", "first_chunk_time_us", "last_chunk_time_us"),
    *("num_chunks", "status", "error_message"),
)
_TEXTS = ("client_id", "tenant_id", "session_id", "prefix_group", "status", "error_message")
_COUNTS = ("text_tokens", "image_tokens", "audio_tokens", "video_tokens", "num_chunks")
_TIMES = ("send_time_us", "first_chunk_time_us", "last_chunk_time_us")


class Server(Strict):
    """The server of a recorded run."""

    type: str = ""
    model: str = ""
    tensor_parallel: int = 0
    max_num_seqs: int = 0
    block_size: int = 0
    gpu_memory_utilization: float = 0.0
    max_model_len: int = 0


class Network(Strict):
    """The network of a recorded run."""

    measured_rtt_ms: float = 0.0


class Header(Strict):
    """The YAML header."""

    trace_version: Literal[2] = 2
    time_unit: Literal["", "us", "microseconds"] = "microseconds"
    created_at: str = ""
    mode: str = "generated"
    warm_up_requests: int = 0
    workload_spec: str = ""
    server: Server | None = None
    network: Network | None = None


_HAS_PROMPT = Check(
    "input_tokens is 0, and no prefix group adds to it",
    lambda columns: (columns["input_tokens"] > 0) | (columns["prefix_group"] != ""),
)


def matches(sniff: Sniff) -> bool:
    """Return whether the file has the format's columns or is its header; called after the later form's `matches`."""
    is_header = any(line.startswith("trace_version:") for line in sniff.lines)
    return is_header or sniff.has_columns("request_id", "input_tokens", "arrival_time_us")


def read(path: Path, reading: Reading) -> TraceRows:
    """Return the requests in the order of the file; `path` names the rows or the header."""
    path = rows_path(path, reading, Header)
    parts = read_columns(path, _columns(path), reading, [_HAS_PROMPT])
    is_member = parts["prefix_group"] != ""
    input_len = parts["input_tokens"] + np.where(is_member, PREFIX_TOKENS, 0)
    return make_rows(
        parts["arrival_time_us"],
        input_len,
        parts["output_tokens"],
        texts={
            "client": parts["client_id"],
            "tenant": parts["tenant_id"],
            "session": parts["session_id"],
            "prefix_group": parts["prefix_group"],
        },
        slo_class=parts["slo_class"],
        round_index=parts["round_index"],
        request_id=parts["request_id"],
        prefix_len=np.where(is_member, PREFIX_TOKENS, 0),
    )


def rows_path(path: Path, reading: Reading, kind: type[Strict]) -> Path:
    """Return the path of the rows, given the path of the rows or the header, after checking the header."""
    header = Path(reading.header) if reading.header else header_path(path)
    if path.suffix in (".yaml", ".yml"):
        header, path = path, rows_beside(path)
    if header is None:
        reading.report.notes.append(f"{path.name} has no YAML header beside it; read without one")
    else:
        checked(header, kind)
    return path


def checked(path: Path, kind: type[H]) -> H:
    """Return the header of class `kind` in a file; raises ConfigError if the file is not such a header."""
    text = input_files.read_text(path, "a TraceV2 header")
    try:
        return kind.model_validate(read_mapping(text, str(path)))
    except ValidationError as error:
        raise ConfigError(f"{path}: {sentence(error)}") from None


def read_header(path: Path) -> Header:
    """Return the header in a file, checked."""
    return checked(path, Header)


def header_path(path: Path) -> Path | None:
    """Return the header's path beside the rows: same name with .yaml or .yml, else header.yaml."""
    stem = path.name.removesuffix(".gz").removesuffix(".csv")
    names = (f"{stem}.yaml", f"{stem}.yml", "header.yaml", "header.yml")
    return next((path.parent / name for name in names if (path.parent / name).is_file()), None)


def write(
    rows: TraceRows,
    path: Path,
    header: Header | None = None,
    outcome: dict[str, np.ndarray] | None = None,
) -> None:
    """Write the rows at `path` and the header beside them, at `path` with .yaml.

    `outcome` has columns of a run: send and chunk times, num_chunks, status, error_message.
    """
    if rows.segments is not None or ((rows.prefix_len > 0) & (rows.prefix_len != 50)).any():
        raise ConfigError(
            f"{path}: a TraceV2 trace can only say that prompts share {PREFIX_TOKENS} tokens of a "
            "group, but these share other contents; write the plain format"
        )
    header = header or Header()
    settings = {"trace_version": 2, **header.model_dump(exclude_defaults=True)}
    settings |= {name: getattr(header, name) for name in ("time_unit", "mode", "warm_up_requests")}
    write_pair(path, _table(rows, outcome or {}), yaml.safe_dump(settings, sort_keys=False))


def write_pair(path: Path, table: Mapping[str, Any], header: str) -> None:
    """Write the rows at `path`, and the text `header` beside them."""
    write_csv(path, pandas.DataFrame(table))
    with replacing(path.with_suffix(".yaml")) as written:
        written.write_text(header, encoding="utf-8")


def _table(rows: TraceRows, outcome: dict[str, np.ndarray]) -> dict[str, Any]:
    columns: dict[str, Any] = dict.fromkeys(COLUMNS, np.zeros(len(rows), np.int64))
    columns |= row_columns(rows)
    columns |= {
        "text_tokens": columns["input_tokens"],
        "status": np.full(len(rows), "ok", object),
        "error_message": np.full(len(rows), "", object),
    }
    return columns | outcome


def row_columns(rows: TraceRows) -> dict[str, np.ndarray]:
    """Return the columns common to both forms, as far as the rows hold them."""
    return {
        "request_id": rows.request_id,
        "client_id": named(rows.client, rows.client_names),
        "tenant_id": named(rows.tenant, rows.tenant_names),
        "slo_class": named(rows.slo_class, SLO_CLASSES),
        "session_id": named(rows.session, rows.session_names),
        "round_index": rows.round_index,
        "prefix_group": named(rows.prefix_group, rows.prefix_group_names),
        "streaming": np.full(len(rows), "false", object),
        "input_tokens": rows.input_len - rows.prefix_len,
        "output_tokens": rows.output_len,
        "arrival_time_us": rows.arrival_us,
        "send_time_us": rows.arrival_us,
    }


def named(codes: np.ndarray, names: tuple[str, ...]) -> np.ndarray:
    """Return the texts of codes, empty for NO_CODE."""
    return np.array([*names, ""], object)[np.where(codes == NO_CODE, len(names), codes)]


def _columns(path: Path) -> dict[str, Column]:
    """Return the columns by position as in the reference, or by name if another revision has moved them."""
    names = read_csv_header(path).names
    is_elsewhere = names[: len(COLUMNS)] != COLUMNS and set(COLUMNS) <= set(names)
    columns = parsers(_TEXTS, ("output_tokens", *_COUNTS), _TIMES) | {
        "input_tokens": counts(0, most=MOST_TOKENS - PREFIX_TOKENS),
        "reason_ratio": Column(parse=numbers(-np.inf, np.inf), wanted="a number"),
    }
    return {
        name: columns[name]._replace(names=(name,), place=None if is_elsewhere else place)
        for place, name in enumerate(COLUMNS)
    }


def parsers(
    texts: Iterable[str], counted: Iterable[str], times: Iterable[str]
) -> dict[str, Column]:
    """Return the columns' parsers for both forms: of the given texts, counts and times, and of all shared columns."""
    time = Column(parse=whole(-(2**62), 2**62), wanted="a whole number")
    arrival = counts(0, most=LATEST_US)
    return {
        "request_id": counts(0, most=2**62),
        "arrival_time_us": arrival._replace(wanted=f"{arrival.wanted} below 2^60"),
        "streaming": Column(parse=_truths, wanted="true or false", is_text=True),
        "slo_class": slo_classes(),
        **dict.fromkeys(texts, Column(is_text=True)),
        **dict.fromkeys(("round_index", *counted), counts(0)),
        **dict.fromkeys(times, time),
    }


def _truths(values: pandas.Series) -> tuple[np.ndarray, np.ndarray]:
    """Return which texts Go reads as true, and which texts Go can read as true or false."""
    is_true = values.isin(["1", "t", "T", "TRUE", "true", "True"])
    is_false = values.isin(["0", "f", "F", "FALSE", "false", "False"])
    return is_true.to_numpy(), (is_true | is_false).to_numpy()


def rows_beside(header: Path) -> Path:
    """Return the path of the rows beside a header: same name with .csv or .csv.gz, else data.csv."""
    names = [f"{header.stem}.csv", f"{header.stem}.csv.gz", "data.csv"]
    path = next((header.parent / name for name in names if (header.parent / name).is_file()), None)
    if path is None:
        raise ConfigError(
            f"{header} is the header of a TraceV2 trace, but {names[0]} is not beside it; "
            "give the CSV file with --trace and this one with --trace-header"
        )
    return path

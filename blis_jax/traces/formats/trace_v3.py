"""BLIS's TraceV2 as of August 2026, whose header says version 3: 27 columns as CSV and a YAML header.

The file is read as in the reference's replay with fixed arrivals: the time of sending, if given, is the arrival; the
server's count of prompt tokens, if given, replaces the client's for rows without a prefix group; and the rows of a
group begin with as many shared tokens as the group's first row says. Contents are otherwise private. Rows of sessions
arrive when the file says; think times are checked and change nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import Field

from blis_jax.errors import ConfigError
from blis_jax.traces.columns import Check, Column, counts, numbers, whole
from blis_jax.traces.delimited import read_columns
from blis_jax.traces.formats import trace_v2
from blis_jax.traces.formats.trace_v2 import (
    checked,
    header_path,
    named,
    parsers,
    row_columns,
    rows_path,
    write_pair,
)
from blis_jax.traces.read import Sniff
from blis_jax.traces.rows import (
    ADAPTER,
    DELAY,
    LATEST_US,
    MOST_TOKENS,
    ROW_PREFIX,
    Reading,
    TraceRows,
    make_rows,
)
from blis_jax.workload.length_laws import Strict, Whole
from blis_jax.workload.spec_parts import ClassTargets
from blis_jax.workload.written import as_blis_writes

COLUMNS = (
    *("request_id", "client_id", "tenant_id", "slo_class", "session_id", "round_index"),
    *("prefix_group", "prefix_length", "streaming", "input_tokens", "output_tokens"),
    *("text_tokens", "image_tokens", "audio_tokens", "video_tokens", "reason_ratio"),
    *("model", "deadline_us", "server_input_tokens"),
    *("arrival_time_us", "send_time_us", "first_chunk_time_us", "last_chunk_time_us"),
    *("num_chunks", "status", "error_message", "finish_reason"),
)
MODALITIES = ("text", "image", "audio", "video")
TARGET = "slo_target_us"  # behind deadline_us, if a request has one
_TEXTS = (
    *("client_id", "tenant_id", "session_id", "prefix_group", "model"),
    *("status", "error_message", "finish_reason"),
)
_COUNTS = (
    *("prefix_length", "output_tokens", "server_input_tokens", "num_chunks"),
    *("text_tokens", "image_tokens", "audio_tokens", "video_tokens"),
)
_OPTIONAL = ("vllm_priority", TARGET, "think_time_us")  # optional columns of numbers


class RevisedHeader(Strict):
    """The YAML header of August 2026."""

    trace_version: Literal[2, 3] = 3
    time_unit: Literal["", "us", "microseconds"] = "microseconds"
    created_at: str = ""
    mode: str = "generated"
    warm_up_requests: int = 0
    workload_seed: Whole | None = None
    workload_spec: str = ""
    session_context_growth: Literal["", "accumulate"] = ""  # of closed-loop replays
    server: trace_v2.Server | None = None
    network: trace_v2.Network | None = None
    goodput_slo_targets: dict[str, ClassTargets] = Field(default_factory=dict)
    kv_offload: dict[str, Any] | None = None
    observed_kv_metrics: dict[str, Any] | None = None


_HAS_TOKENS = Check(
    "input_tokens and output_tokens are 0, and no prefix adds to them",
    lambda columns: (
        (columns["input_tokens"] > 0)
        | (columns["output_tokens"] > 0)
        | ((columns["prefix_group"] != "") & (columns["prefix_length"] > 0))
        | ((columns["prefix_group"] == "") & (columns["server_input_tokens"] > 0))
    ),
)
_IN_TIME = Check(
    "deadline_us is not later than the arrival",
    lambda columns: (
        (columns["deadline_us"] == 0) | (columns["deadline_us"] > columns["arrival_time_us"])
    ),
)


def matches(sniff: Sniff) -> bool:
    """Return whether the file has the format's columns or is a header of version 3."""
    is_header = any(
        line.replace(" ", "").rstrip().startswith("trace_version:3") for line in sniff.lines
    )
    names = ("request_id", "prefix_length", "input_tokens", "arrival_time_us", "deadline_us")
    return is_header or sniff.has_columns(*names)


def read(path: Path, reading: Reading) -> TraceRows:
    """Return the requests in the order of the file; `path` names the rows or the header."""
    path = rows_path(path, reading, RevisedHeader)
    header = header_of(path, reading.header)
    if header is not None and header.kv_offload:
        reading.report.notes.append(
            f"kv_offload of the header ({', '.join(header.kv_offload)}) counts in `replay` alone: elsewhere, without "
            "--kv-offload-config FILE, the instances have no such tiers"
        )
    parts = columns_of(path, reading)
    arrival_us = _arrivals(parts)
    group_tokens = _group_tokens(parts["prefix_group"], parts["prefix_length"])
    is_counted = (parts["server_input_tokens"] > 0) & (parts["prefix_group"] == "")
    new_tokens = np.where(is_counted, parts["server_input_tokens"], parts["input_tokens"])
    names = ("client", "tenant", "session")
    texts = {name: parts[f"{name}_id"] for name in names} | {"model": parts["model"]}
    texts["prefix_group"] = np.where(group_tokens > 0, parts["prefix_group"], "")
    rows = make_rows(
        arrival_us,
        new_tokens + group_tokens,
        parts["output_tokens"],
        texts=texts,
        slo_class=parts["slo_class"],
        round_index=parts["round_index"],
        request_id=parts["request_id"],
        prefix_len=group_tokens,
        timeout_us=np.where(parts["deadline_us"] > 0, parts["deadline_us"] - arrival_us, 0),
    )
    return replace(rows, others=_others(parts))


def _others(columns: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the columns that a replay writes out unchanged, in the form that `write` takes."""
    kept = {name: columns[name] for name in (TARGET, *(f"{kind}_tokens" for kind in MODALITIES))}
    kept["streaming"] = np.where(columns["streaming"], "true", "false").astype(object)
    kept["reason_ratio"] = ratio_texts(columns["reason_ratio"])
    kept[ROW_PREFIX] = columns["prefix_length"]
    if (columns[ADAPTER] != "").any():
        kept[ADAPTER] = columns[ADAPTER]
    return kept


def ratio_texts(ratios: Iterable[float]) -> np.ndarray:
    """Return shares of reasoning tokens as texts in BLIS's form."""
    return np.array([f"{ratio:.15g}" for ratio in ratios], object)


def header_of(path: Path, named: str | None = None) -> RevisedHeader | None:
    """Return the header of a trace, None if it has none; `path` names the rows or the header."""
    is_header = path.suffix in (".yaml", ".yml")
    header = path if is_header else Path(named) if named else header_path(path)
    return None if header is None else read_header(header)


def columns_of(path: Path, reading: Reading) -> dict[str, np.ndarray]:
    """Return all columns of the rows that can be used, in the order of the file.

    Deadlines use the clock of the sending times, as in the reference. A deadline not later than the sending time uses
    the clock of the arrivals and is converted: with sending times since 1970, the reference would end all requests at
    once.
    """
    parts = read_columns(path, _columns(), reading, [_HAS_TOKENS, _IN_TIME])
    deadline, arrival, sent = parts["deadline_us"], parts["arrival_time_us"], _arrivals(parts)
    is_other_clock = (deadline > 0) & (deadline <= sent)
    if num_moved := int(is_other_clock.sum()):
        reading.report.notes.append(
            f"{num_moved} deadlines are before the time of sending: they are counted from arrival_time_us, the "
            "clock that they are on"
        )
    parts["deadline_us"] = np.where(is_other_clock, sent + deadline - arrival, deadline)
    return parts


def read_header(path: Path) -> RevisedHeader:
    """Return the header in a file, checked."""
    return checked(path, RevisedHeader)


def write(
    rows: TraceRows,
    path: Path,
    header: RevisedHeader | None = None,
    outcome: Mapping[str, np.ndarray] | None = None,
) -> None:
    """Write the rows at `path` and the header beside them, at `path` with .yaml.

    `outcome` replaces columns: the results of a run, and columns that rows do not hold, such as `streaming`.
    """
    if rows.segments is not None:
        raise ConfigError(
            f"{path}: a TraceV2 trace can only say that prompts share a group's first tokens, but "
            "these share other contents; write the plain format"
        )
    header = header or RevisedHeader()
    settings = header.model_dump(exclude_defaults=True)
    always = ("trace_version", "time_unit", "mode", "warm_up_requests")
    first = {name: getattr(header, name) for name in always}
    table = _table(rows, dict(outcome or {}))
    write_pair(path, table, as_blis_writes(first | settings))


def _table(rows: TraceRows, outcome: dict[str, np.ndarray]) -> dict[str, Any]:
    zeros, empty = np.zeros(len(rows), np.int64), np.full(len(rows), "", object)
    columns: dict[str, Any] = dict.fromkeys(COLUMNS, zeros) | dict.fromkeys(_TEXTS, empty)
    columns |= row_columns(rows)
    columns |= {
        "model": named(rows.model, rows.model_names),
        "prefix_length": rows.prefix_len,
        "deadline_us": np.where(rows.timeout_us > 0, rows.arrival_us + rows.timeout_us, 0),
        "status": np.full(len(rows), "incomplete", object),
    }
    outcome = {**rows.others, **outcome}
    outcome.pop(DELAY, None)
    targets, own_prefix = outcome.pop(TARGET, None), outcome.pop(ROW_PREFIX, None)
    adapters = outcome.pop(ADAPTER, None)
    last = {ADAPTER: adapters} if adapters is not None and (adapters != "").any() else {}
    if own_prefix is not None:
        shared = np.where(own_prefix <= rows.input_len, own_prefix, 0)
        columns |= {"prefix_length": shared, "input_tokens": rows.input_len - shared}
    columns |= outcome
    if targets is None or not targets.any():
        return columns | last
    place = COLUMNS.index("deadline_us") + 1
    ordered = [*COLUMNS[:place], TARGET, *COLUMNS[place:]]
    columns[TARGET] = targets
    return {name: columns[name] for name in ordered} | last


def _arrivals(columns: Mapping[str, np.ndarray]) -> np.ndarray:
    """Return the sending times of requests, or their arrivals where no sending time is given."""
    return np.where(
        columns["send_time_us"] > 0, columns["send_time_us"], columns["arrival_time_us"]
    )


def _group_tokens(group: np.ndarray, length: np.ndarray) -> np.ndarray:
    """Return the shared tokens of each row: the first number above 0 among the rows of its group."""
    first: dict[str, int] = {}
    for name, tokens in zip(group.tolist(), length.tolist(), strict=True):
        if name and tokens > 0:
            first.setdefault(name, tokens)
    return np.array([first.get(name, 0) for name in group.tolist()], np.int64)


def _columns() -> dict[str, Column]:
    columns = parsers(_TEXTS, _COUNTS, ("first_chunk_time_us", "last_chunk_time_us"))
    columns |= {
        "input_tokens": counts(0, most=MOST_TOKENS // 2),
        "deadline_us": columns["arrival_time_us"],
        "reason_ratio": Column(parse=numbers(0.0, 1.0), wanted="a number from 0 to 1"),
        "send_time_us": Column(parse=whole(-(2**62), LATEST_US), wanted="a whole number"),
        **dict.fromkeys(_OPTIONAL, counts(0, most=LATEST_US, default=0)),
        ADAPTER: Column(is_text=True, default=""),
    }
    names = (*COLUMNS, *_OPTIONAL, ADAPTER)
    return {name: columns[name]._replace(names=(name,)) for name in names}

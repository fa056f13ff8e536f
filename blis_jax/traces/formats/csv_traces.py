"""CSV traces: the published ones of Azure, BurstGPT and vidur, with arrival times and lengths, and BLIS's.

Azure LLM inference traces (2023, 2024) have TIMESTAMP, ContextTokens and GeneratedTokens. Times are wall-clock
date-times, with up to nine fractional digits and maybe a time zone (UTC if none is named); the earliest one becomes 0,
and fractions of a microsecond are cut off.

BurstGPT has Timestamp (seconds), Request tokens, Response tokens, Model and Log Type. A response of 0 tokens is a
failed request: it is left out, as in the published files "without fails", and counted apart from malformed rows. Model
becomes the client, Log Type the tenant. Releases with Session ID give sessions, whose turns are numbered by time.

Vidur traces have arrived_at (seconds), num_prefill_tokens and num_decode_tokens, the older ones Time, PromptTokenCount
and CompletionTokenCount. Seconds are rounded to whole microseconds.

BLIS's have arrival_time (seconds), request_id, model, prefill_tokens and decode_tokens. The tokens are JSON lists, so
contents are known: two requests share the common beginning of their sequences of prompt and output. As in the
reference, columns are identified by position, seconds are cut to whole microseconds, request_id and model are ignored,
and reading ends at the first arrival after the horizon.

Apart from this, these formats have no classes, tenants, sessions or contents.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from blis_jax.errors import ConfigError
from blis_jax.files.atomic_write import replacing, write_csv
from blis_jax.lazy import pandas
from blis_jax.traces.columns import (
    Check,
    Column,
    counts,
    dates,
    in_us,
    plain_name,
    seconds,
    since_first_us,
)
from blis_jax.traces.delimited import header_names, read_columns
from blis_jax.traces.names import several_models
from blis_jax.traces.read import Sniff
from blis_jax.traces.rows import Reading, TraceRows, make_rows, number_turns, segments_of
from blis_jax.workload.contents import Segments, chain_numbers

if TYPE_CHECKING:
    import pandas


class CsvTrace(NamedTuple):
    """A CSV format as an object with the functions of a format module: `matches`, `read` and `write`."""

    matches: Callable[[Sniff], bool]
    read: Callable[[Path, Reading], TraceRows]
    write: Callable[[TraceRows, Path], None]


def _write(path: Path, table: dict[str, object]) -> None:
    write_csv(path, pandas.DataFrame(table))


def _seconds(rows: TraceRows) -> list[str]:
    """Return arrivals in seconds as texts with six decimals."""
    return [f"{time // 10**6}.{time % 10**6:06}" for time in rows.arrival_us.tolist()]


# --- Azure ----------------------------------------------------------------------------------------

_EPOCH = np.datetime64("2023-11-16T18:00:00", "us")  # of the traces that we write


_AZURE = {
    "ns": dates("TIMESTAMP"),
    "input": counts(1, "ContextTokens"),
    "output": counts(0, "GeneratedTokens"),
}


def _read_azure(path: Path, reading: Reading) -> TraceRows:
    parts = read_columns(path, _AZURE, reading)
    return make_rows(since_first_us(parts["ns"]), parts["input"], parts["output"])


def _write_azure(rows: TraceRows, path: Path) -> None:
    """Write arrival times and lengths; the first request arrives at a fixed date."""
    times = _EPOCH + rows.arrival_us.astype("timedelta64[us]")
    texts = [str(time).replace("T", " ") + "0" for time in times]
    lengths = {"ContextTokens": rows.input_len, "GeneratedTokens": rows.output_len}
    _write(path, {"TIMESTAMP": texts, **lengths})


def _is_azure(sniff: Sniff) -> bool:
    """Return whether the file has Azure's columns, and times that are not plain numbers."""
    if not sniff.has_columns("TIMESTAMP", "ContextTokens", "GeneratedTokens"):
        return False
    first = (
        dict(zip(sniff.names, header_names(sniff.lines[1]), strict=False))
        if sniff.lines[1:]
        else {}
    )
    time = next((first[name] for name in first if plain_name(name) == "timestamp"), "")
    return not re.fullmatch(r"[0-9.eE+]+", time)


AZURE = CsvTrace(
    _is_azure,
    _read_azure,
    _write_azure,
)

# --- BurstGPT -------------------------------------------------------------------------------------

_BURSTGPT = {
    "input": counts(1, "Request tokens"),
    "output": counts(0, "Response tokens"),
    "client": Column(("Model",), is_text=True, default=""),
    "tenant": Column(("Log Type",), is_text=True, default=""),
    "session": Column(("Session ID",), is_text=True, default=""),
}
_HAS_RESPONSE = Check(
    "failed requests (no response tokens)", lambda columns: columns["output"] > 0, is_fault=False
)


def _read_burstgpt(path: Path, reading: Reading) -> TraceRows:
    """Return the requests that got a response, in the order of the file."""
    columns = {"time": seconds(reading, "Timestamp"), **_BURSTGPT}
    parts = read_columns(path, columns, reading, [_HAS_RESPONSE])
    reading.report.notes += several_models(parts["client"])
    rows = make_rows(
        in_us(parts["time"], reading),
        parts["input"],
        parts["output"],
        texts={name: parts[name] for name in ("client", "tenant", "session")},
    )
    return number_turns(rows)


def _write_burstgpt(rows: TraceRows, path: Path) -> None:
    """Write times, lengths, models, log types and, if there are any, sessions."""
    sessions = np.array([*rows.session_names, ""], object)
    has_sessions = {"Session ID": sessions[rows.session]} if rows.session_names else {}
    table = {
        "Timestamp": _seconds(rows),
        **has_sessions,
        "Model": np.array(rows.client_names, object)[rows.client],
        "Request tokens": rows.input_len,
        "Response tokens": rows.output_len,
        "Total tokens": rows.input_len.astype(np.int64) + rows.output_len,
        "Log Type": np.array(rows.tenant_names, object)[rows.tenant],
    }
    _write(path, table)


BURSTGPT = CsvTrace(
    lambda sniff: sniff.has_columns("Timestamp", "Request tokens", "Response tokens"),
    _read_burstgpt,
    _write_burstgpt,
)

# --- vidur ----------------------------------------------------------------------------------------

_VIDUR_TIMES = ("arrived_at", "Time")
_VIDUR = {
    "input": counts(1, "num_prefill_tokens", "PromptTokenCount"),
    "output": counts(0, "num_decode_tokens", "CompletionTokenCount"),
}


def _is_vidur(sniff: Sniff) -> bool:
    lengths = (
        ("num_prefill_tokens", "num_decode_tokens"),
        ("PromptTokenCount", "CompletionTokenCount"),
    )
    return any(
        sniff.has_columns(time, *names) for time, names in zip(_VIDUR_TIMES, lengths, strict=True)
    )


def _read_vidur(path: Path, reading: Reading) -> TraceRows:
    columns = {"time": seconds(reading, *_VIDUR_TIMES), **_VIDUR}
    parts = read_columns(path, columns, reading)
    return make_rows(in_us(parts["time"], reading), parts["input"], parts["output"])


def _write_vidur(rows: TraceRows, path: Path) -> None:
    lengths = {"num_prefill_tokens": rows.input_len, "num_decode_tokens": rows.output_len}
    _write(path, {"arrived_at": _seconds(rows), **lengths})


VIDUR = CsvTrace(_is_vidur, _read_vidur, _write_vidur)


# --- BLIS's: tokens in cells -----------------------------------------------------------------------

NO_BRANCH = -1
HEADER = "arrival_time,request_id,model,prefill_tokens,decode_tokens"


def _is_blis(sniff: Sniff) -> bool:
    """Return whether the fourth and fifth columns hold token lists, whatever their names."""
    return any(_has_lists(line) for line in sniff.lines[1:])


def _has_lists(line: str) -> bool:
    cells = header_names(line)
    return len(cells) >= 5 and all(
        cell.startswith("[") and cell.endswith("]") for cell in cells[3:5]
    )


def _read_blis(path: Path, reading: Reading) -> TraceRows:
    """Return the requests in the order of the file."""
    parts = read_columns(
        path,
        {
            "time": seconds(reading, "arrival_time", place=0),
            "input": Column(
                ("prefill_tokens",),
                place=3,
                parse=_prompts,
                wanted="a JSON list of at least one whole number",
                is_text=True,
            ),
            "output": Column(
                ("decode_tokens",),
                place=4,
                parse=_outputs,
                wanted="a JSON list of whole numbers",
                is_text=True,
            ),
        },
        reading,
    )
    arrival_us = (parts["time"] * reading.unit_us("s")).astype(np.int64)
    num_rows = len(arrival_us)
    if reading.horizon_us is not None and (arrival_us > reading.horizon_us).any():
        num_rows = int(np.argmax(arrival_us > reading.horizon_us))
    if len(arrival_us) and not num_rows:
        raise ConfigError(
            f"the first request arrives after {arrival_us[0]} µs, past the horizon of {reading.horizon_us} µs, so that "
            "nothing is left to simulate; raise --horizon"
        )
    prompts, outputs = parts["input"][:num_rows], parts["output"][:num_rows]
    # as bytes that differ where tokens do
    sequences = [
        np.concatenate(each).astype(">i8").tobytes() for each in zip(prompts, outputs, strict=True)
    ]
    return make_rows(
        arrival_us[:num_rows],
        np.array([len(tokens) for tokens in prompts], np.int64),
        np.array([len(tokens) for tokens in outputs], np.int64),
        segments=common_beginnings(sequences),
    )


def _write_blis(rows: TraceRows, path: Path) -> None:
    """Write times and tokens; the tokens are invented, and equal where contents are shared."""
    tokens = made_up_tokens(rows)
    with replacing(path) as written, written.open("w", encoding="utf-8") as file:
        file.write(HEADER + "\n")
        for row, (seconds, sequence) in enumerate(zip(_seconds(rows), tokens, strict=True)):
            prompt, output = np.split(sequence, [rows.input_len[row]])
            # half a microsecond more, so that cutting to whole ones does not lose one
            file.write(f'{seconds}5,request_{rows.request_id[row]},,"{prompt.tolist()}",')
            file.write(f'"{output.tolist()}"\n')


BLIS = CsvTrace(_is_blis, _read_blis, _write_blis)


# --- tokens in cells ------------------------------------------------------------------------------


def _prompts(values: pandas.Series) -> tuple[np.ndarray, np.ndarray]:
    lists, is_good = _outputs(values)
    return lists, is_good & np.array([len(tokens) > 0 for tokens in lists], bool)


def _outputs(values: pandas.Series) -> tuple[np.ndarray, np.ndarray]:
    lists = np.empty(len(values), object)
    is_good = np.zeros(len(values), bool)
    for row, text in enumerate(values):
        tokens = _tokens(text)
        is_good[row] = tokens is not None
        lists[row] = np.zeros(0, np.int64) if tokens is None else tokens
    return lists, is_good


def _tokens(text: str) -> np.ndarray | None:
    try:
        tokens = json.loads(text)
        tokens = [] if tokens is None else tokens
        if not isinstance(tokens, list) or not all(type(token) is int for token in tokens):
            return None
        return np.array(tokens, np.int64)
    except (ValueError, RecursionError, OverflowError):
        return None


# --- shared beginnings ----------------------------------------------------------------------------


def common_beginnings(sequences: list[bytes]) -> Segments:
    """Return segments by which any two sequences share exactly their common beginning.

    The sequences have 8 bytes a token. In sorted order, sequences with a common beginning are adjacent, and the
    branches of the tree follow from how much each sequence shares with its predecessor.
    """
    order = sorted(range(len(sequences)), key=sequences.__getitem__)
    branches = _Branches()
    branch_of = [NO_BRANCH] * len(order)
    for place, row in enumerate(order):
        is_last = place + 1 == len(order)
        common = 0 if is_last else _num_common(sequences[row], sequences[order[place + 1]])
        branch_of[row] = branches.move_on(common)
    paths = [branches.path(branch) for branch in branch_of]
    numbers = [number for path in paths for number in path]
    return Segments(
        ptr=np.cumsum([0, *(len(path) for path in paths)]),
        content=np.array(numbers, np.int64),
        end=np.array([branches.ends[number] for number in numbers], np.int64),
    )


class _Branches:
    """The tree of common beginnings, grown by visiting the sequences in sorted order."""

    def __init__(self) -> None:
        self.ends: list[int] = []  # tokens that the sequences of a branch share
        self.parents: list[int] = []
        self.open: list[int] = []  # branches of the sequence at hand, outermost first

    def move_on(self, common: int) -> int:
        """Return the innermost branch of the present sequence, which shares `common` tokens with the next sequence."""
        innermost = self.open[-1] if self.open else NO_BRANCH
        closed = NO_BRANCH
        while self.open and self.ends[self.open[-1]] > common:
            closed = self.open.pop()
            self.parents[closed] = self.open[-1] if self.open else NO_BRANCH
        if common > (self.ends[self.open[-1]] if self.open else 0):
            number = len(self.ends)
            self.ends.append(common)
            self.parents.append(self.open[-1] if self.open else NO_BRANCH)
            if closed != NO_BRANCH:
                self.parents[closed] = number
            self.open.append(number)
            innermost = number if closed == NO_BRANCH else innermost
        return innermost

    def path(self, branch: int) -> list[int]:
        """Return a branch and its ancestors, outermost first."""
        path = []
        while branch != NO_BRANCH:
            path.append(branch)
            branch = self.parents[branch]
        return path[::-1]


def _num_common(first: bytes, second: bytes) -> int:
    length = min(len(first), len(second)) // 8
    differ = np.frombuffer(first, np.int64, length) != np.frombuffer(second, np.int64, length)
    return int(np.argmax(differ)) if differ.any() else length


def made_up_tokens(rows: TraceRows) -> list[np.ndarray]:
    """Return an invented token sequence for every request, with the common beginnings of the trace."""
    segments = segments_of(rows)
    start, chain = chain_numbers(segments)
    longest = np.zeros(int(chain.max(initial=-1)) + 1, np.int64)
    np.maximum.at(longest, chain, segments.end - start)
    base = np.cumsum(longest) - longest
    next_token = int(longest.sum())
    sequences = []
    for row in range(len(rows)):
        part = range(segments.ptr[row], segments.ptr[row + 1])
        shared = [base[chain[each]] + np.arange(segments.end[each] - start[each]) for each in part]
        num_private = int(rows.input_len[row]) + int(rows.output_len[row]) - sum(map(len, shared))
        sequences.append(np.concatenate([*shared, next_token + np.arange(num_private)]))
        next_token += num_private
    return sequences

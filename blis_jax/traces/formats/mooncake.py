"""Mooncake traces: JSON lines or one JSON list, of objects with timestamp, input_length, output_length, hash_ids.

Timestamps are milliseconds unless said otherwise. Each hash id stands for `block_size` prompt tokens (512 unless said
otherwise) and, by Mooncake's chained hashing, for all before them; the last block of a prompt may be filled in part.
Ids are compared from a prompt's first id on, so files without chained ids are also read correctly. Prompt tokens
without an id, and all output, are private. Rows may have a session_id; a later turn of a session may have, in place of
its timestamp, a delay (ms) after the answer to the turn before.

Qwen-Bailian's traces have the same columns, but seconds, ids of 16 tokens, and chat_id with parent_chat_id: a chat and
the chats that continue it form a session. Dynamo reads four further names of the columns, adds tool_wait_ms to a delay,
and lets a row wait_for others by their request_id; its frontend writes the same data of each request as
dynamo.request.trace.v1 (lib/data-gen of ai-dynamo/dynamo, August 2026).
"""

from __future__ import annotations

import json
import math
from array import array
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from blis_jax.errors import ConfigError
from blis_jax.files.atomic_write import replacing
from blis_jax.traces.names import several_models
from blis_jax.traces.read import Sniff, json_rows, sniff
from blis_jax.traces.rows import (
    DELAY,
    LATEST_US,
    MOST_NAMED,
    MOST_TOKENS,
    NO_CODE,
    NO_DELAY,
    BadRow,
    Reading,
    TraceRows,
    make_rows,
    number_turns,
)
from blis_jax.workload.contents import Segments

ODD_IDS = 1 << 62  # numbers from here on stand for ids that are words or do not fit
LARGEST_BLOCK = 1 << 16  # that is looked for when the given block size does not fit
BLOCK_SIZE, BAILIAN_BLOCK_SIZE = 512, 16  # tokens of a hash id
FEWEST_COVERED = 0.8  # share of the prompts' tokens that hash ids stand for in a file of the format
_NUMBERS = ("timestamp", "input_length", "output_length")
_WAITS = ("delay", "tool_wait_ms", "wait_for")  # in place of a timestamp
_NAMES = (*_NUMBERS, *_WAITS, "hash_ids", "session_id", "request_id")
_BAILIAN_NAMES = ("chat_id", "parent_chat_id", "turn")  # turns are numbered by time
_OTHER_NAMES = {
    "created_time": "timestamp",
    "delay_ms": "delay",
    "input_tokens": "input_length",
    "output_tokens": "output_length",
}
_DYNAMO = "dynamo.request.trace"  # how its schema begins


def matches(sniff: Sniff) -> bool:
    """Return whether a line is an object with the three numbers; under Dynamo's names it also needs hash ids."""
    return any(
        line.keys() >= {*_NUMBERS}
        or {_OTHER_NAMES.get(name, name) for name in line} >= {*_NUMBERS, "hash_ids"}
        or _is_dynamo(line)
        for line in sniff.objects
    )


def _is_dynamo(line: dict[str, Any]) -> bool:
    return str(line.get("schema")).startswith(_DYNAMO)


def _of_dynamo(record: dict[str, Any]) -> dict[str, Any] | None:
    """Return a record of Dynamo's frontend as a row; None for the record of a tool call."""
    request, context = record.get("request"), record.get("agent_context") or {}
    if not isinstance(request, dict):
        return None
    replay = request.get("replay") or {}
    return {
        "timestamp": request.get("request_received_ms"),
        "input_length": replay.get("input_length") or request.get("input_tokens"),
        "output_length": request.get("output_tokens"),
        "hash_ids": replay.get("input_sequence_hashes"),
        "session_id": context.get("trajectory_id") or context.get("session_id"),
    }


class _BadLine(Exception):
    """The reason why a line cannot be used."""


class _Columns:
    """The columns read so far."""

    def __init__(self) -> None:
        self.time, self.input_len, self.output_len = array("d"), array("q"), array("q")
        self.counts, self.hash_ids = array("q"), array("q")
        self.odd_ids: dict[int | str, int] = {}
        self.sessions: list[str] = []
        self.session_of_chat: dict[str, str] = {}
        self.delay = array("d")
        self.num_idle_delays = 0  # of rows that have a timestamp, too
        self.last_of_session: dict[str, float] = {}  # the time of its last turn so far
        self.by_id: dict[str, tuple[float, str]] = {}  # time and session
        self.num_joins = 0  # rows that wait for requests of other sessions

    def add(self, line: str, block_size: int, latest: float) -> None:
        """Add one request; a refused line leaves no trace in the columns."""
        try:
            request = json.loads(line)
        except (ValueError, RecursionError):
            raise _BadLine("not a JSON object") from None
        if not isinstance(request, dict):
            raise _BadLine("not a JSON object")
        if _is_dynamo(request):
            row = _of_dynamo(request)
            if row is None:
                return
            request = row
        elif not request.keys().isdisjoint(_OTHER_NAMES):
            request = {_OTHER_NAMES.get(name, name): value for name, value in request.items()}
        session = self._session_of(request)
        time, delay = self._time_of(request, session, latest)
        input_len = _whole(request, "input_length", 1)
        output_len = _whole(request, "output_length", 0)
        self._add_ids(request.get("hash_ids") or [], input_len, block_size)
        self.time.append(time)
        self.delay.append(delay)
        self.last_of_session[session] = time
        if (name := _text(request, "request_id")) != "":
            self.by_id[name] = time, session
        self.input_len.append(input_len)
        self.output_len.append(output_len)
        self.sessions.append(session)

    def _time_of(self, request: dict[str, Any], session: str, latest: float) -> tuple[float, float]:
        """Return a row's arrival (the earliest possible, if it waits for an answer), and the delay after that."""
        waits = any(request.get(name) is not None for name in _WAITS)
        if not waits or request.get("timestamp") is not None:
            self.num_idle_delays += any(map(request.get, _WAITS))
            return _number(request, "timestamp", 0, latest), NO_DELAY
        given = [name for name in _WAITS[:2] if request.get(name) is not None]
        delay = sum(_number(request, name, 0, latest) for name in given)
        waited = [self.by_id[name] for name in request.get("wait_for") or () if name in self.by_id]
        self.num_joins += any(other != session for _, other in waited)
        if session and session in self.last_of_session:
            return self.last_of_session[session] + delay, delay
        if not waited:
            raise _BadLine("delay, but no earlier turn of a session that it could follow")
        return max(time for time, _ in waited) + delay, NO_DELAY

    def _session_of(self, request: dict[str, Any]) -> str:
        """Return the name of a row's session, empty for none; a chat is in the session of the chat it continues."""
        chat = _text(request, "chat_id")
        if not chat:
            return _text(request, "session_id")
        session = self.session_of_chat.get(_text(request, "parent_chat_id"), chat)
        return self.session_of_chat.setdefault(chat, session)

    def _add_ids(self, hash_ids: object, input_len: int, block_size: int) -> None:
        if not isinstance(hash_ids, list) or not {type(each) for each in hash_ids} <= {int, str}:
            raise _BadLine("hash_ids is not a list of whole numbers")
        most = -(-input_len // block_size)
        if len(hash_ids) > most:
            fitting = _fitting(input_len, len(hash_ids))
            hint = f"; --trace-block-size {fitting} would fit" if fitting else ""
            raise _BadLine(
                f"{len(hash_ids)} hash_ids, but {input_len} tokens fill only {most} "
                f"blocks of {block_size}{hint}"
            )
        num_before = len(self.hash_ids)
        try:
            self.hash_ids.extend(hash_ids)
        except (TypeError, OverflowError):  # words, or numbers beyond 64 bits
            del self.hash_ids[num_before:]
            self.hash_ids.extend(self._number_of(each) for each in hash_ids)
        self.counts.append(len(hash_ids))

    def _number_of(self, hash_id: int | str) -> int:
        """Return the id itself if it is a whole number below 2^62, else a larger number, the same for equal ids."""
        if isinstance(hash_id, int) and abs(hash_id) < ODD_IDS:
            return hash_id
        return self.odd_ids.setdefault(hash_id, ODD_IDS + len(self.odd_ids))


def read(path: Path, reading: Reading) -> TraceRows:
    """Return the requests in the order of the file."""
    objects = sniff(path).objects
    is_bailian = any({"chat_id", "parent_chat_id"} <= request.keys() for request in objects)
    is_dynamo = any(map(_is_dynamo, objects))
    known = {*_NAMES, *_OTHER_NAMES, *(_BAILIAN_NAMES if is_bailian else ())}
    unread = (name for request in objects for name in request if name not in known)
    reading.report.add_unread(() if is_dynamo else unread)
    reading.report.notes += several_models(request.get("model") for request in objects)
    columns, unit_us = _Columns(), reading.unit_us("s" if is_bailian else "ms")
    block_size = reading.block_size or _usual_block_size(objects, is_bailian=is_bailian)
    num_bad = 0
    first_bad: list[BadRow] = []
    what, numbered = json_rows(path)
    for number, line in numbered:
        if len(columns.time) == reading.limit:
            break
        try:
            columns.add(line, block_size, LATEST_US / unit_us)
        except _BadLine as error:
            num_bad += 1
            if len(first_bad) < MOST_NAMED:
                first_bad.append(BadRow(f"{what} {number}", str(error)))
                _check_block_size(path, line, num_bad, len(columns.time), block_size)
    reading.report.add_bad(num_bad, first_bad)
    if columns.num_idle_delays:
        reading.report.notes.append(
            f"{columns.num_idle_delays} rows have a timestamp and a delay: the timestamp is taken"
        )
    if columns.num_joins:
        reading.report.notes.append(
            f"{columns.num_joins} rows wait for requests of other sessions (wait_for): such waits take no time here, "
            "only the answer to the turn before in a row's own session is waited for"
        )
    reading.report.notes += _uncovered(columns, block_size)
    delay = np.asarray(columns.delay)
    waits = delay != NO_DELAY
    delay_us = np.where(waits, np.rint(delay * unit_us), NO_DELAY).astype(np.int64)
    input_len = np.fromiter(columns.input_len, np.int64)
    rows = make_rows(
        np.rint(np.asarray(columns.time) * unit_us).astype(np.int64),
        input_len,
        np.fromiter(columns.output_len, np.int64),
        texts={"session": np.array(columns.sessions, object)},
        segments=_segments(columns, input_len, block_size) if columns.hash_ids else None,
    )
    rows = number_turns(rows)
    return replace(rows, others={DELAY: delay_us}) if waits.any() else rows


def _usual_block_size(objects: list[dict[str, Any]], *, is_bailian: bool) -> int:
    """Return the tokens per hash id: stated by Dynamo's first record, else the format's default."""
    rows = (each.get("request") for each in objects if _is_dynamo(each))
    replays = (each.get("replay") for each in rows if isinstance(each, dict))
    stated = next(
        (each.get("trace_block_size") for each in replays if isinstance(each, dict)), None
    )
    if isinstance(stated, int) and stated > 0:
        return stated
    return BAILIAN_BLOCK_SIZE if is_bailian else BLOCK_SIZE


def write(rows: TraceRows, path: Path, block_size: int = BLOCK_SIZE) -> None:
    """Write times, lengths, sessions and, if every segment is one block of `block_size` tokens, hash ids."""
    delay_us = rows.others.get(DELAY, np.full(len(rows), NO_DELAY))
    with replacing(path) as written, written.open("w", encoding="utf-8") as file:
        for row in range(len(rows)):
            line = {
                "timestamp": _milliseconds(int(rows.arrival_us[row])),
                "input_length": int(rows.input_len[row]),
                "output_length": int(rows.output_len[row]),
                "hash_ids": _hash_ids(rows, row, block_size),
            }
            if rows.session[row] != NO_CODE:
                line = {"session_id": rows.session_names[rows.session[row]], **line}
            if delay_us[row] != NO_DELAY:
                del line["timestamp"]
                line["delay"] = _milliseconds(int(delay_us[row]))
            file.write(json.dumps(line) + "\n")


def _milliseconds(time_us: int) -> float:
    milliseconds = time_us / 1000
    return int(milliseconds) if milliseconds.is_integer() else milliseconds


def _number(request: dict[str, Any], name: str, low: float, high: float) -> float:
    value = request.get(name)
    if value is None:
        raise _BadLine(f"{name} is missing")
    if isinstance(value, str):
        value = _as_number(value)
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise _BadLine(f"{name} is {_brief(value)}, not a number of at least {low}")
    return value


def _as_number(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text


def _whole(request: dict[str, Any], name: str, low: int) -> int:
    value = _number(request, name, low, MOST_TOKENS)
    if value != math.floor(value):
        raise _BadLine(f"{name} is {_brief(value)}, not a whole number")
    return int(value)


def _text(request: dict[str, Any], name: str) -> str:
    value = request.get(name)
    return "" if value is None else str(value)


def _brief(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 40 else text[:37] + "..."


def _check_block_size(path: Path, line: str, num_bad: int, num_good: int, block_size: int) -> None:
    """Refuse a file without any usable line, if the reason is that its hash ids stand for smaller blocks."""
    if num_good or num_bad < MOST_NAMED:
        return
    request = json.loads(line) if line.lstrip().startswith("{") else {}
    length, hash_ids = request.get("input_length"), request.get("hash_ids")
    if not isinstance(length, int) or not isinstance(hash_ids, list):
        return
    fitting = _fitting(length, len(hash_ids))
    if fitting is not None:
        raise ConfigError(
            f"{path}: the hash_ids are too many for blocks of {block_size} tokens; "
            f"blocks of {fitting} tokens would fit, give --trace-block-size {fitting}"
        )


def _fitting(length: int, num_ids: int) -> int | None:
    """Return the smallest block size, in tokens, at which `length` tokens fill `num_ids` blocks; None if none does."""
    sizes = (2**power for power in range(LARGEST_BLOCK.bit_length()))
    return next((size for size in sizes if -(-length // size) == num_ids), None)


def _uncovered(columns: _Columns, block_size: int) -> list[str]:
    """Return a note if the hash ids stand for much less than the prompts that have some."""
    counts, lengths = (np.fromiter(each, np.int64) for each in (columns.counts, columns.input_len))
    has_ids = counts > 0
    tokens = int(lengths[has_ids].sum())
    share = float(np.minimum(counts * block_size, lengths)[has_ids].sum()) / max(tokens, 1)
    if not has_ids.any() or share >= FEWEST_COVERED:
        return []
    fits = {
        _fitting(*pair)
        for pair in zip(lengths[has_ids].tolist(), counts[has_ids].tolist(), strict=True)
    }
    size = fits.pop() if len(fits) == 1 else None
    return [
        f"hash_ids of {block_size} tokens stand for {share:.0%} of the prompts that have some, the rest counts as "
        "private" + (f"; if blocks are larger, --trace-block-size {size} fits all" if size else "")
    ]


def _segments(columns: _Columns, input_len: np.ndarray, block_size: int) -> Segments:
    counts = np.fromiter(columns.counts, np.int64)
    ptr = np.concatenate([[0], np.cumsum(counts)])
    row = np.repeat(np.arange(len(counts)), counts)
    end = (np.arange(ptr[-1]) - ptr[row] + 1) * block_size
    return Segments(ptr, np.fromiter(columns.hash_ids, np.int64), np.minimum(end, input_len[row]))


def _hash_ids(rows: TraceRows, row: int, block_size: int) -> list[int]:
    segments = rows.segments
    if segments is None:
        return []
    part = slice(segments.ptr[row], segments.ptr[row + 1])
    ends = (np.arange(part.stop - part.start) + 1) * block_size
    if not np.array_equal(segments.end[part], np.minimum(ends, rows.input_len[row])):
        raise ConfigError(
            f"request {row} shares contents other than whole blocks of {block_size} tokens, "
            "which a Mooncake trace cannot hold; write the plain format"
        )
    return [int(content) for content in segments.content[part]]

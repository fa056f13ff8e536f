"""Sessions of a TraceV2 or Mooncake trace whose later rounds wait for the answers to earlier rounds.

TraceV2 is replayed as in BLIS's closed loop: lengths, prefixes and the order of draws follow the trace; contents are
drawn, session by session. Source: BLIS as of August 2026, `sim/workload/replay.go` and `session.go`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from blis_jax.core.types import SLO_CLASSES
from blis_jax.errors import ConfigError
from blis_jax.traces.formats import trace_v3
from blis_jax.traces.formats.csv_traces import made_up_tokens
from blis_jax.traces.rows import ADAPTER, DELAY, NO_CODE, NO_DELAY, Reading, Report, TraceRows
from blis_jax.workload.go_random import Stream
from blis_jax.workload.length_laws import LognormalLaw, RevisedConstantLaw
from blis_jax.workload.reference.clients import DrawnContents, draw_tokens
from blis_jax.workload.reference.generate import DrawnWorkload, Recorded, Session
from blis_jax.workload.reference.laws import length_law
from blis_jax.workload.reference.requests import NO_SESSION, DrawnRequest
from blis_jax.workload.revised_spec import RevisedClient

if TYPE_CHECKING:
    from jaxtyping import Int32, Int64, Real

    Tokens = Int32[np.ndarray, " token"]
    Row = Mapping[str, Any]

FOLLOW_UP_TIMEOUT_US = 300_000_000  # of rounds that completions bring
ALL_AT_ONCE_US = 600_000_000  # the horizon of a trace whose requests all come at time 0
_ONE = {"type": "constant", "params": {"value": 1}}
_UNITS = {"us": 1, "ms": 1_000, "s": 1_000_000}  # in µs; ms where there is none
ThinkTime = Callable[[Stream], int]


def closed_loop_of_trace(
    data: str | Path,
    header: str | Path,
    seed: int,
    report: Report,
    think_time: ThinkTime | None = None,
    horizon_us: int | None = None,
) -> DrawnWorkload:
    """Return a trace as a workload in which the completion of a round brings the next round.

    Args:
        data: file of the rows.
        header: file of the header, which says whether prompts grow.
        seed: seed from which the contents are drawn.
        report: collects the rows that are left out.
        think_time: draws the µs between an answer and the next round; the trace's own times if None.
        horizon_us: µs after which no round arrives; twice the last arrival if None.

    Raises:
        ConfigError: the files cannot be read, or a session's rounds are not numbered from 0 on.
    """
    rows = _rows_of(Path(data), report)
    grows = trace_v3.read_header(Path(header)).session_context_growth == "accumulate"
    stream, prefixes = Stream(seed), dict[str, Any]()
    for row in rows:
        if row["prefix_group"] and row["prefix_length"] > 0:
            group = row["prefix_group"]
            if group not in prefixes:
                prefixes[group] = draw_tokens(stream, row["prefix_length"])
    clients: dict[tuple[str, ...], int] = {}
    requests: list[DrawnRequest] = []
    sessions: dict[str, Session] = {}
    if horizon_us is None:
        first = [
            row["arrival_time_us"] for row in rows if not (row["session_id"] and row["round_index"])
        ]
        horizon_us = end_of(max(first, default=0))
    for name, rounds in _sessions(rows, data).items():
        seeds = Stream(stream.int63())
        client = clients.setdefault(_client_key(rounds[0]), len(clients))
        contents = _contents(rounds[0], seeds)
        requests.append(_request(rounds[0], client, contents, prefixes))
        sessions[name] = _session(rounds, client, grows, prefixes, seeds, think_time)
    for row in rows:
        if not row["session_id"]:
            client = clients.setdefault(_client_key(row), len(clients))
            requests.append(_request(row, client, _contents(row, stream), prefixes))
    requests.sort(key=lambda request: request.arrival_us)
    made = tuple(_client(key) for key in clients)
    return DrawnWorkload(made, requests, sessions, math.inf, horizon_us)


def closed_loop_of_rows(rows: TraceRows) -> DrawnWorkload | None:
    """Return a workload in which some rows wait for the answer to the turn before; None if no row waits.

    Prompts share contents as the rows say. A turn with its own arrival arrives at that time, without waiting for an
    answer.
    """
    delay_us = rows.others.get(DELAY)
    if delay_us is None:
        return None
    contents = [
        DrawnContents(tokens[:count].astype(np.int32), tokens[count:].astype(np.int32))
        for tokens, count in zip(made_up_tokens(rows), rows.input_len.tolist(), strict=True)
    ]
    followers = _followers(rows, delay_us)
    waiting = {row for later in followers.values() for row in later}
    clients: dict[tuple[str, ...], int] = {}
    requests, sessions = [], {}
    for row in _by_time(rows):
        if row in waiting:
            continue
        key = ("", "", SLO_CLASSES[rows.slo_class[row]], rows.model_names[rows.model[row]], "")
        client = clients.setdefault(key, len(clients))
        name = NO_SESSION
        if row in followers:
            turn = int(rows.round_index[row])
            name = rows.session_names[rows.session[row]] + (f"/{turn}" if turn else "")
        requests.append(
            DrawnRequest(
                int(rows.arrival_us[row]), client, (contents[row].new,), contents[row].output,
                session=name, number=int(rows.request_id[row]),
            )
        )  # fmt: skip
        if row in followers:
            later = tuple(Recorded(int(delay_us[each]), contents[each]) for each in followers[row])
            sessions[name] = _of_turns(name, client, later)
    made = tuple(_client(key) for key in clients)
    return DrawnWorkload(made, requests, sessions, math.inf, math.inf)


def loop_rows(rows: TraceRows) -> Int64[np.ndarray, " request"]:
    """Return, for each row of the `ClosedLoop` that `closed_loop_of_rows` returns, its row in the trace."""
    followers = _followers(rows, rows.others[DELAY])
    waiting = {row for later in followers.values() for row in later}
    starts = [row for row in _by_time(rows) if row not in waiting]
    return np.array([*starts, *(row for start in starts for row in followers.get(start, ()))])


def _by_time(rows: TraceRows) -> list[int]:
    by_time: list[int] = np.argsort(rows.arrival_us, kind="stable").tolist()
    return by_time


def _followers(rows: TraceRows, delay_us: Real[np.ndarray, " request"]) -> dict[int, list[int]]:
    """Return the waiting rows, in order, by the row with its own arrival that they follow."""
    followers: dict[int, list[int]] = {}
    starts: dict[int, int] = {}  # by session
    for row in np.lexsort((rows.round_index, rows.session)).tolist():
        session = int(rows.session[row])
        if session != NO_CODE and delay_us[row] != NO_DELAY and session in starts:
            followers.setdefault(starts[session], []).append(row)
        elif session != NO_CODE:
            starts[session] = row
    return followers


def _of_turns(name: str, client: int, later: tuple[Recorded, ...]) -> Session:
    nothing = np.empty(0, np.int32)
    return Session(
        name,
        client,
        num_rounds=len(later) + 1,
        is_growing=False,
        think_time_us=0,
        timeout_us=0,
        slo_target_us=0,
        seed=0,
        prefix=nothing,
        draw=lambda _: DrawnContents(nothing, nothing),
        later=later,
    )


def end_of(latest_us: int) -> int:
    """Return the end of a replay whose last request arrives at `latest_us`, in µs."""
    return 2 * latest_us if latest_us > 0 else ALL_AT_ONCE_US


def _rows_of(path: Path, report: Report) -> list[dict[str, Any]]:
    columns = trace_v3.columns_of(path, Reading(report=report))
    lists = {name: values.tolist() for name, values in columns.items()}
    return [dict(zip(lists, row, strict=True)) for row in zip(*lists.values(), strict=True)]


def _sessions(rows: Sequence[Row], data: str | Path) -> dict[str, list[Row]]:
    """Return the rounds of every session in order; sessions are ordered by first appearance."""
    sessions: dict[str, list[Row]] = {}
    for row in rows:
        if row["session_id"]:
            sessions.setdefault(row["session_id"], []).append(row)
    for name, rounds in sessions.items():
        rounds.sort(key=lambda row: row["round_index"])
        numbers = [row["round_index"] for row in rounds]
        if numbers != list(range(len(rounds))):
            place = next(at for at, number in enumerate(numbers) if number != at)
            raise ConfigError(
                f"{data}: session {name!r} has round {numbers[place]} in place of round {place}; number its rounds "
                "from 0 on, or leave --session-mode out"
            )
    return sessions


def _input_len(row: Row) -> int:
    """Return the prompt tokens without a prefix: the server's count if it is known and the row has no prefix group."""
    counted = row["server_input_tokens"] if not row["prefix_group"] else 0
    return int(counted or row["input_tokens"])


def _contents(row: Row, stream: Stream) -> DrawnContents:
    new = draw_tokens(stream, _input_len(row))
    parts = tuple(row[f"{name}_tokens"] for name in ("text", "image", "audio", "video"))
    return DrawnContents(new, draw_tokens(stream, row["output_tokens"]), parts)


def _request(
    row: Row, client: int, contents: DrawnContents, prefixes: Mapping[str, Tokens]
) -> DrawnRequest:
    arrival_us = row["send_time_us"] if row["send_time_us"] > 0 else row["arrival_time_us"]
    prefix = prefixes.get(row["prefix_group"])
    return DrawnRequest(
        arrival_us,
        client,
        (contents.new,) if prefix is None else (prefix, contents.new),
        contents.output,
        session=row["session_id"] or NO_SESSION,
        prefix_group=row["prefix_group"],
        prefix_len=0 if prefix is None else len(prefix),
        deadline_us=row["deadline_us"],
        slo_target_us=row[trace_v3.TARGET],
        parts=contents.parts,
        number=row["request_id"],
    )


def _session(
    rounds: Sequence[Row],
    client: int,
    grows: bool,
    prefixes: Mapping[str, Tokens],
    stream: Stream,
    think_time: ThinkTime | None,
) -> Session:
    """Return a session with its later rounds; their contents are drawn from the stream, after the first round's."""
    thinks, later = _think_times(rounds), []
    for place, row in enumerate(rounds[1:]):
        think_us = thinks[place] if think_time is None else think_time(stream)
        inputs, outputs = _input_len(row), row["output_tokens"]
        contents = DrawnContents(draw_tokens(stream, inputs), draw_tokens(stream, outputs))
        later.append(Recorded(think_us, contents))
    session = _of_turns(rounds[0]["session_id"], client, tuple(later))
    return replace(
        session,
        is_growing=grows,
        timeout_us=FOLLOW_UP_TIMEOUT_US,
        slo_target_us=rounds[0][trace_v3.TARGET],
        prefix=prefixes.get(rounds[0]["prefix_group"], session.prefix),
    )


def _think_times(rounds: Sequence[Row]) -> list[int]:
    """Return the trace's think times, else the gaps between the arrivals of rounds, in µs."""
    recorded = [row["think_time_us"] for row in rounds[1:]]
    if any(recorded):
        return recorded
    arrivals = [row["arrival_time_us"] for row in rounds]
    return [max(after - before, 0) for before, after in pairwise(arrivals)]


def _client_key(row: Row) -> tuple[str, ...]:
    slo_class = SLO_CLASSES[row["slo_class"]]
    return row["client_id"], row["tenant_id"], slo_class, row["model"], row[ADAPTER]


def _client(key: tuple[str, ...]) -> RevisedClient:
    """Return a client with these names, to which requests are attributed; its length laws are placeholders."""
    names = dict(zip(("id", "tenant_id", "slo_class", "model", "adapter"), key, strict=True))
    laws = {"input_distribution": _ONE, "output_distribution": _ONE}
    return RevisedClient.model_validate({**names, **laws, "concurrency": 1})


# --- think times ----------------------------------------------------------------------------------


def parse_think_time(text: str) -> ThinkTime:
    """Return a function that draws µs by a law: `lognormal:mu=2.0,sigma=0.6,min=3s,max=30s` or `constant:value=500ms`.

    Raises:
        ConfigError: the text is not such a law.
    """
    name, colon, rest = text.partition(":")
    pairs = [part.partition("=") for part in rest.split(",")] if rest.strip() else []
    numbers = {key.strip(): value.strip() for key, _, value in pairs}
    needed, allowed = _LAWS.get(name, ((), ()))
    is_odd = len(numbers) < len(pairs) or not all(equals for _, equals, _ in pairs)
    if not colon or not needed or is_odd or not set(needed) <= set(numbers) <= set(allowed):
        raise ConfigError(
            f"--think-time-dist: got {text!r}, allowed is lognormal:mu=M,sigma=S with min and max if wanted, or "
            "constant:value=TIME; times are such as 3s, 500ms or 20us"
        )
    if name == "constant":
        value = {"value": _time_us(numbers["value"], text)}
        return length_law(RevisedConstantLaw.model_validate({"type": name, "params": value}))
    params: dict[str, Any] = {key: _number(numbers[key], text) for key in needed}
    if not params["sigma"] > 0:
        raise ConfigError(f"--think-time-dist: sigma of {text!r} must be above 0")
    params["mu"] += math.log(1e6)
    params |= {key: _time_us(numbers[key], text) for key in ("min", "max") if key in numbers}
    if 0 < params.get("max", 0) < params.get("min", 0):
        raise ConfigError(f"--think-time-dist: min of {text!r} is above max")
    return length_law(LognormalLaw.model_validate({"type": name, "params": params}))


_LAWS = {
    "lognormal": (("mu", "sigma"), ("mu", "sigma", "min", "max")),
    "constant": (("value",), ("value",)),
}


def _number(text: str, whole: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise ConfigError(f"--think-time-dist: {text!r} in {whole!r} is not a finite number")
    return value


def _time_us(text: str, whole: str) -> int:
    unit = next((ending for ending in _UNITS if text.endswith(ending)), "")
    value = _number(text.removesuffix(unit), whole)
    if value < 0:
        raise ConfigError(f"--think-time-dist: {text!r} in {whole!r} is below 0")
    return int(value * _UNITS[unit or "ms"])

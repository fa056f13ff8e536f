"""BurstGPT traces: Timestamp (seconds), Request tokens, Response tokens, Model, Log Type.

A response of 0 tokens is a failed request: it is left out, as in the published files "without
fails", and counted apart from malformed rows. Model becomes the client, Log Type the tenant.
Releases with Session ID give sessions, whose turns are numbered by time.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from blis_jax.files.atomic_write import replacing
from blis_jax.traces.columns import Check, Column, numbers, whole
from blis_jax.traces.formats.csv_reader import read_columns
from blis_jax.traces.rows import LATEST_US, MOST_TOKENS, NO_CODE, Reading, TraceRows, make_rows
from blis_jax.traces.sniff import Sniff

_COLUMNS = {
    "seconds": Column(
        ("Timestamp",), parse=numbers(0, LATEST_US / 1e6), wanted="a number of seconds from 0 on"
    ),
    "input": Column(
        ("Request tokens",), parse=whole(1, MOST_TOKENS), wanted="a whole number of at least 1"
    ),
    "output": Column(
        ("Response tokens",), parse=whole(0, MOST_TOKENS), wanted="a whole number of at least 0"
    ),
    "client": Column(("Model",), is_text=True, default=""),
    "tenant": Column(("Log Type",), is_text=True, default=""),
    "session": Column(("Session ID",), is_text=True, default=""),
}


_HAS_RESPONSE = Check(
    "failed requests (no response tokens)", lambda found: found["output"] > 0, is_fault=False
)


def matches(sniff: Sniff) -> bool:
    """Whether the header has times and both token counts."""
    return sniff.has_columns("Timestamp", "Request tokens", "Response tokens")


def read(path: Path, reading: Reading) -> TraceRows:
    """The requests that got a response, in the order of the file."""
    found = read_columns(path, _COLUMNS, reading, [_HAS_RESPONSE])
    rows = make_rows(
        np.rint(found["seconds"] * 1e6).astype(np.int64),
        found["input"],
        found["output"],
        texts={name: found[name] for name in ("client", "tenant", "session")},
    )
    rows.round_index[:] = _turns(rows)
    return rows


def write(rows: TraceRows, path: Path) -> None:
    """Write times, lengths, models, log types and, if there are any, sessions."""
    import pandas

    sessions = np.array([*rows.session_names, ""], object)
    table = {
        "Timestamp": [f"{time // 10**6}.{time % 10**6:06}" for time in rows.arrival_us.tolist()],
        **({"Session ID": sessions[rows.session]} if rows.session_names else {}),
        "Model": np.array(rows.client_names, object)[rows.client],
        "Request tokens": rows.input_len,
        "Response tokens": rows.output_len,
        "Total tokens": rows.input_len.astype(np.int64) + rows.output_len,
        "Log Type": np.array(rows.tenant_names, object)[rows.tenant],
    }
    with replacing(path) as written:
        pandas.DataFrame(table).to_csv(written, index=False)


def _turns(rows: TraceRows) -> np.ndarray:
    """Number of each request within its session, by time; 0 without a session."""
    order = np.lexsort((np.arange(len(rows)), rows.arrival_us, rows.session))
    session = rows.session[order]
    begins = np.concatenate([[True], session[1:] != session[:-1]])[: len(order)]
    position = np.arange(len(order))
    turn = np.empty(len(order), np.int32)
    turn[order] = position - np.maximum.accumulate(np.where(begins, position, 0))
    return np.where(rows.session == NO_CODE, 0, turn)

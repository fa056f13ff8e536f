"""Vidur traces: arrived_at (seconds), num_prefill_tokens, num_decode_tokens.

The older columns Time, PromptTokenCount and CompletionTokenCount are read too. Seconds are rounded
to whole microseconds. There are no classes, tenants, sessions or contents.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from blis_jax.errors import ConfigError
from blis_jax.files.atomic_write import replacing
from blis_jax.traces.columns import Column, numbers, plain_name, whole
from blis_jax.traces.formats.csv_reader import read_columns, read_header
from blis_jax.traces.rows import LATEST_US, MOST_TOKENS, Reading, TraceRows, make_rows
from blis_jax.traces.sniff import Sniff

_COLUMNS = {
    "seconds": Column(
        ("arrived_at", "Time"),
        parse=numbers(0, LATEST_US / 1e6),
        wanted="a number of seconds from 0 on",
    ),
    "input": Column(
        ("num_prefill_tokens", "PromptTokenCount"),
        parse=whole(1, MOST_TOKENS),
        wanted="a whole number of at least 1",
    ),
    "output": Column(
        ("num_decode_tokens", "CompletionTokenCount"),
        parse=whole(0, MOST_TOKENS),
        wanted="a whole number of at least 0",
    ),
}


def matches(sniff: Sniff) -> bool:
    """Whether the header has both token counts."""
    return sniff.has_columns("num_prefill_tokens", "num_decode_tokens") or sniff.has_columns(
        "Time", "PromptTokenCount", "CompletionTokenCount"
    )


def read(path: Path, reading: Reading) -> TraceRows:
    """The requests in the order of the file."""
    names = {plain_name(name) for name in read_header(path).names}
    if not names & {plain_name(name) for name in _COLUMNS["seconds"].names}:
        raise ConfigError(
            f"{path} has lengths but no arrival times (arrived_at); add the column, "
            "since a simulation needs to know when requests come"
        )
    found = read_columns(path, _COLUMNS, reading)
    arrival_us = np.rint(found["seconds"] * 1e6).astype(np.int64)
    return make_rows(arrival_us, found["input"], found["output"])


def write(rows: TraceRows, path: Path) -> None:
    """Write times and lengths."""
    import pandas

    table = {
        "arrived_at": [f"{time // 10**6}.{time % 10**6:06}" for time in rows.arrival_us.tolist()],
        "num_prefill_tokens": rows.input_len,
        "num_decode_tokens": rows.output_len,
    }
    with replacing(path) as written:
        pandas.DataFrame(table).to_csv(written, index=False)

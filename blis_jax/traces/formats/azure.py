"""Azure LLM inference traces (2023, 2024): TIMESTAMP, ContextTokens, GeneratedTokens.

Times are wall-clock date-times, with up to nine fractional digits and maybe a time zone (UTC if
none is named); the earliest one becomes 0, and what remains below a microsecond is cut off. There
are no classes, tenants, sessions or contents.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from blis_jax.files.atomic_write import replacing
from blis_jax.traces.columns import Column, whole
from blis_jax.traces.formats.csv_reader import read_columns
from blis_jax.traces.rows import MOST_TOKENS, Reading, TraceRows, make_rows
from blis_jax.traces.sniff import Sniff

if TYPE_CHECKING:
    import pandas

COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
FIRST_YEAR, LAST_YEAR = 1900, 2200  # nanoseconds in 64 bits reach from 1678 to 2261
EPOCH = np.datetime64("2023-11-16T18:00:00", "us")  # of the traces that we write


def matches(sniff: Sniff) -> bool:
    """Whether the header has the three columns."""
    return sniff.has_columns(*COLUMNS)


def read(path: Path, reading: Reading) -> TraceRows:
    """The requests in the order of the file."""
    time, context, generated = COLUMNS
    found = read_columns(
        path,
        {
            "ns": Column(
                (time,),
                parse=_nanoseconds,
                wanted="a date and time like 2023-11-16 18:17:03.9799600",
                is_text=True,
            ),
            "input": Column(
                (context,), parse=whole(1, MOST_TOKENS), wanted="a whole number of at least 1"
            ),
            "output": Column(
                (generated,), parse=whole(0, MOST_TOKENS), wanted="a whole number of at least 0"
            ),
        },
        reading,
    )
    ns = found["ns"]
    arrival_us = (ns - ns.min()) // 1000 if len(ns) else ns
    return make_rows(arrival_us, found["input"], found["output"])


def write(rows: TraceRows, path: Path) -> None:
    """Write arrival times and lengths; the first request arrives at a fixed date."""
    import pandas

    times = EPOCH + rows.arrival_us.astype("timedelta64[us]")
    table = {
        COLUMNS[0]: [str(time).replace("T", " ") + "0" for time in times],
        COLUMNS[1]: rows.input_len,
        COLUMNS[2]: rows.output_len,
    }
    with replacing(path) as written:
        pandas.DataFrame(table).to_csv(written, index=False)


def _nanoseconds(values: pandas.Series) -> tuple[np.ndarray, np.ndarray]:
    import pandas

    times = pandas.to_datetime(values, utc=True, format="ISO8601", errors="coerce")
    is_good = (times.dt.year >= FIRST_YEAR) & (times.dt.year <= LAST_YEAR)
    filled = times.where(is_good, pandas.Timestamp(0, tz="UTC"))
    return filled.dt.as_unit("ns").astype(np.int64).to_numpy(), is_good.to_numpy()

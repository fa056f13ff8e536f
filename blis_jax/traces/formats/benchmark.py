"""The requests that a benchmark client sent, or that an engine logged, replayed when they were sent.

Every file that `calibrate` reads with its requests is a trace, too: the lengths and times of sending are taken, the
measured latencies are not.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from blis_jax.errors import ConfigError
from blis_jax.traces.measured.recorded import is_recorded, read_requests
from blis_jax.traces.measured.sent import Summary
from blis_jax.traces.read import Sniff
from blis_jax.traces.rows import Reading, TraceRows


def matches(sniff: Sniff) -> bool:
    """Return whether a benchmark client, or an engine, wrote the file or a file in the folder."""
    return not sniff.is_parquet and is_recorded(sniff.path)


def read(path: Path, reading: Reading) -> TraceRows:
    """Return the requests in the order in which they were sent.

    Raises:
        ConfigError: the file has figures alone, or several runs of which none is chosen.
    """
    run = read_requests(path, stage=reading.stage, option="--trace-stage")
    if isinstance(run, Summary):
        raise ConfigError(
            f"{path} has figures of {run.tool} but no requests to replay: {run.lacking}"
        )
    reading.report.notes += run.notes
    rows = run.rows
    return rows if reading.limit is None else rows.take(np.arange(min(len(rows), reading.limit)))

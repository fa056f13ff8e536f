"""BLIS's TraceV2 with send and chunk times."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from blis_jax.calibrate.formats.latency_csv import read_table
from blis_jax.calibrate.measured_run import MeasuredRun
from blis_jax.calibrate.settings import ServerSettings, of_header
from blis_jax.traces.formats import trace_v2
from blis_jax.traces.rows import Reading


def read(path: Path) -> MeasuredRun:
    """Rows with status ok and both chunk times are measured; the others only arrive."""
    if path.suffix in (".yaml", ".yml"):
        path = path.with_suffix(".csv")
    reading = Reading()
    rows = trace_v2.read(path, reading)
    if reading.report.num_bad:
        reading.report.refuse_bad(path)
    times = read_table(path)
    sent, first, last = (
        times[name].to_numpy(np.float64)
        for name in ("send_time_us", "first_chunk_time_us", "last_chunk_time_us")
    )
    is_good = (times["status"] == "ok").to_numpy() & (first > 0) & (last >= first)
    header = trace_v2.header_path(path)
    settings = of_header(trace_v2.read_header(header)) if header else ServerSettings()
    return MeasuredRun(
        rows,
        np.where(is_good, first - sent, np.nan),
        np.where(is_good, last - sent, np.nan),
        settings,
        tuple(reading.report.notes),
    )

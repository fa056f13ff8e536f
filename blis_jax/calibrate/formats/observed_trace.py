"""BLIS's TraceV2 with send and chunk times, such as its `observe` records of a real server.

Rows with status ok, streamed, are measured: from send_time_us to the chunks, less the network's round trip
that the header states, which BLIS's own calibration adds to simulated latencies. The header's warm-up
requests arrive, but count as not measured. Rows without an output are left out.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np

from blis_jax.calibrate.formats.latency_csv import read_table
from blis_jax.calibrate.measured_run import MeasuredRun
from blis_jax.calibrate.settings import ServerSettings, of_header
from blis_jax.errors import ConfigError
from blis_jax.traces.formats import trace_v2, trace_v3
from blis_jax.traces.rows import Reading
from blis_jax.traces.sniff import sniff


def read(path: Path) -> MeasuredRun:
    """The requests in the order of the file.

    Raises:
        ConfigError: a row is malformed, or no row is measured.
    """
    if path.suffix in (".yaml", ".yml"):
        path = trace_v2.rows_beside(path)
    reading = Reading()
    form: Any = trace_v3 if trace_v3.matches(sniff(path)) else trace_v2
    rows = form.read(path, reading)
    if reading.report.num_bad:
        reading.report.refuse_bad(path)
    place = trace_v2.header_path(path)
    header = form.read_header(place) if place else trace_v2.Header()
    times = read_table(path)
    sent, first, last = (
        times[name].to_numpy(np.float64)
        for name in ("send_time_us", "first_chunk_time_us", "last_chunk_time_us")
    )
    is_streamed = times["streaming"].astype(str).str.lower().isin(["true", "t", "1"]).to_numpy()
    is_good = (times["status"] == "ok").to_numpy() & (first > 0) & (last >= first)
    is_good &= is_streamed | (last > first)
    is_good &= rows.request_id >= header.warm_up_requests
    if not np.any(is_good):
        raise ConfigError(
            f"{path} has no row that is ok and has the times of its chunks; record a run with streaming"
        )
    trip_us = 1e3 * (header.network.measured_rtt_ms if header.network else 0.0)
    run = MeasuredRun(
        rows,
        np.where(is_good, first - sent - trip_us, np.nan),
        np.where(is_good, last - sent - trip_us, np.nan),
        of_header(header) if place else ServerSettings(),
        tuple(reading.report.notes),
    )
    return _answered(run, trip_us)


def _answered(run: MeasuredRun, trip_us: float) -> MeasuredRun:
    """The requests that got an output, with what has been done to them in the notes."""
    has_output = run.rows.output_len > 0
    notes = list(run.notes)
    if left := int(np.sum(~has_output)):
        notes.append(
            f"{left} of {len(run)} requests have no output: they are left out, though they may have cost "
            "the server time"
        )
    if trip_us:
        notes.append(f"the network's {trip_us / 1e3:g} ms are taken off TTFT and E2E")
    kept = run.take(np.flatnonzero(has_output))
    begin = kept.rows.arrival_us.min()
    rows = dataclasses.replace(kept.rows, arrival_us=kept.rows.arrival_us - begin)
    return dataclasses.replace(kept, rows=rows, notes=tuple(notes))

"""Traces out: rows in any format that lists requests, and runs as TraceV2."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from blis_jax.errors import ConfigError
from blis_jax.results.records import RunRecord, Status
from blis_jax.traces.formats import trace_v2
from blis_jax.traces.read import FORMATS, module_of
from blis_jax.traces.rows import NO_CODE, TraceRows, make_rows
from blis_jax.workload.table import RequestTable, WorkloadNames

PRIVATE = "TraceV2 cannot say which contents prompts share; they are private in the file"
WRITABLE = tuple(sorted(set(FORMATS) - {"servegen"}))  # which describes traffic, not requests
_OUTCOMES = {
    Status.COMPLETED: ("ok", ""),
    Status.REJECTED: ("error", "rejected by admission"),
    Status.DROPPED: ("error", "dropped: longer than the instance's memory"),
    Status.WAITING: ("timeout", "waiting at the end of the simulation"),
    Status.RUNNING: ("timeout", "running at the end of the simulation"),
    Status.IN_FLIGHT: ("timeout", "on its way at the end of the simulation"),
    Status.LOST: ("error", "lost: its instance stopped"),
    Status.QUEUE_FULL: ("error", "turned away by the gateway's queue"),
    Status.SHED: ("error", "left the gateway's queue for a more urgent request"),
    Status.EXPIRED: ("timeout", "waited too long in the gateway's queue"),
    Status.EVICTED: ("error", "given up for a more urgent request in the gateway's queue"),
    Status.TIMED_OUT: ("timeout", "its time was up"),
    Status.UNROUTED: ("error", "no instance was up"),
    Status.IN_GATEWAY: ("timeout", "in the gateway's queue at the end of the simulation"),
}


def write_trace(rows: TraceRows, path: str | Path, name: str = "plain") -> None:
    """Write rows in a format, which keeps what the format can hold."""
    if name not in WRITABLE:
        raise ConfigError(f"trace format {name!r} cannot be written; use {', '.join(WRITABLE)}")
    module_of(name).write(rows, Path(path))


def write_run(path: str | Path, record: RunRecord, rows: TraceRows, workload: str = "") -> str:
    """Write a run as TraceV2: requests and when they got their first and last token.

    Returns a remark on what the format could not hold, empty if nothing is lost.
    """
    kept, remark = rows, ""
    if rows.segments is not None or ((rows.prefix_len > 0) & (rows.prefix_len != 50)).any():
        remark = PRIVATE
        none = np.full(len(rows), NO_CODE, np.int32)
        kept = replace(rows, segments=None, prefix_group=none, prefix_len=np.zeros_like(none))
    header = trace_v2.Header(mode="generated", workload_spec=workload)
    trace_v2.write(kept, Path(path), header, _outcome(record))
    return remark


def from_table(
    table: RequestTable, names: WorkloadNames, client_names: tuple[str, ...] = ()
) -> TraceRows:
    """The rows of a request table; its shared contents are not taken over."""
    columns: dict[str, Any] = {
        name: np.asarray(getattr(table, name))
        for name in ("slo_class", "tenant", "client", "session", "round_index")
    }
    num_clients = int(columns["client"].max(initial=0)) + 1
    num_sessions = int(columns["session"].max(initial=-1)) + 1
    rows = make_rows(
        np.asarray(table.arrival_us),
        np.asarray(table.input_len),
        np.asarray(table.output_len),
        **columns,
    )
    return replace(
        rows,
        tenant_names=names.tenant_names or ("",),
        client_names=client_names or tuple(f"client_{number}" for number in range(num_clients)),
        session_names=tuple(f"session_{number}" for number in range(num_sessions)),
    )


def _outcome(record: RunRecord) -> dict[str, Any]:
    requests = record.requests
    is_done = requests.status == Status.COMPLETED
    arrival_us = np.asarray(requests.arrival_us, np.int64)

    def after(times_us: np.ndarray) -> np.ndarray:
        return np.where(is_done, arrival_us + times_us, 0)

    texts = [_OUTCOMES[Status(status)] for status in requests.status]
    return {
        "streaming": np.full(len(arrival_us), "true", object),
        "first_chunk_time_us": after(requests.ttft_us),
        "last_chunk_time_us": after(requests.e2e_us),
        "num_chunks": np.where(is_done, requests.output_len, 0),
        "status": np.array([status for status, _ in texts], object),
        "error_message": np.array([message for _, message in texts], object),
    }

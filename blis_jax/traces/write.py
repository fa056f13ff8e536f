"""Traces out: rows in any format that lists requests, and runs as TraceV2."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from blis_jax.core.types import SLO_CLASSES
from blis_jax.errors import ConfigError
from blis_jax.records.record import RunRecord, Status
from blis_jax.traces.formats import trace_v2, trace_v3
from blis_jax.traces.read import FORMATS, module_of
from blis_jax.traces.rows import ADAPTER, NO_CODE, TraceRows, make_rows
from blis_jax.workload.reference.arrays import has_stream
from blis_jax.workload.reference.generate import DrawnWorkload
from blis_jax.workload.reference.requests import DrawnRequest
from blis_jax.workload.revised_spec import ClassTargets
from blis_jax.workload.spec import ClientSpec
from blis_jax.workload.table import RequestTable, WorkloadNames

if TYPE_CHECKING:
    from jaxtyping import Int


PRIVATE = "TraceV2 cannot say which contents prompts share; they are private in the file"
# ServeGen describes traffic, not requests; benchmark files hold what a server did
WRITABLE = tuple(sorted(set(FORMATS) - {"servegen", "benchmark"}))
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
    """Return the rows of a request table; its shared contents are not taken over."""
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
        "num_chunks": np.where(is_done, requests.made_len, 0),
        "status": np.array([status for status, _ in texts], object),
        "error_message": np.array([message for _, message in texts], object),
    }


# --- drawn workloads, and their runs, as TraceV2 of August 2026 -----------------------------------


PARTS = tuple(f"{kind}_tokens" for kind in trace_v3.MODALITIES)


def write_drawn(
    path: str | Path,
    workload: DrawnWorkload,
    *,
    requests: Sequence[DrawnRequest] | None = None,
    record: RunRecord | None = None,
    header: trace_v3.RevisedHeader | None = None,
) -> None:
    """Write requests as BLIS's `--trace-output` does, the header beside them.

    Args:
        path: file of the rows, ending in `.csv`.
        workload: what `drawn` returned.
        requests: all that arrived, in this order; those that arrive by themselves if None.
        record: the run that served them, in the same order; without one no request has chunks.
        header: what the header says; that the requests were generated if None.

    Raises:
        ConfigError: the record is not one of these requests.
    """
    arrived = workload.requests if requests is None else requests
    columns = _columns(workload.clients, arrived)
    if record is not None:
        columns |= _revised_outcome(record, len(arrived))
    trace_v3.write(_rows(workload.clients, arrived), Path(path), header, columns)


def revised_header(
    limits: Mapping[str, Mapping[str, float]], **more: Any
) -> trace_v3.RevisedHeader:
    """Make a header with limits for goodput, in ms by class and dimension, and `more` of its fields."""
    targets = {
        name: ClassTargets.model_validate(
            {f"{dimension}_ms": limit for dimension, limit in row.items()}
        )
        for name, row in sorted(limits.items())
    }
    return trace_v3.RevisedHeader(goodput_slo_targets=targets, **more)


def write_replayed(
    path: str | Path,
    record: RunRecord,
    rows: TraceRows,
    limits: Mapping[str, Mapping[str, float]] | None = None,
    tiers: Mapping[str, Any] | None = None,
) -> str:
    """Write a run of given requests as BLIS's `replay --trace-output` does, the header beside them.

    What the file of the requests said beside lengths and arrivals is written again, in its order, but for the times it
    reported.

    Args:
        path: file of the rows, ending in `.csv`.
        record: the run.
        rows: its requests, in the same order.
        limits: for goodput, in ms by class and dimension; the header says them.
        tiers: that KV blocks were off-loaded to, as the header says them.

    Returns:
        A remark on what the format could not hold, empty if nothing is lost.
    """
    remark = ""
    if rows.segments is not None:
        remark, rows = PRIVATE, dataclasses.replace(rows, segments=None)
    outcome, order = _revised_outcome(record, len(rows)), np.argsort(rows.file_row, kind="stable")
    _write_in_order(Path(path), rows.take(order), _taken(outcome, order), limits, tiers)
    return remark


def write_first_rounds(
    path: str | Path,
    record: RunRecord,
    places: Int[np.ndarray, " first"],
    rows: TraceRows,
    limits: Mapping[str, Mapping[str, float]] | None = None,
    tiers: Mapping[str, Any] | None = None,
) -> None:
    """Write a run whose later rounds waited for their answers as BLIS does: without those rounds.

    Args:
        path: file of the rows, ending in `.csv`.
        record: the run.
        places: of the other requests in the record, by their arrival.
        rows: all requests of the trace, by arrival.
        limits: as for `write_replayed`, and so `tiers`.
    """
    in_session = rows.session != NO_CODE
    begins = np.full(len(rows.session_names) + 1, len(rows))  # the last place is of NO_CODE
    np.minimum.at(begins, rows.session[in_session], rows.file_row[in_session])
    first = np.flatnonzero(~in_session | (rows.round_index == 0))
    is_alone = ~in_session[first]  # after all sessions
    begin = np.where(is_alone, rows.file_row[first], begins[rows.session[first]])
    written = rows.take(first[np.lexsort((begin, is_alone))])
    request = np.empty(len(first), np.int64)
    request[np.argsort(written.arrival_us, kind="stable")] = places
    outcome = _revised_outcome(record, len(record.requests.arrival_us))
    _write_in_order(Path(path), written, _taken(outcome, request), limits, tiers)


def _write_in_order(
    path: Path,
    rows: TraceRows,
    outcome: Mapping[str, Any],
    limits: Mapping[str, Mapping[str, float]] | None,
    tiers: Mapping[str, Any] | None,
) -> None:
    numbered = dataclasses.replace(rows, request_id=np.arange(len(rows)))
    header = revised_header(limits or {}, mode="replayed", kv_offload=tiers or None)
    trace_v3.write(numbered, path, header, outcome)


def _taken(columns: Mapping[str, Any], rows: Int[np.ndarray, " row"]) -> dict[str, Any]:
    return {name: values[rows] for name, values in columns.items()}


def _rows(clients: Sequence[ClientSpec], requests: Sequence[DrawnRequest]) -> TraceRows:
    senders = [clients[request.client] for request in requests]
    timeouts = [
        request.deadline_us - request.arrival_us if request.deadline_us else 0
        for request in requests
    ]
    texts = {
        "client": [client.id for client in senders],
        "tenant": [client.tenant_id for client in senders],
        "session": [request.session for request in requests],
        "prefix_group": [request.prefix_group for request in requests],
    }
    return make_rows(
        np.array([request.arrival_us for request in requests], np.int64),
        np.array([request.input_len for request in requests], np.int32),
        np.array([len(request.output) for request in requests], np.int32),
        texts={name: np.array(values, object) for name, values in texts.items()},
        slo_class=np.array([SLO_CLASSES.index(client.slo_class) for client in senders], np.int32),
        round_index=np.array([request.round_index for request in requests], np.int32),
        prefix_len=np.array([request.prefix_len for request in requests], np.int32),
        timeout_us=np.array(timeouts, np.int64),
    )


def _columns(clients: Sequence[ClientSpec], requests: Sequence[DrawnRequest]) -> dict[str, Any]:
    """Return what rows of a trace do not hold."""
    senders = [clients[request.client] for request in requests]
    parts = np.array([request.parts for request in requests], np.int64).reshape(-1, len(PARTS))
    streams = [has_stream(*pair) for pair in zip(senders, requests, strict=True)]
    return {
        "model": np.array([client.model for client in senders], object),
        ADAPTER: np.array([getattr(client, "adapter", "") for client in senders], object),
        "streaming": np.where(streams, "true", "false").astype(object),
        "reason_ratio": trace_v3.ratio_texts(request.reason_ratio for request in requests),
        trace_v3.TARGET: np.array([request.slo_target_us for request in requests], np.int64),
        **{name: parts[:, place] for place, name in enumerate(PARTS)},
    }


def _revised_outcome(record: RunRecord, num_requests: int) -> dict[str, Any]:
    """When each request got its first and its last token so far, and what became of it.

    BLIS calls requests that its pools have split incomplete, without times; they have theirs here.
    """
    requests = record.requests
    if len(requests.arrival_us) != num_requests:
        raise ConfigError(
            f"record: has {len(requests.arrival_us)} requests, but {num_requests} are to be written; "
            "give the requests of this run"
        )
    arrival_us = np.asarray(requests.arrival_us, np.int64)
    is_done = np.asarray(requests.status) == Status.COMPLETED
    is_late = np.asarray(requests.status) == Status.TIMED_OUT
    has_token, begins_us = requests.token_step_idx >= 0, requests.ttft_us
    if record.splits is not None:
        parts = record.splits
        has_token = np.where(parts.is_split, requests.ttft_us >= 0, has_token)
        of_part = np.where(
            parts.decode_ttft_us >= 0, parts.decode_ttft_us, parts.decode_sched_delay_us
        )
        begins_us = np.where(parts.is_split & is_done, of_part, begins_us)
    last_us = begins_us + (0 if requests.itl_us is None else requests.itl_us)
    words = np.where(is_done, "ok", np.where(is_late, "timeout", "incomplete"))
    return {
        "first_chunk_time_us": np.where(has_token, arrival_us + requests.ttft_us, 0),
        "last_chunk_time_us": np.where(has_token, arrival_us + last_us, 0),
        "status": words.astype(object),
    }

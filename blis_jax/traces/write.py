"""Write traces: rows in any format that lists requests, and runs as TraceV2."""

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
from blis_jax.workload.spec import ClientSpec
from blis_jax.workload.spec_parts import ClassTargets
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
    """Write rows in a format; columns that the format cannot hold are dropped."""
    if name not in WRITABLE:
        raise ConfigError(f"trace format {name!r} cannot be written; use {', '.join(WRITABLE)}")
    module_of(name).write(rows, Path(path))


def write_run(path: str | Path, record: RunRecord, rows: TraceRows, workload: str = "") -> str:
    """Write a run as TraceV2: requests with the times of their first and last tokens.

    Return a note on anything that the format cannot hold, empty if nothing is lost.
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
    """Return the rows of a request table, without its shared contents."""
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
    """Write requests as BLIS's `--trace-output` does, with the header beside the rows.

    Args:
        path: file of the rows, ending in `.csv`.
        workload: the workload returned by `drawn`.
        requests: all requests that arrived, in this order; those that do not wait for others if None.
        record: the run that served the requests, in the same order; without a run no request has chunk times.
        header: the header; if None, a header that says that the requests were generated.

    Raises:
        ConfigError: the record belongs to other requests.
    """
    arrived = workload.requests if requests is None else requests
    columns = _columns(workload.clients, arrived)
    if record is not None:
        columns |= _revised_outcome(record, len(arrived))
    trace_v3.write(_rows(workload.clients, arrived), Path(path), header, columns)


def revised_header(
    limits: Mapping[str, Mapping[str, float]], **more: Any
) -> trace_v3.RevisedHeader:
    """Return a header with limits for goodput, in ms by class and dimension, and with the fields in `more`."""
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
    """Write a run of given requests as BLIS's `replay --trace-output` does, with the header beside the rows.

    Columns of the original file besides lengths and arrivals are written again, in the order of the file, except the
    times that it reported.

    Args:
        path: file of the rows, ending in `.csv`.
        record: the run.
        rows: the requests of the run, in the same order.
        limits: goodput limits for the header, in ms by class and dimension.
        tiers: off-load tiers of KV blocks, in the form of the header.

    Returns:
        A note on anything that the format cannot hold, empty if nothing is lost.
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
    """Write a run whose later rounds waited for answers, as BLIS does: without these later rounds.

    Args:
        path: file of the rows, ending in `.csv`.
        record: the run.
        places: positions in the record of the requests that are written, by their arrival.
        rows: all requests of the trace, by arrival.
        limits: as for `write_replayed`.
    """
    in_session = rows.session != NO_CODE
    begins = np.full(len(rows.session_names) + 1, len(rows))  # the last entry is for NO_CODE
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
    """Return the columns of a trace file that `TraceRows` does not have."""
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
    """Return the times of each request's first token and last token so far, and its status.

    BLIS marks requests that its pools have split as incomplete and without times; here they have their status and
    times.
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

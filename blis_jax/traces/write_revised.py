"""Drawn workloads, and their runs, as TraceV2 of August 2026."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from blis_jax.core.types import SLO_CLASSES
from blis_jax.errors import ConfigError
from blis_jax.results.records import RunRecord, Status
from blis_jax.traces.formats import trace_v3
from blis_jax.traces.rows import TraceRows, make_rows
from blis_jax.traces.write import PRIVATE
from blis_jax.workload.reference.arrays import has_stream
from blis_jax.workload.reference.generate import DrawnWorkload
from blis_jax.workload.reference.requests import DrawnRequest
from blis_jax.workload.revised.spec import ClassTargets
from blis_jax.workload.spec import ClientSpec

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
        columns |= _outcome(record, len(arrived))
    trace_v3.write(_rows(workload.clients, arrived), Path(path), header, columns)


def revised_header(
    limits: Mapping[str, Mapping[str, float]], **more: Any
) -> trace_v3.RevisedHeader:
    """Make a header with limits for goodput, in ms by class and dimension, and `more` of its fields."""
    targets = {
        name: ClassTargets.model_validate({f"{one}_ms": limit for one, limit in row.items()})
        for name, row in sorted(limits.items())
    }
    return trace_v3.RevisedHeader(goodput_slo_targets=targets, **more)


def write_replayed(
    path: str | Path,
    record: RunRecord,
    rows: TraceRows,
    limits: Mapping[str, Mapping[str, float]] | None = None,
) -> str:
    """Write a run of given requests as BLIS's `replay --trace-output` does, the header beside them.

    What the file of the requests said beside lengths and arrivals is written again, but for the times it reported.

    Args:
        path: file of the rows, ending in `.csv`.
        record: the run.
        rows: its requests, in the same order.
        limits: for goodput, in ms by class and dimension; the header says them.

    Returns:
        A remark on what the format could not hold, empty if nothing is lost.
    """
    remark = ""
    if rows.segments is not None:
        remark, rows = PRIVATE, dataclasses.replace(rows, segments=None)
    numbered = dataclasses.replace(rows, request_id=np.arange(len(rows)))
    header = revised_header(limits or {}, mode="replayed")
    trace_v3.write(numbered, Path(path), header, _outcome(record, len(rows)))
    return remark


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
    """What rows of a trace do not hold."""
    senders = [clients[request.client] for request in requests]
    parts = np.array([request.parts for request in requests], np.int64).reshape(-1, len(PARTS))
    streams = [has_stream(*pair) for pair in zip(senders, requests, strict=True)]
    return {
        "model": np.array([client.model for client in senders], object),
        "streaming": np.where(streams, "true", "false").astype(object),
        "reason_ratio": trace_v3.ratio_texts(one.reason_ratio for one in requests),
        trace_v3.TARGET: np.array([one.slo_target_us for one in requests], np.int64),
        **{name: parts[:, place] for place, name in enumerate(PARTS)},
    }


def _outcome(record: RunRecord, num_requests: int) -> dict[str, Any]:
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

"""Drawn workloads, and their runs, as TraceV2 of August 2026."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from blis_jax.engine.types import SLO_CLASSES
from blis_jax.errors import ConfigError
from blis_jax.results.records import RunRecord, Status
from blis_jax.traces.formats import trace_v3
from blis_jax.traces.rows import TraceRows, make_rows
from blis_jax.workload.reference.arrays import has_stream
from blis_jax.workload.reference.generate import DrawnWorkload
from blis_jax.workload.reference.requests import DrawnRequest
from blis_jax.workload.spec import ClientSpec

TIMED_OUT = 6  # a request's status in recorded runs of the revision
PARTS = ("text_tokens", "image_tokens", "audio_tokens", "video_tokens")


def write_drawn(
    path: str | Path,
    workload: DrawnWorkload,
    *,
    requests: Sequence[DrawnRequest] | None = None,
    record: RunRecord | None = None,
    post_decode_us: int = 0,
    header: trace_v3.RevisedHeader | None = None,
) -> None:
    """Write requests as BLIS's `--trace-output` does, the header beside them.

    Args:
        path: file of the rows, ending in `.csv`.
        workload: what `drawn` returned.
        requests: all that arrived, in this order; those that arrive by themselves if None.
        record: the run that served them, in the same order; without one no request has chunks.
        post_decode_us: the part of a completed request's E2E that comes after its last token.
        header: what the header says; that the requests were generated if None.

    Raises:
        ConfigError: the record is not one of these requests.
    """
    arrived = workload.requests if requests is None else requests
    columns = _columns(workload.clients, arrived)
    if record is not None:
        columns |= _outcome(record, len(arrived), post_decode_us)
    trace_v3.write(_rows(workload.clients, arrived), Path(path), header, columns)


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
        "reason_ratio": np.array([f"{one.reason_ratio:.15g}" for one in requests], object),
        trace_v3.TARGET: np.array([one.slo_target_us for one in requests], np.int64),
        **{name: parts[:, place] for place, name in enumerate(PARTS)},
    }


def _outcome(record: RunRecord, num_requests: int, post_decode_us: int) -> dict[str, Any]:
    requests = record.requests
    if len(requests.arrival_us) != num_requests:
        raise ConfigError(
            f"record: has {len(requests.arrival_us)} requests, but {num_requests} are to be written; "
            "give the requests of this run"
        )
    arrival_us = np.asarray(requests.arrival_us, np.int64)
    is_done = np.asarray(requests.status) == Status.COMPLETED
    has_token = np.asarray(requests.ttft_us) >= 0
    after = np.asarray(post_decode_us * (np.asarray(requests.output_len) > 0))
    last_us = np.where(is_done, requests.e2e_us - after, requests.ttft_us)
    is_late = np.asarray(requests.status) == TIMED_OUT
    words = np.where(is_done, "ok", np.where(is_late, "timeout", "incomplete"))
    return {
        "first_chunk_time_us": np.where(has_token, arrival_us + requests.ttft_us, 0),
        "last_chunk_time_us": np.where(has_token, arrival_us + last_us, 0),
        "status": words.astype(object),
    }

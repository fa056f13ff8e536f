"""Time-outs of BLIS's revision of August 2026, which are not simulated: whether a run would have had one."""

from __future__ import annotations

import numpy as np

from blis_jax.results.metrics.reference import ended_us
from blis_jax.results.records import RunRecord, Status
from blis_jax.workload.table import RequestTable

TIMEOUT_US = 300_000_000  # BLIS's default for requests that no workload file describes
TIME_OUT_SENTENCE = (
    "a request took more than 300 s, at which blis-2026-08 times it out, and time-outs are not simulated yet; "
    "lower the load, or set a --horizon of at most 300000000"
)


def has_timed_out(record: RunRecord, table: RequestTable, is_of_file: bool) -> bool:
    """Whether a request stayed past its deadline; of a workload file's requests, those of sessions have one."""
    requests = record.requests
    has_deadline = np.asarray(table.session)[: len(requests.arrival_us)] >= 0
    has_deadline = has_deadline | (not is_of_file)
    is_there = np.isin(requests.status, (Status.COMPLETED, Status.WAITING, Status.RUNNING))
    left = np.where(requests.left_us >= 0, requests.left_us, ended_us(record))
    return bool(np.any(has_deadline & is_there & (left - requests.arrival_us > TIMEOUT_US)))

"""Figures of a run with pools of BLIS 2026-08: of whole requests in the cluster, of their parts on an instance."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from blis_jax.results.records import RunRecord, Status

if TYPE_CHECKING:
    from jaxtyping import Bool, Int

    from blis_jax.results.request_lives.splits import SplitRecords

TIMES = ("e2e_us", "ttft_us", "sched_delay_us")


def times_of_parts(
    record: RunRecord, splits: SplitRecords, instance: int | None
) -> list[Int[np.ndarray, "recorded"]]:
    """E2E, TTFT and scheduling delay in µs: of whole requests in the cluster, of their parts on an instance."""
    requests = record.requests
    if instance is None:
        return [_recorded(getattr(requests, name), splits.is_ended) for name in TIMES]
    is_whole = (requests.instance == instance) & ~splits.is_split
    in_prefill = splits.is_split & (splits.prefill_instance == instance)
    in_decode = splits.is_split & (splits.decode_instance == instance)
    of_prefill = (
        splits.prefill_ttft_us,
        splits.prefill_ttft_us,
        splits.prefill_sched_delay_us,
    )
    of_decode = (splits.decode_e2e_us, splits.decode_ttft_us, splits.decode_sched_delay_us)
    return [
        np.concatenate(
            [
                _recorded(getattr(requests, name), is_whole),
                _recorded(first, in_prefill),
                _recorded(then, in_decode),
            ]
        )
        for name, first, then in zip(TIMES, of_prefill, of_decode, strict=True)
    ]


def is_reported(record: RunRecord) -> Bool[np.ndarray, "request"]:
    """Which requests BLIS's figures of the cluster are about: of those that pools have split, the ended ones."""
    splits = record.splits
    return np.ones(len(record.requests.status), bool) if splits is None else splits.is_ended


def is_listed(record: RunRecord) -> Bool[np.ndarray, "request"]:
    """Which requests BLIS lists: those that an instance got and did not drop, of split ones those that ended."""
    requests, splits = record.requests, record.splits
    is_kept = requests.status != Status.DROPPED
    if splits is not None:
        is_kept = np.where(splits.is_split, splits.is_ended, is_kept)
    return (requests.instance >= 0) & is_kept


def counted(record: RunRecord, name: str, instance: int | None) -> int:
    """A counter of one instance or of the cluster, of which BLIS's pools count parts of requests.

    A prefill part completes on its instance, KV without room is dropped by the cluster, and a request between the
    instances is running.
    """
    values, splits = getattr(record.instances, name), record.splits
    found = int(values.sum() if instance is None else values[instance])
    if splits is None:
        return found
    has_left = splits.transfer_at_us >= 0
    if instance is None:
        is_between = has_left & (record.requests.status == Status.IN_FLIGHT)
        return found + int(is_between.sum()) * (name == "still_running")
    if name == "completed_requests":
        found += int((has_left & (splits.prefill_instance == instance)).sum())
    if name == "dropped_unservable":
        is_dropped = has_left & (record.requests.status == Status.DROPPED)
        found -= int((is_dropped & (splits.decode_instance == instance)).sum())
    return found


def _recorded(values: Int[np.ndarray, "request"], mask: np.ndarray) -> Int[np.ndarray, "recorded"]:
    """Those of the chosen requests that exist."""
    return values[mask & (values >= 0)]

"""A run of the plain cluster of August 2026 with the names and codes of a recording."""

from __future__ import annotations

import numpy as np

from tests.support.oracles.august.cluster import IN_FLIGHT, IN_TRANSFER, Cluster, Whole
from tests.support.oracles.august.instance import (
    COMPLETED,
    DROPPED,
    RUNNING,
    TIMED_OUT,
    WAITING,
    Part,
)

TIMED_OUT_THERE = 6


def status_of(one: Whole) -> int:
    """A code of the recordings."""
    if one.status not in (IN_FLIGHT,):
        return one.status
    part = one.whole or one.decode or one.prefill
    if part is None:
        return IN_FLIGHT
    if part is one.prefill and part.status == COMPLETED:
        return IN_TRANSFER
    known = {COMPLETED: 0, DROPPED: 2, WAITING: 3, RUNNING: 4, TIMED_OUT: TIMED_OUT_THERE}
    return known.get(part.status, IN_FLIGHT)


def _split_latencies(one: Whole) -> tuple[int, int, int]:
    """Scheduling delay, TTFT and E2E of a request in two parts; -1 where it has not ended."""
    first, part = one.prefill, one.decode
    if not one.completed or first is None:
        return -1, -1, -1
    ttft, e2e = first.ttft, one.completed - one.given["arrival"]
    if part is not None and part.delay >= 0:
        if part.itls:
            ttft = part.delay + part.itls[0]
        if part.status == COMPLETED:
            own = sum(part.itls) + part.post + max(part.ttft, 0)
            e2e = own if part.ttft >= 0 else own + part.delay
    return first.delay, ttft, e2e


def arrays(cluster: Cluster) -> dict[str, np.ndarray]:
    """The run with the names of a recording."""
    rows = [_row(one) for one in cluster.requests]
    found = {name: np.array([row[name] for row in rows]) for name in rows[0]}
    names = (
        "step_start_us",
        "step_duration_us",
        "step_running",
        "step_waiting",
        "step_used_blocks",
    )
    steps = [(at, *step) for at, one in enumerate(cluster.instances) for step in one.steps]
    table = np.array(steps, np.int64).reshape(-1, len(names) + 1)
    return found | dict(zip(("step_instance", *names), table.T, strict=True))


def _row(one: Whole) -> dict[str, int]:
    is_split = one.prefill is not None
    part = one.whole or Part.of(one.given, one.tenant)
    first = one.prefill or Part.of(one.given, one.tenant)
    last = one.decode or Part.of(one.given, one.tenant)
    delay, ttft, e2e = _split_latencies(one) if is_split else (part.delay, part.ttft, part.e2e)
    row = {
        "status": status_of(one),
        "instance": one.instance,
        "sched_delay_us": delay,
        "ttft_us": ttft,
        "e2e_us": e2e,
        "queued_at_us": part.queued_at,
        "completed_at_us": part.completed_at,
        "preemptions": part.preemptions,
        "num_scheduled": part.scheduled,
        "cached_tokens_first_sched": part.cached,
        "scheduled_step_idx": part.scheduled_step,
        "finished_step_idx": part.finished_step,
        "num_itl": len(part.itls),
        "progress_index": part.progress,
        "gw_enqueue_us": one.enqueued,
        "gw_dispatch_us": one.dispatched if one.turn >= 0 else 0,
        "pd_prefill_instance": one.routed_to if is_split else -1,
        "pd_decode_instance": one.instance if is_split else -1,
        "prefill_completed_at": first.completed_at,
        "pd_transfer_start_us": one.times.get("transfer start", -1),
        "pd_transfer_complete_us": one.times.get("transfer end", -1),
        "prefill_last_sched": first.last_sched,
        "decode_first_sched": last.first_sched,
        "decode_last_sched": last.last_sched,
        "prefill_preempt": first.preemptions,
        "decode_preempt": last.preemptions,
        "prefill_cached_first": first.cached,
        "decode_completed_at": last.completed_at,
        "decode_num_itl": len(last.itls),
    }
    return row

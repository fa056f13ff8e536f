"""What hand-overs and stops of instances leave behind in a request's record."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from blis_jax.core.types import never
from blis_jax.results.records import Status

if TYPE_CHECKING:
    from blis_jax.engine.tables.journeys import Journey
    from blis_jax.results.records import InstanceRecords, RequestRecords

    Columns = dict[str, Any]

# what E2E consists of, in order of time
E2E_PARTS = ("first_token", "transfer", "handed_wait", "decode")


def is_on_its_way(journey: Journey, clock: Any) -> Any:
    """Which requests have left one instance and not been routed to another `[request]`."""
    return journey.due != never(clock)


def has_moved(journey: Journey) -> Any:
    """Which requests have steps of several instances, or attempts that count no more `[request]`."""
    return (journey.first_record >= 0) | (journey.restarts > 0)


def left_preempted(
    requests: RequestRecords, instances: InstanceRecords, is_there: bool = False
) -> Any:
    """Requests that may have been preempted on an instance before it went down `[request]`.

    They are in flight or dropped; with `is_there` they may be anywhere.
    """
    was_down: Any = (instances.times_down > 0).any(axis=-1)
    status = requests.status
    is_away = is_there | (status == Status.IN_FLIGHT) | (status == Status.DROPPED)
    return was_down[..., None] & is_away & (requests.preemptions > 0)


def after_moves(
    journey: Journey | None, num_requests: int, starts: Any, ends: Any, xp: Any = np
) -> Columns:
    """The columns `transfer_us`, `handed_wait_us` (−1 where it has not ended), `hand_overs` and `restarts`.

    Args:
        journey: where requests have been, None where all stay in place.
        num_requests: how many there are.
        starts: gives the start of each record's step, µs.
        ends: likewise the end.
        xp: numpy, or JAX in a compiled call.
    """
    nothing = np.full(num_requests, -1)
    if journey is None:
        none = np.zeros(num_requests, np.int64)
        times = {"transfer_us": nothing, "handed_wait_us": nothing}
        return times | {"hand_overs": none, "restarts": none}
    has_come = (journey.first_record >= 0) & ~is_on_its_way(journey, journey.times.dtype)
    left = ends(xp.maximum(journey.first_record, 0))
    transfer = journey.transfer.astype(left.dtype)
    wait = starts(xp.maximum(journey.joined_record, 0)) - left - transfer
    return {
        "transfer_us": xp.where(has_come, transfer, nothing),
        "handed_wait_us": xp.where(has_come & (journey.joined_record >= 0), wait, nothing),
        "hand_overs": (journey.first_record >= 0).astype(np.int64),
        "restarts": journey.restarts.astype(np.int64),
    }


def e2e_parts_us(requests: RequestRecords) -> np.ndarray:
    """E2E of each request split into `E2E_PARTS` `[request, part]`, µs; −1 for requests that have not completed.

    `first_token` is TTFT; `decode` is what the others leave. A request that is not handed over has no transfer.
    """
    first, transfer, wait = (
        np.maximum(one, 0)
        for one in (requests.ttft_us, requests.transfer_us, requests.handed_wait_us)
    )
    if requests.handed_us is not None:  # TTFT is that of the step after the transfer
        first = np.where(requests.handed_us >= 0, requests.handed_us, first)
    parts = np.stack([first, transfer, wait, requests.e2e_us - first - transfer - wait], axis=-1)
    return np.where((requests.e2e_us >= 0)[..., None], parts, -1)

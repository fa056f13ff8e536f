"""What the gateway's queue does with requests, and who leaves an instance early: read off the engine's tables.

The arrays are those of one run, in numpy or, in a compiled call, in JAX; `xp` says which.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from blis_jax.core.types import never
from blis_jax.engine.gateway.exits import ORPHANED
from blis_jax.engine.gateway.gateway_queue import Place
from blis_jax.engine.state import Dyn, InstTime
from blis_jax.results.records import Status

_AT_GATEWAY = {
    Place.QUEUED: Status.IN_GATEWAY,
    Place.REJECTED: Status.QUEUE_FULL,
    Place.SHED: Status.SHED,
    Place.EXPIRED: Status.EXPIRED,
    Place.EVICTED: Status.EVICTED,
}
_DISPATCHED = (Place.DISPATCHED, Place.EVICTED, Place.CHOSEN)


def gateway_waits(raw: Any, routed_us: Any, latency_us: Any, xp: Any = np) -> tuple[Any, Any]:
    """When each request is routed, and how long it waited at the gateway before, −1 if it was not dispatched.

    Args:
        raw: the run's tables.
        routed_us: when it would be routed without waiting there `[request]`.
        latency_us: from dispatch to routing.
        xp: numpy or JAX.
    """
    if raw.dispatched is None:
        return routed_us, None
    size = len(routed_us)
    is_dispatched = xp.isin(raw.queue_place[:size], np.array(_DISPATCHED))
    wait = raw.dispatched[:size].astype(routed_us.dtype) + latency_us - routed_us
    return routed_us + xp.where(is_dispatched, wait, 0), xp.where(is_dispatched, wait, -1)


def routed_later(raw: Any, routed_us: Any, xp: Any = np) -> Any:
    """When each request is routed, given when it would be if some instance were always up."""
    if raw.routed_at is None:
        return routed_us
    routed_at = raw.routed_at[: len(routed_us)]
    is_later = (routed_at != never(routed_at.dtype)) & (routed_at > routed_us)
    return xp.where(is_later, routed_at.astype(routed_us.dtype), routed_us)


def final_status(raw: Any, dyn: Any, status: Any, xp: Any = np) -> Any:
    """The status of each request, given what it is where nobody waits at the gateway or gives up."""
    size = len(dyn)
    if raw.exits is not None:
        scheduled = dyn[:, Dyn.NUM_SCHEDULED]
        is_late = (scheduled < 0) & (scheduled % 2 == 0)  # its time was up before it was queued
        has_left = (raw.exits.step_index[:size] != 0) | is_late
        status = xp.where(has_left, int(Status.TIMED_OUT), status)
    for place, left in _AT_GATEWAY.items() if raw.queue_place is not None else ():
        status = xp.where(raw.queue_place[:size] == place, int(left), status)
    return status


def ended_steps(raw: Any, size: int, xp: Any = np) -> Any:
    """Steps of its instance when each request left the batch early, 0: it did not; None where nobody does."""
    if raw.exits is None:
        return None
    return xp.maximum(raw.exits.step_index[:size].astype(np.int64), 0)


def orphaned_us(raw: Any, rows: int, time_type: Any, xp: Any = np) -> Any:
    """When each instance was last to begin a step and found nobody, 0: not since its last step."""
    if raw.exits is None:
        return 0
    busy_until = raw.inst_time[:rows, InstTime.BUSY_UNTIL].astype(time_type)
    return xp.where(raw.exits.keeps_batch[:rows] == ORPHANED, busy_until, 0)

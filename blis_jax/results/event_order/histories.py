"""What each instance recorded, as the replay of events of one microsecond reads it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from blis_jax.engine.state import Log, LogTime

if TYPE_CHECKING:
    from jaxtyping import Bool, Int


@dataclass(frozen=True)
class InstanceHistory:
    """What one instance recorded, in order of execution; a row of the log stands for one or several equal steps."""

    requests: Int[np.ndarray, "request"]  # routed to it, in order of routing
    routed_us: Int[np.ndarray, "request"]
    queued_us: Int[np.ndarray, "request"]
    start_us: Int[np.ndarray, "row"]  # of the row's first step
    duration_us: Int[np.ndarray, "row"]  # of one step
    num_steps: Int[np.ndarray, "row"]
    preempted: Int[np.ndarray, "row"]  # requests evicted in the first of its steps
    scheduled: Int[np.ndarray, "row"]  # requests that entered the batch in the first
    completed: Int[np.ndarray, "row"]  # requests completed by the last
    continues: Bool[np.ndarray, "row"]  # whether the last step scheduled its successor


def entry_times(
    cluster: Any, arrival: Any, input_len: Any, instance: Any, xp: Any = np
) -> tuple[Any, Any]:
    """When each request is routed, and how long it then takes into the queue, in the type of the arrivals.

    Args:
        cluster: its numbers, `ClusterParams`.
        arrival: `[request]`, µs.
        input_len: `[request]`, tokens.
        instance: `[request]`, where it is routed to; negative: nowhere.
        xp: numpy, or JAX in a compiled call.
    """
    routed = arrival + xp.asarray(cluster.admission_latency_us + cluster.routing_latency_us).astype(
        arrival.dtype
    )
    alpha = xp.asarray(cluster.alpha)[xp.maximum(instance, 0)]
    delay = alpha[:, 0] + alpha[:, 1] * input_len.astype(np.float64)
    return routed, delay.astype(arrival.dtype)


def histories(
    log: Int[np.ndarray, "record column"],
    log_time: Int[np.ndarray, "record column"],
    evicted: Int[np.ndarray, "eviction"],
    instance: Int[np.ndarray, "request"],
    entries: tuple[Int[np.ndarray, "request"], Int[np.ndarray, "request"]],
    num_instances: int,
) -> list[InstanceHistory]:
    """The history of every instance.

    Args:
        log: the step records.
        log_time: their times, µs.
        evicted: for each preemption the place of its record in the log.
        instance: where each request was routed to, negative: nowhere.
        entries: when each request was routed and queued, µs.
        num_instances: of the cluster.
    """
    routed_us, queued_us = entries
    preempted, found = np.bincount(evicted, minlength=len(log)), []
    for place in range(num_instances):
        mine = np.flatnonzero(log[:, Log.INSTANCE] == place)
        rows, times = log[mine], log_time[mine]
        left = rows[:, Log.RUNNING] - rows[:, Log.NUM_COMPLETED] + rows[:, Log.WAITING]
        chosen = np.flatnonzero(instance == place)
        found.append(
            InstanceHistory(
                requests=chosen,
                routed_us=routed_us[chosen],
                queued_us=queued_us[chosen],
                start_us=times[:, LogTime.START],
                duration_us=times[:, LogTime.DURATION],
                num_steps=rows[:, Log.NUM_STEPS],
                preempted=preempted[mine],
                scheduled=rows[:, Log.NUM_SCHEDULED],
                completed=rows[:, Log.NUM_COMPLETED],
                continues=left > 0,
            )
        )
    return found

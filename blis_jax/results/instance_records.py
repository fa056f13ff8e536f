"""Totals of each instance, from what an `Observation` has; on the host in numpy, in a compiled call in JAX."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from blis_jax.engine.state import Inst, InstTime, Log, LogTime
from blis_jax.memory.block_tables.blocks import Eviction, Pool
from blis_jax.metrics.arrays import maxima, sums
from blis_jax.results.records import InstanceRecords, RequestRecords, Status
from blis_jax.results.request_lives.stays import paid_us
from blis_jax.results.request_lives.waits import orphaned_us

if TYPE_CHECKING:
    from blis_jax.results.from_tables import Observation


def _ended(seen: Observation, requests: RequestRecords) -> np.ndarray:
    """Latest event of every instance that was executed, no-op departures included."""
    xp, rows = seen.xp, seen.num_instances
    is_arrived = seen.is_routed & (seen.routed_us <= seen.horizon)
    has_left = (requests.left_us >= 0) & (requests.left_us <= seen.horizon)
    latest = xp.where(is_arrived, seen.routed_us, 0)
    latest = xp.maximum(latest, xp.where(seen.is_queued, seen.queued_us, 0))
    left = xp.where(has_left, requests.left_us, 0)
    on_first = 0
    if seen.splits is None:
        latest = xp.maximum(latest, left)
    else:  # each part leaves an instance of its own
        ends = seen.splits.prefill_left_us
        ends = xp.where((ends >= 0) & (ends <= seen.horizon), ends, 0)
        on_first = maxima(seen.first_instance, xp.maximum(latest, ends), rows)
        latest = left
    if seen.timeout_us is not None:
        is_late = requests.status == Status.TIMED_OUT
        latest = xp.maximum(latest, xp.where(is_late, seen.arrival + seen.timeout_us, 0))
        if (
            seen.splits is not None and seen.reserved is not None
        ):  # a part that comes too late is given up in a step of its own
            has_come = is_late & (seen.splits.transfer_at_us >= 0)
            has_come = has_come & (seen.reserved.ends <= seen.horizon)
            latest = xp.maximum(latest, xp.where(has_come, seen.reserved.ends, 0))
    has_stepped = seen.last_index()[:rows] > 0
    last = seen.raw.inst_time[:rows, InstTime.LAST_START].astype(seen.time_type)
    last = xp.maximum(last, orphaned_us(seen.raw, rows, seen.time_type, xp))
    latest = xp.maximum(maxima(seen.instance, latest, rows), on_first)
    return xp.maximum(latest, xp.where(has_stepped, last, 0))


def instance_records(seen: Observation, requests: RequestRecords) -> InstanceRecords:
    """Per-instance totals."""
    rows, log, xp, lives = seen.num_instances, seen.log, seen.xp, seen.lives
    inst = seen.raw.inst[:rows].astype(np.int64)
    at, steps = log[:, Log.INSTANCE], log[:, Log.NUM_STEPS]

    def counted(status: Status) -> np.ndarray:
        return sums(seen.instance, requests.status == int(status), rows)

    output_tokens = sums(at, log[:, Log.NUM_DECODE] * steps, rows)
    if seen.rules.restarts_preempted:  # all of what completes, and nothing else
        is_done = requests.status == Status.COMPLETED
        output_tokens = sums(seen.instance, xp.where(is_done, seen.output_len, 0), rows)
    if (
        seen.gaps_us is not None
    ):  # tokens in whose step prompt and earlier tokens were computed again
        output_tokens = output_tokens + sums(evicted_on(seen), seen.gaps_us >= 0, rows)
    is_entered = (requests.queued_at_us >= 0) & (requests.status != int(Status.DROPPED))
    # one that is dropped may have been served elsewhere
    is_entered = is_entered | (requests.hand_overs > 0) | (requests.restarts > 0)
    prompts_on, dropped = seen.instance, inst[:, Inst.NUM_DROPPED]
    if seen.reserved is not None:
        is_entered = is_entered | (seen.reserved.is_dropped == 1)
        prompts_on = seen.first_instance
        dropped = dropped + sums(seen.reserved.target, seen.reserved.is_dropped, rows)
    block_time = log[:, Log.SUM_USED_BLOCKS].astype(np.float64)
    block_time = block_time * seen.log_time[:, LogTime.DURATION]
    evicted, ended = evicted_on(seen), _ended(seen, requests)
    return InstanceRecords(
        completed_requests=counted(Status.COMPLETED),
        dropped_unservable=dropped,
        lost_requests=counted(Status.LOST),
        times_down=np.zeros(rows, np.int64)
        if seen.raw.downs is None
        else seen.raw.downs[:rows].astype(np.int64),
        paid_us=paid_us(seen.raw, seen.cluster, ended, xp),
        still_queued=counted(Status.WAITING),
        still_running=counted(Status.RUNNING),
        total_input_tokens=sums(prompts_on, xp.where(is_entered, seen.input_len, 0), rows),
        total_output_tokens=output_tokens,
        gpu_hits=inst[:, Inst.HITS],
        gpu_misses=inst[:, Inst.MISSES],
        used_blocks_at_end=inst[:, Inst.USED_BLOCKS],
        peak_kv_blocks_used=maxima(at, log[:, Log.USED_BLOCKS], rows),
        kv_blocks_used_integral=sums(at, block_time, rows),
        step_count=inst[:, Inst.STEP_INDEX],
        waiting_sum=sums(at, log[:, Log.WAITING] * steps, rows),
        sim_ended_time_us=ended,
        output_time_us=seen.output_time[:rows],
        preemption_count=sums(evicted, lives.is_eviction, rows),
        kv_allocation_failures=_pool(seen, Pool.NUM_FAILURES),
        total_kv_blocks=xp.asarray(seen.cluster.total_kv_blocks)[:rows].astype(np.int64),
        ttft_sum_us=_ttft_sum(seen, requests, evicted),
        cpu_offloads=_pool(seen, Pool.OFFLOADS),
        cpu_reloads=_pool(seen, Pool.RELOADS),
        cpu_misses=_pool(seen, Pool.CPU_MISSES),
        cpu_thrashing=_pool(seen, Pool.THRASHING),
        reload_us=_pool(seen, Pool.RELOADS)
        * xp.asarray(seen.cluster.transfer_us)[:rows].astype(np.int64),
    )


def _pool(seen: Observation, column: int) -> np.ndarray:
    """A counter of block-level memory per instance; 0 without it."""
    if seen.raw.pool is None:
        return seen.xp.zeros(seen.num_instances, np.int64)
    return seen.raw.pool[: seen.num_instances, column].astype(np.int64)


def _of_evicted(seen: Observation, values: np.ndarray) -> np.ndarray:
    """The value of each preemption's request, -1 for rows of no preemption."""
    lives = seen.lives
    request = seen.xp.where(lives.is_eviction, lives.evictions[:, Eviction.REQUEST], 0)
    return seen.xp.where(lives.is_eviction, values[request], -1)


def evicted_on(seen: Observation) -> np.ndarray:
    """The instance of each preemption, -1 for rows of no preemption."""
    if seen.journey is None or not len(seen.log):
        return _of_evicted(seen, seen.instance)
    record = seen.lives.evictions[:, Eviction.RECORD]
    instance = seen.log[seen.xp.clip(record, 0, len(seen.log) - 1), Log.INSTANCE]
    return seen.xp.where(seen.lives.is_eviction, instance, -1)


def _ttft_sum(seen: Observation, requests: RequestRecords, evicted: np.ndarray) -> np.ndarray:
    """Sum of all first tokens ever recorded, also of lives that a preemption ended.

    `evicted` is the instance of each preemption.
    """
    xp, rows, evictions = seen.xp, seen.num_instances, seen.lives.evictions
    token = evictions[:, Eviction.FIRST_TOKEN]
    is_token = (token > 0) & (token == evictions[:, Eviction.DECODE_RECORD])
    ends = seen.ends(token - 1)
    past = ends + seen.output_time[xp.maximum(evicted, 0)] - _of_evicted(seen, seen.arrival)
    now = xp.where(seen.lives.is_current_token, requests.ttft_us, 0)
    whole = sums(evicted, xp.where(is_token, past, 0), rows) + sums(seen.instance, now, rows)
    return whole.astype(np.int64)

"""Totals of each instance, from what an `Observation` has; on the host in numpy, in a compiled call in JAX."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from blis_jax.core.arrays import maxima, sums
from blis_jax.records.record import InstanceRecords, RequestRecords, Status
from blis_jax.records.stays import Timeouts, orphaned_us, paid_us
from blis_jax.tables.blocks import Eviction, Pool
from blis_jax.tables.journeys import Downs, Journey, Reservation
from blis_jax.tables.raw import BlockRecords
from blis_jax.tables.state import Inst, InstTime, Log, LogTime

if TYPE_CHECKING:
    from blis_jax.core.arrays import Values
    from blis_jax.records.observation import Observation
    from blis_jax.records.splits import SplitRecords


def _ended(seen: Observation, requests: RequestRecords, splits: SplitRecords | None) -> np.ndarray:
    """Latest event of every instance that was executed, no-op departures included."""
    xp, rows = seen.xp, seen.num_instances
    is_arrived = seen.is_routed & (seen.routed_us <= seen.horizon)
    has_left = (requests.left_us >= 0) & (requests.left_us <= seen.horizon)
    latest = xp.where(is_arrived, seen.routed_us, 0)
    latest = xp.maximum(latest, xp.where(seen.is_queued, seen.queued_us, 0))
    left = xp.where(has_left, requests.left_us, 0)
    on_first = 0
    if splits is None:
        latest = xp.maximum(latest, left)
    else:  # each part leaves an instance of its own
        ends = splits.prefill_left_us
        ends = xp.where((ends >= 0) & (ends <= seen.horizon), ends, 0)
        on_first = maxima(seen.first_instance, xp.maximum(latest, ends), rows)
        latest = left
    if Timeouts in seen:
        is_late = requests.status == Status.TIMED_OUT
        gives_up = seen.arrival + seen[Timeouts].timeout_us
        latest = xp.maximum(latest, xp.where(is_late, gives_up, 0))
        # a part that comes too late is given up in a step of its own
        if splits is not None:
            due = seen[Reservation].ends
            has_come = is_late & (splits.transfer_at_us >= 0) & (due <= seen.horizon)
            latest = xp.maximum(latest, xp.where(has_come, due, 0))
    has_stepped = seen.last_index()[:rows] > 0
    last = seen.raw.inst_time[:rows, InstTime.LAST_START].astype(seen.time_type)
    last = xp.maximum(last, orphaned_us(seen.raw, rows, seen.time_type, xp))
    latest = xp.maximum(maxima(seen.instance, latest, rows), on_first)
    return xp.maximum(latest, xp.where(has_stepped, last, 0))


def instance_records(
    seen: Observation, requests: RequestRecords, splits: SplitRecords | None
) -> InstanceRecords:
    """Return totals per instance; `splits` are the parts of requests, where KV is reserved."""
    rows, log, xp, lives = seen.num_instances, seen.log, seen.xp, seen.lives
    inst = xp.asarray(seen.raw.inst)[:rows].astype(np.int64)
    at, steps = log[:, Log.INSTANCE], log[:, Log.NUM_STEPS]

    def counted(status: Status) -> np.ndarray:
        return sums(seen.instance, requests.status == int(status), rows)

    output_tokens = sums(at, log[:, Log.NUM_DECODE] * steps, rows)
    if seen.rules.restarts_preempted:  # all of what completes, and nothing else
        is_done = requests.status == Status.COMPLETED
        output_tokens = sums(seen.instance, xp.where(is_done, requests.made_len, 0), rows)
    # tokens in whose step prompt and earlier tokens were computed again
    if seen.keeps_output:
        output_tokens = output_tokens + sums(evicted_on(seen), seen.gaps_us >= 0, rows)
    is_entered = (requests.queued_at_us >= 0) & (requests.status != int(Status.DROPPED))
    # one that is dropped may have been served elsewhere
    is_entered = is_entered | (requests.hand_overs > 0) | (requests.restarts > 0)
    prompts_on, dropped = seen.instance, inst[:, Inst.NUM_DROPPED]
    if Reservation in seen:
        reserved = seen[Reservation]
        is_entered = is_entered | (reserved.is_dropped == 1)
        prompts_on = seen.first_instance
        dropped = dropped + sums(reserved.target, reserved.is_dropped, rows)
    none = np.zeros(rows, np.int64)
    moved = Downs in seen.raw
    downs = (seen.raw[Downs].count, seen.raw[Downs].later) if moved else (none, none)
    block_time = log[:, Log.SUM_USED_BLOCKS].astype(np.float64)
    block_time = block_time * seen.log_time[:, LogTime.DURATION]
    evicted, ended = evicted_on(seen), _ended(seen, requests, splits)
    return InstanceRecords(
        completed_requests=counted(Status.COMPLETED),
        dropped_unservable=dropped,
        lost_requests=counted(Status.LOST),
        times_down=xp.asarray(downs[0])[:rows].astype(np.int64),
        scale_downs=xp.asarray(downs[1])[:rows].astype(np.int64),
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
    """Return a counter of block-level memory per instance; 0 without it."""
    if BlockRecords not in seen.raw:
        return seen.xp.zeros(seen.num_instances, np.int64)
    pool: np.ndarray = seen.xp.asarray(seen.raw[BlockRecords].pool)
    return pool[: seen.num_instances, column].astype(np.int64)


def _of_evicted(seen: Observation, values: Values) -> np.ndarray:
    """Return the value of each preemption's request, -1 for rows of no preemption."""
    lives = seen.lives
    request = seen.xp.where(lives.is_eviction, lives.evictions[:, Eviction.REQUEST], 0)
    return seen.xp.where(lives.is_eviction, values[request], -1)


def evicted_on(seen: Observation) -> np.ndarray:
    """Return the instance of each preemption, -1 for rows of no preemption."""
    if Journey not in seen or not len(seen.log):
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

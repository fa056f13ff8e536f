"""Invariants of KV memory and of the steps of one run, as counts of violations; and helpers that count.

The arrays are numpy's, `[..., request]` and `[..., instance]` of one run or of a batch, or JAX's of one lane inside a
compiled call.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from blis_jax.core.arrays import clipped, namespace, sums
from blis_jax.records.latencies import resumed_latencies
from blis_jax.records.record import (
    GAVE_UP,
    NO_EVICTION,
    InstanceRecords,
    RequestRecords,
    RunRecord,
    Status,
)
from blis_jax.records.splits import left_preempted
from blis_jax.records.step_records import (
    completed_itl_counts,
    itl_values,
    order_of_execution,
    overlaps,
)

if TYPE_CHECKING:
    from jaxtyping import Bool, Int


Counts = Any  # an integer for one run, integers over the leading axes for a batch


def count(is_wrong: Bool[np.ndarray, "*row entry"]) -> Counts:
    """Return how many entries are wrong along the last axis."""
    return is_wrong.sum(axis=-1)


def of_instance(values: np.ndarray, requests: RequestRecords) -> np.ndarray:
    """Return for each request the value of its instance, or of the first instance if it has none."""
    xp = namespace(values)
    row = clipped(requests.instance.astype(np.int64), values.shape[-1] - 1)
    return xp.take_along_axis(values, row, axis=-1)


def per_instance(
    is_counted: Bool[np.ndarray, "*row request"],
    requests: RequestRecords,
    instances: InstanceRecords,
    values: Int[np.ndarray, "*row request"] | None = None,
) -> Int[np.ndarray, "*row instance"]:
    """Return for each instance the number of counted requests, or the sum of their `values`."""
    shape = instances.completed_requests.shape
    if namespace(is_counted) is not np:  # one lane of a compiled call
        amount = is_counted if values is None else is_counted * values
        return sums(requests.instance, amount, shape[-1])
    run = np.arange(math.prod(shape[:-1])).reshape(*shape[:-1], 1)
    is_counted = is_counted & (requests.instance >= 0) & (requests.instance < shape[-1])
    cell = (run * shape[-1] + requests.instance)[is_counted]
    weights = None if values is None else values[is_counted]
    totals = np.bincount(cell, weights, math.prod(shape))
    return totals.astype(np.int64).reshape(shape)


def per_status(
    requests: RequestRecords, instances: InstanceRecords, statuses: Sequence[Status]
) -> list[Int[np.ndarray, "*row instance"]]:
    """Return how many requests of each instance have each of these statuses."""
    if namespace(requests.status) is not np:  # one lane of a compiled call
        return [
            per_instance(requests.status == int(status), requests, instances) for status in statuses
        ]
    shape, most = instances.completed_requests.shape, len(Status)
    is_counted = (requests.status >= 0) & (requests.status < most)
    is_counted &= (requests.instance >= 0) & (requests.instance < shape[-1])
    run = np.arange(math.prod(shape[:-1])).reshape(*shape[:-1], 1)
    cell = (run * shape[-1] + requests.instance) * most + requests.status
    table = np.bincount(cell[is_counted], minlength=math.prod(shape) * most)
    table = table.reshape(*shape, most)
    return [table[..., int(status)] for status in statuses]


def preemptions_conserved(requests: RequestRecords, instances: InstanceRecords) -> Counts:
    """Count violations of 10: preemptions of requests sum to their instance's; each leads to one more scheduling.

    So no request is served twice. A request that was handed over and waits on its other instance was scheduled once
    too.
    """
    total = per_instance(requests.preemptions > 0, requests, instances, requests.preemptions)
    differences = abs(total - instances.preemption_count).sum(axis=-1)
    in_all = abs(total.sum(axis=-1) - instances.preemption_count.sum(axis=-1))
    differences = namespace(differences).where(_has_moves(requests, instances), in_all, differences)
    is_running = is_in_batch(requests)
    if requests.ended_step_idx is not None:
        is_running = is_running | (requests.ended_step_idx > 0)
    is_handed = (requests.hand_overs > 0) & (requests.handed_wait_us < 0)
    ended = requests.preemptions + requests.restarts
    # what starts again may have been preempted before
    twice = namespace(differences).where(
        left_preempted(requests, instances, True), requests.restarts, 0
    )
    missing = ended + (is_running | is_handed) - requests.num_scheduled
    is_wrong = (missing < 0) | (missing > twice)
    return differences + count(is_wrong)


def is_in_batch(requests: RequestRecords) -> Bool[np.ndarray, "*row request"]:
    """Return which requests are in a batch, or have completed."""
    status = requests.status
    return (status == int(Status.RUNNING)) | (status == int(Status.COMPLETED))


def _has_moves(requests: RequestRecords, instances: InstanceRecords) -> Any:
    """Return which runs may have requests that were on several instances `[...]`."""
    has_moved = (requests.hand_overs > 0) | (requests.restarts > 0)
    return has_moved.any(axis=-1) | (instances.times_down > 0).any(axis=-1)


def used_blocks_within_capacity(requests: RequestRecords, instances: InstanceRecords) -> Counts:
    """Count violations of 11: used blocks stay in [0, all blocks], at the peak and at the end."""
    capacity = instances.total_kv_blocks
    is_right = (instances.peak_kv_blocks_used <= capacity) & (instances.used_blocks_at_end >= 0)
    is_right &= instances.used_blocks_at_end <= capacity
    return count(~is_right)


def blocks_released(requests: RequestRecords, instances: InstanceRecords) -> Counts:
    """Count violations of 12: an instance without requests at the end uses no block, unless a roll-back orphaned some.

    Blocks are orphaned only after a preemption or a failed allocation; instances with either are left out.
    """
    is_empty = (instances.still_running == 0) & (instances.still_queued == 0)
    is_regular = (instances.preemption_count == 0) & (instances.kv_allocation_failures == 0)
    return count(is_empty & is_regular & (instances.used_blocks_at_end != 0))


def cpu_tier_conserved(record: RunRecord) -> int:
    """Count violations of 15: no more blocks thrash than were reloaded, nor are reloaded than were offloaded.

    In August 2026 a copy on the CPU stays and may be reloaded again, and thrashing counts copies. An instance without
    reloads has no time spent on reloads.
    """
    instances = record.instances
    if record.is_august:
        is_right = instances.cpu_thrashing <= instances.cpu_offloads
        is_right &= (instances.cpu_reloads == 0) | (instances.cpu_offloads > 0)
    else:
        is_right = instances.cpu_thrashing <= instances.cpu_reloads
        is_right &= instances.cpu_reloads <= instances.cpu_offloads
    is_right &= (instances.reload_us == 0) | (instances.cpu_reloads > 0)
    return int(np.count_nonzero(~is_right))


def blocks_conserved(record: RunRecord) -> int:
    """Count violations of 22: at the end an instance uses the blocks of its last step, less those released.

    Completions, requests that are handed over, and an instance that stops or comes back release blocks.
    An instance without steps uses no blocks, and its peak is at most the blocks found in the cache or newly taken.
    """
    steps, table = record.steps, record.instances
    last = np.full(len(table.step_count), -1)
    order = np.argsort(steps.last_index, kind="stable")
    last[steps.instance[order]] = order
    has_stepped = last >= 0
    used = np.where(has_stepped, np.append(steps.used_blocks, 0)[last], 0)
    has_released = np.append(steps.num_completed, 0)[last] > 0
    has_released |= bool(record.requests.hand_overs.any() or record.requests.restarts.any())
    has_released |= bool(np.isin(record.requests.status, GAVE_UP).any())
    has_released |= table.times_down > 0  # one that comes back is empty
    at_end = table.used_blocks_at_end
    is_right = np.where(has_stepped & has_released, at_end <= used, at_end == used)
    is_right &= table.peak_kv_blocks_used <= table.gpu_hits + table.gpu_misses
    return int(np.count_nonzero(~is_right))


def preemptions_located(record: RunRecord) -> int:
    """Count violations of 23: every preemption is recorded once, in order, at a step of the request's instance.

    A request's inter-token latencies include those of its ended lives, unless the profile forgets them.
    """
    evictions, requests, steps = record.preemptions, record.requests, record.steps
    size = len(requests.preemptions)
    is_wrong = np.bincount(evictions.request, minlength=size) != requests.preemptions
    is_kept = True if evictions.is_forgotten is None else ~evictions.is_forgotten
    ended = np.bincount(evictions.request, evictions.num_itl * is_kept, size)
    is_wrong |= ended > requests.num_itl
    at = evictions.step_record
    is_misplaced = (steps.instance[at] != evictions.instance) | (evictions.num_itl < 0)
    is_misplaced |= steps.start_us[at] != evictions.time_us
    if not _has_moves(requests, record.instances):
        is_misplaced |= requests.instance[evictions.request] != evictions.instance
    num_unordered = np.count_nonzero(at[1:] < at[:-1])
    return int(np.count_nonzero(is_wrong) + np.count_nonzero(is_misplaced) + num_unordered)


def no_pressure_without_eviction(record: RunRecord) -> int:
    """Count violations of 24: only block-level memory preempts, fails to allocate, loses blocks or has a CPU tier."""
    if record.kv_model != NO_EVICTION:
        return 0
    table = record.instances
    counters = (
        table.preemption_count,
        table.kv_allocation_failures,
        table.cpu_offloads,
        table.cpu_reloads,
        table.cpu_misses,
        table.cpu_thrashing,
        table.reload_us,
    )
    return sum(int(np.count_nonzero(values)) for values in counters)


def step_counts_conserved(record: RunRecord) -> int:
    """Count violations of 16: records sum to their instance's steps, waiting requests and block-time, and its peak."""
    steps, instances = record.steps, record.instances
    size = len(instances.step_count)
    num_steps = steps.num_steps.astype(np.float64)
    block_time = steps.sum_used_blocks.astype(np.float64) * steps.duration_us
    peak = np.zeros(size, np.int64)
    np.maximum.at(peak, steps.instance, steps.used_blocks)
    wrong = np.bincount(steps.instance, num_steps, size) != instances.step_count
    waiting = np.bincount(steps.instance, num_steps * steps.waiting, size)
    total_block_time = np.bincount(steps.instance, block_time, size)
    return int(
        np.count_nonzero(wrong)
        + np.count_nonzero(waiting != instances.waiting_sum)
        + np.count_nonzero(total_block_time != instances.kv_blocks_used_integral)
        + np.count_nonzero(peak != instances.peak_kv_blocks_used)
    )


def step_events_conserved(record: RunRecord) -> int:
    """Count violations of 17: records count every completion, and every inter-token latency of every request.

    August's revision forgets the latencies of a life that a preemption ends.
    """
    steps, requests = record.steps, record.requests
    num_completed = int(np.count_nonzero(requests.status == Status.COMPLETED))
    completions = abs(int(steps.num_completed.sum()) - num_completed)
    recorded = int(requests.num_itl.sum())
    if record.preemptions.is_forgotten is not None:
        recorded += int(record.preemptions.num_itl[record.preemptions.is_forgotten].sum())
    recorded -= int(resumed_latencies(record).sum())
    return completions + abs(int(steps.num_itl.sum()) - recorded)


def steps_follow_each_other(record: RunRecord) -> int:
    """Count violations of 18: on one instance the step counter has no gap and time never goes back."""
    order, is_next = _neighbours(record)
    steps = record.steps
    index, start = steps.last_index[order], steps.start_us[order]
    expected = index - steps.num_steps[order]
    is_first = np.concatenate([[True], ~is_next]) if len(order) else np.zeros(0, bool)
    num_gaps = np.count_nonzero(is_first & (expected != 0))
    num_gaps += np.count_nonzero(is_next & (expected[1:] != index[:-1]))
    return int(num_gaps + np.count_nonzero(is_next & (start[1:] < start[:-1])))


def no_idling_while_requests_wait(record: RunRecord) -> int:
    """Count violations of 19: after a step that left requests waiting, the next begins by the time it ends.

    Instances that went down, or on which requests gave up, are left out, since waiting requests may have left them.
    With LoRA adapters, an instance without a batch may wait for a load.
    """
    order, is_next = _neighbours(record)
    steps = record.steps
    end = steps.start_us + steps.num_steps.astype(np.int64) * steps.duration_us
    is_late = steps.start_us[order][1:] > end[order][:-1]
    may_leave = record.instances.times_down > 0
    gave_up = np.isin(record.requests.status, GAVE_UP) & (record.requests.instance >= 0)
    may_leave[record.requests.instance[gave_up]] = True
    is_late &= ~may_leave[steps.instance[order][1:]]
    if record.adapters is not None:
        is_late &= (steps.running - steps.num_completed)[order][:-1] > 0
    return int(np.count_nonzero(is_next & (steps.waiting[order][:-1] > 0) & is_late))


def steps_not_negative(record: RunRecord) -> int:
    """Count violations of 20: figures of steps are not negative, and no step uses more than all blocks."""
    steps = record.steps
    is_wrong = steps.used_blocks > record.instances.total_kv_blocks[steps.instance]
    for values in (
        steps.duration_us,
        steps.running,
        steps.waiting,
        steps.used_blocks,
        steps.num_steps - 1,
        steps.num_itl,
    ):
        is_wrong = is_wrong | (values < 0)
    return int(np.count_nonzero(is_wrong))


def latencies_of_completed_requests(record: RunRecord) -> int:
    """Count violations of 21: the latencies that remain without unfinished requests equal those of completed requests.

    If requests move between instances, the latencies sum to E2E less TTFT, unless steps overlap.
    """
    requests = record.requests
    counts = completed_itl_counts(record)
    if requests.handed_gap_us is not None:
        values, weights = itl_values(record)
        is_done = requests.status == Status.COMPLETED
        missing = requests.after_first_us[is_done].sum() - (values * weights).sum()
        is_wrong = abs(missing) > 1e-3
        if missing < 0 and overlaps(record).overlapping_steps:  # they count in full
            is_wrong = False
        return int(np.count_nonzero(counts < 0)) + int(is_wrong)
    if requests.restarts.any():  # those of attempts that a stop ended are not told apart
        return int(np.count_nonzero(counts < 0))
    total = int(requests.num_itl[requests.status == Status.COMPLETED].sum())
    total -= int(resumed_latencies(record)[requests.status == Status.COMPLETED].sum())
    return int(np.count_nonzero(counts < 0)) + abs(int(counts.sum()) - total)


def _neighbours(record: RunRecord) -> tuple[Int[np.ndarray, "record"], Bool[np.ndarray, "pair"]]:
    """Return the order of execution, and which neighbouring records in it are on the same instance."""
    order = order_of_execution(record)
    instance = record.steps.instance[order]
    return order, instance[1:] == instance[:-1]

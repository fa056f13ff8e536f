"""What must hold of KV memory in every run, whichever model of it the run was made with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from blis_jax.metrics.arrays import namespace
from blis_jax.metrics.reductions import Counts, count, per_instance
from blis_jax.results.records import (
    GAVE_UP,
    NO_EVICTION,
    InstanceRecords,
    RequestRecords,
    RunRecord,
    Status,
)
from blis_jax.results.request_lives.travels import left_preempted

if TYPE_CHECKING:
    from jaxtyping import Bool


def preemptions_conserved(requests: RequestRecords, instances: InstanceRecords) -> Counts:
    """10. Requests' preemptions sum to their instance's; each leads to one more scheduling, as does a restart.

    So nothing is served twice. A request that was handed over and has not joined its other instance was scheduled too.
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
    """Which requests are in a batch, or have completed out of one."""
    status = requests.status
    return (status == int(Status.RUNNING)) | (status == int(Status.COMPLETED))


def _has_moves(requests: RequestRecords, instances: InstanceRecords) -> Any:
    """Whether requests of the run may have been on several instances `[...]`."""
    has_moved = (requests.hand_overs > 0) | (requests.restarts > 0)
    return has_moved.any(axis=-1) | (instances.times_down > 0).any(axis=-1)


def used_blocks_within_capacity(requests: RequestRecords, instances: InstanceRecords) -> Counts:
    """11. Used blocks stay in [0, all blocks], at the peak and at the end."""
    capacity = instances.total_kv_blocks
    is_right = (instances.peak_kv_blocks_used <= capacity) & (instances.used_blocks_at_end >= 0)
    is_right &= instances.used_blocks_at_end <= capacity
    return count(~is_right)


def blocks_released(requests: RequestRecords, instances: InstanceRecords) -> Counts:
    """12. An instance without requests at the end uses no block, unless a roll-back orphaned some.

    Orphans take a preemption or a failed allocation first; such instances are left out.
    """
    is_empty = (instances.still_running == 0) & (instances.still_queued == 0)
    is_regular = (instances.preemption_count == 0) & (instances.kv_allocation_failures == 0)
    return count(is_empty & is_regular & (instances.used_blocks_at_end != 0))


def cpu_tier_conserved(record: RunRecord) -> int:
    """15. No more blocks thrash than were reloaded, nor are reloaded than were offloaded.

    In August 2026 a copy stays and may be reloaded again, and what thrashes are copies. Without reloads no step waits
    for one.
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
    """22. After an instance's last step, the blocks used are those of the step, less what completions release.

    Requests that are handed over, and an instance that stops or comes back, release blocks too.
    An instance without steps uses none, and no more are used at once than were found or newly taken.
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
    """23. Every preemption of a request is recorded once, in order, at a step of the request's instance.

    The inter-token latencies of the lives that ended are among the request's, unless the profile forgets them.
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
    """24. Only block-level memory preempts, fails to allocate, loses blocks or has a CPU tier that acts."""
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

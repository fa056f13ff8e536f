"""What must hold of the steps of one run, as counts of violations."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from blis_jax.results.records import GAVE_UP, RunRecord, Status
from blis_jax.results.request_lives.resumed import resumed_latencies
from blis_jax.results.step_records import (
    completed_itl_counts,
    itl_values,
    order_of_execution,
    overlaps,
)

if TYPE_CHECKING:
    from jaxtyping import Bool, Int


def step_counts_conserved(record: RunRecord) -> int:
    """16. Records sum to their instance's steps, waiting requests and block-time, and its peak."""
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
    """17. Records count every completion, and every inter-token latency of every request.

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
    """18. On one instance the step counter has no gap and time never goes back."""
    order, is_next = _neighbours(record)
    steps = record.steps
    index, start = steps.last_index[order], steps.start_us[order]
    expected = index - steps.num_steps[order]
    is_first = np.concatenate([[True], ~is_next]) if len(order) else np.zeros(0, bool)
    num_gaps = np.count_nonzero(is_first & (expected != 0))
    num_gaps += np.count_nonzero(is_next & (expected[1:] != index[:-1]))
    return int(num_gaps + np.count_nonzero(is_next & (start[1:] < start[:-1])))


def no_idling_while_requests_wait(record: RunRecord) -> int:
    """19. After a step that left requests waiting, the next begins by the time it ends.

    On an instance that goes down, what waits may leave, and so may requests that give up.
    """
    order, is_next = _neighbours(record)
    steps = record.steps
    end = steps.start_us + steps.num_steps.astype(np.int64) * steps.duration_us
    is_late = steps.start_us[order][1:] > end[order][:-1]
    may_leave = record.instances.times_down > 0
    gave_up = np.isin(record.requests.status, GAVE_UP) & (record.requests.instance >= 0)
    may_leave[record.requests.instance[gave_up]] = True
    is_late &= ~may_leave[steps.instance[order][1:]]
    return int(np.count_nonzero(is_next & (steps.waiting[order][:-1] > 0) & is_late))


def steps_not_negative(record: RunRecord) -> int:
    """20. Figures of steps are not negative, and no step uses more than all blocks."""
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
    """21. Without those of unfinished requests, inter-token latencies are the completed ones'.

    Where requests move they sum to E2E less TTFT, unless steps overlap.
    """
    requests = record.requests
    counts = completed_itl_counts(record)
    if record.steps.num_completed_itl is not None:
        values, weights = itl_values(record)
        is_done = requests.status == Status.COMPLETED
        missing = (requests.e2e_us - requests.ttft_us)[is_done].sum() - (values * weights).sum()
        is_wrong = abs(missing) > 1e-3
        if missing < 0 and overlaps(record).overlapping_steps:  # they count in full
            is_wrong = False
        return int(np.count_nonzero(counts < 0)) + int(is_wrong)
    if requests.restarts.any():  # those of attempts that a stop ended are not told apart
        return int(np.count_nonzero(counts < 0))
    total = int(requests.num_itl[requests.status == Status.COMPLETED].sum())
    total -= int(resumed_latencies(record)[requests.status == Status.COMPLETED].sum())
    return int(np.count_nonzero(counts < 0)) + abs(int(counts.sum()) - total)


def _neighbours(
    record: RunRecord,
) -> tuple[Int[np.ndarray, "record"], Bool[np.ndarray, "pair"]]:
    """The order of execution, and which neighbours in it are on one instance."""
    order = order_of_execution(record)
    instance = record.steps.instance[order]
    return order, instance[1:] == instance[:-1]

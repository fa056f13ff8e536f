"""Hand-made runs of a few requests."""

import dataclasses
from typing import Any

import numpy as np

from blis_jax.core.outcome import Outcome
from blis_jax.records.record import (
    BLOCK_LEVEL,
    InstanceRecords,
    PreemptionRecords,
    RequestRecords,
    RunRecord,
    Status,
    StepRecords,
)

NEVER_BELOW_ZERO = {"slo_class", "tenant", "input_len", "output_len", "arrival_us"}
COUNTED_FROM_ZERO = NEVER_BELOW_ZERO | {
    "status",
    "preemptions",
    "num_scheduled",
    "scheduled_step_idx",
    "finished_step_idx",
    "num_itl",
    "progress_index",
    "hand_overs",
    "restarts",
}


def run_of(
    requests: dict[str, Any], steps: dict[str, Any] | None = None, **instances: Any
) -> RunRecord:
    """A run with the given columns; times that are not given never happened, counts are 0."""
    size = len(next(iter(requests.values())))
    columns = {}
    for field in dataclasses.fields(RequestRecords):
        is_seldom = field.name in ("itl_us", "answer_len", "accepted_tokens", "handed_gap_us")
        if field.name == "ttft_parts_us" or (is_seldom and field.name not in requests):
            continue
        value = requests.get(field.name, 0 if field.name in COUNTED_FROM_ZERO else -1)
        columns[field.name] = np.broadcast_to(np.asarray(value, np.int64), size).copy()
    columns["ttft_parts_us"] = requests.get("ttft_parts_us", np.full((size, 8), -1))
    steps = {"instance": [], **(steps or {})}
    num_records = len(steps["instance"])
    table = {
        field.name: np.broadcast_to(np.asarray(steps.get(field.name, 0), np.int64), num_records)
        for field in dataclasses.fields(StepRecords)
        if field.default is dataclasses.MISSING
    }
    num_instances = max((np.size(value) for value in instances.values()), default=1)
    counters = {
        field.name: np.broadcast_to(np.asarray(instances.get(field.name, 0)), num_instances)
        for field in dataclasses.fields(InstanceRecords)
    }
    return RunRecord(
        outcome=Outcome.COMPLETED,
        requests=RequestRecords(**columns),
        steps=StepRecords(**table),
        instances=InstanceRecords(**counters),
        num_iterations=0,
        num_open_ties=0,
    )


def whole_run() -> RunRecord:
    """One instance, blocks of 16 tokens, 100 µs of output processing.

    Request 0 (16 + 3 tokens) is prefilled in step 1 and decoded in steps 2 and 3, its batch then
    empty. Request 1 (8 + 1 tokens) starts step 4 before step 3 has ended. Request 2 is rejected.
    """
    parts = np.full((3, 8), -1)
    parts[0] = [0, 0, 5, 0, 0, 50, 0, 100]
    parts[1] = [0, 0, 10, 0, 0, 30, 0, 100]
    return run_of(
        {
            "arrival_us": [0, 60, 80],
            "input_len": [16, 8, 8],
            "output_len": [3, 1, 1],
            "slo_class": [1, 2, 3],
            "tenant": [0, 1, 1],
            "admitted": [1, 1, 0],
            "instance": [0, 0, -1],
            "status": [Status.COMPLETED, Status.COMPLETED, Status.REJECTED],
            "queued_at_us": [5, 70, -1],
            "sched_delay_us": [5, 10, -1],
            "first_sched_delay_us": [5, 10, -1],
            "ttft_us": [155, 140, -1],
            "e2e_us": [485, 270, -1],
            "left_us": [75, 100, -1],
            "num_scheduled": [1, 1, 0],
            "cached_tokens_first_sched": [0, 0, -1],
            "expected_cached_tokens": [16, 0, -1],
            "scheduled_step_idx": [1, 4, 0],
            "finished_step_idx": [3, 4, 0],
            "token_step_idx": [1, 4, -1],
            "num_itl": [3, 1, 0],
            "progress_index": [18, 8, 0],
            "ttft_parts_us": parts,
        },
        {
            "instance": [0, 0, 0],
            "start_us": [5, 55, 70],
            "duration_us": [50, 10, 30],
            "num_steps": [1, 2, 1],
            "last_index": [1, 3, 4],
            "running": [1, 1, 1],
            "used_blocks": [1, 2, 1],
            "sum_used_blocks": [1, 4, 1],
            "num_itl": [0, 3, 1],
            "num_completed": [0, 1, 1],
        },
        completed_requests=[2],
        total_input_tokens=[24],
        total_output_tokens=[2],
        gpu_hits=[1],
        gpu_misses=[3],
        peak_kv_blocks_used=[2],
        kv_blocks_used_integral=[120.0],
        ttft_sum_us=[295],
        step_count=[4],
        sim_ended_time_us=[100],
        output_time_us=[100],
        total_kv_blocks=[10],
    )


def pressed_run() -> RunRecord:
    """One instance of 3 blocks of 16 tokens with a CPU tier; steps of 10 µs, no output processing.

    Requests 0 and 1 get their first tokens in steps 1 and 2. Step 4 evicts request 1 after one inter-token
    latency of it, and request 0 completes in step 5. Request 1 is scheduled again in step 6, which waits
    5 µs for a reloaded block, and is in decode when the run ends. The router promised request 0 16 cached
    tokens that were not there, and request 1 found 16 unpromised ones.
    """
    parts = np.zeros((2, 8), np.int64)
    parts[0] = [0, 0, 0, 0, 0, 10, 0, 0]
    parts[1] = [0, 0, 10, 20, 20, 15, 0, 0]
    record = run_of(
        {
            "arrival_us": [0, 0],
            "input_len": [16, 16],
            "output_len": [5, 30],
            "slo_class": [1, 1],
            "admitted": [1, 1],
            "instance": [0, 0],
            "status": [Status.COMPLETED, Status.RUNNING],
            "queued_at_us": [0, 10],
            "sched_delay_us": [0, 50],
            "first_sched_delay_us": [0, 10],
            "ttft_us": [10, 65],
            "e2e_us": [60, -1],
            "left_us": [50, -1],
            "preemptions": [0, 1],
            "num_scheduled": [1, 2],
            "cached_tokens_first_sched": [0, 16],
            "expected_cached_tokens": [16, 0],
            "scheduled_step_idx": [1, 6],
            "finished_step_idx": [5, 0],
            "token_step_idx": [1, 6],
            "num_itl": [5, 3],
            "progress_index": [20, 18],
            "ttft_parts_us": parts,
        },
        {
            "instance": [0, 0, 0, 0, 0],
            "start_us": [0, 10, 30, 50, 65],
            "duration_us": [10, 10, 10, 15, 10],
            "num_steps": [1, 2, 2, 1, 2],
            "last_index": [1, 3, 5, 6, 8],
            "running": [1, 2, 1, 1, 1],
            "waiting": [0, 0, 1, 0, 0],
            "used_blocks": [1, 3, 2, 1, 2],
            "sum_used_blocks": [1, 6, 4, 1, 4],
            "num_itl": [0, 3, 3, 0, 2],
            "num_completed": [0, 0, 1, 0, 0],
        },
        completed_requests=[1],
        still_running=[1],
        total_input_tokens=[32],
        total_output_tokens=[7],
        gpu_hits=[1],
        gpu_misses=[6],
        used_blocks_at_end=[2],
        peak_kv_blocks_used=[3],
        kv_blocks_used_integral=[165.0],
        step_count=[8],
        waiting_sum=[2],
        sim_ended_time_us=[85],
        preemption_count=[1],
        total_kv_blocks=[3],
        ttft_sum_us=[95],
        cpu_offloads=[4],
        cpu_reloads=[1],
        cpu_misses=[2],
        cpu_thrashing=[1],
        reload_us=[5],
    )
    evictions = PreemptionRecords(*(np.array([value]) for value in (1, 0, 30, 2, 1)))
    return dataclasses.replace(record, preemptions=evictions, kv_model=BLOCK_LEVEL)


def changed(
    record: RunRecord, part: str, name: str, value: Any, at: int | None = None
) -> RunRecord:
    """The run with a column of `requests`, `steps` or `instances`, or an entry of it, replaced."""
    table = getattr(record, part)
    column = np.array(getattr(table, name))
    if at is None:
        column[...] = value
    else:
        column[at] = value
    return dataclasses.replace(record, **{part: dataclasses.replace(table, **{name: column})})

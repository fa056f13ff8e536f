"""Recorded runs of the reference as RunRecords, step by step or with equal steps put together."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np

from blis_jax.core.outcome import Outcome
from blis_jax.records.record import (
    BLOCK_LEVEL,
    NO_EVICTION,
    InstanceRecords,
    RequestRecords,
    RunRecord,
    Status,
    StepRecords,
)

WORKLOAD_FIELDS = ("arrival_us", "input_len", "output_len", "slo_class", "tenant")


@dataclasses.dataclass(frozen=True)
class GoldenRun:
    name: str
    recorded: dict[str, Any]
    arrays: dict[str, np.ndarray]
    workload: dict[str, np.ndarray]
    record: RunRecord

    @property
    def is_without_preemption(self) -> bool:
        return not self.arrays["preemptions"].any()


def load_run(path: Path) -> GoldenRun:
    recorded = json.loads(path.read_text())
    with np.load(path.with_suffix(".npz")) as file:
        arrays = dict(file)
    with np.load(path.parents[1] / "workloads" / f"{recorded['workload']}.npz") as file:
        workload = dict(file)
    return GoldenRun(path.stem, recorded, arrays, workload, record_of(recorded, arrays, workload))


def record_of(
    recorded: dict[str, Any], arrays: dict[str, np.ndarray], workload: dict[str, np.ndarray]
) -> RunRecord:
    """First-token steps follow from the ITL counts, which needs a run without preemption.

    Where and when requests were preempted is not recorded.
    """
    config = recorded["config"]
    table = recorded["instances"]
    num_steps = np.array([entry["step_count"] for entry in table])
    first_step = np.cumsum(num_steps) - num_steps
    index = np.arange(len(arrays["step_instance"])) - first_step[arrays["step_instance"]] + 1
    output_time = int(config["alpha-coeffs"][2])

    completed = arrays["status"] == Status.COMPLETED
    decoding = arrays["status"] == Status.RUNNING
    decoding &= arrays["progress_index"] >= workload["input_len"]
    last_step = np.where(completed, arrays["finished_step_idx"], num_steps[arrays["instance"]])
    token_step = last_step - arrays["num_itl"] + completed
    token_step = np.where(completed | decoding, token_step, -1).astype(np.int32)

    first_of = first_step[arrays["instance"]]
    finishing = (first_of + arrays["finished_step_idx"] - 1)[completed]
    left = np.full(len(completed), -1)
    left[completed] = (arrays["step_start_us"] + arrays["step_duration_us"])[finishing]
    num_completed = np.bincount(finishing, minlength=len(index))
    has_token = token_step >= 0
    change = np.bincount((first_of + token_step)[has_token], minlength=len(index) + 1)
    change -= np.bincount((first_of + last_step)[has_token], minlength=len(index) + 1)

    requests = {name: workload[name] for name in WORKLOAD_FIELDS}
    names = [field.name for field in dataclasses.fields(RequestRecords)]
    requests |= {name: arrays[name] for name in names if name in arrays}
    requests |= {"left_us": left, "token_step_idx": token_step}
    # what the reference does not record, or does not have
    for name in ("expected_cached_tokens", "transfer_us", "handed_wait_us"):
        requests[name] = np.full(len(left), -1)
    for name in ("hand_overs", "restarts"):
        requests[name] = np.zeros(len(left), np.int64)
    requests["ttft_parts_us"] = ttft_parts(config, arrays, workload["arrival_us"], output_time)
    steps = StepRecords(
        instance=arrays["step_instance"],
        start_us=arrays["step_start_us"],
        duration_us=arrays["step_duration_us"],
        num_steps=np.ones(len(index), np.int32),
        last_index=index,
        running=arrays["step_running"],
        waiting=arrays["step_waiting"],
        used_blocks=arrays["step_used_blocks"],
        sum_used_blocks=arrays["step_used_blocks"],
        num_itl=np.cumsum(change)[:-1] + num_completed,
        num_completed=num_completed,
    )
    counters = {
        name: np.array([entry[name] for entry in table])
        for name in (field.name for field in dataclasses.fields(InstanceRecords))
        if name in table[0]
    }
    counters |= {
        name: np.array([entry["kv"][name] for entry in table])
        for name in ("gpu_hits", "gpu_misses", "used_blocks_at_end")
    }
    counters["waiting_sum"] = np.bincount(
        arrays["step_instance"], arrays["step_waiting"], len(table)
    ).astype(np.int64)
    counters["output_time_us"] = np.full(len(table), output_time)
    counters |= dict.fromkeys(
        ("lost_requests", "times_down", "scale_downs", "paid_us"), np.zeros(len(table), np.int64)
    )
    kv_names = {"cpu_misses": "cpu_miss", "cpu_thrashing": "thrashing"}
    for name in ("cpu_offloads", "cpu_reloads", "cpu_misses", "cpu_thrashing"):
        found = [entry["kv"].get(kv_names.get(name, name), 0) for entry in table]
        counters[name] = np.array(found)
    counters["reload_us"] = np.zeros(len(table), np.int64)
    counters["total_kv_blocks"] = np.full(len(table), config["total-kv-blocks"])
    pressure = ("preemption_count", "kv_allocation_failures", "cpu_offloads", "cpu_misses")
    is_block_level = any(counters[name].any() for name in pressure)
    is_all_done = not np.isin(
        arrays["status"], (Status.WAITING, Status.RUNNING, Status.IN_FLIGHT)
    ).any()
    return RunRecord(
        outcome=Outcome.COMPLETED if is_all_done else Outcome.HORIZON,
        requests=RequestRecords(**requests),
        steps=steps,
        instances=InstanceRecords(**counters),
        num_iterations=0,
        num_open_ties=0,
        kv_model=BLOCK_LEVEL if is_block_level else NO_EVICTION,
        has_priorities=config["priority-policy"] not in ("constant", ""),
    )


def ttft_parts(
    config: dict[str, Any], arrays: dict[str, np.ndarray], arrival_us: np.ndarray, output_time: int
) -> np.ndarray:
    """As far as the recorded times tell them apart; the rest of the prefill counts as compute."""
    parts = np.zeros((len(arrival_us), 8), np.int64)
    parts[:, 0] = config["admission-latency"]
    parts[:, 1] = config["routing-latency"]
    parts[:, 2] = arrays["queued_at_us"] - arrival_us - parts[:, 0] - parts[:, 1]
    parts[:, 3] = arrays["sched_delay_us"] - (arrays["queued_at_us"] - arrival_us)
    parts[:, 5] = arrays["ttft_us"] - arrays["sched_delay_us"] - output_time
    parts[:, 7] = output_time
    return np.where((arrays["ttft_us"] >= 0)[:, None], parts, -1)


def compressed(record: RunRecord) -> RunRecord:
    """The same run with each stretch of equal decode steps of one instance as one record."""
    steps = record.steps
    requests = record.requests
    if not len(steps.instance):
        return record
    has_token = requests.token_step_idx >= 0
    span = int(steps.last_index.max()) + 1
    token_steps = requests.instance[has_token].astype(np.int64) * span
    token_steps += requests.token_step_idx[has_token]
    key = steps.instance.astype(np.int64) * span + steps.last_index
    is_decode_only = ~np.isin(key, token_steps)
    # A pure decode step records one ITL per running request, and one more per completed one.
    is_decode_only &= steps.num_itl == steps.running + steps.num_completed
    follows = np.zeros(len(key), bool)
    follows[1:] = is_decode_only[1:] & is_decode_only[:-1] & (steps.num_completed[:-1] == 0)
    follows[1:] &= steps.start_us[1:] == steps.start_us[:-1] + steps.duration_us[:-1]
    equal = [steps.instance, steps.duration_us, steps.running, steps.waiting]
    if record.kv_model == BLOCK_LEVEL:
        equal.append(steps.used_blocks)
    for values in equal:
        follows[1:] &= values[1:] == values[:-1]
    first = np.flatnonzero(~follows)
    last = np.append(first[1:], len(key)) - 1
    sums = {
        name: np.add.reduceat(getattr(steps, name), first)
        for name in ("num_steps", "sum_used_blocks", "num_itl", "num_completed")
    }
    at_first = {
        name: getattr(steps, name)[first]
        for name in ("instance", "start_us", "duration_us", "running", "waiting")
    }
    at_last = {name: getattr(steps, name)[last] for name in ("last_index", "used_blocks")}
    return dataclasses.replace(record, steps=StepRecords(**sums, **at_first, **at_last))

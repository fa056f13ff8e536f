"""The reference's own figures of one run, under its names, in its order and units."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from blis_jax.core.types import SLO_CLASSES
from blis_jax.errors import ConfigError, closest
from blis_jax.metrics.distributions import mean_ms, percentile_ms, sample_of, summary_us
from blis_jax.metrics.kv import (
    cache_hit_rates,
    preemption_rate,
    printed_hit_rate,
    printed_thrashing_rate,
    thrashing_rates,
)
from blis_jax.metrics.pairs import count_pairs_above
from blis_jax.metrics.parts import TIMES, counted, times_of_parts
from blis_jax.results.records import InstanceRecords, RunRecord, Status
from blis_jax.results.step_records import itl_sample, overlaps

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int

DEFAULT_CLASS = "default"  # the reference's name of the empty class in its results
CLASS_NAMES = (DEFAULT_CLASS, *SLO_CLASSES[1:])
STATUS_NAMES = {
    Status.COMPLETED: "completed",
    Status.REJECTED: "rejected",
    Status.DROPPED: "dropped_unservable",
    Status.WAITING: "still_queued",
    Status.RUNNING: "still_running",
    Status.IN_FLIGHT: "in_flight",
    Status.LOST: "lost",
    Status.QUEUE_FULL: "rejected_gateway",
    Status.SHED: "shed_gateway",
    Status.EXPIRED: "expired_gateway",
    Status.EVICTED: "evicted_inflight",
    Status.IN_GATEWAY: "in_gateway",
    Status.TIMED_OUT: "timed_out",
    Status.UNROUTED: "rejected_routing",
}
COUNTERS = (
    "completed_requests",
    "dropped_unservable",
    "kv_allocation_failures",
    "preemption_count",
    "still_queued",
    "still_running",
    "total_input_tokens",
    "total_output_tokens",
)
# The reference's names of an instance's KV counters, and ours.
_KV_COUNTERS = {name: name for name in ("gpu_hits", "gpu_misses", "used_blocks_at_end")}
_CPU_COUNTERS = {
    "cpu_miss": "cpu_misses",
    "cpu_offloads": "cpu_offloads",
    "cpu_reloads": "cpu_reloads",
    "thrashing": "cpu_thrashing",
}

_PRINTED_COUNTS = (
    "instance_id",
    "completed_requests",
    "still_queued",
    "still_running",
    "injected_requests",
    "total_input_tokens",
    "total_output_tokens",
    "kv_allocation_failures",
    "preemption_count",
    "dropped_unservable",
    "lost_requests",
)


def cluster_json(record: RunRecord) -> dict[str, Any] | None:
    """The cluster's block of the reference's standard output; None if nothing completed.

    The revision of August 2026 prints a block of zeros then.
    """
    return results_json(record) if record.is_august else _printed(record, None)


def instance_block(record: RunRecord, instance: int) -> dict[str, Any] | None:
    """One instance's block of the reference's standard output; None if nothing completed there."""
    printed = _printed(record, instance)
    return _zeros(record, instance) if printed is None and record.is_august else printed


def instance_json(record: RunRecord, instance: int) -> dict[str, float]:
    """The latencies and rates in one instance's block; empty if nothing completed there."""
    block = _printed(record, instance) or {}
    return {name: value for name, value in block.items() if name not in _PRINTED_COUNTS}


def results_json(record: RunRecord) -> dict[str, Any]:
    """The cluster's block as the reference saves it: with zeros if nothing completed."""
    return _printed(record, None) or _zeros(record, None)


def _zeros(record: RunRecord, instance: int | None) -> dict[str, Any]:
    return _block(record, instance, dict.fromkeys(_LATENCY_FIELDS, 0))


def _printed(record: RunRecord, instance: int | None) -> dict[str, Any] | None:
    if not counted(record, "completed_requests", instance):
        return None
    if record.splits is None:
        is_here = _is_on(record, instance)
        times = [recorded(getattr(record.requests, name), is_here) for name in TIMES]
    else:
        times = times_of_parts(record, record.splits, instance)
    e2e, ttft, scheduling_delay = (sample_of(one) for one in times)
    itl = itl_sample(record, instance)
    figures: dict[str, float] = {}
    for name, sample in (("e2e", e2e), ("ttft", ttft), ("itl", itl)):
        figures[f"{name}_mean_ms"] = mean_ms(sample)
        for percent in (90, 95, 99):
            figures[f"{name}_p{percent}_ms"] = percentile_ms(sample, percent)
    figures["scheduling_delay_p99_ms"] = percentile_ms(scheduling_delay, 99)
    return _block(record, instance, figures)


_LATENCY_FIELDS = (
    *(
        f"{name}_{kind}_ms"
        for name in ("e2e", "ttft", "itl")
        for kind in ("mean", "p90", "p95", "p99")
    ),
    "scheduling_delay_p99_ms",
)


def _block(
    record: RunRecord, instance: int | None, latencies: Mapping[str, float]
) -> dict[str, Any]:
    counts = {name: counted(record, name, instance) for name in COUNTERS}
    injected = sum(
        counts[name]
        for name in ("completed_requests", "still_queued", "still_running", "dropped_unservable")
    )
    lost = _total(record.instances, "lost_requests", instance)
    is_late = record.requests.status == Status.TIMED_OUT
    if instance is not None:
        is_late = is_late & (record.requests.instance == instance)
    late = int(np.count_nonzero(is_late))
    block: dict[str, Any] = {
        "instance_id": "cluster" if instance is None else instance_name(instance, record.names),
        "completed_requests": counts["completed_requests"],
        "still_queued": counts["still_queued"],
        "still_running": counts["still_running"],
        "injected_requests": injected + lost + late,
        "total_input_tokens": counts["total_input_tokens"],
        "total_output_tokens": counts["total_output_tokens"],
        "vllm_estimated_duration_s": ended_us(record, instance) / 1e6,
        **rates(record, instance)._asdict(),
        **latencies,
    }
    if counts["kv_allocation_failures"]:
        block["kv_allocation_failures"] = counts["kv_allocation_failures"]
    block["preemption_count"] = counts["preemption_count"]
    block["dropped_unservable"] = counts["dropped_unservable"]
    if record.is_august:  # requests that fit into the longest context are never capped
        block |= {"length_capped_requests": 0, "timed_out_requests": late}
    if lost:  # not BLIS's
        block["lost_requests"] = lost
    return block


def aggregates(record: RunRecord) -> dict[str, Any]:
    """Totals of the cluster, as in the golden data's `aggregates`."""
    instances = record.instances
    counts = {name: _total(instances, name) for name in COUNTERS}
    per_second = rates(record)
    steps = overlaps(record)
    statuses = np.bincount(record.requests.status, minlength=len(Status))
    ttft = sample_of(recorded(record.requests.ttft_us))
    return {
        "cache_hit_rate": printed_hit_rate(record),
        "completed_requests": counts["completed_requests"],
        "dropped_unservable": counts["dropped_unservable"],
        "kv_allocation_failures": counts["kv_allocation_failures"],
        "kv_blocks_used_integral": float(instances.kv_blocks_used_integral.sum()),
        "kv_thrashing_rate": printed_thrashing_rate(record),
        "peak_kv_blocks_used": int(instances.peak_kv_blocks_used.max(initial=0)),
        "preemption_count": counts["preemption_count"],
        "still_queued": counts["still_queued"],
        "still_running": counts["still_running"],
        "total_input_tokens": counts["total_input_tokens"],
        "total_output_tokens": counts["total_output_tokens"],
        "ttft_sum_us": _total(instances, "ttft_sum_us"),
        "sim_ended_time_us": ended_us(record),
        "rejected_requests": int(statuses[Status.REJECTED]),
        "requests_per_sec": per_second.responses_per_sec,
        "tokens_per_sec": per_second.tokens_per_sec,
        "priority_inversions": priority_inversions(record),
        "hol_blocking_events": hol_blocking_events(record),
        "preemption_rate": preemption_rate(record),
        "ttft_us": summary_us(ttft),
        "e2e_us": summary_us(sample_of(recorded(record.requests.e2e_us))),
        "num_steps": int(record.steps.num_steps.sum()),
        "overlapping_steps": steps.overlapping_steps,
        "steps_with_same_start": steps.steps_with_same_start,
        "status_counts": {
            name: int(statuses[code])
            for code, name in STATUS_NAMES.items()
            if code < Status.LOST or statuses[code]  # not of BLIS in February
        },
    }


def per_slo(record: RunRecord) -> dict[str, dict[str, dict[str, float]]]:
    """TTFT and E2E in µs of every class that has any, in order of the classes' names."""
    requests = record.requests
    is_counted = True if record.splits is None else record.splits.is_ended
    result = {}
    for code, name in sorted(enumerate(CLASS_NAMES), key=lambda entry: entry[1]):
        is_class = (requests.slo_class == code) & is_counted
        ttft = recorded(requests.ttft_us, is_class)
        e2e = recorded(requests.e2e_us, is_class)
        if len(ttft) or len(e2e):
            result[name] = {
                "ttft_us": summary_us(sample_of(ttft)),
                "e2e_us": summary_us(sample_of(e2e)),
            }
    return result


def instances(record: RunRecord, has_cpu_tier: bool = False) -> list[dict[str, Any]]:
    """One entry per instance, as in the golden data.

    The CPU tier's counters are there if one is configured. `latency` is empty in a cluster of one, whose
    instance the reference does not print.
    """
    requests, table = record.requests, record.instances
    hit_rates, thrashing = cache_hit_rates(record), thrashing_rates(record)
    num_instances = len(hit_rates)
    entries = []
    for row in range(num_instances):
        is_here = requests.instance == row
        is_completed = is_here & (requests.status == Status.COMPLETED)
        names = _KV_COUNTERS | (_CPU_COUNTERS if has_cpu_tier else {})
        kv = {name: _total(table, names[name], row) for name in sorted(names)}
        totals = {name: _total(table, name, row) for name in COUNTERS}
        entries.append(
            {
                "cache_hit_rate": float(hit_rates[row]),
                "completed_requests": totals["completed_requests"],
                "dropped_unservable": totals["dropped_unservable"],
                "id": instance_name(row, record.names),
                "kv": kv,
                "kv_allocation_failures": totals["kv_allocation_failures"],
                "kv_blocks_used_integral": float(table.kv_blocks_used_integral[row]),
                "kv_thrashing_rate": float(thrashing[row]),
                "num_itl": int(requests.num_itl[is_completed].sum()),
                "peak_kv_blocks_used": int(table.peak_kv_blocks_used[row]),
                "preemption_count": totals["preemption_count"],
                "sim_ended_time_us": int(table.sim_ended_time_us[row]),
                "step_count": int(table.step_count[row]),
                "still_queued": totals["still_queued"],
                "still_running": totals["still_running"],
                "total_input_tokens": totals["total_input_tokens"],
                "total_output_tokens": totals["total_output_tokens"],
                "ttft_sum_us": _total(table, "ttft_sum_us", row),
                "latency": instance_json(record, row) if num_instances > 1 else {},
            }
        )
    return entries


class Rates(NamedTuple):
    """Completed requests, and tokens of decode steps, per second up to the last event."""

    responses_per_sec: float
    tokens_per_sec: float


def rates(record: RunRecord, instance: int | None = None) -> Rates:
    """The reference's two rates, of one instance or of all; 0 if nothing completed."""
    completed = counted(record, "completed_requests", instance)
    duration_s = ended_us(record, instance) / 1e6
    if not completed or duration_s <= 0:
        return Rates(0.0, 0.0)
    tokens = _total(record.instances, "total_output_tokens", instance)
    return Rates(completed / duration_s, tokens / duration_s)


def hol_blocking_events(record: RunRecord) -> int:
    """Counts instances whose mean wait queue is more than twice the mean over instances."""
    steps = record.instances.step_count
    means = (record.instances.waiting_sum / np.where(steps > 0, steps, 1)).tolist()
    mean_of_means = sum(means) / len(means) if means else 0.0
    if len(means) < 2 or mean_of_means <= 0:
        return 0
    return sum(value > 2.0 * mean_of_means for value in means)


def priority_inversions(record: RunRecord) -> int:
    """Counts pairs of one class on one instance whose earlier arrival has more than twice the E2E.

    0 where nothing goes by priority, as in the reference: under the constant priority, and in August under any
    scheduler but priority-fcfs. Arrivals of one microsecond count in order of their index; the reference leaves
    their order open.
    """
    if not record.has_priorities:
        return 0
    requests = record.requests
    chosen = np.flatnonzero((requests.e2e_us >= 0) & (requests.instance >= 0))
    group = requests.instance[chosen].astype(np.int64) * len(SLO_CLASSES)
    group += requests.slo_class[chosen]
    order = np.lexsort((requests.arrival_us[chosen], group))
    e2e = requests.e2e_us[chosen][order].astype(np.int64)
    return count_pairs_above(e2e, 2 * e2e, group[order])


def jain_fairness(
    record: RunRecord, is_measured: Bool[np.ndarray, "request"] | None = None
) -> float:
    """Jain's index of the tenants' completed output tokens; 1 is even, 1/n all to one of n tenants.

    The scale drops out, so it is the index of their throughputs. Every tenant that sent a request
    counts; 0 without tenants, as in the reference.
    """
    requests = record.requests
    is_measured = np.ones(len(requests.tenant), bool) if is_measured is None else is_measured
    tenants, row = np.unique(requests.tenant[is_measured], return_inverse=True)
    is_completed = requests.status[is_measured] == Status.COMPLETED
    tokens = np.bincount(row, requests.output_len[is_measured] * is_completed, len(tenants))
    return jain_index(tokens)


def jain_index(values: Sequence[float] | Float[np.ndarray, "one"]) -> float:
    """Jain's index of any values; 0 without values, 1 of zeros."""
    column = np.asarray(values, np.float64)
    squares = len(column) * float(np.square(column).sum())
    if not len(column):
        return 0.0
    return float(column.sum()) ** 2 / squares if squares else 1.0


def class_code(name: str) -> int:
    """The index of an SLO class; the empty class has two names."""
    if name in SLO_CLASSES:
        return SLO_CLASSES.index(name)
    if name == DEFAULT_CLASS:
        return 0
    raise ConfigError(
        f"SLO class {name!r} is unknown; the classes are {', '.join(CLASS_NAMES)}"
        f"{closest(name, CLASS_NAMES)}"
    )


def instance_name(instance: int, names: Sequence[str] = ()) -> str:
    """The reference's name of an instance; `names` are those of a record that has some."""
    return names[instance] if names else f"instance_{instance}"


def ended_us(record: RunRecord, instance: int | None = None) -> int:
    """When the last event ran, on one instance or on any; a float on the continuous clock."""
    times = record.instances.sim_ended_time_us
    ended: int = (times.max(initial=0) if instance is None else times[instance]).item()
    return ended


def recorded(
    values: Int[np.ndarray, "request"], is_chosen: Bool[np.ndarray, "request"] | None = None
) -> Int[np.ndarray, "recorded"]:
    """The values that exist (not -1), of the chosen requests."""
    exists = values >= 0
    return values[exists if is_chosen is None else exists & is_chosen]


def _is_on(record: RunRecord, instance: int | None) -> Bool[np.ndarray, "request"] | None:
    return None if instance is None else record.requests.instance == instance


def _total(table: InstanceRecords, name: str, instance: int | None = None) -> int:
    values: np.ndarray = getattr(table, name)
    return int(values.sum()) if instance is None else int(values[instance])

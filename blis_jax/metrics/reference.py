"""BLIS's own figures of one run, under its names, in its order and units."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from blis_jax.core.arrays import ratio
from blis_jax.core.types import CLASS_NAMES, DEFAULT_CLASS, SLO_CLASSES
from blis_jax.errors import ConfigError, closest
from blis_jax.metrics.distributions import (
    TIMES,
    counted,
    is_reported,
    itl_sample,
    mean_ms,
    percentile_ms,
    recorded,
    rows_of,
    sample_of,
    summary_us,
    times_of_parts,
    total_of,
)
from blis_jax.metrics.figures import ended_us, hol_blocking_events, priority_inversions, rates
from blis_jax.metrics.kv import (
    cache_hit_rates,
    preemption_rate,
    printed_hit_rate,
    printed_thrashing_rate,
    thrashing_rates,
)
from blis_jax.records.record import InstanceRecords, RunRecord, Status
from blis_jax.records.step_records import overlaps

if TYPE_CHECKING:
    from jaxtyping import Bool, Int

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
    """Return the cluster's block of BLIS's standard output; None if nothing completed.

    The revision of August 2026 prints a block of zeros if nothing completed.
    """
    return instance_block(record, None)


def instance_block(record: RunRecord, instance: int | None) -> dict[str, Any] | None:
    """Return one instance's block of BLIS's standard output; None if nothing completed there."""
    printed = _printed(record, instance)
    return printed or _zeros(record, instance) if record.is_august else printed


def instance_json(record: RunRecord, instance: int) -> dict[str, float]:
    """Return the latencies and rates in one instance's block; empty if nothing completed there."""
    block = _printed(record, instance) or {}
    return {name: value for name, value in block.items() if name not in _PRINTED_COUNTS}


def results_json(record: RunRecord) -> dict[str, Any]:
    """Return the cluster's block as BLIS saves it: with zeros if nothing completed."""
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
    e2e, ttft, scheduling_delay = (sample_of(time) for time in times)
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
    counts = {name: int(counted(record, name, instance)) for name in COUNTERS}
    injected = sum(
        counts[name]
        for name in ("completed_requests", "still_queued", "still_running", "dropped_unservable")
    )
    lost = _total(record.instances, "lost_requests", instance)
    requests, is_here = record.requests, _is_on(record, instance)
    late = int(np.count_nonzero((requests.status == Status.TIMED_OUT) & is_here))
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
    if record.is_august:
        cut = int(np.count_nonzero(requests.is_cut & is_here))
        block |= {"length_capped_requests": cut, "timed_out_requests": late}
    if lost:  # not BLIS's
        block["lost_requests"] = lost
    return block


def aggregates(record: RunRecord) -> dict[str, Any]:
    """Return totals of the cluster, as in the golden data's `aggregates`."""
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
        "priority_inversions": int(priority_inversions(record)),
        "hol_blocking_events": int(hol_blocking_events(record)),
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
    """Return TTFT and E2E in µs of every class that has any, in order of the classes' names."""
    requests = record.requests
    is_counted = is_reported(record)
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
    """Return one entry per instance, as in the golden data.

    An entry has the CPU tier's counters if a tier is configured. `latency` is empty in a cluster of one instance, which
    BLIS does not print.
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


def class_code(name: str) -> int:
    """Return the code of an SLO class; requests without a class have code 0, under two names."""
    if name in SLO_CLASSES:
        return SLO_CLASSES.index(name)
    if name == DEFAULT_CLASS:
        return 0
    raise ConfigError(
        f"SLO class {name!r} is unknown; the classes are {', '.join(CLASS_NAMES)}"
        f"{closest(name, CLASS_NAMES)}"
    )


def is_of_class(
    codes: Int[np.ndarray, "request"], slo_class: str | None
) -> Bool[np.ndarray, "request"]:
    """Return which requests, given their codes, belong to an SLO class; all of them if it is None."""
    return codes == class_code(slo_class) if slo_class is not None else np.ones(len(codes), bool)


def instance_name(instance: int, names: Sequence[str] = ()) -> str:
    """Return BLIS's name of an instance; `names` are those of the record, if it has any."""
    return names[instance] if names else f"instance_{instance}"


def _is_on(record: RunRecord, instance: int | None) -> Bool[np.ndarray, "request"] | bool:
    return instance is None or record.requests.instance == instance


def _total(table: InstanceRecords, name: str, instance: int | None = None) -> int:
    return int(total_of(table, name, instance))


# --- LoRA adapters, as the block `adapters` has them ------------------------------------------------


def adapter_fields(
    record: RunRecord, named: Sequence[str], instance: int | None = None
) -> dict[str, Any]:
    """Return the block `adapters` of the cluster or of one instance; empty if no adapter was used there.

    Args:
        record: the run.
        named: the adapter's name for each request, "" for none; an empty sequence if no request names one.
        instance: the instance; None for the cluster.

    Returns:
        By id in alphabetical order: loads and evictions, TTFT P50 and P99 in µs, and tokens/s of completed requests.
    """
    loads, evictions = _loads_and_evictions(record, instance)
    requests, used = record.requests, {}
    is_done = (requests.e2e_us > 0) & _is_on(record, instance)
    if instance is not None and record.splits is not None:  # whose parts name none
        is_done = is_done & ~record.splits.is_split
    seconds, of_request = ended_us(record, instance) / 1e6, np.asarray(named, object)
    for name in sorted({*(of_request[is_done] if len(named) else ()), *loads, *evictions} - {""}):
        rows = is_done & (of_request == name) if len(named) else np.zeros_like(is_done)
        ttft = sample_of(np.maximum(requests.ttft_us[rows], 0))
        used[str(name)] = {
            "load_count": loads.get(name, 0),
            "eviction_count": evictions.get(name, 0),
            "ttft_p50_us": percentile_ms(ttft, 50) * 1000,
            "ttft_p99_us": percentile_ms(ttft, 99) * 1000,
            "throughput_tok_per_s": ratio(int(requests.output_len[rows].sum()), seconds),
        }
    return {"adapters": used} if used else {}


def _loads_and_evictions(
    record: RunRecord, instance: int | None
) -> tuple[dict[str, int], dict[str, int]]:
    """Return the loads and the evictions by adapter id, without zeros."""
    made = record.adapters
    if made is None:
        return {}, {}

    def counts(each: np.ndarray) -> dict[str, int]:
        summed = zip(made.ids, each[rows_of(instance)].sum(axis=0).tolist(), strict=False)
        return {name: count for name, count in summed if count}

    return counts(made.num_loads), counts(made.num_evictions)

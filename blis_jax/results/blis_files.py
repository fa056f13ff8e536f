"""What the reference prints and saves of a run: text blocks, results JSON, golden files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from blis_jax.core.types import SLO_CLASSES
from blis_jax.files.atomic_write import json_text, replacing
from blis_jax.metrics.kv import preemption_rate, printed_hit_rate, printed_thrashing_rate
from blis_jax.metrics.parts import is_listed
from blis_jax.metrics.reference import (
    aggregates,
    cluster_json,
    hol_blocking_events,
    instance_block,
    instance_name,
    instances,
    per_slo,
    priority_inversions,
    results_json,
)
from blis_jax.metrics.scalars import evaluate
from blis_jax.metrics.summaries import mean_itl_us
from blis_jax.results.august_text import (
    GATEWAY_COUNTS,
    anomaly_lines,
    class_lines,
    label_lines,
    pool_lines,
)
from blis_jax.results.records import RunRecord, Status
from blis_jax.results.scores import NO_VERDICTS, Verdicts
from blis_jax.results.step_records import expand_steps

if TYPE_CHECKING:
    from jaxtyping import Shaped

    from blis_jax.cluster.config import ClusterConfig
    from blis_jax.results.labels import Labels

REQUEST_DTYPES = {
    "instance": np.int16,
    "status": np.int8,
    "admitted": np.int8,
    "queued_at_us": np.int64,
    "sched_delay_us": np.int64,
    "first_sched_delay_us": np.int64,
    "ttft_us": np.int64,
    "e2e_us": np.int64,
    "preemptions": np.int32,
    "num_scheduled": np.int32,
    "cached_tokens_first_sched": np.int32,
    "scheduled_step_idx": np.int32,
    "finished_step_idx": np.int32,
    "num_itl": np.int32,
    "progress_index": np.int32,
}


def results_text(
    record: RunRecord,
    labels: Labels | None = None,
    config: ClusterConfig | None = None,
    verdicts: Verdicts = NO_VERDICTS,
) -> str:
    """The reference's standard output: metrics, verdicts, anomalies, KV cache and per-class blocks.

    In August also figures by the `labels` of requests, and of the pools that the `config` describes.
    """
    num_instances = len(record.instances.step_count)
    blocks = [instance_block(record, row) for row in range(num_instances)]
    made = sum(name.startswith("autoscale-") for name in record.names)  # BLIS counts the others
    cluster = cluster_json(record)
    blocks = [*(blocks if num_instances - made > 1 else []), cluster and cluster | verdicts.fields]
    lines = []
    for block in blocks:
        if block is not None:
            lines += ["=== Simulation Metrics ===", json_text(block)]
    lines += verdicts.lines
    shows_one = verdicts.shows_one_class
    if record.is_august:
        lines += [*anomaly_lines(record), *_kv_lines(record), *class_lines(record, shows_one)]
        lines += label_lines(record, labels) if labels is not None else []
        lines += pool_lines(record, config)
    else:
        lines += [*_anomaly_lines(record), *_kv_lines(record), *_class_lines(record, shows_one)]
        lines += _cost_lines(record)
    return "".join(f"{line}\n" for line in lines)


def _anomaly_lines(record: RunRecord) -> list[str]:
    counts = {
        "Priority Inversions": priority_inversions(record),
        "HOL Blocking Events": hol_blocking_events(record),
        "Rejected Requests": int(np.count_nonzero(record.requests.status == Status.REJECTED)),
        "Dropped Unservable": int(record.instances.dropped_unservable.sum()),
    }
    for name, status in GATEWAY_COUNTS.items():  # not BLIS's
        if count := int(np.count_nonzero(record.requests.status == status)):
            counts[name] = count
    if lost := int(record.instances.lost_requests.sum()):  # not BLIS's
        counts["Lost Requests"] = lost
    if not any(counts.values()):
        return []
    return ["=== Anomaly Counters ===", *(f"{name}: {count}" for name, count in counts.items())]


def _cost_lines(record: RunRecord) -> list[str]:
    """What the instances cost, if some came or went; not BLIS's."""
    if not record.instances.times_down.any():
        return []
    figures = evaluate(record, ("instance_seconds", "idle_share"))
    return [
        "=== Cost ===",
        f"Instance Seconds: {figures['instance_seconds']:.6f}",
        f"Idle Share: {figures['idle_share']:.4f}",
    ]


def _kv_lines(record: RunRecord) -> list[str]:
    rates = {
        "Preemption Rate": preemption_rate(record),
        "Cache Hit Rate": printed_hit_rate(record),
        "KV Thrashing Rate": printed_thrashing_rate(record),
    }
    if not any(rates.values()):
        return []
    return ["=== KV Cache Metrics ===", *(f"{name}: {rate:.4f}" for name, rate in rates.items())]


def _class_lines(record: RunRecord, shows_one: bool) -> list[str]:
    classes = per_slo(record)
    if len(classes) <= (not shows_one):
        return []
    lines = ["=== Per-SLO Metrics ==="]
    for name, figures in classes.items():
        lines.append(f"  {name}:")
        for label, key in (("TTFT:", "ttft_us"), ("E2E: ", "e2e_us")):
            figure = figures[key]
            lines.append(
                f"    {label} mean={figure['mean']:.2f} p99={figure['p99']:.2f} "
                f"(n={figure['count']})"
            )
    return lines


def results_document(record: RunRecord, labels: Labels | None = None) -> dict[str, Any]:
    """The cluster's block and one entry per routed request, in order of arrival; without `labels` rows are numbered."""
    requests = record.requests
    columns = {
        "ttft_ms": _ms_or_zero(requests.ttft_us),
        "itl_ms": _ms_or_zero(mean_itl_us(record)),
        "e2e_ms": _ms_or_zero(requests.e2e_us),
        "scheduling_delay_ms": _ms_or_zero(requests.sched_delay_us),
    }
    entries, wait = [], requests.gateway_wait_us
    for row in np.flatnonzero(is_listed(record)).tolist():
        entry: dict[str, Any] = {
            "arrived_at": float(requests.arrival_us[row] / 1e6),
            "requestID": f"request_{row}" if labels is None else labels.request_id[row],
            "num_prefill_tokens": int(requests.input_len[row]),
            "num_decode_tokens": int(requests.output_len[row]),
            **{name: float(values[row]) for name, values in columns.items()},
        }
        if requests.slo_class[row]:
            entry["slo_class"] = SLO_CLASSES[requests.slo_class[row]]
        if labels is not None and labels.tenant[row]:
            entry["tenant_id"] = labels.tenant[row]
        entry["handled_by"] = instance_name(int(requests.instance[row]), record.names)
        if labels is not None and labels.model[row]:
            entry["model"] = labels.model[row]
        # BLIS takes an entry at time 0 for none
        entered = requests.arrival_us[row] + max(int(requests.ttft_parts_us[row, 0]), 0)
        if wait is not None and wait[row] > 0 and entered > 0:
            entry["gateway_queue_delay_ms"] = float(wait[row] / 1000)
        if labels is not None:
            entry |= _of_session(record, labels, row) | labels.latencies.get(row, {})
        entries.append(entry)
    document = results_json(record)
    if record.is_august:
        fields = list(document.items())
        place = list(document).index("preemption_count") + 1
        document = dict(
            [*fields[:place], ("cache_hit_rate", printed_hit_rate(record)), *fields[place:]]
        )
    return document | {"requests": entries} if entries else document


def _of_session(record: RunRecord, labels: Labels, row: int) -> dict[str, Any]:
    """A request's session and its place there, which only the later revision tells."""
    if not record.is_august:
        return {}
    named = {"session_id": labels.session[row]} if labels.session[row] else {}
    return {**named, "round_index": int(labels.round_index[row])}


def write_scenario(
    directory: str | Path,
    name: str,
    record: RunRecord,
    config: Mapping[str, Any],
    details: Mapping[str, Any] | None = None,
) -> None:
    """Writes DIRECTORY/NAME.npz and .json in the format of the golden data.

    `config` has the reference's flag names; `details` are further entries of the JSON, such as the
    seed and the workload's name.
    """
    directory = Path(directory)
    document = {
        "name": name,
        **(details or {}),
        "num_requests": len(record.requests.arrival_us),
        "config": dict(config),
        "cluster_json": cluster_json(record),
        "aggregates": aggregates(record),
        "per_slo": per_slo(record),
        "instances": instances(record, has_cpu_tier=config["kv-cpu-blocks"] > 0),
    }
    arrays = scenario_arrays(record, config["block-size-in-tokens"])
    rows, text = directory / f"{name}.npz", directory / f"{name}.json"
    with replacing(rows) as written_rows, replacing(text) as written_text:  # both, or neither
        np.savez_compressed(written_rows, **arrays)
        written_text.write_text(json_text(document), encoding="utf-8")


def scenario_arrays(record: RunRecord, block_size: int) -> dict[str, Any]:
    """Every per-request and per-step array of the golden data, with its dtypes."""
    arrays = {
        name: getattr(record.requests, name).astype(dtype) for name, dtype in REQUEST_DTYPES.items()
    }
    return arrays | expand_steps(record, block_size)._asdict()


def _ms_or_zero(times_us: Shaped[np.ndarray, "request"]) -> np.ndarray:
    return np.where(times_us >= 0, times_us / 1e3, 0.0)

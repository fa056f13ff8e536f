"""The output and files of BLIS for a run: labels of its requests, text blocks, results JSON, golden files."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from blis_jax.core.types import SLO_CLASSES
from blis_jax.files.atomic_write import json_as_go, json_text, replacing
from blis_jax.metrics.distributions import is_listed
from blis_jax.metrics.kv import printed_hit_rate
from blis_jax.metrics.reference import (
    adapter_fields,
    aggregates,
    cluster_json,
    instance_block,
    instance_name,
    instances,
    per_slo,
    results_json,
)
from blis_jax.metrics.summaries import mean_itl_us
from blis_jax.records.record import RunRecord
from blis_jax.records.step_records import expand_steps
from blis_jax.results.printed_text import (
    anomaly_lines,
    class_lines,
    cost_lines,
    kv_lines,
    label_lines,
    pool_lines,
)
from blis_jax.results.scores import NO_VERDICTS, Verdicts
from blis_jax.workload.expansion import expanded
from blis_jax.workload.spec_parts import client_e2e_us, client_ttft_us

if TYPE_CHECKING:
    from jaxtyping import Int, Shaped
    from numpy.typing import ArrayLike

    from blis_jax.cluster.config import ClusterConfig
    from blis_jax.workload.spec import WorkloadSpec
    from blis_jax.workload.table import RequestTable, WorkloadNames


@dataclass(frozen=True)
class Labels:
    """The labels of each request; empty where it has none."""

    request_id: Sequence[str]
    tenant: Sequence[str]
    model: Sequence[str]
    session: Sequence[str]
    round_index: Sequence[int]
    adapter: Sequence[str] = ()  # of requests that name LoRA adapters; empty if none does
    # further fields of a results file, by request
    latencies: dict[int, dict[str, float]] = field(default_factory=dict)


def numbered(record: RunRecord) -> Labels:
    """Return labels that only number the requests: request_<n>."""
    count = len(record.requests.status)
    nothing = [""] * count
    return Labels([f"request_{n}" for n in range(count)], nothing, nothing, nothing, [0] * count)


def labels_of(
    record: RunRecord,
    table: RequestTable,
    names: WorkloadNames,
    spec: WorkloadSpec | None = None,
    request_ids: Sequence[str] | None = None,
    seed: int | None = None,
) -> Labels:
    """Return the labels of a run's requests.

    Args:
        record: the run.
        table: its requests, numpy arrays `[request]`.
        names: the names for the table's codes.
        spec: the workload from which the requests were drawn, if any.
        request_ids: the requests' ids; request_<n> if None.
        seed: the seed from which they were drawn; the workload's if None.
    """
    labels = numbered(record)
    if request_ids is None and names.request_numbers is not None:
        request_ids = [f"request_{n}" for n in names.request_numbers]
    model = labels.model if names.models is None else names.models.tolist()
    latencies: dict[int, dict[str, float]] = {}
    if spec is not None:
        clients = expanded(spec, seed).clients
        model = [clients[client].model for client in np.asarray(table.client).tolist()]
        latencies = _client_latencies(clients, np.asarray(table.client), record)
    return Labels(
        request_id=request_ids or labels.request_id,
        tenant=_named(table.tenant, names.tenant_names, ""),
        model=model,
        session=_named(table.session, names.session_names, "session_"),
        round_index=np.asarray(table.round_index).tolist(),
        adapter=() if names.adapters is None else names.adapters.tolist(),
        latencies=latencies,
    )


def _named(codes: ArrayLike, names: Sequence[str], otherwise: str) -> list[str]:
    """Return the names of codes, empty for negative codes; without names, the code after the prefix `otherwise`."""
    if not names:
        names = [
            f"{otherwise}{code}" if otherwise else ""
            for code in range(int(np.max(codes, initial=-1)) + 1)
        ]
    return [str(names[code]) if code >= 0 else "" for code in np.asarray(codes).tolist()]


def _client_latencies(
    clients: Sequence[Any], client: Int[np.ndarray, " request"], record: RunRecord
) -> dict[int, dict[str, float]]:
    """Return latencies at clients with a network by request, ms, 0 for missing ones; not in BLIS."""
    requests = record.requests
    latencies: dict[int, dict[str, float]] = {}
    networks = {
        at: client.network for at, client in enumerate(clients) if client.network is not None
    }
    for index, network in networks.items():
        rows = np.flatnonzero(client == index)
        ttft_us, e2e_us = requests.ttft_us[rows], requests.e2e_us[rows]
        sizes = requests.input_len[rows], requests.output_len[rows]
        seen_ttft = client_ttft_us(ttft_us, sizes[0], network) / 1e3
        seen_e2e = client_e2e_us(e2e_us, *sizes, network) / 1e3
        ttft_ms = np.where(ttft_us >= 0, seen_ttft, 0.0).tolist()
        e2e_ms = np.where(e2e_us >= 0, seen_e2e, 0.0).tolist()
        for row, ttft, e2e in zip(rows.tolist(), ttft_ms, e2e_ms, strict=True):
            latencies[row] = {"client_ttft_ms": ttft, "client_e2e_ms": e2e}
    return latencies


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
    num_asked: int | None = None,
) -> str:
    """Return BLIS's standard output: metrics, verdicts, anomalies, KV cache and per-class blocks.

    In August also figures by `labels` of requests, and for the pools of `config`. If more than one instance was asked
    for, `num_asked`, each existing instance has a block.
    """
    num_instances = len(record.instances.step_count)
    blocks = [instance_block(record, row) for row in range(num_instances)]
    made = sum(name.startswith("autoscale-") for name in record.names)  # BLIS counts the others
    cluster = cluster_json(record)
    has_blocks = (num_asked or num_instances - made) > 1
    if config is not None and config.node_pools and not config.instances:
        has_blocks = False  # no node has room for an instance
    of_adapters = functools.partial(adapter_fields, record, labels.adapter if labels else ())
    blocks = [block and block | of_adapters(row) for row, block in enumerate(blocks)]
    blocks = [
        *(blocks if has_blocks else []),
        cluster and cluster | verdicts.fields | of_adapters(None),
    ]
    lines = []
    for block in filter(None, blocks):
        lines += ["=== Simulation Metrics ===", json_as_go(block)]
    lines += verdicts.lines
    classes = class_lines(record, verdicts.shows_one_class)
    lines += [*anomaly_lines(record), *kv_lines(record), *classes]
    if record.is_august:
        lines += [*label_lines(record, labels or numbered(record)), *pool_lines(record, config)]
    else:
        lines += cost_lines(record)
    return "".join(f"{line}\n" for line in lines)


def results_document(
    record: RunRecord, labels: Labels | None = None, verdicts: Verdicts = NO_VERDICTS
) -> dict[str, Any]:
    """Return BLIS's results JSON: the cluster's block, one entry per routed request by arrival, and the verdicts.

    Without `labels` requests are numbered.
    """
    requests = record.requests
    columns = {
        "ttft_ms": _ms_or_zero(requests.ttft_us),
        "itl_ms": _ms_or_zero(mean_itl_us(record)),
        "e2e_ms": _ms_or_zero(requests.e2e_us),
        "scheduling_delay_ms": _ms_or_zero(requests.sched_delay_us),
    }
    entries, wait, labels = [], requests.gateway_wait_us, labels or numbered(record)
    for row in np.flatnonzero(is_listed(record)).tolist():
        entry: dict[str, Any] = {
            "arrived_at": float(requests.arrival_us[row] / 1e6),
            "requestID": labels.request_id[row],
            "num_prefill_tokens": int(requests.input_len[row]),
            "num_decode_tokens": int(requests.output_len[row]),
            **{name: float(values[row]) for name, values in columns.items()},
        }
        if requests.slo_class[row]:
            entry["slo_class"] = SLO_CLASSES[requests.slo_class[row]]
        if labels.tenant[row]:
            entry["tenant_id"] = labels.tenant[row]
        entry["handled_by"] = instance_name(int(requests.instance[row]), record.names)
        if labels.model[row]:
            entry["model"] = labels.model[row]
        # BLIS takes an entry at time 0 for none
        entered = requests.arrival_us[row] + max(int(requests.ttft_parts_us[row, 0]), 0)
        if wait is not None and wait[row] > 0 and entered > 0:
            entry["gateway_queue_delay_ms"] = float(wait[row] / 1000)
        entries.append(entry | _of_session(record, labels, row) | labels.latencies.get(row, {}))
    document = results_json(record)
    if record.is_august:
        fields = list(document.items())
        place = list(document).index("preemption_count") + 1
        document = dict(
            [*fields[:place], ("cache_hit_rate", printed_hit_rate(record)), *fields[place:]]
        )
    listed = {"requests": entries} if entries else {}
    return document | listed | verdicts.fields | adapter_fields(record, labels.adapter)


def _of_session(record: RunRecord, labels: Labels, row: int) -> dict[str, Any]:
    """Return a request's adapter, session and round, which only August's revision writes."""
    if not record.is_august:
        return {}
    named = {"adapter": labels.adapter[row]} if labels.adapter and labels.adapter[row] else {}
    if labels.session[row]:
        named["session_id"] = labels.session[row]
    return {**named, "round_index": int(labels.round_index[row])}


def write_scenario(
    directory: str | Path,
    name: str,
    record: RunRecord,
    config: Mapping[str, Any],
    details: Mapping[str, Any] | None = None,
) -> None:
    """Write DIRECTORY/NAME.npz and .json in the format of the golden data.

    `config` has BLIS's flag names; `details` are further entries of the JSON, such as the seed and the workload's name.
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
    """Return every per-request and per-step array of the golden data, with its dtypes."""
    arrays = {
        name: getattr(record.requests, name).astype(dtype) for name, dtype in REQUEST_DTYPES.items()
    }
    return arrays | expand_steps(record, block_size)._asdict()


def _ms_or_zero(times_us: Shaped[np.ndarray, "request"]) -> np.ndarray:
    return np.where(times_us >= 0, times_us / 1e3, 0.0)

"""The lines that BLIS prints after the JSON blocks, character for character; many only in August's revision."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from blis_jax.cluster.disaggregation import has_pools, roles
from blis_jax.core.arrays import in_order, ratio
from blis_jax.core.types import BOTH, CLASS_NAMES, DECODE, PREFILL, SLO_CLASSES
from blis_jax.metrics.distributions import (
    Sample,
    counted,
    is_listed,
    is_reported,
    percentile,
    recorded,
    sample_of,
)
from blis_jax.metrics.figures import ended_us, hol_blocking_events, jain_index, priority_inversions
from blis_jax.metrics.kv import preemption_rate, printed_hit_rate, printed_thrashing_rate
from blis_jax.metrics.reference import instance_name
from blis_jax.metrics.scalars import evaluate
from blis_jax.metrics.summaries import mean_itl_us
from blis_jax.records.record import RunRecord, Status

if TYPE_CHECKING:
    from jaxtyping import Bool

    from blis_jax.cluster.config import ClusterConfig
    from blis_jax.results.blis_files import Labels

_SHED = (Status.REJECTED, Status.SHED, Status.EXPIRED, Status.EVICTED)
_GATEWAY_COUNTS = {
    "Gateway Queue Depth (horizon)": Status.IN_GATEWAY,
    "Gateway Queue Shed": Status.SHED,
    "Gateway Queue Rejected": Status.QUEUE_FULL,
    "Gateway Evicted (in-flight)": Status.EVICTED,
    "Gateway Expired (TTL)": Status.EXPIRED,
}


def anomaly_lines(record: RunRecord) -> list[str]:
    """Return the lines of anomaly counters, if any is above 0; a shed request without a class counts as standard."""
    status, instances = record.requests.status, record.instances
    counts = {
        "Priority Inversions": int(priority_inversions(record)),
        "HOL Blocking Events": int(hol_blocking_events(record)),
        f"Rejected Requests{' (Admission)' * record.is_august}": _number(status == Status.REJECTED),
    }
    if record.is_august:
        shed = record.requests.slo_class[np.isin(status, _SHED)]
        names = [SLO_CLASSES[code] or "standard" for code in shed.tolist()]
        counts |= {f"  Shed ({name})": names.count(name) for name in sorted(set(names))}
        counts["Rejected Requests (Routing)"] = _number(status == Status.UNROUTED)
    counts["Dropped Unservable"] = int(instances.dropped_unservable.sum())
    if record.is_august:
        counts["Timed Out Requests"] = _number(status == Status.TIMED_OUT)
        counts["Length-Capped Requests"] = _number(record.requests.is_cut)
    further = {name: _number(status == waits) for name, waits in _GATEWAY_COUNTS.items()}
    if not record.is_august:  # not BLIS's, as all of the gateway in February
        further["Lost Requests"] = int(instances.lost_requests.sum())
    counts |= {name: count for name, count in further.items() if count}
    if not any(counts.values()):
        return []
    return ["=== Anomaly Counters ===", *(f"{name}: {count}" for name, count in counts.items())]


def class_lines(record: RunRecord, shows_one: bool = False) -> list[str]:
    """Return the lines of latencies by SLO class, for two or more classes, or for one if `shows_one`."""
    requests, is_told = record.requests, is_reported(record)
    times = {"TTFT:": requests.ttft_us, "ITL: ": mean_itl_us(record), "E2E: ": requests.e2e_us}
    if not record.is_august:
        del times["ITL: "]
    lines = []
    for code, name in sorted(enumerate(CLASS_NAMES), key=lambda entry: entry[1]):
        is_class = is_told & (requests.slo_class == code)
        samples = {label: recorded(values, is_class) for label, values in times.items()}
        if any(map(len, samples.values())):
            lines.append(f"  {name}:")
            for label, values in samples.items():
                lines.append(f"    {label} {_figures(sample_of(values), (99,))} (n={len(values)})")
    num_classes = sum(line.endswith(":") for line in lines)
    return ["=== Per-SLO Metrics ===", *lines] if num_classes > (not shows_one) else []


def kv_lines(record: RunRecord) -> list[str]:
    """Return the lines of KV rates, if one is above 0."""
    rates = {
        "Preemption Rate": preemption_rate(record),
        "Cache Hit Rate": printed_hit_rate(record),
        "KV Thrashing Rate": printed_thrashing_rate(record),
    }
    if not any(rates.values()):
        return []
    return ["=== KV Cache Metrics ===", *(f"{name}: {rate:.4f}" for name, rate in rates.items())]


def cost_lines(record: RunRecord) -> list[str]:
    """Return lines on the cost of the instances, if some came or went; not in BLIS."""
    if not record.instances.times_down.any():
        return []
    figures = evaluate(record, ("instance_seconds", "idle_share"))
    return [
        "=== Cost ===",
        f"Instance Seconds: {figures['instance_seconds']:.6f}",
        f"Idle Share: {figures['idle_share']:.4f}",
        f"Scale-downs: {record.instances.scale_downs.sum()}",
    ]


def label_lines(record: RunRecord, labels: Labels) -> list[str]:
    """Return the lines of figures by model, by tenant and of sessions, if requests have such labels."""
    return [
        *_model_lines(record, labels.model),
        *_tenant_lines(record, labels.tenant),
        *_session_lines(record, labels),
    ]


def _model_lines(record: RunRecord, models: Sequence[str]) -> list[str]:
    requests, is_told = record.requests, is_reported(record)
    seconds = ended_us(record) / 1e6
    lines = []
    for model, is_its in _groups(models):
        ttft = recorded(requests.ttft_us, is_told & is_its)
        is_done = is_told & is_its & (requests.e2e_us >= 0)
        if not len(ttft) and not is_done.any():
            continue
        e2e, tokens = requests.e2e_us[is_done], int(requests.output_len[is_done].sum())
        rates = (len(e2e) / seconds, tokens / seconds) if seconds > 0 else (0.0, 0.0)
        lines += [
            f"  {model}:",
            f"    TTFT: {_figures(sample_of(ttft), (50, 99), has_mean=False)} (n={len(ttft)})",
            f"    E2E:  {_figures(sample_of(e2e), (50, 99), has_mean=False)} (n={len(e2e)})",
            f"    Throughput: {rates[0]:.2f} req/s, {rates[1]:.2f} tok/s",
        ]
    return ["=== Per-Model Metrics ===", *lines] if lines else []


def _tenant_lines(record: RunRecord, tenants: Sequence[str]) -> list[str]:
    """Return the lines of tenants with a completed request."""
    requests, is_told = record.requests, is_reported(record)
    tokens: dict[str, int] = {}
    lines = []
    for tenant, is_its in _groups(tenants):
        is_done = is_told & is_its & (requests.e2e_us >= 0)
        if is_done.any():
            tokens[tenant] = int(requests.output_len[is_done].sum())
            lines.append(f"  {tenant}: requests={_number(is_done)}, tokens={tokens[tenant]}")
    if not lines:
        return []
    fairness = f"  Jain Fairness Index: {jain_index(list(tokens.values())):.4f}"
    return ["=== Per-Tenant Metrics ===", *lines, fairness]


def _session_lines(record: RunRecord, labels: Labels) -> list[str]:
    """Return the lines of sessions that reached an instance; a session lasts from its first round."""
    requests, rounds = record.requests, np.asarray(labels.round_index)
    is_told = is_listed(record)
    groups = [(name, is_its & is_told) for name, is_its in _groups(labels.session)]
    groups = [(name, is_its) for name, is_its in groups if is_its.any()]
    if not groups:
        return []
    durations = []
    for _, is_its in groups:
        is_done, begins = is_its & (requests.e2e_us >= 0), np.flatnonzero(is_its & (rounds == 0))
        if is_done.any() and len(begins):
            ended = (requests.arrival_us + requests.e2e_us)[is_done].max()
            # BLIS keeps arrivals in seconds, which costs a last digit
            durations.append(ended / 1e3 - requests.arrival_us[begins[-1]] / 1e6 * 1e3)
    in_session = is_told & np.array([bool(name) for name in labels.session])
    is_cold = in_session & (rounds == 0)
    samples = {
        "TTFT cold (round 0):": recorded(requests.ttft_us, is_cold) / 1e3,
        "TTFT warm (round≥1):": recorded(requests.ttft_us, in_session & ~is_cold) / 1e3,
        "Session duration:   ": np.array([duration for duration in durations if duration > 0]),
    }
    lines = ["=== Session Metrics ===", f"  Sessions: {len(groups)}"]
    for label, values in samples.items():
        if len(values):
            figures = _figures(sample_of(values), (50, 95, 99))
            lines.append(f"  {label} {figures} ms (n={len(values)})")
    return lines


def pool_lines(record: RunRecord, config: ClusterConfig | None) -> list[str]:
    """Return the lines on requests that the pools have split, if there are any."""
    if record.splits is None or config is None or not has_pools(config):
        return []
    requests, parts = record.requests, record.splits
    if not parts.is_split.any():
        return []
    is_moved = parts.is_split & (requests.transfer_us >= 0) & _has_transfer(record)
    ttft = requests.ttft_us[parts.is_split & parts.is_ended & (requests.ttft_us > 0)]
    lines = [
        "=== PD Metrics ===",
        f"Disaggregated Requests: {_number(is_moved)}",
        "Dropped at Decode KV: 0",  # BLIS counts those without a decode instance, and all have one
        *_throughputs(record, config),
    ]
    samples = {"Parent TTFT": ttft, "KV Transfer Duration": requests.transfer_us[is_moved]}
    for label, values in samples.items():
        if len(values):
            figures = _figures(sample_of(values), (50, 95, 99), decimals=1)
            lines.append(f"{label} (us): {figures}")
    return lines + (_depth_lines(record) if config.pd_transfer_contention else [])


def decision_lines(record: RunRecord) -> list[str]:
    """Return lines on decisions of admission and the router; requests split by pools count for admission only."""
    requests = record.requests
    is_routed = requests.instance >= 0
    if record.splits is not None:
        is_routed = is_routed & ~record.splits.is_split
    rows, counts = np.unique(requests.instance[is_routed], return_counts=True)
    targets = {
        instance_name(row, record.names): count
        for row, count in zip(rows.tolist(), counts.tolist(), strict=True)
    }
    regret = np.zeros(0) if requests.regret is None else requests.regret[is_routed]
    admitted, rejected = _number(requests.admitted == 1), _number(requests.admitted == 0)
    return [
        "=== Trace Summary ===",
        f"Total Decisions: {admitted + rejected}",
        f"  Admitted: {admitted}",
        f"  Rejected: {rejected}",
        f"Unique Targets: {len(targets)}",
        *(["Target Distribution:"] if targets else []),
        *(f"  {name}: {targets[name]}" for name in sorted(targets)),
        f"Mean Regret: {float(regret.mean()) if len(regret) else 0.0:.6f}",
        f"Max Regret: {float(regret.max(initial=0)):.6f}",
    ]


def _throughputs(record: RunRecord, config: ClusterConfig) -> list[str]:
    """Return lines on the parts completed per second in either pool; an instance of both pools counts in both."""
    seconds = ended_us(record) / 1e6
    rates = []
    for pool in (PREFILL, DECODE):
        its = [row for row, role in enumerate(roles(config)) if role in (pool, BOTH)]
        completed = sum(counted(record, "completed_requests", row) for row in its)
        rates.append(completed / seconds if seconds > 0 else 0.0)
    low, high = sorted(rates)
    ratio = "inf (one pool idle)" if high and not low else f"{high / low if high else 1.0:.4f}"
    return [
        f"Prefill Throughput: {rates[0]:.4f} sub-req/s",
        f"Decode Throughput: {rates[1]:.4f} sub-req/s",
        f"Load Imbalance Ratio: {ratio}",
    ]


def _depth_lines(record: RunRecord) -> list[str]:
    """Return lines on how many transfers were under way when one began, that one included."""
    requests, parts = record.requests, record.splits
    assert parts is not None
    begun = (parts.transfer_at_us >= 0) & _has_transfer(record)
    starts = np.sort(parts.transfer_at_us[begun])
    has_ended = begun & (requests.transfer_us >= 0)
    ends = np.sort((parts.transfer_at_us + requests.transfer_us)[has_ended])
    depths = np.arange(1, len(starts) + 1) - np.searchsorted(ends, starts, side="right")
    average = float(depths.mean()) if len(depths) else 0.0
    return [
        f"Peak Concurrent Transfers: {int(depths.max(initial=0))}",
        f"Mean Transfer Queue Depth: {average:.4f}",
    ]


def _has_transfer(record: RunRecord) -> Bool[np.ndarray, "request"]:
    """Return which requests were not dropped before a transfer began; a transfer takes at least 1 µs."""
    has: np.ndarray = (record.requests.status != Status.DROPPED) | (record.requests.transfer_us > 0)
    return has


def _groups(texts: Sequence[str]) -> Iterable[tuple[str, Bool[np.ndarray, "request"]]]:
    """Yield each non-empty text, sorted as bytes, with the requests that have it."""
    column = np.array(texts, object)
    for text in sorted(set(texts) - {""}, key=str.encode):
        yield text, column == text


def _figures(
    sample: Sample, percents: Sequence[int], has_mean: bool = True, decimals: int = 2
) -> str:
    values = {"mean": ratio(in_order(sample.values), sample.count)} if has_mean else {}
    values |= {f"p{percent}": percentile(sample, percent) for percent in percents}
    return " ".join(f"{name}={value:.{decimals}f}" for name, value in values.items())


def _number(mask: Bool[np.ndarray, "request"]) -> int:
    return int(np.count_nonzero(mask))

"""The record of the routing track, as a record to reproduce."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np

from blis_jax.metrics.figures import worst_p99_ms
from blis_jax.metrics.kv import printed_hit_rate
from papers.record.definition import PaperRecord
from papers.record.measures import CLASSES, Measurement, scalars, with_tails

if TYPE_CHECKING:
    from blis_jax.records.record import RunRecord


# --- what is kept of a run: the track's own metrics, and those that they are read against ---------


WORST_TTFT, WORST_E2E = "worst_ttft_p99_ms", "worst_e2e_p99_ms"
TTFT, E2E = "ttft_p99_ms", "e2e_p99_ms"
_REGISTERED = (
    TTFT,
    E2E,
    "tokens_per_sec",
    "reject_rate",
    "num_completed",
    "num_preemptions",
    "cache_hit_rate",
    *(f"{TTFT}[{slo_class}]" for slo_class in CLASSES),
    *(f"reject_rate[{slo_class}]" for slo_class in CLASSES),
)


def _completion_rate(record: RunRecord) -> float:
    return _num_completed(record) / len(record.requests.ttft_us)


def _num_completed(record: RunRecord) -> float:
    return float(record.instances.completed_requests.sum())


def _token_hit_rate(record: RunRecord) -> float:
    """Hits ÷ look-ups of all instances together, each look-up weighing the same."""
    hits, misses = record.instances.gpu_hits.sum(), record.instances.gpu_misses.sum()
    return float(hits / (hits + misses)) if hits + misses else 0.0


_OWN: Mapping[str, Callable[[RunRecord], float]] = {
    WORST_TTFT: lambda record: worst_p99_ms(record, record.requests.ttft_us),
    WORST_E2E: lambda record: worst_p99_ms(record, record.requests.e2e_us),
    "completion_rate": _completion_rate,
    # the track sums every printed block, and the cluster's block is one of them
    "printed_completed": lambda record: 2 * _num_completed(record),
    "pooled_hit_rate": _token_hit_rate,
}


def track_figures() -> Measurement:
    """Measure the track's own metrics and the cluster's, with the largest latencies that pooling over seeds needs."""
    registered = scalars(_REGISTERED)

    def compute(record: RunRecord) -> np.ndarray:
        own_figures = [metric(record) for metric in _OWN.values()]
        values = registered.compute(record)
        values[_REGISTERED.index("cache_hit_rate")] = printed_hit_rate(record)  # the track's own
        return np.concatenate([values, own_figures])

    return with_tails(Measurement("figures", (*_REGISTERED, *_OWN), compute))


# --- the record -----------------------------------------------------------------------------------


_TRAPS = (
    "How to read the track's numbers. (1) Its TTFT P99 is the largest of all printed blocks: every "
    "instance's and the cluster's. It is the P99 of the worst instance, of 60 to 250 requests, so close "
    "to that instance's slowest request. `ours` is that metric; the column behind it has the P99 of all "
    "requests of the cluster.",
    "(2) Its number of completed requests is the sum over all printed blocks. The cluster's block is one "
    "of them, so the sum is twice the truth: 1406 of 2,000 were 703 of 1,000.",
    "(3) Its runs are bursts: 500, 1,000 or 2,000 requests within 0.25 to 1 s, into a cluster that never "
    "reaches a steady state. At overload P99 grows with the number of requests, so numbers of runs with "
    "different counts or durations cannot be compared. `exact, of unlike runs` marks numbers that do.",
    "(4) Its cache hit rate is the mean over instances, whatever their traffic: a router that keeps one "
    "instance hot seems to have fewer hits (0.25) than round-robin (0.80).",
)

RECORD = PaperRecord(
    package="papers.routing_evolution",
    title="the routing record",
    seeds=(42, 123, 7777),
    measurement=track_figures(),
    beside={WORST_TTFT: TTFT, WORST_E2E: E2E, "printed_completed": "num_completed"},
    beside_heading="of the cluster",
    remarks=_TRAPS,
    figure_example="weight_ratios",
)

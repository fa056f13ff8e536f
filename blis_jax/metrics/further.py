"""Metrics that searches and surrogates ask for; a run and a sweep do not have them.

Who imports this module registers them.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from blis_jax.core.arrays import namespace, ratio
from blis_jax.core.types import SLO_CLASSES
from blis_jax.metrics.figures import adapter_p99_ms, draft_figures, jain_index, worst_p99_ms
from blis_jax.metrics.metric import (
    HIGHER,
    LOWER,
    MeasuredRequests,
    Number,
    of_requests,
    of_run,
)
from blis_jax.metrics.scalars import attainment  # whose own metrics are registered first
from blis_jax.records.record import Status

if TYPE_CHECKING:
    from blis_jax.records.record import RunRecord


@of_requests("1", LOWER, "share rejected")
def reject_rate(measured: MeasuredRequests) -> Number:
    """Return measured requests that admission rejected ÷ measured requests."""
    return ratio(measured.count(Status.REJECTED), measured.num_requests, math.nan)


@of_requests("1", LOWER, "share missing targets")
def slo_miss_rate(measured: MeasuredRequests) -> Number:
    """Return 1 − attainment."""
    return 1.0 - attainment(measured)


@of_requests("ms", LOWER)
def worst_ttft_p99_ms(measured: MeasuredRequests) -> Number:
    """Return the largest of the instances' TTFT P99 and the cluster's; the routing track's metric."""
    record = measured.record
    return worst_p99_ms(record, record.requests.ttft_us, measured.is_chosen)


@of_requests("ms", LOWER)
def ttft_max_ms(measured: MeasuredRequests) -> Number:
    """Return the longest TTFT of the measured requests with a first token, completed or not."""
    times = measured.record.requests.ttft_us
    xp = namespace(times)
    longest = xp.where(measured.is_chosen & (times >= 0), times, -1).max(initial=-1)
    return xp.where(longest < 0, math.nan, longest / 1000)


@of_requests("1", HIGHER, has_classes=False)
def class_fairness(measured: MeasuredRequests) -> Number:
    """Return Jain's index of the classes' attainment: 1 where all keep their targets equally often."""
    kept = [measured.of_class(code).attainment for code in range(len(SLO_CLASSES))]
    xp = namespace(kept[0])
    values = xp.stack(kept)
    return jain_index(values, ~xp.isnan(values), of_nobody=1.0)


@of_run("1", LOWER)
def num_preemptions(record: RunRecord) -> Number:
    """Return evictions from the running batch."""
    return record.instances.preemption_count.sum()


@of_requests("ms", LOWER)
def itl_per_token_mean_ms(measured: MeasuredRequests) -> Number:
    """Return the mean gap between output tokens of measured requests that completed, 0 between drafts of one step.

    The metrics `itl_…` are of the gaps between steps that give tokens, as vLLM's are.
    """
    requests = measured.record.requests
    xp = namespace(requests.status)
    is_it = measured.is_chosen & (requests.status == int(Status.COMPLETED))
    is_it = is_it & (requests.made_len > 1) & (requests.ttft_us >= 0)
    gaps = xp.where(is_it, requests.after_first_us, 0).sum(dtype=float)
    tokens = xp.where(is_it, requests.made_len - 1, 0).sum(dtype=float)
    return ratio(gaps, tokens, math.nan) / 1000


@of_run("1", HIGHER)
def mean_acceptance_length(record: RunRecord) -> Number:
    """Return 1 + accepted drafts ÷ verifications of a request's drafts, as vLLM logs it; NaN without any."""
    return draft_figures(record).get("mean_acceptance_length", math.nan)


# --- LoRA adapters; NaN where none is ever loaded --------------------------------------------------


@of_requests("ms", LOWER, "TTFT P99 of the worst adapter, ms", has_classes=False)
def worst_adapter_ttft_p99_ms(measured: MeasuredRequests) -> Number:
    """Return the largest of the TTFT P99 of each LoRA adapter's measured requests."""
    worst, _ = adapter_p99_ms(measured.record, measured.is_chosen)
    return worst


@of_requests("ms", LOWER, "TTFT P99, mean over adapters, ms", has_classes=False)
def mean_adapter_ttft_p99_ms(measured: MeasuredRequests) -> Number:
    """Return the mean over LoRA adapters of the TTFT P99 of each one's measured requests: all count alike."""
    _, mean = adapter_p99_ms(measured.record, measured.is_chosen)
    return mean


@of_run("1", LOWER)
def num_adapter_loads(record: RunRecord) -> Number:
    """Return loads of LoRA adapters that ended; many more than instances times adapters is thrashing."""
    return math.nan if record.adapters is None else record.adapters.num_loads.sum()

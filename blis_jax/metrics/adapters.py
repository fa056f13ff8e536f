"""Figures of each LoRA adapter, under the names of BLIS's `adapters` block."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from blis_jax.core.arrays import ratio
from blis_jax.metrics.distributions import percentile_ms, sample_of
from blis_jax.metrics.figures import ended_us
from blis_jax.records.record import RunRecord


def adapter_fields(
    record: RunRecord,
    named: Sequence[str],
    instance: int | None = None,
) -> dict[str, Any]:
    """Return the block `adapters` of the cluster or of one instance; nothing if no adapter has been used there.

    Args:
        record: the run.
        named: the adapter of each request, empty for none; empty if no request names one.
        instance: of which the block is; None: of all.

    Returns:
        By id in alphabetical order: loads and evictions, TTFT P50 and P99 in µs, and tokens/s of completed requests.
    """
    loads, evictions = _counts(record, instance)
    requests, used = record.requests, {}
    is_done = requests.e2e_us > 0
    if instance is not None:
        is_done = is_done & (requests.instance == instance)
        if record.splits is not None:  # whose parts name none
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


def _counts(record: RunRecord, instance: int | None) -> tuple[dict[str, int], dict[str, int]]:
    """Loads and evictions by id, of those that there were."""
    made = record.adapters
    if made is None:
        return {}, {}
    rows = slice(None) if instance is None else [instance]

    def counts(each: np.ndarray) -> dict[str, int]:
        summed = zip(made.ids, each[rows].sum(axis=0).tolist(), strict=False)
        return {name: count for name, count in summed if count}

    return counts(made.num_loads), counts(made.num_evictions)

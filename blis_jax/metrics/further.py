"""Metrics that searches and surrogates ask for; a run and a sweep do not have them.

Who imports this module registers them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from blis_jax.metrics.scalars import HIGHER, LOWER, register
from blis_jax.metrics.summaries import Selection
from blis_jax.results.records import Status

if TYPE_CHECKING:
    from jaxtyping import Bool, Int

    from blis_jax.results.records import RunRecord


def _reject_rate(selection: Selection) -> float:
    """Rejected at the gateway ÷ all."""
    if not selection.num_requests:
        return float("nan")
    return selection.count(Status.REJECTED) / selection.num_requests


def _slo_miss_rate(selection: Selection) -> float:
    """Share that did not complete within the targets of its class."""
    return 1.0 - selection.attainment


def _class_fairness(selection: Selection) -> float:
    """Jain's index of the classes' attainment: 1 where all keep their targets equally often."""
    codes = selection.record.requests.slo_class
    present = np.unique(codes[selection.is_chosen])
    kept = np.array([selection.where(codes == code).attainment for code in present])
    squares = len(kept) * float(np.square(kept).sum())
    return float(kept.sum()) ** 2 / squares if squares else 1.0


def worst_p99_ms(
    record: RunRecord,
    times_us: Int[np.ndarray, "request"],
    is_chosen: Bool[np.ndarray, "request"] | None = None,
) -> float:
    """The largest of the instances' P99 and the cluster's of some times, µs, negative where there is none.

    It is the routing track's own metric, over the blocks that BLIS prints: an instance on which nothing
    completed has none. In ms, and NaN if there is no time at all.
    """
    is_timed = times_us >= 0 if is_chosen is None else (times_us >= 0) & is_chosen
    printed = np.flatnonzero(record.instances.completed_requests)
    groups = [is_timed, *(is_timed & (record.requests.instance == i) for i in printed)]
    found = [float(np.percentile(times_us[group], 99)) for group in groups if group.any()]
    return max(found) / 1000 if found else float("nan")


def _worst_ttft_p99_ms(selection: Selection) -> float:
    """The largest of the instances' TTFT P99 and the cluster's."""
    record = selection.record
    return worst_p99_ms(record, record.requests.ttft_us, selection.is_chosen)


def _num_preemptions(selection: Selection) -> float:
    return float(selection.record.instances.preemption_count.sum())


register("reject_rate", _reject_rate, "1", LOWER)
register("slo_miss_rate", _slo_miss_rate, "1", LOWER)
register("class_fairness", _class_fairness, "1", HIGHER, has_classes=False)
register("worst_ttft_p99_ms", _worst_ttft_p99_ms, "ms", LOWER)
register("num_preemptions", _num_preemptions, "1", LOWER, has_classes=False)

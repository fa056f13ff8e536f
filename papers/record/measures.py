"""What is kept of a run: a few dozen figures, never the whole record."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import numpy as np

import blis_jax.metrics.further  # noqa: F401  (registers reject_rate, num_preemptions and others)
from blis_jax.core.outcome import WHOLE
from blis_jax.metrics.measure import Measure
from blis_jax.metrics.metric import ALL, names_in, split_name
from blis_jax.metrics.reference import class_code
from blis_jax.metrics.run_summary import NUM_RANKS, kept_tails, tails_of_runs
from blis_jax.metrics.scalars import evaluate
from blis_jax.metrics.summaries import SloTargets, select
from blis_jax.records.record import TTFT_PARTS, RunRecord

CLASSES = ("critical", "standard", "sheddable")
RUN_FIGURES = (
    "tokens_per_sec",
    "ttft_mean_ms",
    "ttft_p99_ms",
    "e2e_p99_ms",
    "scheduling_delay_p99_ms",
    "goodput_rps",
    "reject_rate",
    "num_preemptions",
)
CLASS_FIGURES = (
    "ttft_mean_ms",
    "ttft_p50_ms",
    "ttft_p99_ms",
    "e2e_p99_ms",
    "attainment",
    "reject_rate",
)
# Levels of the distributions of time to first token; finer where the tail is.
LEVELS = np.round(np.concatenate([np.arange(0, 0.98, 0.02), [0.98, 0.985, 0.99, 0.995, 1]]), 3)
POOLED_METRICS = (  # of which enough is kept to pool the requests of all runs
    "ttft_p99_ms",
    "ttft_p99_ms[critical]",
    "ttft_p99_ms[standard]",
    "ttft_p99_ms[sheddable]",
    "e2e_p99_ms",
)
SLOWEST = 5  # percent of a class whose parts of TTFT are averaged by themselves


@dataclass(frozen=True)
class Measurement:
    """Named figures of a record that came to its end."""

    name: str
    names: tuple[str, ...]
    compute: Callable[[RunRecord], np.ndarray]

    def of(self, record: RunRecord) -> np.ndarray:
        """Return the figures of a run; NaN if it did not come to its end."""
        if record.outcome not in WHOLE:
            return np.full(len(self.names), np.nan)
        return self.compute(record)


SCALAR_NAMES = (*RUN_FIGURES, *names_in(CLASS_FIGURES, CLASSES))


def _scalars(record: RunRecord, names: Sequence[str]) -> np.ndarray:
    return np.array(list(evaluate(record, names, _targets()).values()))


@lru_cache(maxsize=1)
def _targets() -> SloTargets:
    return Measure().slo_targets()


def _curves(record: RunRecord) -> np.ndarray:
    """Quantiles of TTFT in ms, class after class."""
    rows = []
    for slo_class in CLASSES:
        times = record.requests.ttft_us[_of_class(record, slo_class)]
        times = times[times >= 0]
        empty = np.full(len(LEVELS), np.nan)
        rows.append(np.quantile(times / 1000, LEVELS) if len(times) else empty)
    return np.concatenate(rows)


def _parts(record: RunRecord, classes: Sequence[str]) -> np.ndarray:
    """Mean parts of TTFT in ms: of a class, then of its slowest requests, class after class."""
    rows = []
    for slo_class in classes:
        is_member = _of_class(record, slo_class) & (record.requests.ttft_us >= 0)
        times, parts = record.requests.ttft_us[is_member], record.requests.ttft_parts_us[is_member]
        if not len(times):
            rows.append(np.full(2 * parts.shape[1], np.nan))
            continue
        is_slow = times >= np.percentile(times, 100 - SLOWEST)
        rows += [parts.mean(axis=0) / 1000, parts[is_slow].mean(axis=0) / 1000]
    return np.concatenate(rows)


def _of_class(record: RunRecord, slo_class: str) -> Any:
    if slo_class == ALL:
        return np.ones(len(record.requests.slo_class), bool)
    return record.requests.slo_class == class_code(slo_class)


def _tails_of(record: RunRecord) -> np.ndarray:
    classes = [slo_class for _, slo_class in map(_group, POOLED_METRICS) if slo_class]
    kept = kept_tails(select(record), classes)
    tails = tails_of_runs(
        [kept[latency][slo_class or ALL] for latency, slo_class in map(_group, POOLED_METRICS)]
    )
    rows: np.ndarray = np.concatenate([tails.count[:, None], tails.top_us], axis=1)
    return rows.ravel()


def _group(metric: str) -> tuple[str, str]:
    """Return the latency and the SLO class that a name of `POOLED_METRICS` means; an empty class for all requests."""
    base, slo_class = split_name(metric)
    return base.partition("_")[0], slo_class or ""


def scalars(names: Sequence[str] = SCALAR_NAMES) -> Measurement:
    """Return the measurement of registered metrics, `[class]` behind a name or not; by default of run and classes."""
    return Measurement("figures", tuple(names), partial(_scalars, names=names))


def with_tails(measurement: Measurement) -> Measurement:
    """Add the number of requests and the largest latencies, in µs, of each metric of `POOLED_METRICS`."""
    parts = ("count", *(str(rank) for rank in range(NUM_RANKS)))
    names = tuple(f"{metric}/{part}" for metric in POOLED_METRICS for part in parts)

    def compute(record: RunRecord) -> np.ndarray:
        return np.concatenate([measurement.compute(record), _tails_of(record)])

    return Measurement(measurement.name, (*measurement.names, *names), compute)


def record_figures() -> Measurement:
    """Return the measurement of figures of the run and of each class, and of what pooling needs."""
    return with_tails(scalars())


def curves() -> Measurement:
    """Return the measurement of TTFT's distribution by class."""
    names = tuple(f"{slo_class}@{level:g}" for slo_class in CLASSES for level in LEVELS)
    return Measurement("curves", names, _curves)


def ttft_parts(classes: Sequence[str] = CLASSES) -> Measurement:
    """Return the measurement of TTFT's parts per class (`all`: every request), over the whole class and its slowest."""
    names = tuple(
        f"{slo_class}/{which}/{part}"
        for slo_class in classes
        for which in (ALL, "slowest")
        for part in TTFT_PARTS
    )
    name = "_".join(["ttft_parts", *(classes if classes != CLASSES else ())])
    return Measurement(name, names, partial(_parts, classes=classes))

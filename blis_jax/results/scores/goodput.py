"""Goodput and fitness as BLIS of August 2026 computes them.

Goodput of a class with limits, over all of its requests that arrived (`count`):

    slo_attainment           completed requests within every limit / count
    slo_attainment_by_dim    completed requests within one limit / completed requests
    goodput_rps              completed requests within every limit / s until the last event

Source: `cmd/goodput.go` and `sim/cluster/metrics.go` (SLOAttainmentMultiDim, ComputeFitness).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from blis_jax.errors import ConfigError, closest
from blis_jax.metrics.distributions import percentile_ms, sample_of, summary_us
from blis_jax.metrics.reference import CLASS_NAMES, class_code, ended_us, rates, recorded

if TYPE_CHECKING:
    from jaxtyping import Float

    from blis_jax.results.records import RunRecord

DIMENSIONS = ("ttft", "itl", "e2e")
Limits = Mapping[str, Mapping[str, float]]  # ms by class and dimension

_RPS, _TPS, _US = 100.0, 10_000.0, 1000.0  # what a component of 1/2 stands for
_FITNESS = {  # keys of --fitness-weights: latency and its figure, None for rates
    "throughput": None,
    "tokens_per_sec": None,
    **{
        f"{figure}_{latency}": (latency, figure)
        for latency in ("ttft", "e2e")
        for figure in ("p99", "p50", "mean")
    },
}


def goodput_fields(
    record: RunRecord,
    limits: Limits,
    itl_us: Float[np.ndarray, "request"],
    request_ids: Sequence[str],
) -> dict[str, Any]:
    """Return what BLIS adds to the cluster's block: `goodput_rps`, `slo_attainment`, `per_class`; zeros are left out.

    Args:
        record: the run.
        limits: ms by class (`default` for requests without one) and dimension; nothing is returned without any.
        itl_us: mean gap between tokens of each completed request, -1 of others.
        request_ids: the requests' ids, by which BLIS orders its sums.
    """
    if not limits:
        return {}
    requests, seconds = record.requests, ended_us(record) / 1e6
    times = {"ttft": requests.ttft_us, "itl": itl_us, "e2e": requests.e2e_us}
    per_class, num_good, num_requests = {}, 0, 0
    for name in sorted(limits):
        is_class = requests.slo_class == (class_code(name) if name in CLASS_NAMES else -1)
        is_done = is_class & (requests.e2e_us >= 0)
        is_met = {
            one: is_done & (times[one] >= 0) & (times[one] / 1e3 <= limits[name][one])
            for one in sorted(limits[name])
        }
        good = int(np.count_nonzero(np.logical_and.reduce([is_done, *is_met.values()])))
        count = int(np.count_nonzero(is_class))
        num_good, num_requests = num_good + good, num_requests + count
        done = np.flatnonzero(is_done).tolist()
        rows = np.array(sorted(done, key=lambda row: request_ids[row]), int)
        gaps_us = itl_us[rows][itl_us[rows] >= 0]
        figures = {
            "count": count,
            "e2e_p99_ms": percentile_ms(sample_of(requests.e2e_us[rows]), 99),
            "goodput_rps": _ratio(good, seconds),
            "itl_mean_ms": _ratio(_sum(gaps_us), len(gaps_us)) / 1e3,
            "slo_attainment": _ratio(good, count),
            "slo_attainment_by_dim": {
                one: _ratio(int(np.count_nonzero(met)), len(rows)) for one, met in is_met.items()
            },
            "ttft_p99_ms": percentile_ms(sample_of(recorded(requests.ttft_us, is_done)), 99),
        }
        per_class[name] = {
            key: value for key, value in figures.items() if value or not key.endswith("_ms")
        }
    overall = {
        "goodput_rps": _ratio(num_good, seconds),
        "slo_attainment": _ratio(num_good, num_requests),
    }
    return {name: value for name, value in overall.items() if value} | {"per_class": per_class}


def fitness(record: RunRecord, weights: Mapping[str, float]) -> tuple[float, dict[str, float]]:
    """Return BLIS's fitness, and its components from 0 to 1 by name in alphabetical order.

    Args:
        record: the run.
        weights: factors of components, of `check_weights`.
    """
    per_second = rates(record)
    values = {
        "throughput": per_second.responses_per_sec / (per_second.responses_per_sec + _RPS),
        "tokens_per_sec": per_second.tokens_per_sec / (per_second.tokens_per_sec + _TPS),
    }
    latencies = {"ttft": record.requests.ttft_us, "e2e": record.requests.e2e_us}
    for key, place in _FITNESS.items():
        if place is not None:
            figures = summary_us(sample_of(recorded(latencies[place[0]])))
            values[key] = 1.0 / (1.0 + figures[place[1]] / _US)
    components = {name: values[name] for name in sorted(weights)}
    score = 0.0
    for name, value in components.items():
        score += value * weights[name]
    return score, components


def check_weights(weights: Mapping[str, float]) -> None:
    """Refuse components that BLIS does not have, and factors that are not finite or below 0.

    Raises:
        ConfigError: with what is allowed.
    """
    for name, weight in weights.items():
        if name not in _FITNESS:
            raise ConfigError(
                f"{name!r} is not known; use some of {', '.join(_FITNESS)}{closest(name, _FITNESS)}"
            )
        if not 0 <= weight < float("inf"):
            raise ConfigError(f"{name} is {weight:g}, allowed is a finite number of at least 0")


def _ratio(part: float, whole: float) -> float:
    return float(part / whole) if whole > 0 else 0.0


def _sum(values: Float[np.ndarray, "request"]) -> float:
    """The sum from left to right, as a loop has it."""
    return float(np.cumsum(values)[-1]) if len(values) else 0.0

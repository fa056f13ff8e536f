"""Verdicts on a finished run that BLIS of August 2026 prints on request: goodput, fitness, saturation."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from blis_jax.core.arrays import in_order, ratio
from blis_jax.core.types import CLASS_NAMES
from blis_jax.errors import ConfigError, closest
from blis_jax.metrics.distributions import percentile_ms, recorded, sample_of, summary_us
from blis_jax.metrics.figures import ended_us, rates
from blis_jax.metrics.reference import class_code

if TYPE_CHECKING:
    from jaxtyping import Float

    from blis_jax.records.record import RunRecord


@dataclass(frozen=True)
class Verdicts:
    """The verdicts of scores and detectors on a run; empty if none were asked for."""

    fields: dict[str, Any] = field(default_factory=dict)  # of the cluster's block
    lines: tuple[str, ...] = ()  # behind the blocks
    shows_one_class: bool = False  # figures by class are printed even if there is one class


NO_VERDICTS = Verdicts()


# --- goodput and fitness --------------------------------------------------------------------------

# Goodput of a class with limits, over all of its requests that arrived (`count`):
#
#     slo_attainment           completed requests within every limit / count
#     slo_attainment_by_dim    completed requests within one limit / completed requests
#     goodput_rps              completed requests within every limit / s until the last event
#
# Source: `cmd/goodput.go` and `sim/cluster/metrics.go` (SLOAttainmentMultiDim, ComputeFitness).

Limits = Mapping[str, Mapping[str, float]]  # ms by class and dimension

_RPS, _TPS, _US = 100.0, 10_000.0, 1000.0  # what a component of 1/2 stands for
_FIT_LATENCIES = {  # latency and its figure
    f"{figure}_{latency}": (latency, figure)
    for latency in ("ttft", "e2e")
    for figure in ("p99", "p50", "mean")
}
_FITNESS = "throughput", "tokens_per_sec", *_FIT_LATENCIES  # keys of --fitness-weights


def goodput_fields(
    record: RunRecord,
    limits: Limits,
    itl_us: Float[np.ndarray, "request"],
    request_ids: Sequence[str],
) -> dict[str, Any]:
    """Return BLIS's further fields of the cluster's block: `goodput_rps`, `slo_attainment`, `per_class`, without zeros.

    Args:
        record: the run.
        limits: ms by class (`default` for requests without one) and latency; without limits there are no fields.
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
            limit: is_done & (times[limit] >= 0) & (times[limit] / 1e3 <= limits[name][limit])
            for limit in sorted(limits[name])
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
            "goodput_rps": ratio(good, seconds),
            "itl_mean_ms": ratio(in_order(gaps_us), len(gaps_us)) / 1e3,
            "slo_attainment": ratio(good, count),
            "slo_attainment_by_dim": {
                slo_class: ratio(int(np.count_nonzero(met)), len(rows))
                for slo_class, met in is_met.items()
            },
            "ttft_p99_ms": percentile_ms(sample_of(recorded(requests.ttft_us, is_done)), 99),
        }
        per_class[name] = {
            key: value for key, value in figures.items() if value or not key.endswith("_ms")
        }
    overall = {
        "goodput_rps": ratio(num_good, seconds),
        "slo_attainment": ratio(num_good, num_requests),
    }
    return {name: value for name, value in overall.items() if value} | {"per_class": per_class}


def fitness(record: RunRecord, weights: Mapping[str, float]) -> tuple[float, dict[str, float]]:
    """Return BLIS's fitness, and its components from 0 to 1 by name in alphabetical order.

    Args:
        record: the run.
        weights: factors of components, checked by `check_weights`.
    """
    per_second = rates(record)
    values = {
        "throughput": per_second.responses_per_sec / (per_second.responses_per_sec + _RPS),
        "tokens_per_sec": per_second.tokens_per_sec / (per_second.tokens_per_sec + _TPS),
    }
    latencies = {"ttft": record.requests.ttft_us, "e2e": record.requests.e2e_us}
    for key, (latency, figure) in _FIT_LATENCIES.items():
        figures = summary_us(sample_of(recorded(latencies[latency])))
        values[key] = 1.0 / (1.0 + figures[figure] / _US)
    components = {name: values[name] for name in sorted(weights)}
    score = 0.0
    for name, value in components.items():
        score += value * weights[name]
    return score, components


def check_weights(weights: Mapping[str, float]) -> None:
    """Refuse components that BLIS does not have, and factors that are not finite or below 0.

    Raises:
        ConfigError: a component or a factor is not allowed.
    """
    for name, weight in weights.items():
        if name not in _FITNESS:
            raise ConfigError(
                f"{name!r} is not known; use some of {', '.join(_FITNESS)}{closest(name, _FITNESS)}"
            )
        if not 0 <= weight < float("inf"):
            raise ConfigError(f"{name} is {weight:g}, allowed is a finite number of at least 0")


# --- saturation: three detectors, event by event, and a last vote ---------------------------------

# Each completed request is two events, its arrival and its completion. After every event each detector says how full
# the cluster is; its label is the most frequent level within a window before the last event. These detectors see what
# is over and done; `policies/gateway` has those that hold requests back. Source: `sim/saturation/`.

LEVELS = ("STABLE", "BACKLOGGED", "OVERLOADED")
DETECTORS = ("composite", "threshold", "backlog-drift")  # BLIS's order
_OVERLOAD = 3.0  # times the noise of a slope
_SURE = 20.0  # arrivals after which a verdict is sure
_FEWEST_FOR_QUARTERS = 20


class Event(NamedTuple):
    """An arrival or a completion; both sort as BLIS orders them."""

    time_us: int
    is_completion: int
    request_id: str
    e2e_ms: float = 0.0


class DetectorVerdict(NamedTuple):
    """The verdict of one detector after an event."""

    level: int  # of LEVELS
    score: float
    confidence: float
    signals: Mapping[str, float]


@dataclass(frozen=True)
class Tuning:
    """The parameters of the detectors."""

    threshold_ms: float = 5000.0  # mean E2E above which `threshold` says overloaded
    bucket_us: int = 60_000_000  # of `backlog-drift`, which looks at the end of each bucket
    window_us: int = 30_000_000  # before the last event, in which the label is voted on


@dataclass(frozen=True)
class Saturation:
    """The final level by detector, and all verdicts in order of events and detectors."""

    final: dict[str, str]
    trace: list[tuple[int, str, DetectorVerdict]]  # time in µs, detector, verdict

    def document(self) -> dict[str, Any]:
        """Return the report that BLIS writes."""
        trace = [
            {
                "timestamp": time_us,
                "detector": name,
                "result": {
                    "level": LEVELS[verdict.level],
                    "score": verdict.score,
                    "confidence": verdict.confidence,
                    "signals": dict(sorted(verdict.signals.items())),
                },
            }
            for time_us, name, verdict in self.trace
        ]
        return ({"final": self.final} if self.final else {}) | {"trace": trace}


def saturation(
    record: RunRecord, request_ids: Sequence[str], detectors: Sequence[str], tuning: Tuning
) -> Saturation:
    """Judge by detectors whether a run was saturated.

    Args:
        record: the run; its completed requests count.
        request_ids: the requests' ids, which break ties.
        detectors: some of DETECTORS, in their order.
        tuning: the detectors' parameters.
    """
    events = events_of(record, request_ids)
    made = {name: list(_VERDICTS[name](events, tuning)) for name in detectors}
    trace = [
        (event.time_us, name, made[name][place])
        for place, event in enumerate(events)
        for name in detectors
    ]
    final = {name: _voted(events, made[name], tuning.window_us) for name in sorted(made) if events}
    return Saturation(final, trace)


def events_of(record: RunRecord, request_ids: Sequence[str]) -> list[Event]:
    """Return arrival and completion of every request whose E2E is above 0, in BLIS's order."""
    requests = record.requests
    events = []
    for row in np.flatnonzero(requests.e2e_us > 0).tolist():
        # seconds and milliseconds there, so the last microsecond may be lost
        arrival_us = int(float(requests.arrival_us[row]) / 1e6 * 1e6)
        e2e_ms = float(requests.e2e_us[row]) / 1e3
        events.append(Event(arrival_us, 0, request_ids[row]))
        events.append(Event(arrival_us + int(e2e_ms * 1e3), 1, request_ids[row], e2e_ms))
    return sorted(events)


def _voted(events: Sequence[Event], verdicts: Sequence[DetectorVerdict], window_us: int) -> str:
    """Return the most frequent level in the last window; of equally frequent ones the most severe."""
    first_us = events[-1].time_us - window_us
    levels = [
        verdict.level
        for event, verdict in zip(events, verdicts, strict=True)
        if event.time_us >= first_us
    ]
    counts = [levels.count(level) for level in range(len(LEVELS))]
    return LEVELS[max(range(len(LEVELS)), key=lambda level: (counts[level], level))]


# --- detectors ------------------------------------------------------------------------------------


def _composite(events: Sequence[Event], tuning: Tuning) -> Iterator[DetectorVerdict]:
    """Detect saturation by the number of open requests, and by E2E that rises from quarter to quarter."""
    e2e_ms = np.array([event.e2e_ms for event in events if event.is_completion])
    arrivals = completions = 0
    trend = (0.0, False)
    for event in events:
        arrivals += not event.is_completion
        completions += event.is_completion
        if event.is_completion:
            trend = _trend(e2e_ms[:completions])
        raw, is_steady = trend
        rise = raw if is_steady else 0.0
        deficit = max(0.0, 1.0 - completions / arrivals)
        score = max(deficit, min(rise, 1.0))
        noise = 1.0 / math.sqrt(arrivals)
        level = 0 if score < noise else 2 if rise > noise else 1
        signals = {
            "rate_deficit": deficit,
            "latency_trend_raw": min(raw, 1.0),
            "latency_trend": min(rise, 1.0),
            "quartile_monotone": float(is_steady),
            "noise_floor": noise,
        }
        yield DetectorVerdict(level, score, min(1.0, arrivals / _SURE), signals)


def _trend(e2e_ms: Float[np.ndarray, "completion"]) -> tuple[float, bool]:
    """Return the relative rise from the first half's mean to the second's, and whether each quarter rises."""
    count = len(e2e_ms)
    if count < 2:
        return 0.0, False
    first, second = _mean(e2e_ms[: count // 2]), _mean(e2e_ms[count // 2 :])
    raw = max(0.0, (second - first) / first) if first > 0 else 0.0
    if count < _FEWEST_FOR_QUARTERS:
        return raw, False
    size = count // 4
    cuts = (0, size, 2 * size, 3 * size, count)
    means = [_mean(e2e_ms[a:b]) for a, b in pairwise(cuts)]
    return raw, means[0] < means[1] < means[2] < means[3]


def _threshold(events: Sequence[Event], tuning: Tuning) -> Iterator[DetectorVerdict]:
    """Detect saturation by mean E2E above a limit."""
    limit, total, completions = tuning.threshold_ms, 0.0, 0
    for event in events:
        if event.is_completion:
            total, completions = total + event.e2e_ms, completions + 1
        if not completions:
            yield DetectorVerdict(0, 0.0, 0.0, {})
            continue
        mean = total / completions
        is_over = mean >= limit
        over = 0.75 + min(0.25, (mean - limit) / limit / 4.0)
        score = over if is_over else 0.5 * (mean / limit)
        confidence = 1.0 - 1.0 / math.sqrt(completions + 1.0)
        signals = {"mean_e2e": mean, "threshold": limit}
        yield DetectorVerdict(2 if is_over else 0, score, confidence, signals)


def _backlog_drift(events: Sequence[Event], tuning: Tuning) -> Iterator[DetectorVerdict]:
    """Detect saturation by the slope of the number of open requests over time buckets."""
    arrivals = completions = 0
    ends: list[int] = []  # requests under way at the end of each bucket
    bucket, sum_y, sum_xy = 0, 0, 0
    for event in events:
        arrivals += not event.is_completion
        completions += event.is_completion
        in_flight, here = arrivals - completions, event.time_us // tuning.bucket_us
        if not ends:
            added, bucket = [in_flight], here
        elif here == bucket:
            last = ends.pop()
            sum_y, sum_xy = sum_y - last, sum_xy - len(ends) * last
            added = [in_flight]
        else:
            added, bucket = [ends[-1]] * (here - bucket - 1) + [in_flight], here
        for value in added:
            sum_y, sum_xy = sum_y + value, sum_xy + len(ends) * value
            ends.append(value)
        slope, noise = _slope(len(ends), sum_y, sum_xy), 1.0 / math.sqrt(arrivals)
        level = 0 if slope <= noise else 1 if slope <= _OVERLOAD * noise else 2
        signals = {
            "in_flight": float(in_flight),
            "arrivals": float(arrivals),
            "completions": float(completions),
            "running_slope": slope,
            "noise_floor": noise,
        }
        score = min(1.0, max(0.0, slope) / (_OVERLOAD * noise))
        yield DetectorVerdict(level, score, min(1.0, arrivals / _SURE), signals)


def _slope(count: int, sum_y: int, sum_xy: int) -> float:
    """Return the least-squares slope of values at 0, 1, 2, …; sums of whole numbers are exact."""
    sum_x, sum_xx = count * (count - 1) // 2, (count - 1) * count * (2 * count - 1) // 6
    denominator = float(count) * float(sum_xx) - float(sum_x) * float(sum_x)
    if count < 2 or denominator == 0:
        return 0.0
    return (float(count) * float(sum_xy) - float(sum_x) * float(sum_y)) / denominator


def _mean(values: Float[np.ndarray, "value"]) -> float:
    return float(ratio(in_order(values), len(values)))


_VERDICTS = {"composite": _composite, "threshold": _threshold, "backlog-drift": _backlog_drift}

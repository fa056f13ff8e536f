"""Saturation of a finished run as BLIS of August 2026 judges it: three detectors, event by event, and a last vote.

Each completed request is two events, its arrival and its completion. After every event each detector says how full
the cluster is; its label is the most frequent level within a window before the last event. These detectors see what
is over and done; `policies/gateway` has those that hold requests back.

Source: `sim/saturation/` and `cmd/saturation.go`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from jaxtyping import Float

    from blis_jax.results.records import RunRecord

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
    """What one detector says after an event."""

    level: int  # of LEVELS
    score: float
    confidence: float
    signals: Mapping[str, float]


@dataclass(frozen=True)
class Tuning:
    """Numbers of the detectors."""

    threshold_ms: float = 5000.0  # mean E2E above which `threshold` says overloaded
    bucket_us: int = 60_000_000  # of `backlog-drift`, which looks at the end of each bucket
    window_us: int = 30_000_000  # before the last event, in which the label is voted on


@dataclass(frozen=True)
class Saturation:
    """Labels by detector, and the verdicts behind them in order of events and detectors."""

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
    """Judge a run.

    Args:
        record: the run; its completed requests count.
        request_ids: the requests' ids, which break ties.
        detectors: some of DETECTORS, in their order.
        tuning: the detectors' numbers.
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
    """Return both events of every request whose E2E is above 0, in BLIS's order."""
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
    """The most frequent level of the last window; the more severe one of equals."""
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
    """Requests that are not done, and E2E that rises from quarter to quarter."""
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
    """The relative rise from the first half to the second, and whether the quarters rise one by one."""
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
    """The mean E2E against a limit."""
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
    """The slope of the number of requests under way, bucket by bucket."""
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
    """Least squares of values at 0, 1, 2, …; whole sums are exact."""
    sum_x, sum_xx = count * (count - 1) // 2, (count - 1) * count * (2 * count - 1) // 6
    denominator = float(count) * float(sum_xx) - float(sum_x) * float(sum_x)
    if count < 2 or denominator == 0:
        return 0.0
    return (float(count) * float(sum_xy) - float(sum_x) * float(sum_y)) / denominator


def _mean(values: Float[np.ndarray, "value"]) -> float:
    """The mean of a sum from left to right."""
    return float(np.cumsum(values)[-1]) / len(values) if len(values) else 0.0


_VERDICTS = {"composite": _composite, "threshold": _threshold, "backlog-drift": _backlog_drift}

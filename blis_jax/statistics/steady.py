"""The mean and percentiles of a steady state, from one long run, with intervals.

A run begins with an empty cluster, so its first requests wait less than those that come later. The number of requests
to leave out is found by MSER-5 (K. P. White, An effective truncation heuristic for bias reduction in simulation output,
Simulation 69, 1997): of all numbers up to half of the requests, in steps of 5, the number after which the rest has the
smallest standard error of its mean.

Requests wait in the same queues, so neighbours are alike and the usual standard error is too small. Means of long
batches of neighbours are nearly independent (batch means). The correlation that remains between neighbouring batches
widens the interval, and their skewness makes it asymmetric. A percentile is taken over all requests after the warm-up;
its interval is that of the share of requests below it, converted back to values.

An interval is always given, even for a short run: giving it only if the batches look independent would select runs
whose queue happened to stay short, and err more often. Instead `num_independent` says how many independent requests the
run is worth, and `benchmarks.coverage.steady` measures how often the intervals hold.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from blis_jax.core.types import SLO_CLASSES
from blis_jax.errors import ConfigError
from blis_jax.records.record import RequestRecords, RunRecord, Status
from blis_jax.statistics.intervals import CONFIDENCE
from blis_jax.statistics.skewed import skewed_bounds

if TYPE_CHECKING:
    from jaxtyping import Float

LEAST_REQUESTS = 320  # below it a batch has no twenty requests
GROUP = 5  # requests of which MSER looks at the mean
NUM_BATCHES = 16
MOST_ALIKE = 0.9  # correlation of neighbouring batches that is allowed for
ENOUGH = 100  # independent requests, for a percentile on its rarer side a tenth of it
ENOUGH_BEYOND = 10


@dataclass(frozen=True)
class SteadyEstimate:
    """A figure of the steady state of one run, in the unit of the values."""

    value: float
    low: float
    high: float
    num_warm_up: int  # first requests that are left out
    num_independent: float  # requests without correlation that would say as much
    is_enough: bool  # there are so many that the interval holds about as often as it says


def num_warm_up(values: Float[np.ndarray, "request"]) -> int:
    """Return how many first requests MSER-5 leaves out, at most half; half means that the warm-up has no end."""
    groups = len(values) // GROUP
    means = values[: groups * GROUP].reshape(groups, GROUP).mean(axis=1)
    centred = means - means.mean()
    counts = np.arange(groups, 0, -1)
    sums, squares = (np.cumsum(part[::-1])[::-1] for part in (centred, centred**2))
    spread = np.maximum(squares - sums**2 / counts, 0.0)
    statistic = (spread / counts.astype(float) ** 2)[: groups // 2 + 1]
    return int(np.argmin(statistic)) * GROUP


def steady_mean(values: Float[np.ndarray, "request"]) -> SteadyEstimate:
    """Return the mean of a metric of requests in order of arrival, e.g. of their TTFT.

    Raises `ConfigError` for fewer than `LEAST_REQUESTS` requests.
    """
    kept, left_out = _after_warm_up(values)
    low, high = _bounds(kept)
    worth = _worth(kept)
    return SteadyEstimate(float(kept.mean()), low, high, left_out, worth, worth >= ENOUGH)


def steady_percentile(values: Float[np.ndarray, "request"], percent: float) -> SteadyEstimate:
    """Return a percentile of a metric of requests in order of arrival; the warm-up is that of the mean.

    Raises `ConfigError` for fewer than `LEAST_REQUESTS` requests, or a percentile outside 0 to 100.
    """
    if not 0 < percent < 100:
        raise ConfigError(f"percentile: got {percent:g}, allowed is between 0 and 100")
    kept, left_out = _after_warm_up(values)
    value = float(np.percentile(kept, percent))
    is_below = (kept <= value).astype(float)
    shares = np.clip(_bounds(is_below), 0.0, 1.0)
    low, high = (float(np.quantile(kept, share)) for share in shares)
    worth = _worth(is_below)
    beyond = worth * min(percent, 100 - percent) / 100
    return SteadyEstimate(value, low, high, left_out, worth, beyond >= ENOUGH_BEYOND)


def _after_warm_up(values: np.ndarray) -> tuple[np.ndarray, int]:
    series = np.asarray(values, float)
    if len(series) < LEAST_REQUESTS:
        raise ConfigError(
            f"a steady state: got {len(series)} requests; {LEAST_REQUESTS} or more are needed, so run longer"
        )
    left_out = num_warm_up(series)
    return series[left_out:], left_out


def _batches(kept: np.ndarray) -> np.ndarray:
    """Return the means of `NUM_BATCHES` batches of neighbours; the remainder is left out at the start."""
    size = len(kept) // NUM_BATCHES
    means: np.ndarray = kept[len(kept) - size * NUM_BATCHES :].reshape(NUM_BATCHES, size).mean(1)
    return means


def _widening(batches: np.ndarray) -> float:
    """Return the factor by which correlation of neighbouring batches widens the standard error."""
    centred = batches - batches.mean()
    total = float((centred**2).sum())
    if not total:
        return 1.0
    alike = min(max(float((centred[1:] * centred[:-1]).sum()) / total, 0.0), MOST_ALIKE)
    return math.sqrt((1 + alike) / (1 - alike))


def _bounds(kept: np.ndarray) -> tuple[float, float]:
    """Return Hall's interval over the batches, around the mean of all values, widened for correlation."""
    batches, value = _batches(kept), float(kept.mean())
    mean, wider = float(batches.mean()), _widening(batches)
    low, high = skewed_bounds(batches, (1 - CONFIDENCE) / 2)
    return value - wider * (mean - low), value + wider * (high - mean)


def _worth(kept: np.ndarray) -> float:
    """Return how many independent values the mean is worth: variance ÷ its variance; infinite if all are equal."""
    batches = _batches(kept)
    variance = float(batches.var(ddof=1)) / NUM_BATCHES * _widening(batches) ** 2
    return float(kept.var()) / variance if variance else math.inf


# --- in words, class by class -----------------------------------------


PERCENT = 99
_HEAD = (
    f"{'class':<12} {'metric':<10} {'value ms':>10} {'interval':>22} {'warm-up':>8} {'worth':>8}"
)


def steady_lines(record: RunRecord) -> list[str]:
    """Return a table of mean and P99 of TTFT and E2E with their intervals, and what its columns mean.

    Requests that have not completed are left out, so a run that ends at a horizon should be long compared with them.
    """
    requests = record.requests
    is_complete = requests.status == Status.COMPLETED
    lines, is_short = [_HEAD], False
    for code, name in [(None, "all"), *enumerate(SLO_CLASSES)]:
        chosen = is_complete & (code is None or requests.slo_class == code)
        if code is not None and (not chosen.any() or chosen.sum() == is_complete.sum()):
            continue
        if chosen.sum() < LEAST_REQUESTS:
            lines.append(
                f"{name or 'default':<12} {chosen.sum()} requests; {LEAST_REQUESTS} are needed"
            )
            continue
        for metric, values in (("TTFT", requests.ttft_us), ("E2E", requests.e2e_us)):
            for what, estimate in _figures(values[chosen] / 1000):
                lines.append(_row(name or "default", f"{metric} {what}", estimate))
                is_short |= not estimate.is_enough
    return [*lines, *_legend(is_short)]


def _figures(values: np.ndarray) -> list[tuple[str, SteadyEstimate]]:
    return [
        ("mean", steady_mean(values)),
        (f"P{PERCENT}", steady_percentile(values, PERCENT)),
    ]


def _row(name: str, metric: str, estimate: SteadyEstimate) -> str:
    interval = f"[{estimate.low:.2f}, {estimate.high:.2f}]"
    mark = "" if estimate.is_enough else "  short"
    worth = f"{estimate.num_independent:.0f}" if np.isfinite(estimate.num_independent) else "all"
    return (
        f"{name:<12} {metric:<10} {estimate.value:>10.2f} {interval:>22} {estimate.num_warm_up:>8} "
        f"{worth:>8}{mark}"
    )


def _legend(is_short: bool) -> list[str]:
    lines = [
        f"Intervals of {100 * CONFIDENCE:g} % for the steady state. Warm-up: first requests that are left out. "
        "Worth: so many independent requests would say as much."
    ]
    if is_short:
        lines.append(
            "Short: the run is too short for this figure, and its interval holds less often than it says; "
            "run longer, or take many seeds."
        )
    return lines


# --- runs without a steady state ----------------------------------------


FEWEST_WAITS, LEAST_GROWTH = 100, 0.1  # requests; s of waiting that are added in a second
LEAST_WAIT_S = 0.1  # of the last quarter


def growing_waits(requests: RequestRecords) -> str | None:
    """Return a sentence if requests wait ever longer through the run, since they come faster than they are served."""
    arrival_us, wait_us = np.asarray(requests.arrival_us), np.asarray(requests.first_sched_delay_us)
    served = np.flatnonzero(wait_us >= 0)
    served = served[np.argsort(arrival_us[served], kind="stable")]
    left_us = np.asarray(requests.left_us)[np.asarray(requests.e2e_us) >= 0]
    if len(served) < FEWEST_WAITS or not len(left_us) or not np.ptp(arrival_us[served]):
        return None
    quarters = np.array_split(served, 4)
    waits_s, at_s = (
        [float(each[part].mean()) / 1e6 for part in quarters] for each in (wait_us, arrival_us)
    )
    is_growing = waits_s[3] - waits_s[1] > LEAST_GROWTH * (at_s[3] - at_s[1])
    if waits_s[3] < LEAST_WAIT_S or not is_growing or waits_s != sorted(waits_s):
        return None
    come = 1e6 * len(served) / np.ptp(arrival_us[served])
    go = 1e6 * len(left_us) / (left_us.max() - arrival_us.min())
    return (
        f"requests wait longer and longer, {1e3 * waits_s[0]:,.0f} ms in the first quarter of them and "
        f"{1e3 * waits_s[3]:,.0f} ms in the last: they come at {come:,.3g} a second and leave at {go:,.3g}, so the "
        "latencies are those of a run of this length; more instances or a lower rate have a steady state"
    )

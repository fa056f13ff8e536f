"""The steady state of one run in words, class by class."""

from __future__ import annotations

import numpy as np

from blis_jax.core.types import SLO_CLASSES
from blis_jax.results.records import RunRecord, Status
from blis_jax.statistics.intervals import CONFIDENCE
from blis_jax.statistics.steady import (
    LEAST_REQUESTS,
    SteadyEstimate,
    steady_mean,
    steady_percentile,
)

PERCENT = 99
_HEAD = (
    f"{'class':<12} {'metric':<10} {'value ms':>10} {'interval':>22} {'warm-up':>8} {'worth':>8}"
)


def steady_lines(record: RunRecord) -> list[str]:
    """A table of mean and P99 of TTFT and E2E, and what its columns are.

    Requests that have not completed are left out, so a run that a horizon ends should be long against them.
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
            for what, found in _figures(values[chosen] / 1000):
                lines.append(_row(name or "default", f"{metric} {what}", found))
                is_short |= not found.is_enough
    return [*lines, *_legend(is_short)]


def _figures(values: np.ndarray) -> list[tuple[str, SteadyEstimate]]:
    return [
        ("mean", steady_mean(values)),
        (f"P{PERCENT}", steady_percentile(values, PERCENT)),
    ]


def _row(name: str, metric: str, found: SteadyEstimate) -> str:
    interval = f"[{found.low:.2f}, {found.high:.2f}]"
    mark = "" if found.is_enough else "  short"
    worth = f"{found.num_independent:.0f}" if np.isfinite(found.num_independent) else "all"
    return (
        f"{name:<12} {metric:<10} {found.value:>10.2f} {interval:>22} {found.num_warm_up:>8} "
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

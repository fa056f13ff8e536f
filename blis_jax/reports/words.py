"""Metrics and numbers in words."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from blis_jax.core.types import SLO_CLASSES
from blis_jax.metrics.metric import split_name
from blis_jax.metrics.scalars import title_of
from blis_jax.records.record import RunRecord, Status
from blis_jax.statistics.intervals import CONFIDENCE
from blis_jax.statistics.steady import (
    LEAST_REQUESTS,
    SteadyEstimate,
    steady_mean,
    steady_percentile,
)

HEADLINE_METRICS = ("pooled_ttft_p99_ms", "ttft_p99_ms")  # the first that is there
POOLED = "pooled_"
NOTHING = "–"
LATENCIES = {
    "ttft": ("time to first token", "TTFT"),
    "e2e": ("end-to-end time", "E2E"),
    "tpot": ("time per output token", "TPOT"),
    "itl": ("time between output tokens", "ITL"),
}
_SPELT = {name: short for name, (_, short) in LATENCIES.items()} | {"slo": "SLO", "kv": "KV"}


def table_title(metric: str) -> str:
    """Return a metric's name in a table, with its unit: `TTFT P99 by run, ms`."""
    if title := title_of(metric):
        return title
    unit = ", ms" if metric.endswith("_ms") else ""
    of_run = metric.removeprefix(POOLED)
    words = [_SPELT.get(word, word) for word in of_run.removesuffix("_ms").split("_")]
    if words[-1][1:].isdecimal():
        words = [word.upper() if word[1:].isdecimal() else word for word in words]
        words.append("by run" if of_run == metric else "pooled")
    return " ".join(words) + unit


def metric_name(metric: str) -> str:
    """Return a metric's name without its unit: `TTFT P99 by run`."""
    return table_title(metric).split(",")[0]


def metric_words(name: str) -> str:
    """Return a metric, `[class]` included, as in a sentence: `TTFT P99 of critical requests`."""
    metric, slo_class = split_name(name)
    words = metric_name(metric).removesuffix(" by run").replace("/s", " per second")
    if words.endswith(" mean"):
        words = f"mean {words.removesuffix(' mean')}"
    return words + (f" of {slo_class} requests" if slo_class else "")


def number(value: float | None, signed: bool = False, like: float | None = None) -> str:
    """Return three or four figures that matter; `like` sets the decimals."""
    if value is None or not math.isfinite(value):
        return NOTHING
    size = abs(value if like is None or not math.isfinite(like) else like)
    decimals = 0 if size >= 1000 else 1 if size >= 10 else 2 if size >= 0.1 or size == 0 else 3
    text = f"{value:{'+' * signed}.{decimals}f}"
    return text.replace("-", "−")


def target_line(targets: Mapping[str, Mapping[str, float]], classes: Sequence[str] = ()) -> str:
    """Return what goodput counts; of these classes, those without a target too."""
    texts = []
    for name in classes or [name for name, limits in targets.items() if limits]:
        limits = [
            f"{limit.removesuffix('_ms').upper()} ≤ {ms:g} ms"
            for limit, ms in targets.get(name, {}).items()
        ]
        texts.append(f"{name} {' and '.join(limits) or 'completed'}")
    return f"Goodput counts completed requests within their class's targets: {', '.join(texts)}."


def joined(words: Sequence[str]) -> str:
    """Join words as `a, b and c`."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


# --- the steady state of one run in words, class by class -----------------------------------------


PERCENT = 99
_HEAD = (
    f"{'class':<12} {'metric':<10} {'value ms':>10} {'interval':>22} {'warm-up':>8} {'worth':>8}"
)


def steady_lines(record: RunRecord) -> list[str]:
    """Return a table of mean and P99 of TTFT and E2E with their intervals, and what its columns mean.

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
            for what, estimate in _figures(values[chosen] / 1000):
                lines.append(_row(name or "default", f"{metric} {what}", estimate))
                is_short |= not estimate.is_enough
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

"""Metrics, numbers and headlines in words."""

from __future__ import annotations

import math
from collections.abc import Sequence

from blis_jax.metrics.scalars import TITLES
from blis_jax.reports.study import ShownDifference, ShownInterval, Study
from blis_jax.reports.style import ALL_REQUESTS

HEADLINE_METRICS = ("pooled_ttft_p99_ms", "ttft_p99_ms")  # the first that is there
POOLED = "pooled_"
MOST_HEADLINES = 4  # strategies
NOTHING = "–"
LATENCIES = {
    "ttft": ("time to first token", "TTFT"),
    "e2e": ("end-to-end time", "E2E"),
    "tpot": ("time per output token", "TPOT"),
    "itl": ("time between output tokens", "ITL"),
}


def long_title(metric: str) -> str:
    """As in a sentence: `99th percentile of the time to first token`."""
    if metric.startswith(POOLED):
        return f"{long_title(metric.removeprefix(POOLED))} of the requests of all runs together"
    name, _, rest = metric.removesuffix("_ms").partition("_")
    if name in LATENCIES and rest:
        words = LATENCIES[name][0]
        return f"mean {words}" if rest == "mean" else f"{rest[1:]}th percentile of the {words}"
    if metric in TITLES:
        return TITLES[metric].prose
    return metric.removesuffix("_ms").replace("_", " ")


def short_title(metric: str) -> str:
    """As beside an axis: `TTFT P99 (ms)`."""
    if metric.startswith(POOLED):
        return f"pooled {short_title(metric.removeprefix(POOLED))}"
    name, _, rest = metric.removesuffix("_ms").partition("_")
    if name in LATENCIES and rest:
        return f"{LATENCIES[name][1]} {rest if rest == 'mean' else rest.upper()} (ms)"
    unit = " (ms)" if metric.endswith("_ms") else ""
    words = metric.removesuffix("_ms").replace("_", " ")
    return TITLES[metric].axis if metric in TITLES else words + unit


def number(value: float | None, signed: bool = False, like: float | None = None) -> str:
    """Three or four figures that matter; `like` sets the decimals."""
    if value is None or not math.isfinite(value):
        return NOTHING
    size = abs(value if like is None else like)
    decimals = 0 if size >= 1000 else 1 if size >= 10 else 2 if size >= 0.1 or size == 0 else 3
    return f"{value:+,.{decimals}f}".replace("-", "−") if signed else f"{value:,.{decimals}f}"


def interval(value: ShownInterval, unit: str = "", signed: bool = True) -> str:
    """`−74.0 % [−75.0, −73.0]`."""
    text = f"{number(value.mean, signed)}{unit}"
    if value.mean is None or value.low is None:
        return text
    high = "∞" if value.high is None else number(value.high, signed, like=value.mean)
    return f"{text} [{number(value.low, signed, like=value.mean)}, {high}]"


def class_words(slo_class: str) -> str:
    """`critical requests`, `all requests`."""
    return "all requests" if slo_class == ALL_REQUESTS else f"{slo_class} requests"


def joined(words: Sequence[str]) -> str:
    """`a, b and c`."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def what_was_compared(study: Study) -> str:
    """The first sentence of the page."""
    others = joined(study.strategies[1:]) if len(study.strategies) > 1 else ""
    against = f"{others} with {study.strategies[0]}" if others else study.strategies[0]
    runs = study.runs
    place = f" The headline is for {study.places[0]}." if study.places[0] else ""
    return (
        f"This page compares {against} on the workload “{study.workload}”, simulated with "
        f"{runs.listed(study.seeds)}. On each {runs.one}, every strategy serves exactly the same requests, "
        f"so a difference on one {runs.one} comes from the strategy alone.{place}"
    )


def headlines(study: Study) -> list[tuple[str, list[str]]]:
    """Of each strategy, what changed for each class, one sentence each."""
    known = [name for name in HEADLINE_METRICS if name in study.metrics]
    metric = known[0] if known else study.metrics[0]
    found = []
    for strategy in dict.fromkeys(one.strategy for one in study.differences):
        of_strategy = [
            one
            for one in study.differences
            if one.strategy == strategy and one.place == study.places[0]
        ]
        chosen = [
            one for one in of_strategy if one.metric == metric and one.slo_class != ALL_REQUESTS
        ]
        if not chosen:
            chosen = [one for one in of_strategy if one.metric == metric]
        whole = [
            one
            for one in of_strategy
            if one.metric in ("output_tokens_per_s", "tokens_per_sec")
            and one.slo_class == ALL_REQUESTS
        ]
        if chosen or whole:
            sentences = [study.runs.in_text(_sentence(one)) for one in (*chosen, *whole[:1])]
            found.append((strategy, sentences))
    return found[:MOST_HEADLINES]


def _sentence(one: ShownDifference) -> str:
    who = class_words(one.slo_class)
    before, after = number(one.reference_mean), number(one.mean, like=one.reference_mean)
    unit = " ms" if one.metric.endswith("_ms") else ""
    title = long_title(one.metric)
    start = f"{who[0].upper()}{who[1:]}: the {title}"
    if one.num_pairs == 0:
        return f"{start} cannot be compared, because no seed has a figure of both."
    if one.verdict == "same":
        return f"{start} is the same on every seed ({before}{unit})."
    verb = "falls" if (one.absolute.mean or 0) < 0 else "rises"
    change = f"{verb} from {before} to {after}{unit} ({interval(one.joint_percent or one.percent, ' %')})"
    if one.verdict == "unclear":
        return f"{start} {change}, but these runs cannot tell this from chance."
    return f"{start} {change}, which is {one.verdict}."

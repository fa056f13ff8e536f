"""Names of metrics, numbers and intervals as reports of comparisons print them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from blis_jax.metrics.scalars import (
    PERCENTILES_EXPLAINED,
    TITLES,
    TOKEN_RATES,
    TOKEN_RATES_EXPLAINED,
    pooled_names,
)

NOTHING = "–"
SEEDS_FOR_POOLED = 100  # from which 95 % intervals of a pooled P99 hold it in 93 % and more
UPPER = {"ttft": "TTFT", "e2e": "E2E", "tpot": "TPOT", "itl": "ITL", "slo": "SLO", "kv": "KV"}


def title(metric: str) -> str:
    """A metric's name for people, with its unit."""
    if metric in TITLES:
        return TITLES[metric].axis
    unit = ", ms" if metric.endswith("_ms") else ""
    of_run = metric.removeprefix("pooled_")
    words = of_run.removesuffix("_ms").split("_")
    shown = [UPPER.get(word, word) for word in words]
    is_percentile = words[-1][1:].isdecimal()
    shown = [word.replace("p", "P", 1) if word[1:].isdecimal() else word for word in shown]
    if is_percentile:
        shown.append("by run" if of_run == metric else "pooled")
    return " ".join(shown) + unit


def short_title(metric: str) -> str:
    """Without the unit."""
    return title(metric).split(",")[0]


def number(value: float | None, signed: bool = False, like: float | None = None) -> str:
    """Three or four figures that matter; `like` sets the decimals."""
    if value is None or not math.isfinite(value):
        return NOTHING
    size = abs(value if like is None else like)
    decimals = 0 if size >= 1000 else 1 if size >= 10 else 2 if size >= 0.1 or size == 0 else 3
    text = f"{value:+.{decimals}f}" if signed else f"{value:.{decimals}f}"
    return text.replace("-", "−")


def interval(entry: Mapping[str, Any], signed: bool = True) -> str:
    """`mean [low, high]`."""
    text = number(entry["mean"], signed)
    if entry["low"] is None:
        return text
    low, high = (number(entry[end], signed, like=entry["mean"]) for end in ("low", "high"))
    return f"{text} [{low}, {'∞' if high == NOTHING else high}]"


def p_text(value: float) -> str:
    """A p-value."""
    return "<0.001" if value < 0.001 else f"{value:.3f}"


def milliseconds(us: float) -> str:
    """µs as ms or, where they are many, s."""
    return f"{us / 1e6:.3g} s" if us >= 1e6 else f"{us / 1e3:.4g} ms"


def percentile_lines(entries: Sequence[Mapping[str, Any]]) -> list[str]:
    """What the two kinds of percentiles are, where there are pooled ones."""
    pooled = [entry for entry in entries if entry["metric"] in pooled_names()]
    if not pooled:
        return []
    few = " With so few seeds, a few busy ones make up the tail, and intervals of pooled percentiles hold too seldom."
    is_few = min(entry["num_pairs"] for entry in pooled) < SEEDS_FOR_POOLED
    return [PERCENTILES_EXPLAINED + few * is_few]


def token_rate_lines(entries: Sequence[Mapping[str, Any]]) -> list[str]:
    """What the throughputs count, where there are any."""
    is_there = any(entry["metric"] in TOKEN_RATES for entry in entries)
    return [f"Throughput: {TOKEN_RATES_EXPLAINED}"] if is_there else []

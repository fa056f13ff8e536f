"""The tables that the page's charts draw, by column: small, and with the numbers of the result."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from blis_jax.reports.study import ShownDifference, ShownInterval, Study, Timeline
from blis_jax.reports.words import interval, number, short_title

Table = dict[str, list[Any]]
CHART_METRICS = (  # of the overview, where they are there
    "ttft_mean_ms",
    "pooled_ttft_p99_ms",
    "ttft_p99_ms",
    "tpot_mean_ms",
    "e2e_mean_ms",
    "e2e_p99_ms",
    "output_tokens_per_s",
    "tokens_per_sec",
    "goodput_rps",
    "attainment",
)
MOST_METRICS = 9
LEAST_RATIO, GREATEST_RATIO = 1 / 32, 32.0
ARROWS = {"lower": "↓", "higher": "↑"}
MEASURES = ("running", "waiting", "kv_percent")


def tables(study: Study) -> dict[str, Table]:
    """All of them, by name."""
    return {
        "differences": _differences(study),
        "values": _values(study),
        "curves": _curves(study),
        "parts": _parts(study),
        "timelines": _timelines(study.timelines),
    }


def chart_metrics(study: Study) -> list[str]:
    """The metrics that the overview shows; the table has all."""
    metrics = study.metrics
    usual = [name for name in CHART_METRICS if name in metrics]
    others = [] if len(usual) > 3 else [name for name in metrics if name not in usual]
    return [*usual, *others][:MOST_METRICS]


def metric_label(metric: str, better: str) -> str:
    """Beside an axis, with the direction that is better."""
    return f"{short_title(metric)} {ARROWS[better]}"


def _differences(study: Study) -> Table:
    rows = [_difference_row(one) for one in study.differences]
    return _by_column(rows)


def _difference_row(one: ShownDifference) -> dict[str, Any]:
    joint = one.joint_percent or ShownInterval(None, None, None)
    return {
        "strategy": one.strategy,
        "reference": one.reference,
        "place": one.place,
        "class": one.slo_class,
        "metric": one.metric,
        "label": metric_label(one.metric, one.better),
        "unit": one.unit,
        "reference_mean": one.reference_mean,
        "mean": one.mean,
        "difference": one.absolute.mean,
        "percent": one.percent.mean,
        "percent_low": one.percent.low,
        "percent_high": one.percent.high,
        "ratio": _ratio(one.percent.mean),
        "ratio_low": _ratio(one.percent.low),
        "ratio_high": _ratio(one.percent.high, one.percent.low),
        "joint_low": _ratio(joint.low),
        "joint_high": _ratio(joint.high, joint.low),
        "num_pairs": one.num_pairs,
        "verdict": one.verdict,
        "change": interval(one.percent, " %"),
        "means": f"{number(one.reference_mean)} → {number(one.mean, like=one.reference_mean)}",
    }


def _ratio(percent: float | None, where_open: float | None = None) -> float | None:
    """For a logarithmic axis; an interval without upper end reaches as far as the axis."""
    if percent is None:
        return None if where_open is None else GREATEST_RATIO
    return min(max(1 + percent / 100, LEAST_RATIO), GREATEST_RATIO)


def _values(study: Study) -> Table:
    """A row for each strategy, class and seed, a column for each metric."""
    by_row: dict[tuple[str, str, str], dict[str, Sequence[float | None]]] = {}
    for one in study.values:
        key = (one.strategy, one.place, one.slo_class)
        by_row.setdefault(key, {})[one.metric] = one.values
    metrics = list(dict.fromkeys(one.metric for one in study.values))
    rows = [
        {
            "strategy": strategy,
            "place": place,
            "class": slo_class,
            "at": at,
            **{metric: of_row[metric][at] if metric in of_row else None for metric in metrics},
        }
        for (strategy, place, slo_class), of_row in by_row.items()
        for at in range(len(study.seeds))
    ]
    return _by_column(rows)


def _curves(study: Study) -> Table:
    rows = [
        {
            "strategy": one.strategy,
            "place": one.place,
            "class": one.slo_class,
            "at": at,
            "ttft_ms": [round(float(value), 3) for value in curve],
        }
        for one in study.curves
        for at, curve in one.by_seed.items()
    ]
    return _by_column(rows)


def _parts(study: Study) -> Table:
    rows = [
        {"strategy": o.strategy, "class": o.slo_class, "view": o.view, "part": o.group,
         "mean_ms": o.mean_ms}
        for o in study.parts
    ]  # fmt: skip
    return _by_column(rows)


def _timelines(timelines: Sequence[Timeline]) -> Table:
    rows = [
        {
            "strategy": one.strategy,
            "instance": instance,
            "start_s": round(start, 6),
            "end_s": round(end, 6),
            **{name: round(float(getattr(one, name)[instance, span]), 3) for name in MEASURES},
        }
        for one in timelines
        for instance in range(len(one.running))
        for span, (start, end) in enumerate(itertools.pairwise(one.edges_s))
    ]
    return _by_column(rows)


def _by_column(rows: Sequence[dict[str, Any]]) -> Table:
    return {name: [row[name] for row in rows] for name in rows[0]} if rows else {}

"""Results of the priority-mix harness: figures by traffic class, and a row for each request.

Three traps: a percentile of nothing is written as 0.0; `latency_ms` counts answers 429, which look fast, so it is made
again from the rows with a status of 2xx; and what is shed does not show in any latency, so there is a share of
requests served in time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from sweeps.promote.evidence.reports import (
    MALFORMED,
    MISSING,
    MISSING_STATISTIC,
    NO_DATA,
    BenchReport,
    FigureReading,
    converted,
    is_number,
)

if TYPE_CHECKING:
    Rows = Sequence[Mapping[str, Any]]

CLASSES = "summary.traffic_classes"
GOODPUT = (
    "goodput"  # the name of the share of requests that are served in time, as `summary.goodput`
)
TOO_MANY = 429
_UNITS = {"ttft_ms": "ms", "latency_ms": "ms", "tpot_ms": "ms/token"}
_STATISTICS = {"mean": "avg"}
_QUANTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}


def class_figure(report: BenchReport, path: str, statistic: str, unit: str) -> FigureReading:
    """A figure of a traffic class, such as `summary.traffic_classes.critical.ttft_ms`."""
    found, name = report.at(path), path.rpartition(".")[2]
    if found is None:
        return FigureReading(problem=MISSING, reason=f"{report.source} has no {path}")
    if name not in _UNITS:
        if is_number(found):
            return converted(float(found), "count", unit, f"{report.source}: {path}")
        return FigureReading(problem=MALFORMED, reason=f"{report.source}: {path} is not a number")
    slo_class = path.removeprefix(f"{CLASSES}.").removesuffix(f".{name}")
    if name == "latency_ms" and _errors(report, slo_class):
        return _latency_of_served(report, slo_class, statistic, unit)
    value = found.get(_STATISTICS.get(statistic, statistic)) if isinstance(found, Mapping) else None
    if value is None:
        return FigureReading(
            problem=MISSING_STATISTIC, reason=f"{report.source}: {path} has no {statistic}"
        )
    if not is_number(value):
        return FigureReading(
            problem=MALFORMED, reason=f"{report.source}: {path}.{statistic} is not a number"
        )
    if value == 0:
        return FigureReading(
            problem=NO_DATA,
            reason=f"{report.source}: {path}.{statistic} is 0.0, as the harness writes no data",
        )
    return converted(float(value), _UNITS[name], unit, f"{report.source}: {path}")


def rows_of(report: BenchReport, slo_class: str | None = None) -> Rows:
    """The rows of the requests, of one class or of all."""
    rows = report.at("requests")
    if not isinstance(rows, list):
        return ()
    return [
        row
        for row in rows
        if isinstance(row, Mapping) and slo_class in (None, row.get("traffic_class"))
    ]


def is_served(row: Mapping[str, Any]) -> bool:
    """Whether a request was answered with 2xx and without an error."""
    status = row.get("status_code")
    return isinstance(status, int) and 200 <= status < 300 and not row.get("error")


def sheds_only(report: BenchReport) -> bool:
    """Whether every request that was not served was answered 429; not known without rows."""
    rows = rows_of(report)
    failed = [row for row in rows if not is_served(row)]
    return bool(failed) and all(row.get("status_code") == TOO_MANY for row in failed)


def goodput(
    report: BenchReport, ttft_targets_ms: Mapping[str, float], slo_class: str | None = None
) -> float:
    """Requests served within the TTFT target of their class ÷ all that were demanded; NaN without rows."""
    rows = rows_of(report, slo_class)
    if not rows:
        return float("nan")
    good = 0
    for row in rows:
        target, ttft = ttft_targets_ms.get(str(row.get("traffic_class"))), row.get("ttft_ms")
        in_time = target is None or (is_number(ttft) and float(ttft or 0) <= target)
        good += is_served(row) and in_time
    return good / len(rows)


def _errors(report: BenchReport, slo_class: str) -> int:
    value = report.at(f"{CLASSES}.{slo_class}.errors")
    return int(value) if is_number(value) else 0


def _latency_of_served(
    report: BenchReport, slo_class: str, statistic: str, unit: str
) -> FigureReading:
    """`latency_ms` over the requests that were served."""
    where = f"{report.source}: {CLASSES}.{slo_class}.latency_ms"
    rows = rows_of(report, slo_class)
    if not rows:
        return FigureReading(
            problem=MISSING,
            reason=f"{where} counts errors, and there are no rows to leave them out",
        )
    values = [
        float(row["latency_ms"])
        for row in rows
        if is_served(row) and is_number(row.get("latency_ms"))
    ]
    if not values:
        return FigureReading(problem=NO_DATA, reason=f"{where}: no request was served")
    if statistic == "mean":
        return converted(float(np.mean(values)), "ms", unit, where)
    if statistic not in _QUANTILES:
        return FigureReading(problem=MISSING_STATISTIC, reason=f"{where} has no {statistic}")
    return converted(float(np.quantile(values, _QUANTILES[statistic])), "ms", unit, where)

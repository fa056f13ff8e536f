"""Read benchmark reports of llm-d-benchmark: versions 0.1, 0.2 and 0.2.1, and priority-mix's own results.

Callers name a figure by its path in a v0.2 report (`results.request_performance.aggregate.latency.time_to_first_token`)
or in priority-mix's results (`summary.traffic_classes.critical.ttft_ms`), with a statistic and a unit. A figure that
cannot be read is returned as a `FigureReading` with the reason, never as a number.

priority-mix has figures by traffic class, and a row for each request. Three traps: a percentile of no data is written
as 0.0; `latency_ms` includes answers 429, which look fast, so it is recomputed from the rows with a status of 2xx; and
no latency shows the requests that were shed, so the share of requests served in time is computed too.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import yaml

from blis_jax.errors import ConfigError
from blis_jax.files.input_files import loaded
from blis_jax.traces.measured.llmd_report import (
    AGGREGATE,
    MALFORMED,
    MISSING,
    MISSING_STATISTIC,
    NO_DATA,
    FigureReading,
    ReportDocument,
    converted,
    is_number,
    lacking,
    report_document,
    statistic_of,
)
from blis_jax.traces.measured.run import at
from sweeps.promote.promotion import Evidence

PRIORITY_MIX = "priority-mix"
REACHED = 0.95  # share of the load asked for, from which on a run measures it
SIMULATED_MARK = "evidence: simulated"  # a keyword of the run


class MalformedReportError(ConfigError):
    """A file that is not a benchmark report; the sentence says why."""


@dataclass(frozen=True)
class BenchReport:
    """Hold one benchmark report of one run."""

    uid: str  # what verdicts cite
    version: str  # of VERSIONS, or PRIORITY_MIX
    source: str  # path of the file
    evidence: Evidence
    document: Mapping[str, Any]

    @property
    def is_priority_mix(self) -> bool:
        """Return whether this is priority-mix's result: figures by traffic class and rows of requests, but no load."""
        return self.version == PRIORITY_MIX

    def at(self, path: str) -> Any:
        """Return the value at a dotted path; None if a part of the path is missing."""
        return at(self.document, *path.split("."))

    def figure(self, path: str, statistic: str, unit: str) -> FigureReading:
        """Return a figure, converted to `unit`; or the reason why it cannot be read."""
        if self.is_priority_mix:
            return class_figure(self, path, statistic, unit)
        return ReportDocument(self.version, self.source, self.document).figure(
            path, statistic, unit
        )

    def count(self, path: str, statistic: str = "") -> float | None:
        """Return a number of requests or tokens; None if the report does not have it."""
        figure = self.figure(path, statistic, "count")
        return figure.value if figure.is_there else None


# --- reading files --------------------------------------------------------------------------------


def parse_report(text: str, source: str) -> BenchReport:
    """Parse a report from text in YAML, or in JSON if `source` ends in .json.

    Raises:
        MalformedReportError: the text is not a report, or its version is unknown.
    """
    try:
        document = json.loads(text) if source.endswith(".json") else loaded(text)
    except (
        ValueError,
        LookupError,
        AttributeError,
        TypeError,
        yaml.YAMLError,
        RecursionError,
    ) as error:  # what a tag cannot hold makes the constructors raise anything
        first = (str(error).splitlines() or [type(error).__name__])[0]
        raise MalformedReportError(f"{source} is neither YAML nor JSON ({first})") from None
    if not isinstance(document, Mapping):
        raise MalformedReportError(f"{source} is no benchmark report: it holds no mapping")
    if isinstance(document.get("summary"), Mapping):
        return _priority_mix(document, text, source)
    try:
        version = report_document(document, source).version
    except ConfigError as error:
        also = f"; results of {PRIORITY_MIX}, too" if "version" in str(error) else ""
        raise MalformedReportError(f"{error}{also}") from None
    return BenchReport(_uid(document, text, source), version, source, _evidence(document), document)


def _priority_mix(document: Mapping[str, Any], text: str, source: str) -> BenchReport:
    if not isinstance(document["summary"].get("traffic_classes"), Mapping):
        raise MalformedReportError(f"{source}: summary.traffic_classes is missing")
    return BenchReport(
        _uid(document, text, source), PRIORITY_MIX, source, _evidence(document), document
    )


def _uid(document: Mapping[str, Any], text: str, source: str) -> str:
    """Return the run's own id; for a report without an id, the file's path and a hash of its content."""
    run = document.get("run")
    uid = run.get("uid") if isinstance(run, Mapping) else None
    return str(uid) if uid else f"{source}#{hashlib.sha256(text.encode()).hexdigest()[:12]}"


def _evidence(document: Mapping[str, Any]) -> Evidence:
    run = document.get("run")
    words = run.get("keywords") if isinstance(run, Mapping) else None
    return "simulated" if isinstance(words, list) and SIMULATED_MARK in words else "measured"


if TYPE_CHECKING:
    Rows = Sequence[Mapping[str, Any]]

CLASSES = "summary.traffic_classes"
# the name of the share of requests that are served in time, as `summary.goodput`
GOODPUT = "goodput"
DENIED = (429, 500)  # the target's director makes an internal error of an admitter's denial


@dataclass(frozen=True)
class ReportFigure:
    """Describe a figure that reports may have.

    Attributes:
        group: the part of the aggregate that holds the figure, `latency` or `throughput`.
        name: the figure's name in this part.
        units: the units in which callers may request the figure, the simulator's unit last.
        words: the figure in words.
        metric: the simulator's name for the figure, without a statistic; empty where the simulator has none.
        by_class: the name in figures by traffic class and in rows of requests; empty where these lack the figure.
    """

    group: str
    name: str
    units: tuple[str, ...]
    words: str = ""
    metric: str = ""
    by_class: str = ""

    @property
    def path(self) -> str:
        """Return the figure's path in a report."""
        return f"{AGGREGATE}.{self.group}.{self.name}"

    @property
    def better(self) -> Literal["lower", "higher"]:
        """Return the direction that counts as better: lower for latencies, else higher."""
        return "lower" if self.group == "latency" else "higher"


_TIME, _PER_TOKEN, _RATE = ("s", "ms"), ("s/token", "ms/token"), ("tokens/s",)
FIGURES = (
    ReportFigure("latency", "time_to_first_token", _TIME, "time to first token", "ttft", "ttft_ms"),
    ReportFigure("latency", "request_latency", _TIME, "time to completion", "e2e", "latency_ms"),
    ReportFigure(
        "latency", "time_per_output_token", _PER_TOKEN, "time per output token", "tpot", "tpot_ms"
    ),
    ReportFigure("latency", "inter_token_latency", _PER_TOKEN),
    ReportFigure("latency", "normalized_time_per_output_token", _PER_TOKEN),
    ReportFigure(
        "throughput", "request_rate", ("queries/s",), "completed requests per second", "requests_per_s",
    ),
    ReportFigure("throughput", "input_token_rate", _RATE),
    ReportFigure(
        "throughput", "output_token_rate", _RATE, "output tokens per second", "output_tokens_per_s"
    ),
    ReportFigure("throughput", "total_token_rate", _RATE),
)  # fmt: skip
_UNITS = {figure.by_class: figure.units[-1] for figure in FIGURES if figure.by_class}
_QUANTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}  # as the harness writes them
# statistics of a report beside mean, stddev, min and max
QUANTILES = {
    "p0p1": 0.001, "p1": 0.01, "p5": 0.05, "p10": 0.1, "p25": 0.25, "p50": 0.5, "p75": 0.75,
    "p90": 0.9, "p95": 0.95, "p99": 0.99, "p99p9": 0.999,
}  # fmt: skip
IN_ROWS = {figure.name: figure.by_class for figure in FIGURES if figure.by_class}


def class_figure(report: BenchReport, path: str, statistic: str, unit: str) -> FigureReading:
    """Return a figure of priority-mix's results, such as `summary.traffic_classes.critical.ttft_ms`."""
    figure, name, where = report.at(path), path.rpartition(".")[2], f"{report.source}: {path}"
    if figure is None:
        return lacking(MISSING, f"{report.source} has no {path}")
    if name not in _UNITS and is_number(figure):
        return converted(float(figure), "count", unit, where)
    if name not in _UNITS:
        return lacking(MALFORMED, f"{where} is not a number")
    slo_class = path.removeprefix(f"{CLASSES}.").removesuffix(f".{name}")
    if name == "latency_ms" and _errors(report, slo_class):
        return of_served(report, slo_class, name, statistic, unit)
    holder = figure if isinstance(figure, Mapping) else {}
    key = "avg" if statistic == "mean" else statistic
    if is_number(holder.get(key)) and holder[key] == 0:
        return lacking(NO_DATA, f"{where}.{statistic} is 0.0, as the harness writes no data")
    return statistic_of({statistic: holder.get(key)}, statistic, _UNITS[name], unit, where)


def rows_of(report: BenchReport, slo_class: str | None = None) -> Rows:
    """Return the rows of a report's requests, of one class or of all; empty if the report has no rows."""
    rows = report.at("requests")
    if not isinstance(rows, list):
        return ()
    return [
        row
        for row in rows
        if isinstance(row, Mapping) and slo_class in (None, row.get("traffic_class"))
    ]


def is_served(row: Mapping[str, Any]) -> bool:
    """Return whether a request was answered with 2xx and without an error."""
    status = row.get("status_code")
    return isinstance(status, int) and 200 <= status < 300 and not row.get("error")


def sheds_only(report: BenchReport) -> bool:
    """Return whether at least one request was not served and all such requests were denied; False without rows."""
    rows = rows_of(report)
    failed = [row for row in rows if not is_served(row)]
    return bool(failed) and all(row.get("status_code") in DENIED for row in failed)


def joined(reports: Sequence[BenchReport]) -> BenchReport:
    """Merge the results of several priority-mix pods that shared one load into one report."""
    if len(reports) == 1:
        return reports[0]
    first, rows = reports[0], [row for report in reports for row in rows_of(report)]
    by_class: dict[str, Any] = {}
    for row in rows:
        by_class.setdefault(str(row.get("traffic_class")), []).append(row)
    offered = [report.at("summary.offered") or {} for report in reports]
    known = all(
        is_number(load.get("requests")) and is_number(load.get("seconds")) for load in offered
    )
    summary = {
        "total_requests": len(rows),
        "errors": sum(not is_served(row) for row in rows),
        "traffic_classes": {name: _figures(of) for name, of in by_class.items()},
    }
    if known:
        summary["offered"] = {
            "requests": sum(load["requests"] for load in offered),
            "seconds": max(load["seconds"] for load in offered),
        }
    uid = "+".join(report.uid for report in reports)
    return replace(first, uid=uid, document={"summary": summary, "requests": rows})


def _figures(rows: Rows) -> dict[str, Any]:
    """Compute a class's part of the summary from its rows."""
    summary: dict[str, Any] = {
        "requests": len(rows),
        "errors": sum(not is_served(row) for row in rows),
    }
    for key in _UNITS:
        values = [float(row[key]) for row in rows if is_served(row) and is_number(row.get(key))]
        figures = (
            {name: float(np.quantile(values, at)) for name, at in _QUANTILES.items()}
            if values
            else {}
        )
        summary[key] = figures | ({"avg": float(np.mean(values))} if values else {})
    return summary


def goodput(
    report: BenchReport, ttft_targets_ms: Mapping[str, float], slo_class: str | None = None
) -> float:
    """Return the share of requests that were served within the TTFT target of their class; NaN without rows."""
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


def of_served(
    report: BenchReport, slo_class: str | None, key: str, statistic: str, unit: str
) -> FigureReading:
    """Return a latency over the served requests, of one class or of all, computed from the rows of requests."""
    where = f"{report.source}: {key} of {slo_class or 'all requests'}"
    rows = rows_of(report, slo_class)
    if not rows:
        return lacking(MISSING, f"{where} counts errors, and there are no rows to leave them out")
    values = [float(row[key]) for row in rows if is_served(row) and is_number(row.get(key))]
    if not values:
        return lacking(NO_DATA, f"{where}: no request was served")
    if statistic == "mean":
        return converted(float(np.mean(values)), _UNITS[key], unit, where)
    share = QUANTILES.get(statistic)
    if share is None:
        return lacking(MISSING_STATISTIC, f"{where} has no {statistic}")
    return converted(float(np.quantile(values, share)), _UNITS[key], unit, where)

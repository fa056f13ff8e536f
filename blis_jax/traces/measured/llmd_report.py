"""llm-d's Benchmark Report, YAML or JSON: versions 0.1, 0.2 and 0.2.1, aggregate figures of any client.

A figure is requested by its path in a v0.2 report, such as
`results.request_performance.aggregate.latency.request_latency`, a statistic and a unit. If it cannot be read, the
result is a `FigureReading` with the reason and without a number.

Two figures mislead. Percentiles of the inter-token latency count chunks, so requests with more chunks weigh more.
GuideLLM's time per output token is E2E ÷ tokens, so the mean of the inter-token latency replaces it for GuideLLM's
reports.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeGuard

from blis_jax.errors import ConfigError
from blis_jax.traces.measured.benchmark_files import numbers_of, stated_figures
from blis_jax.traces.measured.run import ServerSettings, at, text_at
from blis_jax.traces.measured.sent import Benchmark, Load, Summary, none_answered

AGGREGATE = "results.request_performance.aggregate"
VERSIONS = ("0.1", "0.2", "0.2.1")

# reasons why a reading has no number
MALFORMED, WRONG_UNIT, MISSING, MISSING_STATISTIC, NO_DATA, MISLEADING = (
    "malformed", "wrong unit", "missing figure", "missing statistic", "no data", "misleading figure",
)  # fmt: skip

# units by dimension: how many of the first one each is
_DIMENSIONS: tuple[Mapping[str, float], ...] = (
    {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9},
    {"s/token": 1.0, "ms/token": 1e-3, "us/token": 1e-6, "ns/token": 1e-9},
    {"tokens/s": 1.0},
    {"queries/s": 1.0},
    {"count": 1.0},
    {"fraction": 1.0, "ratio": 1.0, "percent": 1e-2},
)
UNITS = tuple(unit for of in _DIMENSIONS for unit in of)

# throughput of v0.1: bare numbers under names of their own
_OLD_THROUGHPUT = {
    "throughput.request_rate": ("throughput.requests_per_sec", "queries/s"),
    "throughput.output_token_rate": ("throughput.output_tokens_per_sec", "tokens/s"),
    "throughput.total_token_rate": ("throughput.total_tokens_per_sec", "tokens/s"),
}


@dataclass(frozen=True)
class FigureReading:
    """A figure in the requested unit, or the reason why there is none."""

    value: float = math.nan
    problem: str = ""  # of the words above; empty if there is a value
    reason: str = ""

    @property
    def is_there(self) -> bool:
        """Return whether the reading has a number."""
        return not self.problem


def lacking(problem: str, reason: str) -> FigureReading:
    """Return a reading without a number that holds the reason."""
    return FigureReading(problem=problem, reason=reason)


@dataclass(frozen=True)
class ReportDocument:
    """A report's content, with access to figures under the names of any version."""

    version: str  # of VERSIONS
    source: str  # path of the file
    content: Mapping[str, Any]

    @property
    def tool(self) -> str:
        """Return the client's name in the report."""
        load = at(self.content, "scenario", "load")
        return str(at(load, "standardized", "tool") or at(load, "name") or "a client")

    def at(self, path: str) -> Any:
        """Return the value at a dotted path of a v0.2 report; None if any name on the path is missing."""
        return at(self.content, *self._place(path)[0].split("."))

    def figure(self, path: str, statistic: str, unit: str) -> FigureReading:
        """Return a statistic of the figure at a v0.2 path, converted to `unit`."""
        if "inter_token_latency" in path and statistic != "mean":
            what = "percentiles of the inter-token latency count chunks, not tokens"
            return lacking(MISLEADING, f"{what}; use time_per_output_token")
        if "time_per_output_token" in path and "guidellm" in self.tool.lower():
            if statistic != "mean":
                what = "GuideLLM calls E2E ÷ output tokens its time per output token"
                return lacking(
                    MISLEADING, f"{what}; its reports have the mean alone, as inter_token_latency"
                )
            path = path.replace("time_per_output_token", "inter_token_latency")
        place, bare_unit = self._place(path)
        figure = at(self.content, *place.split("."))
        if figure is None:
            return lacking(MISSING, f"{self.source} has no {place}")
        if bare_unit and is_number(figure):
            figure = {"units": bare_unit, "mean": figure}
        if is_number(figure) and statistic in ("", "count", "mean"):
            return converted(float(figure), "count", unit, self.source)
        if not isinstance(figure, Mapping) or "units" not in figure:
            return lacking(MALFORMED, f"{self.source}: {place} has no units")
        return statistic_of(figure, statistic, figure["units"], unit, f"{self.source}: {place}")

    def _place(self, path: str) -> tuple[str, str]:
        """Return the path in this report's version for a path of v0.2, and the unit of a number without one."""
        if self.version != "0.1" or not path.startswith(AGGREGATE):
            return path, ""
        rest = path.removeprefix(AGGREGATE).removeprefix(".")
        old, unit = _OLD_THROUGHPUT.get(rest, (rest, ""))
        return f"metrics.{old}".removesuffix("."), unit


def report_document(content: Mapping[str, Any], source: str) -> ReportDocument:
    """Return the report in a parsed file.

    Raises:
        ConfigError: the report's version is unknown, or the report has no figures.
    """
    version = str(content.get("version", ""))
    if version not in VERSIONS:
        raise ConfigError(
            f"{source}: version {version or 'is missing'!r} is not known; benchmark reports of "
            f"{', '.join(VERSIONS)} are read"
        )
    report = ReportDocument(version, source, content)
    if not isinstance(report.at(AGGREGATE), Mapping):
        place = "metrics" if version == "0.1" else AGGREGATE
        raise ConfigError(f"{source}: {place} is missing, so there is nothing to judge")
    return report


def is_number(value: object) -> TypeGuard[int | float]:
    """Return whether a value is a finite number."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def converted(value: float, stated: object, wanted: str, where: str) -> FigureReading:
    """Return a value converted from the unit `stated` to the unit `wanted` of the same dimension."""
    for units in _DIMENSIONS:
        if stated in units and wanted in units:
            return FigureReading(
                value if stated == wanted else value * units[str(stated)] / units[wanted]
            )
    return lacking(WRONG_UNIT, f"{where} is in {stated!r}, which cannot be {wanted}")


def statistic_of(
    holder: Mapping[str, Any], statistic: str, units: object, wanted: str, where: str
) -> FigureReading:
    """Return a statistic in a mapping, in the unit `wanted`; `where` begins messages about it."""
    value = holder.get(statistic)
    if value is None:
        return lacking(MISSING_STATISTIC, f"{where} has no {statistic}")
    if not is_number(value):
        return lacking(MALFORMED, f"{where}.{statistic} is {value!r}, not a number")
    return converted(float(value), units, wanted, where)


# --- as a benchmark client's file -----------------------------------------------------------------


def is_llmd_report(document: object) -> bool:
    """Return whether a document has the parts of a report."""
    has_figures = at(document, *AGGREGATE.split("."), "requests") is not None
    return has_figures or (
        at(document, "metrics", "requests") is not None and at(document, "version") is not None
    )


def read_llmd_report(document: object, source: str) -> list[Benchmark]:
    """Return the report's only run, as a summary of figures.

    Raises:
        ConfigError: the version is unknown, or a latency has no unit or a unit that is not one of time.
    """
    assert isinstance(document, Mapping)
    return [Benchmark("figures", lambda: _summary(report_document(document, source)))]


def _summary(report: ReportDocument) -> Summary:
    figures = stated_figures(
        ("time_to_first_token", "time_per_output_token", "request_latency"),
        ("mean", "p50", "p90", "p99"),
        lambda name, statistic: _ms(report, name, statistic),
    )
    of = numbers_of(report.at(f"{AGGREGATE}.requests"), f"{report.source}:")
    load = at(report.content, "scenario", "load")
    pace = numbers_of(at(load, "standardized") or at(load, "args"), report.source)
    failed = sum(0.0 if math.isnan(of(name)) else of(name) for name in ("failures", "incomplete"))
    sent = Load(
        of("total") - failed,
        _either(pace("rate_qps"), pace("request_rate")),
        of("input_length", "mean"),
        of("output_length", "mean"),
        of("input_length", "stddev"),
        of("output_length", "stddev"),
        _either(pace("concurrency"), pace("max_concurrency")),
    )
    if not figures and sent.num_requests == 0:
        raise ConfigError(none_answered(report.source, failed))
    name = f"{report.tool} (llm-d Benchmark Report {report.version})"
    words = f"it has no requests; give the file with requests that {report.tool} wrote"
    settings = ServerSettings(model=text_at(report.content, "scenario", "model", "name"))
    return Summary(name, figures, words, sent, settings, failed)


def _ms(report: ReportDocument, name: str, statistic: str) -> float:
    """Return a latency in ms; NaN if the report does not have it."""
    unit = "ms/token" if name == "time_per_output_token" else "ms"
    latency = report.figure(f"{AGGREGATE}.latency.{name}", statistic, unit)
    if latency.problem in (WRONG_UNIT, MALFORMED):
        raise ConfigError(f"{latency.reason}; correct the report")
    return latency.value


def _either(first: float, second: float) -> float:
    return second if math.isnan(first) else first

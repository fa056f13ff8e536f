"""Benchmark reports of llm-d-benchmark: versions 0.1, 0.2 and 0.2.1, and priority-mix's own results.

A figure is asked for by its path in a v0.2 report (`results.request_performance.aggregate.latency.time_to_first_token`)
or in priority-mix's results (`summary.traffic_classes.critical.ttft_ms`), with a statistic and a unit. What cannot be
read is a `FigureReading` with the reason, never a number.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeGuard

import yaml

from blis_jax.errors import ConfigError
from sweeps.promote.promotion import Evidence

AGGREGATE = "results.request_performance.aggregate"
PRIORITY_MIX = "priority-mix"
VERSIONS = ("0.1", "0.2", "0.2.1")
SIMULATED_MARK = "evidence: simulated"  # a keyword of the run

# what a reading can lack
MALFORMED, WRONG_UNIT, MISSING, MISSING_STATISTIC, NO_DATA, MISLEADING = (
    "malformed", "wrong unit", "missing figure", "missing statistic", "no data", "misleading figure",
)  # fmt: skip

# units by dimension: how many of the first one each is
_DIMENSIONS: tuple[Mapping[str, float], ...] = (
    {"s": 1.0, "ms": 1e-3},
    {"s/token": 1.0, "ms/token": 1e-3},
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


class MalformedReportError(ConfigError):
    """A file that is no benchmark report; the sentence says what is wrong with it."""


@dataclass(frozen=True)
class FigureReading:
    """A figure in the unit that was asked for, or why there is none."""

    value: float = math.nan
    problem: str = ""  # of the words above; empty if there is a value
    reason: str = ""

    @property
    def is_there(self) -> bool:
        """Whether there is a value."""
        return not self.problem


@dataclass(frozen=True)
class BenchReport:
    """One report of one run."""

    uid: str  # what verdicts cite
    version: str  # of VERSIONS, or PRIORITY_MIX
    source: str  # path of the file
    evidence: Evidence
    document: Mapping[str, Any]

    @property
    def is_priority_mix(self) -> bool:
        """Whether it has figures by traffic class and rows of requests, but no load."""
        return self.version == PRIORITY_MIX

    def at(self, path: str) -> Any:
        """The value at a dotted path; None if something on the way is missing."""
        value: Any = self.document
        for name in path.split("."):
            value = value.get(name) if isinstance(value, Mapping) else None
        return value

    def figure(self, path: str, statistic: str, unit: str) -> FigureReading:
        """A figure, converted."""
        if "inter_token_latency" in path and statistic != "mean":
            return FigureReading(
                problem=MISLEADING,
                reason="percentiles of the inter-token latency count chunks, not tokens; use time_per_output_token",
            )
        if self.is_priority_mix:
            from sweeps.promote.evidence.priority_mix import class_figure

            return class_figure(self, path, statistic, unit)
        return self._statistic(path, statistic, unit)

    def _statistic(self, path: str, statistic: str, unit: str) -> FigureReading:
        place, bare_unit = self._place(path)
        found = self.at(place)
        if found is None:
            return FigureReading(problem=MISSING, reason=f"{self.source} has no {place}")
        if bare_unit and is_number(found):
            found = {"units": bare_unit, "mean": found}
        if is_number(found) and statistic in ("", "count", "mean"):
            return converted(float(found), "count", unit, self.source)
        if not isinstance(found, Mapping) or "units" not in found:
            return FigureReading(problem=MALFORMED, reason=f"{self.source}: {place} has no units")
        value = found.get(statistic)
        if value is None:
            return FigureReading(
                problem=MISSING_STATISTIC, reason=f"{self.source}: {place} has no {statistic}"
            )
        if not is_number(value):
            return FigureReading(
                problem=MALFORMED,
                reason=f"{self.source}: {place}.{statistic} is {value!r}, not a number",
            )
        return converted(float(value), found["units"], unit, f"{self.source}: {place}")

    def _place(self, path: str) -> tuple[str, str]:
        """Where this version has what v0.2 has at a path, and the unit of a bare number."""
        if self.version != "0.1" or not path.startswith(f"{AGGREGATE}."):
            return path, ""
        rest = path.removeprefix(f"{AGGREGATE}.")
        old, unit = _OLD_THROUGHPUT.get(rest, (rest, ""))
        return f"metrics.{old}", unit


def is_number(value: object) -> TypeGuard[int | float]:
    """Whether a value is a finite number."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def converted(value: float, given: object, wanted: str, where: str) -> FigureReading:
    """A value in another unit of the same dimension."""
    for units in _DIMENSIONS:
        if given in units and wanted in units:
            return FigureReading(
                value if given == wanted else value * units[str(given)] / units[wanted]
            )
    return FigureReading(
        problem=WRONG_UNIT, reason=f"{where} is in {given!r}, which cannot be {wanted}"
    )


# --- reading files --------------------------------------------------------------------------------


def parse_report(text: str, source: str) -> BenchReport:
    """The report in a text, YAML or JSON.

    Raises:
        MalformedReportError: it is none, or of a version that is unknown here.
    """
    try:
        document = json.loads(text) if source.endswith(".json") else yaml.load(text, _loader())
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
    version = str(document.get("version", ""))
    if version not in VERSIONS:
        raise MalformedReportError(
            f"{source}: version {version or 'is missing'!r} is not known; reports of "
            f"{', '.join(VERSIONS)} and results of {PRIORITY_MIX} are read"
        )
    place = "metrics" if version == "0.1" else AGGREGATE
    report = BenchReport(
        _uid(document, text, source), version, source, _evidence(document), document
    )
    if not isinstance(report.at(place), Mapping):
        raise MalformedReportError(f"{source}: {place} is missing, so there is nothing to judge")
    return report


def _priority_mix(document: Mapping[str, Any], text: str, source: str) -> BenchReport:
    if not isinstance(document["summary"].get("traffic_classes"), Mapping):
        raise MalformedReportError(f"{source}: summary.traffic_classes is missing")
    return BenchReport(
        _uid(document, text, source), PRIORITY_MIX, source, _evidence(document), document
    )


def _uid(document: Mapping[str, Any], text: str, source: str) -> str:
    """The run's own id; of a report without one its file and content."""
    run = document.get("run")
    uid = run.get("uid") if isinstance(run, Mapping) else None
    return str(uid) if uid else f"{source}#{hashlib.sha256(text.encode()).hexdigest()[:12]}"


def _evidence(document: Mapping[str, Any]) -> Evidence:
    run = document.get("run")
    words = run.get("keywords") if isinstance(run, Mapping) else None
    return "simulated" if isinstance(words, list) and SIMULATED_MARK in words else "measured"


def _loader() -> Any:
    return getattr(yaml, "CSafeLoader", yaml.SafeLoader)

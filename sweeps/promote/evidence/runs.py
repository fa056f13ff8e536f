"""Reports by what they are of: a scene, an arm, a run.

`evidence/reports/SCENE/ARM/RUN/*` or `evidence/reports/SCENE/ARM/RUN.yaml`. A scene is a workload, with what disturbs
it. Runs of two arms with the same name served the same requests, so they are compared as pairs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from sweeps.promote.evidence.priority_mix import GOODPUT, goodput
from sweeps.promote.evidence.reports import (
    AGGREGATE,
    MALFORMED,
    MISSING,
    BenchReport,
    FigureReading,
    MalformedReportError,
    converted,
    is_number,
    parse_report,
)
from sweeps.promote.promotion import Evidence, Files

FOLDER = "evidence/reports"
ENDINGS = (".yaml", ".yml", ".json")


@dataclass(frozen=True)
class RunEvidence:
    """All reports of one run of one arm."""

    name: str
    reports: tuple[BenchReport, ...]
    problems: tuple[str, ...] = ()  # files that could not be read

    @property
    def uids(self) -> tuple[str, ...]:
        """The ids that a verdict cites."""
        return tuple(dict.fromkeys(report.uid for report in self.reports))

    @property
    def evidence(self) -> Evidence:
        """Simulated as soon as one of its reports is."""
        return (
            "simulated" if any(one.evidence == "simulated" for one in self.reports) else "measured"
        )

    @property
    def aggregate(self) -> BenchReport | None:
        """The report with the load and the figures of all requests."""
        return next((one for one in self.reports if not one.is_priority_mix), None)

    @property
    def by_class(self) -> BenchReport | None:
        """The report with figures by traffic class and rows of requests."""
        return next((one for one in self.reports if one.is_priority_mix), None)

    def figure(
        self, path: str, statistic: str, unit: str, ttft_targets_ms: Mapping[str, float]
    ) -> FigureReading:
        """A figure of the run, from the report that has such figures."""
        if self.problems:
            return FigureReading(problem=MALFORMED, reason=self.problems[0])
        if path.startswith("summary."):
            return self._of_class(path, statistic, unit, ttft_targets_ms)
        if self.aggregate is None:
            return FigureReading(
                problem=MISSING, reason=f"run {self.name} has no report with {path}"
            )
        return self.aggregate.figure(path, statistic, unit)

    def _of_class(
        self, path: str, statistic: str, unit: str, targets: Mapping[str, float]
    ) -> FigureReading:
        if self.by_class is None:
            return FigureReading(
                problem=MISSING,
                reason=f"run {self.name} has no results by traffic class for {path}",
            )
        if path.rpartition(".")[2] != GOODPUT:
            return self.by_class.figure(path, statistic, unit)
        parts = path.split(".")
        value = goodput(self.by_class, targets, parts[2] if len(parts) == 4 else None)
        if not is_number(value):
            return FigureReading(
                problem=MISSING, reason=f"{self.by_class.source} has no rows of requests"
            )
        return converted(value, "fraction", unit, self.by_class.source)

    # --- what must agree between arms --------------------------------------------------------------

    def total(self) -> float | None:
        """Requests that were sent."""
        if self.aggregate is not None:
            return self._number(f"{AGGREGATE}.requests.total")
        value = self.by_class.at("summary.total_requests") if self.by_class else None
        return float(value) if is_number(value) else None

    def failures(self) -> float | None:
        """Requests that were not answered with success, or not to the end."""
        if self.aggregate is not None:
            failures = self._number(f"{AGGREGATE}.requests.failures")
            incomplete = self._number(f"{AGGREGATE}.requests.incomplete") or 0.0
            return None if failures is None else failures + incomplete
        value = self.by_class.at("summary.errors") if self.by_class else None
        return float(value) if is_number(value) else None

    def mean_length(self, which: str) -> float | None:
        """Mean tokens of prompts (`input_length`) or answers (`output_length`)."""
        if self.aggregate is None:
            return None
        found = self.aggregate.figure(f"{AGGREGATE}.requests.{which}", "mean", "count")
        return found.value if found.is_there else None

    def offered(self) -> tuple[str, float] | None:
        """What was asked of the cluster: requests in flight where the loop is closed, else requests per second."""
        if self.aggregate is None:
            return None
        load = self.aggregate.at("scenario.load.standardized")
        if isinstance(load, Mapping):
            if is_number(load.get("concurrency")):
                return "concurrency", float(load["concurrency"])
            if is_number(load.get("rate_qps")):
                return "queries/s", float(load["rate_qps"])
        stage = self._stage()
        return ("queries/s", float(stage["rate"])) if stage else None

    def _stage(self) -> Mapping[str, Any] | None:
        """The stage of a v0.1 load whose number of requests is that of the figures; its own number misleads."""
        report, total = self.aggregate, self.total()
        stages = report.at("scenario.load.args.load.stages") if report else None
        for stage in stages if isinstance(stages, list) else ():
            rate, seconds = stage.get("rate"), stage.get("duration")
            if is_number(rate) and is_number(seconds) and total == round(rate * seconds):
                return dict(stage)
        return None

    def stack(self) -> tuple[str, ...] | None:
        """The identities of the configurations that ran; None if the report does not say."""
        parts = self.aggregate.at("scenario.stack") if self.aggregate else None
        if not isinstance(parts, list) or not parts:
            return None
        found = [
            str((part.get("metadata") or {}).get("cfg_id", "")) if isinstance(part, Mapping) else ""
            for part in parts
        ]
        return tuple(sorted(found)) if all(found) else None

    def _number(self, path: str) -> float | None:
        found = (
            self.aggregate.figure(path, "", "count")
            if self.aggregate
            else FigureReading(problem=MISSING)
        )
        return found.value if found.is_there else None


ArmRuns = Mapping[str, RunEvidence]  # by name of the run
SceneRuns = Mapping[str, ArmRuns]  # by arm


def scenes_of(files: Files) -> dict[str, dict[str, dict[str, RunEvidence]]]:
    """All reports among files, by scene, arm and run."""
    texts: dict[tuple[str, str, str], dict[str, str]] = {}
    for path in sorted(files):
        parts = PurePosixPath(path).parts
        is_report = path.startswith(f"{FOLDER}/") and path.endswith(ENDINGS)
        if not is_report or len(parts) < 5 or parts[-1].startswith("run_metadata"):
            continue
        run = parts[4] if len(parts) > 5 else PurePosixPath(parts[4]).stem
        texts.setdefault((parts[2], parts[3], run), {})[path] = files[path]
    found: dict[str, dict[str, dict[str, RunEvidence]]] = {}
    for (scene, arm, run), of_run in texts.items():
        found.setdefault(scene, {}).setdefault(arm, {})[run] = _run(run, of_run)
    return found


def _run(name: str, texts: Mapping[str, str]) -> RunEvidence:
    reports, problems = [], []
    for path, text in texts.items():
        try:
            reports.append(parse_report(text, path))
        except MalformedReportError as error:
            problems.append(str(error))
    return RunEvidence(name, tuple(reports), tuple(problems))

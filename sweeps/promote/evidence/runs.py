"""Sort reports by scene, arm and run; check that arms agree in load and failures before their figures are compared.

Paths are `evidence/reports/SCENE/ARM/RUN/*` or `evidence/reports/SCENE/ARM/RUN.yaml`. A scene is a workload with a
concern. Runs of two arms with the same name served the same requests, so they are compared as pairs.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from blis_jax.statistics.intervals import CONFIDENCE
from blis_jax.statistics.paired import fewest_for_verdict
from blis_jax.traces.measured.llmd_report import (
    AGGREGATE,
    MALFORMED,
    MISSING,
    FigureReading,
    converted,
    is_number,
    lacking,
)
from sweeps.promote.evidence.reports import (
    GOODPUT,
    IN_ROWS,
    REACHED,
    BenchReport,
    MalformedReportError,
    goodput,
    joined,
    of_served,
    parse_report,
    sheds_only,
)
from sweeps.promote.promotion import BASELINE, Evidence, Files

FOLDER = "evidence/reports"
ENDINGS = (".yaml", ".yml", ".json")


@dataclass(frozen=True)
class RunEvidence:
    """Hold all reports of one run of one arm."""

    name: str
    reports: tuple[BenchReport, ...]
    problems: tuple[str, ...] = ()  # files that could not be read

    @property
    def uids(self) -> tuple[str, ...]:
        """Return the ids that a verdict cites."""
        return tuple(dict.fromkeys(report.uid for report in self.reports))

    @property
    def evidence(self) -> Evidence:
        """Return `simulated` if at least one report of the run is simulated, else `measured`."""
        return (
            "simulated"
            if any(report.evidence == "simulated" for report in self.reports)
            else "measured"
        )

    @property
    def aggregate(self) -> BenchReport | None:
        """Return the report with the load and the figures of all requests."""
        return next((report for report in self.reports if not report.is_priority_mix), None)

    @functools.cached_property
    def by_class(self) -> BenchReport | None:
        """Return the figures by traffic class and the rows of requests, joined over all pods that sent the load."""
        reports = [report for report in self.reports if report.is_priority_mix]
        return joined(reports) if reports else None

    def figure(
        self, path: str, statistic: str, unit: str, ttft_targets_ms: Mapping[str, float]
    ) -> FigureReading:
        """Return a figure of the run, from the report that holds figures of this sort."""
        if self.problems:
            return lacking(MALFORMED, self.problems[0])
        if path.startswith("summary."):
            return self._of_class(path, statistic, unit, ttft_targets_ms)
        name = path.rpartition(".")[2]
        if self.aggregate is None and self.by_class is not None and name in IN_ROWS:
            return of_served(self.by_class, None, IN_ROWS[name], statistic, unit)
        if self.aggregate is None:
            return lacking(MISSING, f"run {self.name} has no report with {path}")
        return self.aggregate.figure(path, statistic, unit)

    def _of_class(
        self, path: str, statistic: str, unit: str, targets: Mapping[str, float]
    ) -> FigureReading:
        if self.by_class is None:
            return lacking(MISSING, f"run {self.name} has no results by traffic class for {path}")
        if path.rpartition(".")[2] != GOODPUT:
            return self.by_class.figure(path, statistic, unit)
        parts = path.split(".")
        value = goodput(self.by_class, targets, parts[2] if len(parts) == 4 else None)
        if not is_number(value):
            return lacking(MISSING, f"{self.by_class.source} has no rows of requests")
        return converted(value, "fraction", unit, self.by_class.source)

    # --- what must agree between arms --------------------------------------------------------------

    def total(self) -> float | None:
        """Return how many requests were sent; None if unknown."""
        if self.aggregate is not None:
            return self.aggregate.count(f"{AGGREGATE}.requests.total")
        value = self.by_class.at("summary.total_requests") if self.by_class else None
        return float(value) if is_number(value) else None

    def failures(self) -> float | None:
        """Return how many requests failed or were not completed; None if unknown."""
        if self.aggregate is not None:
            failures = self.aggregate.count(f"{AGGREGATE}.requests.failures")
            incomplete = self.aggregate.count(f"{AGGREGATE}.requests.incomplete") or 0.0
            return None if failures is None else failures + incomplete
        value = self.by_class.at("summary.errors") if self.by_class else None
        return float(value) if is_number(value) else None

    def mean_length(self, which: str) -> float | None:
        """Return the mean tokens of prompts (`input_length`) or answers (`output_length`); None if unknown."""
        path = f"{AGGREGATE}.requests.{which}"
        return self.aggregate.count(path, "mean") if self.aggregate is not None else None

    def offered(self) -> tuple[str, float] | None:
        """Return the unit and value of the offered load: requests in flight for a closed loop, else requests/s."""
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

    def reached(self) -> float | None:
        """Return the requests per second that were sent; if not reported, that were completed; None if unknown."""
        offered = self.by_class.at("summary.offered") if self.by_class else None
        if isinstance(offered, Mapping) and is_number(offered.get("requests")):
            return float(offered["requests"]) / max(float(offered.get("seconds") or 0), 1e-9)
        if self.by_class is not None or self.aggregate is None:
            return None
        rate = self.aggregate.figure(f"{AGGREGATE}.throughput.request_rate", "mean", "queries/s")
        return rate.value if rate.is_there else None

    def _stage(self) -> Mapping[str, Any] | None:
        """Return the stage of a v0.1 load whose rate × duration is the number of requests; its stage index misleads."""
        report, total = self.aggregate, self.total()
        stages = report.at("scenario.load.args.load.stages") if report else None
        for stage in stages if isinstance(stages, list) else ():
            rate, seconds = stage.get("rate"), stage.get("duration")
            if is_number(rate) and is_number(seconds) and total == round(rate * seconds):
                return dict(stage)
        return None

    def stack(self) -> tuple[str, ...] | None:
        """Return the identities of the configurations that ran; None if the report does not say."""
        parts = self.aggregate.at("scenario.stack") if self.aggregate else None
        if not isinstance(parts, list) or not parts:
            return None
        identities = [
            str((part.get("metadata") or {}).get("cfg_id", "")) if isinstance(part, Mapping) else ""
            for part in parts
        ]
        return tuple(sorted(identities)) if all(identities) else None


ArmRuns = Mapping[str, RunEvidence]  # by name of the run
SceneRuns = Mapping[str, ArmRuns]  # by arm


def scenes_of(files: Files) -> dict[str, dict[str, dict[str, RunEvidence]]]:
    """Return all reports among files, by scene, arm and run."""
    texts: dict[tuple[str, str, str], dict[str, str]] = {}
    for path in sorted(files):
        parts = PurePosixPath(path).parts
        is_report = path.startswith(f"{FOLDER}/") and path.endswith(ENDINGS)
        if not is_report or len(parts) < 5 or parts[-1].startswith("run_metadata"):
            continue
        run = parts[4] if len(parts) > 5 else PurePosixPath(parts[4]).stem
        texts.setdefault((parts[2], parts[3], run), {})[path] = files[path]
    scenes: dict[str, dict[str, dict[str, RunEvidence]]] = {}
    for (scene, arm, run), of_run in texts.items():
        scenes.setdefault(scene, {}).setdefault(arm, {})[run] = _run(run, of_run)
    return scenes


def _run(name: str, texts: Mapping[str, str]) -> RunEvidence:
    reports, problems = [], []
    for path, text in texts.items():
        try:
            reports.append(parse_report(text, path))
        except MalformedReportError as error:
            problems.append(str(error))
    return RunEvidence(name, tuple(reports), tuple(problems))


FEWEST_RUNS = fewest_for_verdict(CONFIDENCE)  # per arm: 6
MOST_FAILURES = 0.01  # of the requests, in any arm
ALIKE = 0.01  # relative difference of loads and lengths
FAILURES_ALIKE = 0.001  # difference of the shares of failures

Number = Callable[[RunEvidence], float | None]


@dataclass(frozen=True)
class Precondition:
    """Describe a precondition that does not hold, and why."""

    problem: str
    reason: str


def agreement(
    arms: SceneRuns, subject: str, rate: float, *, is_goodput: bool
) -> Precondition | bool:
    """Return the first precondition that fails; if all hold, whether an arm shed requests.

    Args:
        arms: the runs by arm; every arm has runs of the same names.
        subject: the arm that is compared with the baseline.
        rate: requests/s that the hypothesis asks for, used where a report does not state the requested load.
        is_goodput: whether the metric itself counts unserved requests, so that failures are no obstacle.
    """
    first = next(iter(arms[BASELINE].values()), None)
    other = next(iter(arms[subject].values()), None)
    if first is None or other is None:
        return Precondition("too few runs", "the arms have no run in common")
    if first.stack() is not None and first.stack() == other.stack():
        return Precondition(
            "same stack",
            f"baseline and {subject} ran the same configuration, so nothing was tested",
        )
    is_shedding = False
    for name in arms[BASELINE]:
        runs = {arm: of_arm[name] for arm, of_arm in arms.items()}
        failures = _failures(runs, name)
        if isinstance(failures, Precondition) and not is_goodput:
            return failures
        sheds = failures is True
        is_shedding |= sheds
        broken = (
            _load(runs, name)
            or _reached(runs, name, rate)
            or (None if sheds else _lengths(runs, name))
        )
        if broken is not None:
            return broken
    return is_shedding


def _failures(runs: Mapping[str, RunEvidence], name: str) -> Precondition | bool:
    """Return whether requests failed, all by denial; a precondition if they failed in any other way."""
    shares = {}
    for arm, run in runs.items():
        failures, total = run.failures(), run.total()
        if failures is None or not total:
            return Precondition(
                "failures unknown", f"{arm}, run {name}: the report does not count failures"
            )
        shares[arm] = failures / total
    spread = max(shares.values()) - min(shares.values())
    if max(shares.values()) <= MOST_FAILURES and spread <= FAILURES_ALIKE:
        return False
    failed = [run for arm, run in runs.items() if shares[arm] > 0]
    if all(run.by_class is not None and sheds_only(run.by_class) for run in failed):
        return True
    words = ", ".join(f"{share:.1%} in {arm}" for arm, share in shares.items())
    return Precondition(
        "failures",
        f"run {name}: failures {words}; latencies of different requests are not compared",
    )


def _load(runs: Mapping[str, RunEvidence], name: str) -> Precondition | None:
    offered = {arm: run.offered() for arm, run in runs.items()}
    first = offered[BASELINE]
    for arm, load in offered.items():
        known = (load is None) == (first is None)
        if not known or (load and first and (load[0] != first[0] or not alike(load[1], first[1]))):
            words = ", ".join(f"{load or 'unknown'} in {which}" for which, load in offered.items())
            return Precondition(
                "offered load", f"run {name}: offered load differs ({words}), see {arm}"
            )
    return _alike("requests", lambda run: run.total(), runs, name)


def _reached(runs: Mapping[str, RunEvidence], name: str, rate: float) -> Precondition | None:
    """Return a failed precondition if an arm did not get the test's load: a load that never came proves nothing."""
    for arm, run in runs.items():
        offered, reached = run.offered(), run.reached()
        if offered is not None and offered[0] == "concurrency":
            continue
        wanted = rate if offered is None else offered[1]
        if reached is None:
            return Precondition(
                "offered load",
                f"{arm}, run {name}: nothing tells the load that was really sent; run the harness with harness.patch",
            )
        if reached < REACHED * wanted:
            return Precondition(
                "offered load",
                f"{arm}, run {name}: {reached:.4g} requests/s were sent or served, and {wanted:.4g} were asked for",
            )
    return None


def _lengths(runs: Mapping[str, RunEvidence], name: str) -> Precondition | None:
    parts = ("input_length", "output_length")
    broken = (_alike(part, lambda run, p=part: run.mean_length(p), runs, name) for part in parts)  # type: ignore[misc]
    return next(filter(None, broken), None)


def _alike(
    what: str, number: Number, runs: Mapping[str, RunEvidence], name: str
) -> Precondition | None:
    first = number(runs[BASELINE])
    for arm, run in runs.items():
        value = number(run)
        if (value is None) != (first is None) or (
            value is not None and first is not None and not alike(value, first)
        ):
            return Precondition(
                what, f"run {name}: {what} is {first} in {BASELINE} and {value} in {arm}"
            )
    return None


def alike(first: float, other: float) -> bool:
    """Return whether two loads or lengths are close enough to compare, within 1 %."""
    return abs(first - other) <= ALIKE * max(abs(first), abs(other))

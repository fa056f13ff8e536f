"""Whom a bred router is to beat, on which cluster and workloads; the searches, and the verdicts on new seeds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from blis_jax import progress
from blis_jax.errors import ConfigError
from blis_jax.statistics.intervals import Inference
from blis_jax.workload.spec import WorkloadSpec
from papers.openevolve.experiments import CLASSES, DATA, METRICS, handed_over
from papers.openevolve.experiments import data_folder as given_folder
from sweeps.evolve.breeding import Bred, Breeder, searched
from sweeps.evolve.formula import NUMBER, SCORER, Formula, go_of, python_of, shorter
from sweeps.evolve.programs import router_of
from sweeps.evolve.score import RunPair, TaskRuns, changes, gain
from sweeps.evolve.task import Guard, Task, TaskFile
from sweeps.runs.measured import metric_values
from sweeps.runs.requests import StudyRequests, load_workload
from sweeps.strategies.arms import arm_of

if TYPE_CHECKING:
    from blis_jax.cluster.config import ClusterConfig

FOUND, CURVES, VERDICTS = "found", "curves", "verdicts"
TABLES = (FOUND, CURVES, VERDICTS)
ALL = "all"  # a contest's gain, in place of a workload
Row = dict[str, str]
TAILS = {"critical": 8.0, "standard": 3.0, "sheddable": 1.0}  # ms of P99 that count alike, inverted
SEARCHED, JUDGED = range(2000, 2016), range(5000, 5040)


@dataclass(frozen=True)
class Contest:
    """A router to beat, on its own workloads.

    Attributes:
        name: of the files.
        title: whom to beat.
        task: what is searched.
        first: what the search begins with, beside the weighted sum of the cluster's scorers.
    """

    name: str
    title: str
    task: Task
    first: tuple[Formula, ...] = ()


def data_folder(named: str | None) -> Path | None:
    """Return the folder of the winner's workloads; None where none is given and there is none.

    Raises:
        ConfigError: the folder that is given has none.
    """
    return given_folder(named) if named or Path(DATA).is_dir() else None


def contests(data: Path | None, folder: Path) -> Iterator[Contest]:
    """Yield the contests; the winner's only where its workload files are."""
    if data is not None:
        cluster, workloads = handed_over(data)
        score = dict.fromkeys(METRICS, 0.5)
        bounded = [f"{name}[{slo_class}]" for name in METRICS for slo_class in CLASSES]
        yield Contest(
            "winner",
            "the published winner",
            _task("winner", cluster, workloads, score, bounded, folder),
            (_winner(),),
        )
    mixed = {"mixed": load_workload("mixed")}
    tails = {f"ttft_p99_ms[{name}]": weight for name, weight in TAILS.items()}
    for name, strategy, title in (
        ("it08_opt", "it08_opt", "`it08_opt`"),
        ("row_21", "iter21_intent@found", "row 21 of the ledger"),
    ):
        yield Contest(
            name, title, _task(name, arm_of(strategy).config, mixed, tails, list(tails), folder)
        )


def _winner() -> Formula:
    """Return the winner's rule: the prefix counts less, the more its instance is behind the one with the least."""

    def number(value: float) -> Formula:
        return Formula(NUMBER, number=value)

    prefix, load = (Formula(SCORER, number=float(at)) for at in range(2))
    in_flight, kv = Formula("in_flight"), Formula("kv")
    most = Formula("most", (prefix,))
    there = Formula("most", (Formula("below", (prefix, most, number(0.0), in_flight)),))
    behind = Formula("minus", (there, Formula("least", (in_flight,))))
    lower = Formula("over", (number(0.5), Formula("times", (number(0.6), behind))))
    share = Formula("below", (number(0.1), most, lower, number(0.5)))
    rest = Formula("times", (Formula("minus", (number(1.0), share)), load))
    full = Formula("times", (number(5.0), Formula("minus", (kv, number(0.9)))))
    total = Formula("plus", (Formula("times", (share, prefix)), rest))
    total = Formula("minus", (total, Formula("larger", (full, number(0.0)))))
    return Formula("plus", (total, Formula("over", (number(0.01), in_flight))))


def _task(
    name: str,
    cluster: ClusterConfig,
    workloads: dict[str, WorkloadSpec],
    score: dict[str, float],
    bounded: list[str],
    folder: Path,
) -> Task:
    """Return the task to beat a cluster's router by the score, without making a metric of `bounded` worse."""
    guards = tuple(
        Guard(metric=metric, direction="min", change_percent=0.0, weight=0.25) for metric in bounded
    )
    fields = {
        "name": name, "profile": cluster.revision, "baseline": cluster.routing_policy, "workloads": tuple(workloads),
        "seeds": tuple(SEARCHED), "score": score, "guards": guards,
    }  # fmt: skip
    file = TaskFile.model_validate(fields)
    requests = tuple(
        StudyRequests(spec, file.seeds, "reference", workload)
        for workload, spec in workloads.items()
    )
    return Task(file, folder / f"{name}.yaml", cluster, requests)


# --- the searches and their verdicts --------------------------------------------------------------


def tables(held: Iterable[Contest], programs: int, most_s: float) -> dict[str, list[Row]]:
    """Return the found formulas, the curves of the searches, and what the formulas are worth on new seeds."""
    rows: dict[str, list[Row]] = {name: [] for name in TABLES}
    for contest in held:
        with progress.phase(f"searching: {contest.name}", programs, "programs") as work:

            def tell(count: int, best: Bred, work: Any = work) -> None:
                work.show(count, f"best {best.score:+.3g} %")

            bred = searched(contest.task, programs, most_s, 0, tell, contest.first)
        curve = [
            {"contest": contest.name, "programs": str(count), "score": f"{score:.6g}"}
            for count, score in bred.curve
        ]
        rows[CURVES] += curve
        formula, verdicts = judged(contest, bred.best.formula, is_short=False)
        rows[VERDICTS] += verdicts
        rows[FOUND].append(
            found_row(contest, formula, bred.num_programs, bred.num_dropped, bred.best.score)
        )
    return rows


def judged_again(held: Iterable[Contest], rows: Sequence[Row]) -> list[Row]:
    """Return the gain and the changes by class of the found formulas, on the new seeds."""
    formulas = {row["contest"]: Formula.read(row["formula"]) for row in rows}
    return [
        row for contest in held for row in judged(contest, formulas[contest.name], is_short=True)[1]
    ]


def found_row(contest: Contest, formula: Formula, programs: int, dropped: int, score: float) -> Row:
    """Return the table's row of what a search has found."""
    workloads = " and ".join(map(str, contest.task.file.workloads))
    return {
        "contest": contest.name, "title": contest.title, "workloads": workloads,
        "programs": str(programs), "dropped": str(dropped), "score": f"{score:.6g}", "formula": str(formula),
        "python": python_of(formula), "go": go_of(formula),
    }  # fmt: skip


def judged(contest: Contest, formula: Formula, *, is_short: bool) -> tuple[Formula, list[Row]]:
    """Return a formula without parts that change nothing on the new seeds, and its gain and changes by class there.

    A formula that `is_short` has no such parts.
    """
    seeds = tuple(JUDGED)
    file = contest.task.file.model_copy(update={"seeds": seeds})
    requests = tuple(replace(request, seeds=seeds) for request in contest.task.requests)
    task = replace(contest.task, file=file, requests=requests)
    baseline = router_of(file.baseline, task, task.path.parent / "programs")
    breeder = Breeder(TaskRuns(task, seeds), baseline, np.random.default_rng(0))
    formula = formula if is_short else _without_idle(breeder, formula, seeds)
    runs = breeder.runs_of(formula, seeds)
    before = breeder.runs.of(baseline, seeds)
    pairs = [RunPair(*parts) for parts in zip(task.requests, before, runs, strict=True)]
    names = {request.name: task.names(request) for request in task.requests}
    whole = gain(pairs, task.metrics, Inference())
    verdict = _verdict(whole.low, whole.high)
    rows = [_row(contest, ALL, "gain", (-whole.mean, -whole.high, -whole.low), verdict)]
    for change in changes(pairs, names, Inference()):
        percent = change.difference.simultaneous_percent
        ends = percent.mean, percent.low, percent.high
        rows.append(_row(contest, change.workload, change.metric, ends, change.difference.verdict))
    return formula, rows


def _verdict(low: float, high: float) -> str:
    return "better" if low > 0 else "worse" if high < 0 else "unclear"


def _row(
    contest: Contest, workload: str, metric: str, change: tuple[float, float, float], verdict: str
) -> Row:
    names = "change %", "low", "high"
    ends = {name: f"{value:+.4g}" for name, value in zip(names, change, strict=True)}
    row = {"contest": contest.name, "workload": workload, "metric": metric}
    return row | ends | {"verdict": verdict, "seeds": str(len(JUDGED))}


def _without_idle(breeder: Breeder, formula: Formula, seeds: tuple[int, ...]) -> Formula:
    """Return the shortest formula that is found without a part that changes anything on these seeds."""
    same = (
        candidate for candidate in shorter(formula) if _is_same(breeder, candidate, formula, seeds)
    )
    shortest = next(same, None)
    return formula if shortest is None else _without_idle(breeder, shortest, seeds)


def _is_same(breeder: Breeder, first: Formula, second: Formula, seeds: tuple[int, ...]) -> bool:
    """Return whether two formulas make the same figures; a few seeds are compared first."""
    task = breeder.runs.task
    for some in (seeds[:2], seeds):
        try:
            both = [breeder.runs_of(formula, some) for formula in (first, second)]
        except ConfigError:  # a run that does not end
            return False
        for requests, ours, theirs in zip(task.requests, *both, strict=True):
            names = task.names(requests)
            if any(
                not np.array_equal(
                    metric_values(ours, name), metric_values(theirs, name), equal_nan=True
                )
                for name in names
            ):
                return False
    return True

"""The loop of a search: ask the engine, run a batch of points × seeds (or race points), tell the engine; resumable from
a record.

Points may run on several loads: the strategy's workload, and further workloads that its file names.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from blis_jax.files.journal import Journal
from blis_jax.metrics.run_summary import RunSummary, read_summary
from blis_jax.workload.spec import WorkloadSpec, override
from sweeps.runs.experiment import Experiment, targets_of
from sweeps.runs.requests import workload_from
from sweeps.search.engines import Engine, Told, recommended, recommends
from sweeps.search.objectives import AT, Runs, Valuation, Worth
from sweeps.strategies.file import Strategy
from sweeps.strategies.space import Point, Space

if TYPE_CHECKING:
    from blis_jax.cluster.config import ClusterConfig


class SearchRecord(Journal):
    """The record of a search: one batch per line; each batch was asked for with all earlier ones known."""

    is_ordered = True

    def __init__(self, path: Path, content: Mapping[str, Any]) -> None:
        """Open the record; `content` holds all that decides the points and their runs, by name in words."""
        super().__init__(path, "search", content)

    def stages(self) -> list[list[PointRuns]]:
        """Return the recorded stages in order, each with the points that ran together; empty if there is no record."""
        return [[_entry(entry) for entry in line] for line in self.lines()]

    def read(self) -> list[tuple[Point, Runs]]:
        """Return the points of a search without rungs, with their runs."""
        return [(entry.point, entry.runs) for stage in self.stages() for entry in stage]

    def add(self, stage: Sequence[PointRuns]) -> None:
        """Append a stage: the points that ran together, with their figures."""
        self.append([_plain(entry) for entry in stage])


def _entry(entry: Any) -> PointRuns:
    runs = tuple(map(read_summary, entry["runs"]))
    return PointRuns(tuple(entry["point"]), runs, entry.get("call"))


def _plain(entry: PointRuns) -> dict[str, Any]:
    entry_fields: dict[str, Any] = {
        "point": list(entry.point),
        "runs": [run.document() for run in entry.runs],
    }
    return entry_fields if entry.call is None else {**entry_fields, "call": entry.call}


# the runs of points, on the seeds at some places of the search's
RunPoints = Callable[[Sequence[Point], range], list[Runs]]


def runs_at(space: Space, experiment: Experiment | ExperimentOnLoads) -> RunPoints:
    """Return a function that runs the points of a space."""
    return lambda points, places: experiment.run(
        [space.config_at(point) for point in points], places
    )


def search(
    engine: Engine,
    valuation: Valuation,
    run: RunPoints,
    record: SearchRecord | None = None,
    on_batch: Callable[[Sequence[Tried]], None] | None = None,
    num_seeds: int | None = None,
) -> list[Tried]:
    """Search until the budget is spent; return all points in order. Points in the record are not run again.

    `on_batch` receives all points so far, first the recorded ones if there are any. `num_seeds` is the number of seeds
    of a point, by default the strategy's.
    """
    race = Race(valuation, num_seeds or len(valuation.strategy.seeds))
    for entries in record.stages() if record is not None else ():
        race.add(entries)
    if record is not None:
        record.begin()
    while True:
        tried = race.tried()
        if tried and on_batch is not None:
            on_batch(tried)
        stage = race.climb(tried, engine) or race.new(engine, tried) or race.finish(tried, engine)
        if stage is None:
            return tried
        entries = stage.entries(run(stage.points, stage.places))
        if record is not None:
            record.add(entries)
        race.add(entries)


# --- points on several loads -----------------------------------------------------------------------


def load_specs(strategy: Strategy) -> dict[str, WorkloadSpec]:
    """Return the workload of every further load, by the load's name."""
    specs = {}
    for name, load in strategy.loads.items():
        where = f"{strategy.source}: loads.{name}: workload"
        spec = workload_from(load.workload, where, strategy.folder, load.num_requests)
        specs[name] = override(spec, aggregate_rate=load.rate) if load.rate else spec
    return specs


class ExperimentOnLoads:
    """One experiment for each load; a run has the metrics of all loads together."""

    def __init__(
        self, main: Experiment, valuation: Valuation, specs: Mapping[str, WorkloadSpec]
    ) -> None:
        """Take `main`, which runs the strategy's workload, and the workloads of other loads, run on its seeds."""
        self.main = main
        targets = targets_of(valuation.strategy)
        self.others = {
            name: Experiment.on(
                spec,
                main.seeds,
                main.requests.stream,
                valuation.names_at(name),
                targets,
                main.configs_per_batch,
            )
            for name, spec in specs.items()
        }

    def run(self, configs: Sequence[ClusterConfig], places: range | None = None) -> list[Runs]:
        """Run each configuration once per seed on every load; `places` are the seeds' indices, by default all."""
        runs = self.main.run(configs, places)
        for name, experiment in self.others.items():
            pairs = zip(runs, experiment.run(configs, places), strict=True)
            runs = [
                tuple(
                    run.beside(two, f"{AT}{name}")
                    for run, two in zip(main_runs, theirs, strict=True)
                )
                for main_runs, theirs in pairs
            ]
        return runs


# --- which points get more runs: all run on a few seeds, and the best of them go on to more -------

# *Rungs* are the numbers of seeds after which a point is compared with the best one (Jamieson & Talwalkar 2016), on
# common seeds (F-Race: Birattari et al. 2002). Without rungs every point runs on all seeds at once.


PEERS = 12  # points with more seeds, the best ones, that tell what those seeds do to a point
# standard errors that a point may be worse than the best one and go on to another rung, and to the last one
HOPE, LAST_HOPE = 0.5, 0.0
LARGEST_SHARE = 0.3  # of all runs, for a rung's, where an engine says which point goes on


class PointRuns(NamedTuple):
    """Runs of a point, as in a record; `call` is the index of an earlier point if these are further runs of it."""

    point: Point
    runs: Runs
    call: int | None = None


class Tried(NamedTuple):
    """A point of the search, its runs so far, and its worth, which is an estimate if the point lacks seeds."""

    point: Point
    runs: Runs
    worth: Worth

    def told(self) -> Told:
        """Return the point as an engine sees it."""
        worth = self.worth
        return Told(
            self.point, worth.score, worth.objectives, worth.penalty, bool(worth.failures),
            worth.excesses, worth.errors, worth.spreads, len(self.runs),
        )  # fmt: skip


class NextRuns(NamedTuple):
    """Points to run next, and the indices of the seeds to run them on."""

    points: list[Point]
    places: range
    calls: list[int] | None = None  # of points that were tried before

    def entries(self, runs: Sequence[Runs]) -> list[PointRuns]:
        """Return the points with their runs."""
        calls: Sequence[int | None] = self.calls or [None] * len(self.points)
        return [PointRuns(*entry) for entry in zip(self.points, runs, calls, strict=True)]


class Race:
    """The points of a search and their runs so far; the next step depends on these alone."""

    def __init__(self, valuation: Valuation, num_seeds: int) -> None:
        """Take the scoring, and `num_seeds`, the number of seeds of the last rung."""
        strategy = valuation.strategy
        self.valuation, self.budget = valuation, strategy.search
        if self.budget.rungs and self.budget.rungs[-1] >= num_seeds:
            raise strategy.refuse(
                "search.rungs",
                f"the last one is {self.budget.rungs[-1]}, and the search has {num_seeds} seeds; "
                f"give numbers below {num_seeds}, or more seeds",
            )
        self.rungs = (*self.budget.rungs, num_seeds)
        self.points: list[Point] = []
        self.runs: list[Runs] = []
        self.rung: list[int] = []  # that each point has reached
        self.worths: list[Worth] = []  # by the runs so far
        self.num_runs = 0

    def add(self, entries: Sequence[PointRuns]) -> None:
        """Add the runs of new points, or further runs of known points."""
        for point, runs, call in entries:
            if call is None:
                self.points.append(point)
                self.runs.append(runs)
                self.rung.append(0)
                self.worths.append(self.valuation.worth(runs))
            else:
                self.runs[call] = (*self.runs[call], *runs)
                self.rung[call] = self.rungs.index(len(self.runs[call]))
                self.worths[call] = self.valuation.worth(self.runs[call])
            self.num_runs += len(runs)

    @property
    def num_left(self) -> int:
        """Return the number of runs left in the budget."""
        return max(self.budget.calls * self.rungs[-1] - self.num_runs, 0)

    def new(self, engine: Engine, tried: Sequence[Tried]) -> NextRuns | None:
        """Return new points on the seeds of the first rung; None if the budget or the engine's points end."""
        count = min(self.budget.batch, self._num_for_new(recommends(engine)) // self.rungs[0])
        points = engine.ask([point.told() for point in tried], count) if count > 0 else []
        return NextRuns(points, range(self.rungs[0])) if points else None

    def tried(self) -> list[Tried]:
        """Return all points in order; runs that a point lacks are estimated from points with more runs."""
        whole, worths = list(self.runs), list(self.worths)
        for rung in self._lower():  # the surest first: others are judged by them
            known = [call for call in range(len(whole)) if self.rung[call] > rung]
            peers = [whole[call] for call in _best(worths, known)[:PEERS]]
            means = _means(peers) if peers else {}
            for call, runs in enumerate(self.runs):
                if self.rung[call] == rung and peers and not worths[call].failures:
                    whole[call] = _completed(runs, means)
                    worths[call] = self.valuation.worth(whole[call])
        return [Tried(*entry) for entry in zip(self.points, self.runs, worths, strict=True)]

    def climb(self, tried: Sequence[Tried], engine: Engine) -> NextRuns | None:
        """Return points that may be the best and lack seeds, on the seeds of the next rung; None if there are none.

        Where an engine recommends a point, only that point climbs.
        """
        if not recommends(engine):
            return self._hopeful(tried)
        if len(self.rungs) == 1 or len(tried) < self.budget.initial:
            return None
        call = recommended(engine, [point.told() for point in tried])
        if call is None or self.rung[call] == len(self.rungs) - 1:
            return None
        rung = self.rung[call]
        places = range(self.rungs[rung], self.rungs[rung + 1])
        num_taken = len(places) * (1 + sum(reached > rung for reached in self.rung))
        is_due = num_taken <= LARGEST_SHARE * (self.num_runs + len(places))
        if not is_due or len(places) > self.num_left:
            return None
        return NextRuns([self.points[call]], places, [call])

    def finish(self, tried: Sequence[Tried], engine: Engine) -> NextRuns | None:
        """Return all runs that the recommended point lacks, as far as the budget allows; no new points."""
        call = recommended(engine, [point.told() for point in tried])
        if call is None:
            return None
        done = self.rungs[self.rung[call]]
        ends = [end for end in self.rungs if done < end <= done + self.num_left]
        return NextRuns([self.points[call]], range(done, ends[-1]), [call]) if ends else None

    def num_lacking(self, call: int) -> int:
        """Return the number of runs that a point needs to reach the last rung."""
        return self.rungs[-1] - self.rungs[self.rung[call]]

    def is_over(self, is_led: bool) -> bool:
        """Return whether the budget allows no new point; `is_led`: the engine recommends the point that climbs."""
        return self._num_for_new(is_led) < self.rungs[0]

    def _num_for_new(self, is_led: bool) -> int:
        """Return the number of runs left for new points, less those reserved to bring one point to the last rung."""
        is_kept = is_led and len(self.points) >= self.budget.initial
        return self.num_left - (self.rungs[-1] - self.rungs[0] if is_kept else 0)

    def _hopeful(self, tried: Sequence[Tried]) -> NextRuns | None:
        """Return points whose scores are not clearly worse than the best one's, for their next rung."""
        worths = [point.worth for point in tried]
        order = _best(worths, range(len(tried)))
        if len(self.rungs) == 1 or not order:
            return None
        top = max(self.rung[call] for call in order)
        best = next(call for call in order if self.rung[call] == top)
        for rung in self._lower():
            places = range(self.rungs[rung], self.rungs[rung + 1])
            hope = LAST_HOPE if rung == len(self.rungs) - 2 else HOPE
            limit = worths[best].score + hope * self._error(worths[best], best, order, rung)
            calls = [
                call
                for call in order
                if self.rung[call] == rung and (call == best or worths[call].score < limit)
            ][: min(self.budget.batch, self.num_left // len(places))]
            if calls:
                return NextRuns([self.points[call] for call in calls], places, calls)
        return None

    def _lower(self) -> range:
        """Return the rungs below the last one, the highest first."""
        return range(len(self.rungs) - 2, -1, -1)

    def _error(self, worth: Worth, best: int, order: Sequence[int], rung: int) -> float:
        """Return the standard error of the difference between the best score and a score on one rung's seeds."""
        num_seeds, most = self.rungs[rung], self.rungs[self.rung[best]]
        if most <= num_seeds:
            return self._spread(worth, best, order) / math.sqrt(num_seeds)
        return self._spread(worth, best, order) * math.sqrt(1 / num_seeds - 1 / most)

    def _spread(self, worth: Worth, best: int, order: Sequence[int]) -> float:
        """Return the standard deviation over seeds of the difference between the best point and its peers."""
        slopes = self.valuation.slopes(worth)
        of_best = _values(self.runs[best], slopes)
        variances = []
        for call in [place for place in order if place != best][:PEERS]:
            theirs = _values(self.runs[call], slopes)
            count = min(len(of_best), len(theirs))
            variances.append(float(np.var(theirs[:count] - of_best[:count], ddof=1)))
        return math.sqrt(float(np.mean(variances))) if variances else 0.0


def best_of(tried: Sequence[Tried]) -> Tried | None:
    """Return the first point with the lowest score among the points with the most runs that did not fail."""
    whole, most = [point for point in tried if not point.worth.failures], most_runs(tried)
    return min(
        (point for point in whole if len(point.runs) == most),
        key=lambda point: point.worth.score,
        default=None,
    )


def most_runs(tried: Sequence[Tried]) -> int:
    """Return the largest number of runs of a point that did not fail."""
    return max((len(point.runs) for point in tried if not point.worth.failures), default=0)


def _best(worths: Sequence[Worth], calls: Sequence[int]) -> list[int]:
    """Return the indices among `calls` of points that did not fail, in order of their scores."""
    return sorted(
        (call for call in calls if not worths[call].failures), key=lambda call: worths[call].score
    )


def _values(runs: Runs, slopes: Mapping[str, float]) -> np.ndarray:
    """Return each run's contribution to the score, up to a constant: `[seed]`."""
    return np.array(
        [sum(slope * run.metrics[name] for name, slope in slopes.items()) for run in runs]
    )


def _means(peers: Sequence[Runs]) -> dict[str, np.ndarray]:
    """Return the mean of each metric over the peers, on the seeds that all of them have: `[seed]`."""
    most = min(map(len, peers))
    return {
        name: np.array([[run.metrics[name] for run in peer[:most]] for peer in peers]).mean(axis=0)
        for name in peers[0][0].metrics
    }


def _completed(runs: Runs, means: Mapping[str, np.ndarray]) -> Runs:
    """Return a point's runs on all its peers' seeds; a missing run is the peers' mean plus the mean difference."""
    count = len(runs)
    leads = {
        name: float((np.array([run.metrics[name] for run in runs]) - mean[:count]).mean())
        for name, mean in means.items()
    }
    most = len(next(iter(means.values())))
    lacking = [
        RunSummary(runs[0].outcome, {name: float(means[name][at] + leads[name]) for name in means})
        for at in range(count, most)
    ]
    return (*runs, *lacking)

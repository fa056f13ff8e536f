"""The loop of a search: ask, run all points × seeds of a batch, tell; with a record to resume from.

Points may run on several loads: the strategy's workload, and those that its file names besides.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from blis_jax.files.chain import Journal
from blis_jax.metrics.run_summary import read_summary
from blis_jax.workload.spec import WorkloadSpec, override
from sweeps.runs.experiment import Experiment, targets_of
from sweeps.runs.workloads import workload_from
from sweeps.search.engines import Engine
from sweeps.search.objectives import AT, Runs, Valuation
from sweeps.search.racing import PointRuns, Race, Tried
from sweeps.strategies.file import Strategy
from sweeps.strategies.space import Point, Space

if TYPE_CHECKING:
    from blis_jax.cluster.config import ClusterConfig


class SearchRecord(Journal):
    """The batches of a search, a line each; each was asked for with those before it known."""

    is_ordered = True

    def __init__(self, path: Path, content: Mapping[str, Any]) -> None:
        """`content` is what decides the points and their runs, by its name in words."""
        super().__init__(path, "search", content)

    def stages(self) -> list[list[PointRuns]]:
        """Return the recorded stages in order, each the points that were run together; empty if there is no record."""
        return [[_entry(entry) for entry in line] for line in self.lines()]

    def read(self) -> list[tuple[Point, Runs]]:
        """Return the points of a search without rungs, with their runs."""
        return [(entry.point, entry.runs) for stage in self.stages() for entry in stage]

    def add(self, stage: Sequence[PointRuns]) -> None:
        """Append a stage: the points that were run together, with their figures."""
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
    """Search to the end of the budget; return all points in order. Those in the record are not run again.

    `on_batch` is told of all points so far, first of the recorded ones if there are any. `num_seeds` are the seeds of a
    point, by default the strategy's.
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
    """Return the workload of every further load by its name."""
    specs = {}
    for name, load in strategy.loads.items():
        where = f"{strategy.source}: loads.{name}: workload"
        spec = workload_from(load.workload, where, strategy.folder, load.num_requests)
        specs[name] = override(spec, aggregate_rate=load.rate) if load.rate else spec
    return specs


class ExperimentOnLoads:
    """One experiment for each load; a run has the figures of all loads beside each other."""

    def __init__(
        self, main: Experiment, valuation: Valuation, specs: Mapping[str, WorkloadSpec]
    ) -> None:
        """`main` runs the strategy's workload; the others have its seeds."""
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
        """Run each configuration, one run per seed, on every load; `places` are those of the seeds, all by default."""
        runs = self.main.run(configs, places)
        for name, experiment in self.others.items():
            pairs = zip(runs, experiment.run(configs, places), strict=True)
            runs = [
                tuple(one.beside(two, f"{AT}{name}") for one, two in zip(mine, theirs, strict=True))
                for mine, theirs in pairs
            ]
        return runs

"""The loop of a search: ask, run all points × seeds of a batch, tell; with a record to resume from."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from blis_jax.files.journal import Journal
from sweeps.search.engines import Engine
from sweeps.search.objectives import Runs, SeedResult, Valuation
from sweeps.search.racing import PointRuns, Race, Tried
from sweeps.strategies.space import Point, Space

if TYPE_CHECKING:
    from blis_jax.workload.source import RequestSource
    from sweeps.runs.bench import Bench
    from sweeps.search.loads import LoadBenches


class SearchRecord(Journal):
    """The batches of a search, a line each; each was asked for with those before it known."""

    is_ordered = True

    def __init__(self, path: Path, content: Mapping[str, Any]) -> None:
        """`content` is what decides the points and their runs, by its name in words."""
        super().__init__(path, "search", content)

    def stages(self) -> list[list[PointRuns]]:
        """What was run at a time, in order; nothing if there is no record."""
        return [[_entry(entry) for entry in line] for line in self.lines()]

    def read(self) -> list[tuple[Point, Runs]]:
        """The points of a search without rungs."""
        return [(entry.point, entry.runs) for stage in self.stages() for entry in stage]

    def add(self, stage: Sequence[PointRuns]) -> None:
        """Appends what was run at a time."""
        self.append([_plain(entry) for entry in stage])


def _entry(entry: Any) -> PointRuns:
    runs = tuple(SeedResult(**run) for run in entry["runs"])
    return PointRuns(tuple(entry["point"]), runs, entry.get("call"))


def _plain(entry: PointRuns) -> dict[str, Any]:
    found: dict[str, Any] = {"point": list(entry.point), "runs": [vars(run) for run in entry.runs]}
    return found if entry.call is None else {**found, "call": entry.call}


# the runs of points, on the seeds at some places of the search's
RunPoints = Callable[[Sequence[Point], range], list[Runs]]


def runs_at(space: Space, bench: Bench | LoadBenches) -> RunPoints:
    """What runs the points of a space."""
    return lambda points, places: bench.run([space.config_at(point) for point in points], places)


def workload_content(spec: RequestSource) -> dict[str, Any]:
    """A workload as part of an identity; with what rates count in its window, if it has one."""
    from blis_jax.metrics.measure import Measure

    window = Measure({}, spec.measure.warm_up_s, spec.measure.cool_down_s).window()
    rates = {"rates": window["rates"]} if "rates" in window else {}
    return spec.content() | rates


def search(
    engine: Engine,
    valuation: Valuation,
    run: RunPoints,
    record: SearchRecord | None = None,
    on_batch: Callable[[Sequence[Tried]], None] | None = None,
    num_seeds: int | None = None,
) -> list[Tried]:
    """All points of a search in order; those in the record are not run again.

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

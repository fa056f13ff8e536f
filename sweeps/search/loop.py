"""The loop of a search: ask, run all points × seeds of a batch, tell; with a record to resume from."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from blis_jax.files.journal import Journal
from sweeps.search.engines import Engine, Told
from sweeps.search.objectives import Runs, SeedResult, Valuation, Worth
from sweeps.strategies.space import Point, Space

if TYPE_CHECKING:
    from blis_jax.workload.source import RequestSource
    from sweeps.runs.bench import Bench
    from sweeps.search.loads import LoadBenches


@dataclass(frozen=True)
class Tried:
    """A point of the search with its runs and its worth."""

    point: Point
    runs: Runs
    worth: Worth

    def told(self) -> Told:
        """What an engine learns of it."""
        worth = self.worth
        return Told(
            self.point, worth.score, worth.objectives, worth.penalty, bool(worth.failures),
            worth.excesses, worth.errors, worth.spreads,
        )  # fmt: skip


def best_of(tried: Sequence[Tried]) -> Tried | None:
    """The first point with the lowest score among those that did not fail."""
    whole = [one for one in tried if not one.worth.failures]
    return min(whole, key=lambda one: one.worth.score) if whole else None


class SearchRecord(Journal):
    """The batches of a search, a line each."""

    def __init__(self, path: Path, content: Mapping[str, Any]) -> None:
        """`content` is what decides the points and their runs, by its name in words."""
        super().__init__(path, "search", content)

    def read(self) -> list[tuple[Point, Runs]]:
        """The points of the batches that are in the record; none if there is no record."""
        return [_entry(entry) for line in self.lines() for entry in line]

    def add(self, batch: Sequence[tuple[Point, Runs]]) -> None:
        """Appends a batch."""
        self.append(
            [{"point": list(point), "runs": [vars(run) for run in runs]} for point, runs in batch]
        )


def _entry(entry: Any) -> tuple[Point, Runs]:
    return tuple(entry["point"]), tuple(SeedResult(**run) for run in entry["runs"])


def runs_at(space: Space, bench: Bench | LoadBenches) -> Callable[[Sequence[Point]], list[Runs]]:
    """What runs the points of a space."""
    return lambda points: bench.run([space.config_at(point) for point in points])


def workload_content(spec: RequestSource) -> dict[str, Any]:
    """A workload as part of an identity; with what rates count in its window, if it has one."""
    from blis_jax.commands.sweep.measure import Measure

    window = Measure({}, spec.measure.warm_up_s, spec.measure.cool_down_s).window()
    rates = {"rates": window["rates"]} if "rates" in window else {}
    return spec.content() | rates


def search(
    engine: Engine,
    valuation: Valuation,
    run: Callable[[Sequence[Point]], list[Runs]],
    record: SearchRecord | None = None,
    on_batch: Callable[[Sequence[Tried]], None] | None = None,
) -> list[Tried]:
    """All points of a search in order; those in the record are not run again.

    `on_batch` is told of all points so far, first of the recorded ones if there are any.
    """
    budget = valuation.strategy.search
    known = record.read() if record is not None else []
    if record is not None:
        record.begin()
    tried = [Tried(point, runs, valuation.worth(runs)) for point, runs in known]
    while True:
        if tried and on_batch is not None:
            on_batch(tried)
        count = min(budget.batch, budget.calls - len(tried))
        points = engine.ask([one.told() for one in tried], count) if count > 0 else []
        if not points:
            return tried
        batch = list(zip(points, run(points), strict=True))
        if record is not None:
            record.add(batch)
        tried += [Tried(point, runs, valuation.worth(runs)) for point, runs in batch]

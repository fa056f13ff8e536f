"""The loop of a search: ask, run all points × seeds of a batch, tell; with a record to resume from."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from blis_jax.errors import ConfigError
from sweeps.engines import Engine, Told
from sweeps.objectives import Runs, SeedResult, Valuation, Worth
from sweeps.space import Point, Space

if TYPE_CHECKING:
    from sweeps.bench import Bench

STATE_VERSION = 1


@dataclass(frozen=True)
class Tried:
    """A point of the search with its runs and its worth."""

    point: Point
    runs: Runs
    worth: Worth

    def told(self) -> Told:
        """What an engine learns of it."""
        worth = self.worth
        return Told(self.point, worth.score, worth.objectives, worth.penalty, bool(worth.failures))


def best_of(tried: Sequence[Tried]) -> Tried | None:
    """The first point with the lowest score among those that did not fail."""
    whole = [one for one in tried if not one.worth.failures]
    return min(whole, key=lambda one: one.worth.score) if whole else None


class Record:
    """Batches as lines of JSON, each written whole; a line that was cut off does not count."""

    def __init__(self, path: Path, identity: str) -> None:
        """`identity` says which search it is; another one's record is refused."""
        self.path, self.identity = path, identity

    def read(self) -> list[tuple[Point, Runs]]:
        """The points of the batches that are in the record; none if there is no record."""
        if not self.path.exists():
            return []
        lines = self._whole_lines()
        header = lines[0] if lines else None
        if not isinstance(header, dict) or "search" not in header:
            raise ConfigError(
                f"{self.path} is not the record of a search; give --overwrite or another --output"
            )
        if header["search"] != self.identity or header.get("version") != STATE_VERSION:
            raise ConfigError(
                f"{self.path} is the record of another search (strategy, budget, engine, seeds or "
                "stream differ); give --overwrite or another --output"
            )
        return [_entry(entry) for line in lines[1:] for entry in line]

    def _whole_lines(self) -> list[Any]:
        try:
            text = self.path.read_text(encoding="utf-8")
            return [json.loads(line) for line in text.split("\n")[:-1]]
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"{self.path} cannot be read ({error}); give --overwrite or another --output"
            ) from None

    def begin(self) -> None:
        """A new record, or the old one without a line that was cut off."""
        if self.path.exists() and self.read():
            text = self.path.read_text(encoding="utf-8")
            self.path.write_text(text[: text.rindex("\n") + 1], encoding="utf-8")
            return
        header = json.dumps({"search": self.identity, "version": STATE_VERSION})
        self.path.write_text(header + "\n", encoding="utf-8")

    def add(self, batch: Sequence[tuple[Point, Runs]]) -> None:
        """Appends a batch."""
        entries = [
            {"point": list(point), "runs": [vars(run) for run in runs]} for point, runs in batch
        ]
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(entries) + "\n")


def _entry(entry: Any) -> tuple[Point, Runs]:
    return tuple(entry["point"]), tuple(SeedResult(**run) for run in entry["runs"])


def runs_at(space: Space, bench: Bench) -> Callable[[Sequence[Point]], list[Runs]]:
    """What runs the points of a space."""
    return lambda points: bench.run([space.config_at(point) for point in points])


def identity_of(parts: Any) -> str:
    """Equal for two searches that try the same points in the same way."""
    text = json.dumps(parts, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def search(
    engine: Engine,
    valuation: Valuation,
    run: Callable[[Sequence[Point]], list[Runs]],
    record: Record | None = None,
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

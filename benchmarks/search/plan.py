"""What is compared when searches are repeated, on which seeds, and where it is kept."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.search.turbo import LedTurbo, Turbo
from blis_jax.errors import ConfigError, closest
from sweeps.runs.experiment import Experiment, targets_of
from sweeps.runs.requests import workload_of
from sweeps.search.engines import Engine, make
from sweeps.search.engines.encoding import Encoding
from sweeps.search.engines.known import BranchedStart
from sweeps.search.loop import SearchRecord
from sweeps.search.objectives import Valuation
from sweeps.strategies.parts import Search
from sweeps.strategies.space import Space

if TYPE_CHECKING:
    from collections.abc import Sequence

    from blis_jax.runs.driver import Runner
    from sweeps.strategies.file import Strategy
    from sweeps.strategies.space import Space


FIRST_OF_SEARCHES = 1_000_000  # seed of the requests of the search with random state 0
NUM_SEEDS = 16  # of one search
MORE_SEEDS = 4  # times these, which the best points of a search with rungs get
RUNGS = (4, NUM_SEEDS)
# of an engine that says which point goes on: 16 times the seeds, and the usual batch
DEEP_RUNGS, DEEP_SEEDS = (4, 16, 64), 16
MORE_POINTS = 2  # times a batch that such a search tries at a time, on a quarter of the seeds
FIRST_FURTHER, FIRST_DEEP = 10_000_000, 20_000_000  # seeds of the further ones
MOST_SEARCHES = 100_000  # their seeds end before those that choose a reference begin, at 3,000,000


@dataclass(frozen=True)
class Plan:
    """The engines to compare, and the strategy to compare them on."""

    strategy: Strategy
    engines: tuple[str, ...]
    repetitions: range  # their random states
    folder: Path

    @property
    def calls(self) -> int:
        """Return the budget of a search."""
        return self.strategy.search.calls

    def record(self, engine: str, repetition: int) -> Path:
        """Return where one search writes what it tried."""

        return self.folder / f"{searched(engine)}_{repetition:02d}.jsonl"

    def with_search(self, repetition: int, engine: str) -> Strategy:
        """Return the strategy as one search sees it: random state, engine, and seeds of its own."""

        engine = searched(engine)
        changes: dict[str, Any] = {"engine": engine, "random_state": repetition}
        seeds = seeds_of_search(repetition)
        if is_led(engine):
            changes |= {"rungs": DEEP_RUNGS, "calls": self.calls // DEEP_SEEDS}
            seeds += further_seeds(repetition, FIRST_DEEP, DEEP_SEEDS)
        elif engine in RACED:  # as many runs, on up to four times the seeds
            batch = self.strategy.search.batch * MORE_POINTS
            changes |= {"rungs": RUNGS, "calls": self.calls // MORE_SEEDS, "batch": batch}
            seeds += further_seeds(repetition)
        search = self.strategy.search.model_copy(update=changes)
        values: dict[str, Any] = {"search": search, "seeds": seeds}
        if engine in EXPECTED:
            values["penalties"] = "expected"
        return self.strategy.model_copy(update=values)


def seeds_of_search(repetition: int) -> tuple[int, ...]:
    """Return the seeds of the requests that a search sees; all engines' searches of one state see the same."""
    first = FIRST_OF_SEARCHES + NUM_SEEDS * repetition
    return tuple(range(first, first + NUM_SEEDS))


def further_seeds(
    repetition: int, first: int = FIRST_FURTHER, times: int = MORE_SEEDS
) -> tuple[int, ...]:
    """Return seeds that only a search with rungs sees, of points that go on; no search has them as its first ones."""
    count = NUM_SEEDS * (times - 1)
    return tuple(range(first + count * repetition, first + count * (repetition + 1)))


def branches_of(space: Space) -> list[tuple[str, Any]]:
    """Return the (parameter, value) pairs that open a branch of the space; every engine is told them."""
    return [(space.names[column], value) for column, value in Encoding(space).branches]


def record_of(plan: Plan, space: Space, engine: str, repetition: int) -> SearchRecord:
    """Return the record of what one search tried; refuse one that was made with other settings."""
    strategy = plan.with_search(repetition, engine)
    search = strategy.search
    content = {
        "strategy": plan.strategy.name,
        "way to search": search.model_dump(exclude={"calls"}),
        "seeds": strategy.seeds,
        "branches": branches_of(space),
    }
    return SearchRecord(plan.record(engine, repetition), content)


def experiment_of(
    strategy: Strategy, seeds: Sequence[int], shared: Runner | None = None
) -> Experiment:
    """Return the experiment that runs points on seeds; `shared` has the programs of another one."""
    spec, names = workload_of(strategy), Valuation(strategy).names
    targets, batch = targets_of(strategy), strategy.search.batch
    return Experiment.on(spec, seeds, "reference", names, targets, batch, shared=shared)


# --- engines --------------------------------------------------------------------------------------

OWN = ("ensemble", "denoised", "turbo")  # know branches
PLAIN = ("random", "sobol")
SAVED = ("gp", "tpe")  # gone; their ends are in the tables that ship
# with rungs: most points on a few seeds, the best ones on more
RACED = {f"{name}-raced{more}": name for name in OWN for more in ("", "-expected")}
PLAIN_EXPECTED = {f"{name}-expected": name for name in OWN}
# with expected penalties
EXPECTED = {
    **PLAIN_EXPECTED,
    **{name: of for name, of in RACED.items() if name.endswith("-expected")},
}
SEARCHED = (*OWN, *PLAIN_EXPECTED, *RACED, *PLAIN)
DEEP = ("denoised", "turbo")  # with more rungs, since a model says which point goes on
RECOMMENDED = "-recommended"  # the same searches, judged by the points that a model recommends
NAMES = (*SEARCHED, *SAVED, *(name + RECOMMENDED for name in SEARCHED))


def check(name: str) -> None:
    """Refuse a name that is no engine's."""
    if name not in NAMES:
        raise ConfigError(
            f"--engines: {name!r} is unknown; use some of {', '.join(SEARCHED)}, each with "
            f"{RECOMMENDED} behind it or not{closest(name, NAMES)}"
        )


def searched(name: str) -> str:
    """Return the engine whose searches are judged under a name."""
    return name.removesuffix(RECOMMENDED)


def is_led(name: str) -> bool:
    """Return whether the engine says which point of a search with rungs goes on."""
    return RACED.get(searched(name)) in DEEP


def engine_of(space: Space, search: Search) -> Engine:
    """Return the engine that a search names, told of branches."""
    name = {**EXPECTED, **RACED}.get(search.engine, search.engine)
    if name in SAVED:
        raise ConfigError(
            f"--engines: {name!r} cannot search any more; its earlier ends are in benchmarks/results, for --ends"
        )
    is_deep = is_led(search.engine)
    search = search.model_copy(update={"engine": name})
    if name == "turbo":
        return (LedTurbo if is_deep else Turbo)(space, search)
    if name in PLAIN:
        return BranchedStart(Encoding(space), make(space, search))
    return make(space, search)

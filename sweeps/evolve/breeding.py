"""Genetic programming over formulas: breed children of good formulas; drop those that score worse after a few seeds."""

from __future__ import annotations

import functools
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from blis_jax.cluster.named_policies import numbered
from blis_jax.cluster.router import parse_scorers
from blis_jax.engine.cluster_params import rows_to_begin_with
from blis_jax.errors import ConfigError
from blis_jax.policies.as_data.tables import as_table
from blis_jax.policies.contract import Policies
from blis_jax.statistics.intervals import Inference
from blis_jax.statistics.sequential import Finalists
from sweeps.evolve.formula import (
    NUMBER,
    SCORER,
    Formula,
    child_of,
    drawn,
    folded,
    go_of,
    python_of,
    shorter,
)
from sweeps.evolve.programs import router_of
from sweeps.evolve.score import RunPair, TaskRuns, gain, guarded, weighted

if TYPE_CHECKING:
    from collections.abc import Callable

    from blis_jax.metrics.run_summary import RunSummary
    from sweeps.evolve.programs import EvolvedRouter
    from sweeps.evolve.task import Task

NUM_FIRST = 3  # seeds before a program may be dropped
ERROR = 0.05
ZONE = 2.0  # % of the baseline by which a program is better, or else may be lost
POPULATION, TOURNAMENT, MOST_SIZE, DEPTH = 60, 5, 40, 3
BY_MEAN = Inference(num_resamples=0)


@dataclass(frozen=True)
class Bred:
    """A formula that has run, with its results.

    Attributes:
        formula: the formula.
        score: the gain in % minus the guards' penalties, on the seeds that the formula ran on.
        values: the weighted sum of metrics in % of the baseline's mean, by seed; smaller is better.
    """

    formula: Formula
    score: float
    values: np.ndarray


@dataclass(frozen=True)
class FoundRouter:
    """The outcome of a search.

    Attributes:
        best: the best formula, shortened.
        baseline: the name of the router that the gain is measured against.
        num_programs: the number of programs that compute different functions.
        num_dropped: how many of these programs were dropped before they had run on all seeds.
        curve: a pair (programs run so far, best score) each time that the best score rose.
    """

    best: Bred
    baseline: str
    num_programs: int
    num_dropped: int
    curve: tuple[tuple[int, float], ...]

    @property
    def python(self) -> str:
        """Return the formula as a policy."""
        return python_of(self.best.formula)

    @property
    def go(self) -> str:
        """Return the formula as the block of Go that goes between the marks of a `routing.go`."""
        return go_of(self.best.formula)

    @property
    def rule(self) -> str:
        """Return the sentence that says by which rule programs are dropped."""
        return (
            f"A program that is better than the best so far by {ZONE:g} % of the baseline or more is kept with a "
            f"probability of at least {100 * (1 - ERROR):g} % (Kim and Nelson, normal differences)."
        )


def searched(
    task: Task,
    num_programs: int,
    most_s: float,
    random_state: int,
    tell: Callable[[int, Bred], None],
    first: Sequence[Formula] = (),
) -> FoundRouter:
    """Search for a router for a task, starting from the formulas `first`; call `tell` after every program that ran.

    Raises:
        ConfigError: the task is at fault, or no program finished its runs.
    """
    baseline = router_of(task.file.baseline, task, task.path.parent / "programs")
    runs = TaskRuns(task, task.file.seeds)
    breeder = Breeder(runs, baseline, np.random.default_rng(random_state))
    best = breeder.search(num_programs, most_s, tell, first)
    return FoundRouter(
        best, baseline.name, len(breeder.seen), breeder.num_dropped, tuple(breeder.curve)
    )


@dataclass
class Breeder:
    """Breed formulas for a task.

    Attributes:
        runs: the runner of the task's workloads, on the search's seeds.
        baseline: the router that gains are measured against.
        rng: the source of every random choice.
        population: the formulas that children are bred from.
        seen: the results so far, by the formula's table of operations; None for a program that failed.
        curve: a pair (programs run so far, best score) each time that the best score rose.
        num_dropped: how many programs were dropped before they had run on all seeds.
    """

    runs: TaskRuns
    baseline: EvolvedRouter
    rng: np.random.Generator
    population: list[Bred] = field(default_factory=list)
    seen: dict[Any, Bred | None] = field(default_factory=dict)
    curve: list[tuple[int, float]] = field(default_factory=list)
    num_dropped: int = 0
    best: Bred | None = None

    def __post_init__(self) -> None:
        """Run the baseline, and read from the task's cluster what a table of operations needs."""
        task = self.runs.task
        self._seeds: tuple[int, ...] = task.file.seeds
        if len(self._seeds) < NUM_FIRST:
            raise ConfigError(
                f"{task.path.name}: seeds: a search needs {NUM_FIRST} or more, got {len(self._seeds)}"
            )
        if task.base.node_pools and task.base.cluster_policy != "none":
            raise ConfigError(
                f"{task.path.name}: cluster: a search needs a fixed number of instances; leave the autoscaler out"
            )
        self._router = numbered(task.base)
        self._before = self.runs.of(self.baseline, self._seeds)

    @property
    def num_scorers(self) -> int:
        """Return how many scorers a formula may read."""
        return len(self._router.scorers)

    def search(
        self,
        num_programs: int,
        most_s: float,
        tell: Callable[[int, Bred], None],
        first: Sequence[Formula] = (),
    ) -> Bred:
        """Return the best formula, shortened, after `num_programs` programs or `most_s` seconds."""
        began = time.monotonic()
        waiting = [*first, *self._first()]
        while len(self.seen) < num_programs and time.monotonic() - began < most_s:
            formula = waiting.pop(0) if waiting else self._child()
            made = self.evaluated(formula)
            if made is not None:
                self._take(made)
                tell(len(self.seen), self.best or made)
        if self.best is None:
            raise ConfigError(
                f"none of {len(self.seen)} programs came to its end; give the search more time, or less load"
            )
        return self._shortened(self.best)

    def _first(self) -> list[Formula]:
        unit = Formula(NUMBER, number=1.0)
        known = [Formula("over", (unit, Formula("load")))]
        scores = [Formula(SCORER, number=float(at)) for at in range(self.num_scorers)]
        weights = [weight for _, weight in parse_scorers(self.runs.task.base.routing_scorers)]
        parts = [
            score if weight == 1 else Formula("times", (Formula(NUMBER, number=weight), score))
            for weight, score in zip(weights, scores, strict=True)
        ]
        total = [functools.reduce(lambda first, other: Formula("plus", (first, other)), parts)]
        rest = [drawn(self.rng, self.num_scorers, DEPTH) for _ in range(POPULATION)]
        return [*total, *known, *(formula for formula in rest if formula.tells_apart)]

    def _child(self) -> Formula:
        while True:
            first, second = (self._chosen() for _ in range(2))
            child = folded(child_of(self.rng, first.formula, second.formula, self.num_scorers))
            if child.size <= MOST_SIZE and child.tells_apart:
                return child

    def _chosen(self) -> Bred:
        places = self.rng.integers(len(self.population), size=TOURNAMENT)
        return max((self.population[at] for at in places), key=lambda bred: bred.score)

    def _take(self, made: Bred) -> None:
        self.population.append(made)
        if len(self.population) > POPULATION:
            self.population.remove(min(self.population, key=lambda bred: bred.score))
        is_whole = len(made.values) == len(self._seeds)
        if is_whole and (self.best is None or made.score > self.best.score):
            self.best = made
            self.curve.append((len(self.seen), made.score))

    def _table(self, formula: Formula) -> Any:
        scope: dict[str, Any] = {}
        exec(compile(python_of(formula), "<formula>", "exec"), scope)
        return as_table(scope["route"], rows_to_begin_with(self.runs.task.base), self.num_scorers)

    def evaluated(self, formula: Formula) -> Bred | None:
        """Run a formula seed by seed until it loses to the best; None if it fails or its function has run before."""
        table = self._table(formula)
        if table in self.seen:
            return None
        self.seen[table], made = None, None
        for count in range(NUM_FIRST, len(self._seeds) + 1):
            try:
                runs = self.runs_of(formula, self._seeds[:count], table)
            except ConfigError:  # such as one that sends everything to one instance, for ever
                return None
            made = self._worth(formula, runs)
            if not np.isfinite(made.score):
                return None
            if count < len(self._seeds) and self._is_out(made):
                self.num_dropped += 1
                break
        self.seen[table] = made
        return made

    def runs_of(
        self, formula: Formula, seeds: tuple[int, ...], table: Any = None
    ) -> list[tuple[RunSummary, ...]]:
        """Return the runs of a formula by workload; runs that exist are reused.

        Raises:
            ConfigError: a run did not finish.
        """
        table = table or self._table(formula)
        router = self._router
        handed = Policies(routing=table, scorers=router.scorers, picker=router.picker)
        key = f"formula {hash(table)}"
        return self.runs.of_key(key, str(formula), seeds, self.runs.task.base, handed)

    def _is_out(self, made: Bred) -> bool:
        """Return whether the program loses to the best so far, by the procedure of Kim and Nelson for two systems."""
        if self.best is None:
            return False
        theirs = self.best.values[: len(made.values)]
        finalists = Finalists(2, NUM_FIRST, ZONE, ERROR)
        return finalists.look([made.values, theirs], [(), ()]).out_by[0] is not None

    def _worth(self, formula: Formula, runs: Sequence[tuple[RunSummary, ...]]) -> Bred:
        task, count = self.runs.task, len(runs[0])
        pairs = [
            RunPair(requests, before[:count], after)
            for requests, before, after in zip(task.requests, self._before, runs, strict=True)
        ]
        penalty = sum(
            verdict.guard.weight * verdict.past for verdict in guarded(task, pairs, by_mean=True)
        )
        score = gain(pairs, task.metrics, BY_MEAN).mean - penalty
        parts = [
            100 * weighted(pair.program, task.metrics) / np.mean(weighted(before, task.metrics))
            for pair, before in zip(pairs, self._before, strict=True)
        ]
        return Bred(formula, float(score), np.mean(parts, axis=0) + penalty)

    def _shortened(self, best: Bred) -> Bred:
        """Shorten the best formula step by step while its score does not fall; return the shortest one found."""
        best, again = replace(best, formula=folded(best.formula)), True
        while again:
            again = False
            for formula in shorter(best.formula):
                made = self.evaluated(formula) or self.seen[self._table(formula)]
                is_whole = made is not None and len(made.values) == len(self._seeds)
                if made is not None and is_whole and made.score >= best.score:
                    best, again = replace(made, formula=formula), True
                    break
        self.best = best
        return best

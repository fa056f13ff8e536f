"""`python -m benchmarks.coverage.searches.racing`: what rungs cost and bring to a search whose truth is known.

The worlds are those of `benchmarks.coverage.searches.penalties`. A search tries all their points in a random order, in
batches of 8. Without rungs every point runs on 16 or on 64 seeds; with them on 4, and those that may be the best on 16,
then on 64. By a model, the point that the processes of the engine `denoised` hold best goes on, up to 256 seeds, and is
where the search ends. All ways see the same values.

A cell has the mean regret, how much worse an end's true score is than the best point's, and the runs of a search as a
share of those that 16 seeds for every point take.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from benchmarks.coverage.searches.penalties import (
    CONSTRAINT,
    OBJECTIVE,
    RULES,
    STRATEGY,
    WORLDS,
    World,
)
from benchmarks.coverage.worlds import number_option
from blis_jax.core.outcome import Outcome
from blis_jax.metrics.run_summary import RunSummary
from papers.pages import print_rows
from sweeps.search.engines import Told, recommended
from sweeps.search.engines.denoised import modelled_of, ranked
from sweeps.search.loop import best_of, most_runs, search
from sweeps.search.objectives import Runs, Valuation
from sweeps.strategies.file import parse_strategy
from sweeps.strategies.space import Point

NUM_SAMPLES = 200
USUAL, MOST, BATCH = 16, 64, 8  # seeds of a point, seeds of the best ones, points of a batch
DEEPEST = 256  # seeds of the best ones by a model


class Way(NamedTuple):
    """How a search gives runs to points."""

    num_seeds: int
    rungs: tuple[int, ...] = ()  # below these
    by_model: bool = False


WAYS = {
    f"{USUAL} seeds": Way(USUAL),
    f"{MOST} seeds": Way(MOST),
    f"4, {USUAL} and {MOST}": Way(MOST, (4, USUAL)),
    f"4 to {DEEPEST} by a model": Way(DEEPEST, (4, USUAL, MOST), True),
}


class Listed:
    """An engine that asks for the points of a list in order."""

    def __init__(self, points: Sequence[Point]) -> None:
        """Keep the points, in the order in which they are asked for."""
        self.points = points

    def ask(self, told: Sequence[Told], count: int) -> list[Point]:
        """Return the next points of the list."""
        return list(self.points[len(told) : len(told) + count])


class Places:
    """The one feature of a world's points: their place in the list."""

    def __init__(self, count: int) -> None:
        """Keep the number of points."""
        self.count = count

    def features(self, points: Sequence[Point]) -> np.ndarray:
        """Return `[point, 1]`, between 0 and 1."""
        return np.array(points, float) / (self.count - 1)


class Modelled(Listed):
    """An engine that asks for the points of a list, and recommends one by the processes of the engine `denoised`."""

    def ranked(self, told: Sequence[Told]) -> list[int]:
        """Return the indices of the points, the best ones first."""
        return ranked(told, modelled_of(Places(len(self.points)), told))


def valuation_of(world: World, rule: str, way: Way) -> Valuation:
    """Return the valuation that a search of a world uses, with its seeds and its budget of runs."""
    calls = len(world.objective)
    if way.by_model:  # as many runs as 16 seeds for every point take
        calls = calls * USUAL // way.num_seeds
    budget = {"calls": calls, "batch": BATCH, "initial": BATCH, "rungs": list(way.rungs)}
    text = STRATEGY % (OBJECTIVE, CONSTRAINT, world.weight, rule)
    text += f"seeds: {list(range(way.num_seeds))}\nsearch: {budget}\n".replace("'", "")
    return Valuation(parse_strategy(text, "benchmarks.coverage.searches.racing"))


def ended(
    valuation: Valuation,
    order: np.ndarray,
    objective: np.ndarray,
    excess: np.ndarray,
    by_model: bool = False,
) -> tuple[int, int]:
    """Return the index of the point at which a search ends, and the number of runs that the search took."""

    def run(points: Sequence[Point], places: range) -> list[Runs]:
        """Return the values of points on the seeds at `places`, as summaries of runs."""
        return [
            tuple(
                RunSummary(
                    Outcome.COMPLETED,
                    {OBJECTIVE: float(objective[at, seed]), CONSTRAINT: float(excess[at, seed])},
                )
                for seed in places
            )
            for (at,) in points
        ]

    engine = (Modelled if by_model else Listed)([(int(at),) for at in order])
    tried = search(engine, valuation, run)
    place = recommended(engine, [point_tried.told() for point_tried in tried], most_runs(tried))
    best = best_of(tried) if place is None else tried[place]
    assert best is not None
    return best.point[0], sum(len(point_tried.runs) for point_tried in tried)


def cell(world: World, rule: str, way: Way, num_samples: int) -> tuple[float, float]:
    """Return the mean regret, and the mean number of runs as a share of those that 16 seeds for every point take."""
    rng, valuation = np.random.default_rng(MOST), valuation_of(world, rule, way)
    regrets, shares = [], []
    for _ in range(num_samples):
        values, order = world.draw(rng, DEEPEST), rng.permutation(len(world.objective))
        place, num_runs = ended(valuation, order, *values, way.by_model)
        regrets.append(world.regret[place])
        shares.append(num_runs / (USUAL * len(world.objective)))
    return float(np.mean(regrets)), float(np.mean(shares))


def main() -> None:
    """Print the table."""
    num_samples = number_option(__doc__, "samples", NUM_SAMPLES)
    print("Mean regret / runs over those of 16 seeds for every point")
    print_rows(("world", "penalties", *WAYS), (
        (name, rule, *("{:.2f} / {:.2f}".format(*cell(world, rule, way, num_samples)) for way in WAYS.values()))
        for name, world in WORLDS.items()
        for rule in (RULES[0], RULES[-1])
    ))  # fmt: skip


if __name__ == "__main__":
    main()

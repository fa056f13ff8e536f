"""`python -m benchmarks.coverage.searches.racing`: what rungs cost and bring to a search whose truth is known.

The worlds are those of `benchmarks.coverage.searches.penalties`. A search tries all their points in a random order, in
batches of 8. Without rungs every point runs on 16 or on 64 seeds; with them on 4, and those that may be the best on 16,
then on 64. All ways see the same values. A cell has the mean regret, how much worse an end's true score is than the
best point's, and the runs of a search as a share of those that 16 seeds for every point take.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from benchmarks.coverage.searches.penalties import (
    CONSTRAINT,
    OBJECTIVE,
    RULES,
    STRATEGY,
    WORLDS,
    World,
)
from benchmarks.coverage.sizes import asked
from sweeps.search.engines import Told
from sweeps.search.loop import search
from sweeps.search.objectives import Runs, SeedResult, Valuation
from sweeps.search.racing import best_of
from sweeps.strategies.file import parse_strategy
from sweeps.strategies.space import Point

NUM_SAMPLES = 200
USUAL, MOST, BATCH = 16, 64, 8  # seeds of a point, seeds of the best ones, points of a batch
WAYS = {  # seeds of a point, rungs below them
    f"{USUAL} seeds": (USUAL, ()),
    f"{MOST} seeds": (MOST, ()),
    f"4, {USUAL} and {MOST}": (MOST, (4, USUAL)),
}


class Listed:
    """An engine that has a list of points."""

    def __init__(self, points: Sequence[Point]) -> None:
        """In their order."""
        self.points = points

    def ask(self, told: Sequence[Told], count: int) -> list[Point]:
        """The next ones."""
        return list(self.points[len(told) : len(told) + count])


def valuation_of(world: World, rule: str, num_seeds: int, rungs: Sequence[int]) -> Valuation:
    """How a search of a world counts, and how many runs of which points it may have."""
    budget = {"calls": len(world.objective), "batch": BATCH, "rungs": list(rungs)}
    text = STRATEGY % (OBJECTIVE, CONSTRAINT, world.weight, rule)
    text += f"seeds: {list(range(num_seeds))}\nsearch: {budget}\n".replace("'", "")
    return Valuation(parse_strategy(text, "benchmarks.coverage.searches.racing"))


def ended(
    valuation: Valuation, order: np.ndarray, objective: np.ndarray, excess: np.ndarray
) -> tuple[int, int]:
    """The place of the point that a search ends at, and its runs; the values are `[point, seed]`."""

    def run(points: Sequence[Point], places: range) -> list[Runs]:
        """The values of points on some seeds, as runs."""
        return [
            tuple(
                SeedResult(
                    "COMPLETED",
                    {OBJECTIVE: float(objective[at, seed]), CONSTRAINT: float(excess[at, seed])},
                )
                for seed in places
            )
            for (at,) in points
        ]

    tried = search(Listed([(int(at),) for at in order]), valuation, run)
    best = best_of(tried)
    assert best is not None
    return best.point[0], sum(len(one.runs) for one in tried)


def cell(
    world: World, rule: str, way: tuple[int, tuple[int, ...]], num_samples: int
) -> tuple[float, float]:
    """Mean regret, and mean runs over those of the usual way."""
    rng, valuation = np.random.default_rng(MOST), valuation_of(world, rule, *way)
    regrets, shares = [], []
    for _ in range(num_samples):
        values, order = world.draw(rng, MOST), rng.permutation(len(world.objective))
        place, num_runs = ended(valuation, order, *values)
        regrets.append(world.regret[place])
        shares.append(num_runs / (USUAL * len(world.objective)))
    return float(np.mean(regrets)), float(np.mean(shares))


def main() -> None:
    """Print the table."""
    num_samples = asked(__doc__, "samples", NUM_SAMPLES)
    print("Mean regret / runs over those of 16 seeds for every point")
    print(f"| world | penalties | {' | '.join(WAYS)} |\n|{'---|' * (2 + len(WAYS))}")
    for name, world in WORLDS.items():
        for rule in (RULES[0], RULES[-1]):
            found = [cell(world, rule, way, num_samples) for way in WAYS.values()]
            cells = " | ".join(f"{regret:.2f} / {share:.2f}" for regret, share in found)
            print(f"| {name} | {rule} | {cells} |", flush=True)


if __name__ == "__main__":
    main()

"""`python -m benchmarks.coverage.searches.penalties`: where searches end that count penalties in one way or another.

A search is taken to its limit: it has run every point of a world on a few seeds and ends at the lowest score, by the
valuation that searches use. The truth of every point is known. A cell says how many of the ends break the limit in
truth, by how much in the mean of all ends, and how much worse than the best point an end's true score is (its regret).

The normal worlds are like iteration 8's space: slack under the limit costs the objective 0.05 ms a ms, and the mean
over 16 seeds of the constraint's metric has a standard error of 7.7 ms, half of its variance common to all points. In
the first the best point lies at the limit, in the second 30 ms within. In the queues, M/M/1, as much load is wanted as
keeps the mean wait within that of 70 %; all loads have the same random numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from benchmarks.coverage.worlds import mean_wait, number_option, queues
from blis_jax.core.outcome import Outcome
from blis_jax.metrics.run_summary import RunSummary
from papers.pages import print_rows
from sweeps.search.objectives import Valuation
from sweeps.strategies.file import parse_strategy

NUM_SAMPLES = 300
SEEDS = (4, 8, 16, 32)
RULES = ("seed-mean", "each-seed", "expected")
OBJECTIVE, CONSTRAINT = "ttft_p99_ms[critical]", "ttft_p99_ms[sheddable]"
OBJECTIVE_SPREAD, SPREAD = 4.0, 4 * 7.7  # ms, of a seed: as in iteration 8's space
SLOPE, WEIGHT, WITHIN = 0.05, 2.0, 30.0  # WITHIN in ms
SLACKS = np.arange(-40.0, 82.0, 2.0)  # ms under the limit, of the points
LOADS = np.arange(0.50, 0.86, 0.01)
LIMITED_LOAD, WAIT_WEIGHT = 0.7, 20.0  # a wait beyond costs about twice the load that it is won by
STRATEGY = """
name: known
mechanism: {num_instances: 1}
parameters: {max_num_scheduled_tokens: [600, 2048]}
objectives: [{metric: "%s"}]
constraints: [{metric: "%s", direction: min, threshold: 0, weight: %g}]
workload: mixed
penalties: %s
"""


# objectives and excesses, `[point, seed]`, on so many seeds
Draw = Callable[[np.random.Generator, int], tuple[np.ndarray, np.ndarray]]


class World(NamedTuple):
    """Points with a true objective and a true excess over their limit; lower is better."""

    objective: np.ndarray  # [point]
    excess: np.ndarray  # [point], positive where the limit is broken
    weight: float
    draw: Draw

    @property
    def regret(self) -> np.ndarray:
        """Return how much worse than the best point each point truly is."""
        score = self.objective + self.weight * np.maximum(self.excess, 0)
        return np.asarray(score - score.min())


def normal(objective: np.ndarray) -> World:
    """Return a world of points whose slack is known; half of the noise's variance is common to all points."""

    def draw(rng: np.random.Generator, num_seeds: int) -> tuple[np.ndarray, np.ndarray]:
        drawn = []
        for true, spread in ((objective, OBJECTIVE_SPREAD), (-SLACKS, SPREAD)):
            noise = rng.normal(size=num_seeds) + rng.normal(size=(len(SLACKS), num_seeds))
            drawn.append(true[:, None] + spread * noise / np.sqrt(2))
        return drawn[0], drawn[1]

    return World(objective, -SLACKS, WEIGHT, draw)


def of_queues() -> World:
    """Return a world of loads of an M/M/1 queue; the objective is minus the load, in %."""
    limit = mean_wait(LIMITED_LOAD)

    def draw(rng: np.random.Generator, num_seeds: int) -> tuple[np.ndarray, np.ndarray]:
        """Draw objectives and excesses of all loads with common random numbers."""
        state = int(rng.integers(2**32))
        waits = [
            queues(np.random.default_rng(state), (1, num_seeds), float(load)).first[0]
            for load in LOADS
        ]
        return np.repeat(-100 * LOADS[:, None], num_seeds, axis=1), np.array(waits) - limit

    excess = np.array([mean_wait(load) for load in LOADS]) - limit
    return World(-100 * LOADS, excess, WAIT_WEIGHT, draw)


WORLDS = {
    "best at the limit": normal(SLOPE * SLACKS),
    "best 30 ms within": normal(SLOPE * np.abs(SLACKS - WITHIN)),
    "M/M/1": of_queues(),
}


def end_of(valuation: Valuation, objective: np.ndarray, excess: np.ndarray) -> int:
    """Return the index of the point with the lowest score by `objective` and `excess` `[point, seed]`, where a search
    of all points ends.
    """
    worths = [
        valuation.worth(
            [
                RunSummary(Outcome.COMPLETED, {OBJECTIVE: a, CONSTRAINT: b})
                for a, b in zip(*of_point, strict=True)
            ]
        )
        for of_point in zip(objective.tolist(), excess.tolist(), strict=True)
    ]
    return int(np.argmin([worth.score for worth in worths]))


def ends(world: World, rule: str, num_seeds: int, num_samples: int) -> np.ndarray:
    """Return the index of the point at which each made-up search ends; searches by all rules see the same seeds."""
    text = STRATEGY % (OBJECTIVE, CONSTRAINT, world.weight, rule)
    valuation = Valuation(parse_strategy(text, "benchmarks.coverage.searches.penalties"))
    rng = np.random.default_rng(num_seeds)
    return np.array([
        end_of(valuation, *world.draw(rng, num_seeds)) for _ in range(num_samples)
    ])  # fmt: skip


def cell(world: World, places: np.ndarray) -> str:
    """Write the % of ends that break the limit, the mean excess over all ends, and the mean regret."""
    excess = world.excess[places]
    beyond, broken = np.maximum(excess, 0).mean(), 100 * (excess > 1e-9).mean()
    return f"{broken:.0f} % / {beyond:.2f} / {world.regret[places].mean():.2f}"


def main() -> None:
    """Print the table."""
    num_samples = number_option(__doc__, "samples", NUM_SAMPLES)
    print("Ends that break the limit in truth / mean amount beyond it / mean regret")
    print_rows(("world", "penalties", *(f"{count} seeds" for count in SEEDS)), (
        (name, rule, *(cell(world, ends(world, rule, count, num_samples)) for count in SEEDS))
        for name, world in WORLDS.items()
        for rule in RULES
    ))  # fmt: skip


if __name__ == "__main__":
    main()

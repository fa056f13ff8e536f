"""`python -m benchmarks.coverage.searches.grouped`: how often intervals by a jackknife over groups of seeds hold.

The search benchmark judges a point by the difference of its score from a reference point's, with the standard error
that leaves out one of 32 groups of seeds at a time. Two statistics have known truths here. The score: a difference
of means plus a weight times what the mean of a constraint's metric exceeds its limit by, so that it has a kink at
the limit; the true mean lies so many standard errors from the limit. And the difference of two pooled P99s, a plain
percentile of all requests. Intervals are Student's, with one degree of freedom less than there are groups.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from benchmarks.coverage import pooled
from benchmarks.coverage.worlds import Pairs, mean_wait, normal, number_option, queues
from benchmarks.search.judging import GROUPS, grouped_error
from blis_jax.statistics.intervals import t_quantile
from papers.pages import print_rows

NUM_SAMPLES = 500
SEEDS = (64, 256)
WEIGHT = 2.0  # of the constraint
BEYOND = (-3, -1, 0, 1, 3)  # standard errors that the true mean is beyond the limit
LOAD, FASTER = 0.7, 1.06
World = Callable[[np.random.Generator, tuple[int, int]], tuple[Pairs, np.ndarray]]
Statistic = Callable[[np.ndarray], float]


def normal_world(rng: np.random.Generator, shape: tuple[int, int]) -> tuple[Pairs, np.ndarray]:
    """Draw differences with standard deviation 1, and a constraint with 5, correlated by 0.6; both true means are 0."""
    pairs = normal(rng, shape)
    shared = pairs.second - pairs.first
    return pairs, 5 * (0.6 * shared + 0.8 * rng.normal(size=shape))


def queue_world(rng: np.random.Generator, shape: tuple[int, int]) -> tuple[Pairs, np.ndarray]:
    """Draw the mean waits of two M/M/1 queues with the same arrivals; the constraint is the second's mean wait less its
    true mean.
    """
    pairs = queues(rng, shape, LOAD, FASTER)
    return pairs, pairs.second - mean_wait(LOAD / FASTER) / FASTER


WORLDS: dict[str, World] = {"normal": normal_world, "M/M/1": queue_world}


def held(statistic: Statistic, truth: float, num_seeds: int, num_groups: int) -> bool:
    """Return whether the interval of a statistic holds its truth."""
    error = grouped_error(statistic, num_seeds, num_groups)
    return abs(statistic(np.arange(num_seeds)) - truth) <= t_quantile(num_groups) * error


def scores(world: World, num_seeds: int, num_samples: int) -> list[str]:
    """Return for each distance from the limit the coverage with groups of seeds, and with each seed as a group."""
    rng = np.random.default_rng(num_seeds)
    pairs, values = world(rng, (num_samples, num_seeds))
    change, error = pairs.second - pairs.first, float(values.std()) / np.sqrt(num_seeds)
    cells = []
    for beyond in BEYOND:
        truth = pairs.truth + WEIGHT * max(beyond * error, 0.0)
        held_each = []
        for of_change, of_limit in zip(change, values + beyond * error, strict=True):
            statistic = score_of(of_change, of_limit)
            held_each.append(
                [held(statistic, truth, num_seeds, each) for each in (GROUPS, num_seeds)]
            )
        cells.append(" / ".join(f"{100 * share:.1f}" for share in np.mean(held_each, axis=0)))
    return cells


def score_of(change: np.ndarray, excess: np.ndarray) -> Statistic:
    """Return the difference of scores on some seeds; the reference keeps its limit."""

    def statistic(places: np.ndarray) -> float:
        return float(change[places].mean() + WEIGHT * max(excess[places].mean(), 0.0))

    return statistic


def pooled_difference(first: pooled.Runs, second: pooled.Runs) -> Statistic:
    """Return the difference of the P99s of all requests on some seeds, ms."""
    return lambda places: (
        pooled.p99_ms([second[at] for at in places]) - pooled.p99_ms([first[at] for at in places])
    )


def percentiles(num_seeds: int, num_samples: int) -> str:
    """Return the cell of the difference of pooled P99s of two lognormal strategies."""
    rng, world = np.random.default_rng(num_seeds), pooled.lognormal()
    held_each = []
    for _ in range(num_samples):
        statistic = pooled_difference(*world.draw(rng, num_seeds))
        truth = world.second - world.first
        held_each.append([held(statistic, truth, num_seeds, each) for each in (GROUPS, num_seeds)])
    return " / ".join(f"{100 * share:.1f}" for share in np.mean(held_each, axis=0))


def main() -> None:
    """Print both tables."""
    num_samples = number_option(__doc__, "samples", NUM_SAMPLES)
    print(f"% of 95 % intervals that hold the truth: {GROUPS} groups of seeds / each seed left out")
    heads = [f"{beyond:+d}" if beyond else "at the limit" for beyond in BEYOND]
    print_rows(("score, s.e. beyond the limit", "seeds", *heads), (
        (name, num_seeds, *scores(world, num_seeds, num_samples))
        for name, world in WORLDS.items()
        for num_seeds in SEEDS
    ))  # fmt: skip
    print()
    rows = ((f"{count} seeds", percentiles(count, num_samples // 2)) for count in SEEDS)
    print_rows(("difference of pooled P99s", "lognormal"), rows)


if __name__ == "__main__":
    main()

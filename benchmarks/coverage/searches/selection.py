"""`python -m benchmarks.coverage.searches.selection`: how often the best of several is chosen, and with how many seeds.

Systems share the seeds. In the normal world one system is better than all others by just the indifference zone, the
hardest case, and each has a constraint that it keeps or misses by just its tolerance. In the queues, M/M/1 with the
same arrivals, the best serves 6 % faster than the others, and its mean wait is known. `--comparison` takes the seeds
of a recorded comparison as a world. Beside it stands what is usually done: as many seeds as the procedure took in
the middle, and the smallest mean.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from benchmarks.coverage.worlds import (
    from_comparison,
    mean_wait,
    queues,
    recorded_options,
)
from blis_jax.statistics.sequential import Finalists, Slack
from papers.pages import print_rows

NUM_SAMPLES, NUM_FIRST, MOST_SEEDS, STEP = 500, 20, 6000, 10
FASTER = 1.06
Drawn = tuple[np.ndarray, np.ndarray | None]  # values, and slacks of a constraint, `[system, seed]`
World = tuple[Callable[[np.random.Generator], Drawn], int, float, float]


def chosen(drawn: Drawn, zone: float, tolerance: float) -> tuple[int, int]:
    """Return the system that is chosen, −1 for none or several, and the number of seeds."""
    values, slacks = drawn
    finalists = Finalists(len(values), NUM_FIRST, zone, 0.05)
    count = NUM_FIRST
    while True:
        kept = [
            [] if slacks is None else [Slack(slacks[at, :count], tolerance)]
            for at in range(len(values))
        ]
        selection = finalists.look(list(values[:, :count]), kept)
        if selection.is_over or count + STEP > values.shape[1]:
            return (selection.left[0] if selection.is_over and selection.left else -1), count
        count += max(STEP, count // 10)
        count = min(count, values.shape[1])


def normal(num_systems: int, correlation: float, has_constraints: bool) -> World:
    """Return a world in which the last system that keeps its constraint is best by 0.25 standard deviations."""
    zone = tolerance = 0.25

    def draw(rng: np.random.Generator) -> Drawn:
        """Draw values of all systems on common seeds, and by how much each keeps its constraint."""
        shared = np.sqrt(correlation) * rng.normal(size=MOST_SEEDS)
        noise = np.sqrt(1 - correlation) * rng.normal(size=(num_systems, MOST_SEEDS))
        means = np.full(num_systems, zone)
        means[-1] = 0.0
        if not has_constraints:
            return shared + noise + means[:, None], None
        means[0] = -zone  # faster, but it misses the constraint
        keeps = np.full(num_systems, tolerance)
        keeps[0] = -tolerance
        return shared + noise + means[:, None], keeps[:, None] + rng.normal(size=noise.shape)

    return draw, num_systems - 1, zone, tolerance


def of_queues() -> World:
    """Return a world of two queues with the same arrivals; the zone is their true difference."""
    zone = abs(mean_wait(0.7 / FASTER) / FASTER - mean_wait(0.7))

    def draw(rng: np.random.Generator) -> Drawn:
        pairs = queues(rng, (1, 2000), faster=FASTER)
        return np.concatenate([pairs.first, pairs.second]), None

    return draw, 1, zone, zone


def of_comparison(path: str, metric: str, slo_class: str) -> World:
    """Return a world of two recorded arms; the zone is their difference."""
    arms = np.stack(from_comparison(path, metric, slo_class))
    means = arms.mean(axis=1)

    def draw(rng: np.random.Generator) -> Drawn:
        return arms[:, rng.integers(0, arms.shape[1], MOST_SEEDS)], None

    return draw, int(means.argmin()), float(abs(means[0] - means[1])), 1.0


def row(world: World, num_samples: int) -> str:
    """Write the row of a world: % chosen rightly; median and 90th percentile of the seeds; % rightly
    by the smallest mean.
    """
    draw, best, zone, tolerance = world
    rng = np.random.default_rng(4)
    drawn = [draw(rng) for _ in range(num_samples)]
    choices = np.array([chosen(sample, zone, tolerance) for sample in drawn])
    middle = int(np.median(choices[:, 1]))
    naive = np.mean([int(values[:, :middle].mean(axis=1).argmin()) == best for values, _ in drawn])
    right = 100 * (choices[:, 0] == best).mean()
    return f"{right:.1f} | {middle} | {np.quantile(choices[:, 1], 0.9):.0f} | {100 * naive:.1f}"


def main() -> None:
    """Print the table."""
    options = recorded_options(__doc__, NUM_SAMPLES)
    worlds = {
        "normal, 2 systems, no shared seeds": normal(2, 0.0, has_constraints=False),
        "normal, 5 systems, no shared seeds": normal(5, 0.0, has_constraints=False),
        "normal, 5 systems, correlated by 0.9": normal(5, 0.9, has_constraints=False),
        "normal, 5 systems with a constraint": normal(5, 0.0, has_constraints=True),
        "M/M/1 at 70 %, one 6 % faster": of_queues(),
    }
    if options.comparison is not None:
        name = f"{options.metric}[{options.slo_class}] of two recorded arms"
        worlds[name] = of_comparison(options.comparison, options.metric, options.slo_class)
    print_rows(
        (
            "world",
            "chosen rightly, %",
            "seeds, median",
            "90 %",
            "smallest mean on as many seeds, %",
        ),
        ((name, row(world, options.samples)) for name, world in worlds.items()),
    )


if __name__ == "__main__":
    main()

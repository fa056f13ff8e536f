"""`python -m benchmarks.coverage.pooled`: how often intervals of pooled P99, and of differences of two, hold them.

Requests of a run share a level, as those of one busy seed do; two strategies share most of it. The truth of
these lognormal latencies is known. With `--sweep out/sweep.zarr` the runs of a sweep are the world: seeds are
drawn from its seeds with replacement, and the truth is the P99 of all its requests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import xarray as xr
from scipy import stats

from blis_jax.metrics.run_summary import RANKS, Tails, kept_of, tails_of_runs
from blis_jax.statistics.pooled import contributions_ms
from papers.pages import print_rows, table_parser

SEEDS = (5, 10, 20, 50, 100, 256)
MOST_SEEDS_RESAMPLED = 50  # the other methods take long beyond
NUM_SAMPLES, NUM_REQUESTS, NUM_RESAMPLES = 1000, 200, 200
LEVELS = (0.95, 0.997)  # of one comparison, and of one of 17 that are looked at together
# spread of logarithms: of runs, requests, a strategy's runs
BETWEEN, WITHIN, OWN = (
    0.10,
    0.35,
    0.03,
)
FASTER = 0.95
P99 = float(stats.norm.ppf(0.99))
Runs = Sequence[np.ndarray]  # latencies in µs


class World(NamedTuple):
    """The function that draws runs of two strategies on a number of seeds, and each strategy's true P99 in ms."""

    draw: Callable[[np.random.Generator, int], tuple[Runs, Runs]]
    first: float
    second: float


def lognormal() -> World:
    """Return a world whose two strategies share most of each seed's level; the second is faster by 5 %."""

    def draw(rng: np.random.Generator, num_seeds: int) -> tuple[Runs, Runs]:
        """Draw the runs of both strategies on `num_seeds` seeds."""
        level = rng.normal(0, BETWEEN, num_seeds)
        latencies = []
        for scale in (1.0, FASTER):
            levels = level + rng.normal(0, OWN, num_seeds)
            noise = rng.normal(0, WITHIN, (num_seeds, NUM_REQUESTS))
            latencies.append(1e5 * scale * np.exp(levels[:, None] + noise))
        return latencies[0], latencies[1]

    spread = np.sqrt(BETWEEN**2 + WITHIN**2 + OWN**2)
    true_ms = float(100 * np.exp(P99 * spread))
    return World(draw, true_ms, FASTER * true_ms)


def of_sweep(path: str, slo_class: str) -> World:
    """Return a world that draws seeds of a saved sweep with replacement, for its first two strategies."""
    dataset = xr.open_dataset(path, engine="zarr").sel(slo_class=slo_class)
    arms = []
    for row in (0, 1):
        strategy = dataset.isel(strategy=row)
        tails = Tails(strategy["ttft_count"].values.astype(int), strategy["ttft_top_us"].values)
        arms.append(tails)
    true_ms = [float(contributions_ms(arm).mean()) for arm in arms]

    def draw(rng: np.random.Generator, num_seeds: int) -> tuple[Runs, Runs]:
        chosen = rng.integers(0, len(arms[0].count), num_seeds)
        first, second = (
            [_whole(int(arm.count[at]), arm.top_us[at]) for at in chosen] for arm in arms
        )
        return first, second

    return World(draw, true_ms[0], true_ms[1])


def _whole(count: int, top_us: np.ndarray) -> np.ndarray:
    kept = np.flatnonzero(np.isfinite(top_us))
    return np.interp(np.arange(count), np.array(RANKS)[kept], top_us[kept])


def p99_ms(runs: Runs) -> float:
    """Return the P99 of all requests of the runs, in ms."""
    return float(np.percentile(np.concatenate(runs), 99)) / 1000


def by_contributions(runs: Runs) -> tuple[float, np.ndarray]:
    """Return the pooled percentile, and each seed's contribution to it as the commands compute them; the contributions'
    spread is the percentile's error.
    """
    parts = contributions_ms(tails_of_runs([kept_of(np.sort(run)) for run in runs]))
    return float(parts.mean()), parts


def by_jackknife(runs: Runs) -> tuple[float, np.ndarray]:
    """Return the percentile, and its jackknife values from leaving out each run in turn."""
    whole, count = p99_ms(runs), len(runs)
    without = [p99_ms([*runs[:at], *runs[at + 1 :]]) for at in range(count)]
    return whole, count * whole - (count - 1) * np.array(without)


def held_by_parts(
    method: Callable[[Runs], tuple[float, np.ndarray]], runs: tuple[Runs, Runs], world: World
) -> Iterator[bool]:
    """Yield whether the first strategy's interval holds its true P99, then for each level whether the difference's
    does.
    """
    (first, parts), (second, others) = (method(of_arm) for of_arm in runs)
    root, degrees = np.sqrt(len(parts)), len(parts) - 1
    error = parts.std(ddof=1) / root
    yield abs(first - world.first) <= stats.t.ppf(0.5 + LEVELS[0] / 2, degrees) * error
    error, true = (others - parts).std(ddof=1) / root, world.second - world.first
    for level in LEVELS:
        yield abs(second - first - true) <= stats.t.ppf(0.5 + level / 2, degrees) * error


def held_by_bootstrap(
    rng: np.random.Generator, runs: tuple[Runs, Runs], world: World
) -> Iterator[bool]:
    """Yield what `held_by_parts` yields, with the spread over resamples of the seeds as the error."""
    count = len(runs[0])
    drawn = [rng.integers(0, count, count) for _ in range(NUM_RESAMPLES)]
    values = np.array([[p99_ms([arm[at] for at in places]) for arm in runs] for places in drawn])
    first, second = (p99_ms(arm) for arm in runs)
    widened, degrees = np.sqrt(count / (count - 1)), count - 1
    error = values[:, 0].std(ddof=1) * widened
    yield abs(first - world.first) <= stats.t.ppf(0.5 + LEVELS[0] / 2, degrees) * error
    error = (values[:, 1] - values[:, 0]).std(ddof=1) * widened
    for level in LEVELS:
        yield (
            abs(second - first - (world.second - world.first))
            <= stats.t.ppf(0.5 + level / 2, degrees) * error
        )


def coverage(world: World, num_seeds: int, num_samples: int) -> list[str]:
    """Return a table cell for each method: coverage of one strategy, of the difference at 95 %, and at 99.7 %."""
    rng = np.random.default_rng(num_seeds)
    methods = ("contributions", "jackknife", "bootstrap")
    held_by_method: dict[str, list[list[bool]]] = {name: [] for name in methods}
    for sample in range(num_samples):
        runs = world.draw(rng, num_seeds)
        held_by_method["contributions"].append(list(held_by_parts(by_contributions, runs, world)))
        if num_seeds <= MOST_SEEDS_RESAMPLED and sample < num_samples // 4:
            held_by_method["jackknife"].append(list(held_by_parts(by_jackknife, runs, world)))
            held_by_method["bootstrap"].append(list(held_by_bootstrap(rng, runs, world)))
    return [
        " / ".join(f"{100 * share:.1f}" for share in np.mean(held, axis=0)) if held else "–"
        for held in held_by_method.values()
    ]


def main() -> None:
    """Print the table."""
    parser = table_parser(None, __doc__)
    parser.add_argument("--samples", type=int, default=NUM_SAMPLES, help="of each kind")
    parser.add_argument("--sweep", default=None, help="Dataset of a sweep of two strategies")
    parser.add_argument("--class", dest="slo_class", default="critical", help="of its requests")
    options = parser.parse_args()
    world = lognormal() if options.sweep is None else of_sweep(options.sweep, options.slo_class)
    print("%: intervals that hold one P99 / a difference at 95 % / a difference at 99.7 %")
    print_rows(
        ("seeds", "contributions", "jackknife, one run left out", "bootstrap of the runs"),
        ((num_seeds, *coverage(world, num_seeds, options.samples)) for num_seeds in SEEDS),
    )


if __name__ == "__main__":
    main()

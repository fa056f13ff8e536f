"""`python -m benchmarks.coverage.verdicts.sequential`: what rules that stop by looking at the seeds cost and keep.

Looks are those of `--decide` and `--precision`: 20 seeds, then more, at most 640. For deciding: how often a
difference is found that is not there (its mean is taken away), by the usual t-test at every look and by the
anytime-valid one; and for three effects, in standard deviations of a difference, how often it is found and with
how many seeds. For a precision: how often the interval at the end holds the difference, and with how many seeds.
`--comparison out/compare.json` adds the seeds of a comparison as a world.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from benchmarks.coverage.worlds import (
    Pairs,
    from_comparison,
    normal,
    queues,
    recorded,
    recorded_options,
)
from blis_jax.statistics.intervals import anytime_quantile, t_quantile
from blis_jax.statistics.paired import Pair
from blis_jax.statistics.sequential import StoppingRule, look
from papers.pages import print_rows

NUM_SAMPLES, MOST_SEEDS, CHUNK = 2000, 640, 100
EFFECTS = (0.1, 0.2, 0.4)
PRECISIONS = (4.0, 6.0, 10.0)  # standard deviations of a difference over the half-width
World = Callable[[np.random.Generator, tuple[int, int]], Pairs]
Quantile = Callable[[int], float]


def looks() -> list[int]:
    """Return the numbers of seeds at which `--decide` looks."""
    counts, rule = [20], StoppingRule(decides=True, most_seeds=MOST_SEEDS)
    while counts[-1] < MOST_SEEDS:
        counts.append(rule.next_count(counts[-1], ()))
    return counts


def first_found(change: np.ndarray, quantile: Quantile) -> np.ndarray:
    """Return the number of seeds at which each sample's difference was found; 0 where it never was."""
    num_seeds = np.zeros(len(change), int)
    for count in looks():
        seen = change[:, :count]
        error = seen.std(axis=1, ddof=1) / np.sqrt(count)
        is_clear = np.abs(seen.mean(axis=1)) > quantile(count) * error
        num_seeds[(num_seeds == 0) & is_clear] = count
    return num_seeds


def decided(world: World, num_samples: int) -> str:
    """Return a world's row for the rule that decides: % of false findings, then for each effect the % found and the
    median number of seeds.
    """
    rng, cells = np.random.default_rng(1), []
    changes = []
    for _ in range(0, num_samples, CHUNK):
        pairs = world(rng, (CHUNK, MOST_SEEDS))
        changes.append(pairs.second - pairs.first - pairs.truth)
    change = np.concatenate(changes)
    for quantile in (t_quantile, anytime_quantile):
        cells.append(f"{100 * (first_found(change, quantile) > 0).mean():.1f}")
    spread = change.std()
    for effect in EFFECTS:
        num_seeds = first_found(change + effect * spread, anytime_quantile)
        used = np.where(num_seeds == 0, MOST_SEEDS, num_seeds)
        cells.append(f"{100 * (num_seeds > 0).mean():.0f} ({np.median(used):.0f})")
    return " | ".join(cells)


def precise(world: World, num_samples: int) -> str:
    """Return a world's row for the rule of precision: the coverage, and the median number of seeds."""
    cells = []
    for times in PRECISIONS:
        rng = np.random.default_rng(2)
        pilot = world(rng, (CHUNK, MOST_SEEDS))
        wanted = float((pilot.second - pilot.first).std()) / times / abs(float(pilot.first.mean()))
        rule = StoppingRule(precision=wanted, most_seeds=10 * MOST_SEEDS)
        held, used = [], []
        for _ in range(num_samples // 4):
            pairs = world(rng, (1, MOST_SEEDS))
            count = 20
            while True:
                seen = look([Pair(pairs.first[0, :count], pairs.second[0, :count])], rule)
                if seen.end or count == MOST_SEEDS:
                    break
                count = min(rule.next_count(count, seen.seen), MOST_SEEDS)
            held.append(seen.found[0].absolute.holds(pairs.truth))
            used.append(count)
        cells.append(f"{100 * np.mean(held):.1f} ({np.median(used):.0f})")
    return " | ".join(cells)


def main() -> None:
    """Print both tables."""
    options = recorded_options(__doc__, NUM_SAMPLES)
    worlds: dict[str, World] = {
        "normal": normal,
        "M/M/1 at 70 %, the second 3 % faster": lambda rng, shape: queues(rng, shape, faster=1.03),
    }
    if options.comparison is not None:
        arms = from_comparison(options.comparison, options.metric, options.slo_class)
        name = f"{options.metric}[{options.slo_class}], {len(arms[0])} recorded seeds"
        worlds[name] = lambda rng, shape: recorded(rng, shape, *arms)
    heads = ["found at every look, t-test", "anytime-valid"]
    heads += [f"effect {effect:g}: found (seeds)" for effect in EFFECTS]
    print("Deciding, % of samples")
    rows = ((name, decided(world, options.samples)) for name, world in worlds.items())
    print_rows(("world", *heads), rows)
    print("\nPrecision, %")
    heads = [f"half-width 1/{times:g} s.d.: held (seeds)" for times in PRECISIONS]
    rows = ((name, precise(world, options.samples)) for name, world in worlds.items())
    print_rows(("world", *heads), rows)


if __name__ == "__main__":
    main()

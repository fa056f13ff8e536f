"""`python -m benchmarks.coverage.verdicts.capacity`: how often `blis-jax capacity` is wrong where the truth is known.

The share of requests in time is made up for each number of instances. Runs differ by more than chance: the share of a
run is drawn from a Beta distribution, or it is mostly perfect and bad in a few runs. The same run is as lucky in all
clusters.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
from scipy import stats

from blis_jax.cluster.config import ClusterConfig
from blis_jax.commands import values
from blis_jax.commands.options import CommandOptions, option
from papers.pages import print_rows
from sweeps.capacity.deciding import ServiceTarget, decide, looks
from sweeps.capacity.finding import Finder, Hardware, LayoutFamily, Smallest
from sweeps.claims.words import FAILS, MEETS, OPEN
from sweeps.strategies.arms import Arm

NAME = "benchmarks.coverage.verdicts.capacity"
ASKED = 0.95
ERROR = 0.05
NUM_REQUESTS = 200
TRUTHS = (0.93, 0.945, 0.9499, 0.95, 0.955, 0.97)  # shares in time of one cluster
SIZES = {4: 0.7, 5: 0.85, 6: 0.93, 7: 0.965, 8: 0.97}  # of a range of clusters; 7 is the answer
_DESCRIPTION = """\
Ask for 95 % in time of clusters whose true share is known. Print how often the answer is wrong, how often it is
open, and how many seeds it took; then the same of the search for the smallest cluster.
"""
Quantile = Callable[[np.ndarray, float], np.ndarray]  # (rank of a run, true share) -> its share


def even(rank: np.ndarray, share: float) -> np.ndarray:
    """Return shares of requests in time that differ by a few percent between runs, at ranks from 0 to 1."""
    return np.asarray(stats.beta.ppf(rank, 60 * share, 60 * (1 - share)))


def uneven(rank: np.ndarray, share: float) -> np.ndarray:
    """Return shares of requests in time that differ much between runs, at ranks from 0 to 1."""
    return np.asarray(stats.beta.ppf(rank, 6 * share, 6 * (1 - share)))


def few_bad(rank: np.ndarray, share: float) -> np.ndarray:
    """Return shares of requests in time at ranks from 0 to 1: one run in five misses many requests, the others next to
    none.
    """
    bad = 1 - 5 * (1 - share - 0.002 * 0.8)
    return np.where(rank < 0.2, np.clip(bad, 0, 1), 0.998)


def rarely_bad(one_in: int) -> Quantile:
    """Return the law by which one run in `one_in` has all requests that are late, and the others none."""

    def quantile(rank: np.ndarray, share: float) -> np.ndarray:
        return np.where(rank < 1 / one_in, np.clip(1 - one_in * (1 - share), 0, 1), 1.0)

    return quantile


KINDS: dict[str, Quantile] = {"even": even, "uneven": uneven, "one in five bad": few_bad}
# the asked and the true share where bad runs are rare: they have 0.75 to 0.95 of their requests in time
RARE: dict[str, tuple[Quantile, tuple[tuple[float, float], ...]]] = {
    f"one in {one_in} bad": (rarely_bad(one_in), shares)
    for one_in, shares in (
        (8, ((0.9698, 0.9688), (0.9924, 0.9914), (0.9954, 0.9914))),
        (10, ((0.991, 0.99), (0.996, 0.995))),
        (20, ((0.9885, 0.9875), (0.9955, 0.995), (0.998, 0.9975))),
    )
}


class CapacityCoverageOptions(
    CommandOptions, title="sizes", command=NAME, description=_DESCRIPTION, examples=""
):
    """Options of the command."""

    repetitions: int = option(values.at_least(10), 2000, "N", "clusters of each kind")
    seeds: int = option(values.at_least(16), 256, "N", "seeds at most")


@CapacityCoverageOptions.as_main
def main(options: CapacityCoverageOptions) -> int:
    """Run the command; return its exit code."""
    repetitions, num_seeds = options.repetitions, options.seeds
    worlds = [
        (kind, quantile, ASKED, share) for kind, quantile in KINDS.items() for share in TRUTHS
    ]
    worlds += [
        (kind, quantile, wanted, share)
        for kind, (quantile, shares) in RARE.items()
        for wanted, share in shares
    ]
    claims = (
        (kind, f"{wanted:.2%}", f"{share:.2%}", *_cells(*of_one(quantile, share, repetitions, num_seeds, wanted)))
        for kind, quantile, wanted, share in worlds
    )  # fmt: skip
    print_rows(("runs", "asked", "true share", "wrong", "open", "seeds, mean"), claims)
    print()
    searches = (
        (kind, *_cells(*of_search(quantile, repetitions // 10, num_seeds)))
        for kind, quantile in KINDS.items()
    )
    print_rows(("runs", "smallest cluster wrong", "exact", "seeds, mean"), searches)
    return 0


def _cells(wrong: float, other: float, num_seeds: float) -> tuple[str, str, str]:
    return f"{wrong:.1%}", f"{other:.1%}", f"{num_seeds:.0f}"


def of_one(
    quantile: Quantile, share: float, repetitions: int, num_seeds: int, wanted: float = ASKED
) -> tuple[float, float, float]:
    """Decide about one cluster many times: return how often the claim is wrong, how often there is none, and the seeds
    used.
    """
    random = np.random.default_rng(0)
    every = looks(num_seeds)
    wrong = undecided = spent = 0
    for _ in range(repetitions):
        good = _in_time(random, quantile(random.random(num_seeds), share))
        for count in every:
            total = np.full((count, 1), float(NUM_REQUESTS))
            decision = decide(good[:count], total, [wanted], ERROR, len(every))
            if decision.answer != OPEN:
                break
        wrong += decision.answer == (FAILS if share >= wanted else MEETS)
        undecided += decision.answer == OPEN
        spent += decision.num_seeds
    return wrong / repetitions, undecided / repetitions, spent / repetitions


def _in_time(random: np.random.Generator, shares: np.ndarray) -> np.ndarray:
    return random.binomial(NUM_REQUESTS, shares).astype(np.float64)[:, None]


class MadeUpRuns:
    """Stand in for `CountedRuns`: a seed is as lucky in every cluster."""

    def __init__(self, random: np.random.Generator, quantile: Quantile, num_seeds: int) -> None:
        self.random, self.quantile = random, quantile
        self.seeds, self.rank = range(num_seeds), random.random(num_seeds)
        self.kept: dict[int, np.ndarray] = {}

    in_time = type("Asked", (), {"targets": (ServiceTarget("all", "ttft_ms", 100.0, ASKED),)})

    def of(self, config: ClusterConfig, num_seeds: int, wider: ClusterConfig) -> Any:
        """Return the number of requests in time, and of all requests, of each seed."""
        del wider
        size = config.num_instances
        if size not in self.kept:
            share = SIZES.get(size, 0.3 if size < min(SIZES) else 0.99)
            self.kept[size] = _in_time(self.random, self.quantile(self.rank, share))
        good = self.kept[size][:num_seeds]
        return good, np.full_like(good, float(NUM_REQUESTS))


def of_search(quantile: Quantile, repetitions: int, num_seeds: int) -> tuple[float, float, float]:
    """Search many times: return how often the size is wrong, how often exactly right, and the mean number of seeds."""
    random = np.random.default_rng(1)
    arm, family = Arm("made up", ClusterConfig()), LayoutFamily(Hardware())
    right = min(size for size, share in SIZES.items() if share >= ASKED)
    wrong = exact = spent = 0
    for _ in range(repetitions):
        runs: Any = MadeUpRuns(random, quantile, num_seeds)
        smallest = Finder(runs, 1 - ERROR, 64).find(
            arm, family, False, lambda size, _decision: None
        )
        wrong += is_wrong(smallest, right)
        exact += smallest.is_sharp and smallest.num_instances == right
        spent += sum(decision.num_seeds for decision in smallest.tried.values())
    return wrong / repetitions, exact / repetitions, spent / repetitions


def is_wrong(smallest: Smallest, right: int) -> bool:
    """Return whether the search claims too small a size, or that a sufficient size fails."""
    size, below = smallest.num_instances, smallest.fails_at
    return (size is not None and size < right) or (below is not None and below >= right)


if __name__ == "__main__":
    sys.exit(main())

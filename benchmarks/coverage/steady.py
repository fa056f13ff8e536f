"""`python -m benchmarks.coverage.steady`: how often intervals of a steady state from one run hold.

The world is the M/M/1 queue, whose mean wait and percentiles are known. It starts empty, or with a queue of 50
customers that a warm-up must leave out. A cell has the share of runs whose 95 % interval holds the truth, the median
half-width in % of it, and the share of runs that are called long enough. All runs are counted, long enough or not.
"""

from __future__ import annotations

import math

import numpy as np

from benchmarks.coverage.worlds import number_option
from blis_jax.statistics.steady import SteadyEstimate, steady_mean, steady_percentile
from papers.pages import print_rows

NUM_RUNS = 400
LOADS, LENGTHS = (0.5, 0.7, 0.9), (2_000, 10_000, 50_000)
PERCENTS = (95, 99)
CROWD = 50


def waits(rng: np.random.Generator, num_runs: int, length: int, load: float, first: int = 0):
    """Draw waits of the customers of an M/M/1 queue that serves one per unit of time, `[run, customer]`."""
    wait = rng.exponential(1.0, (first, num_runs)).sum(axis=0)
    all_waits = np.empty((length, num_runs))
    for place in range(length):
        all_waits[place] = wait
        service, gap = rng.exponential(1.0, num_runs), rng.exponential(1 / load, num_runs)
        wait = np.maximum(wait + service - gap, 0.0)
    return all_waits.T


def true_percentile(load: float, percent: float) -> float:
    """Return a percentile of the wait, which is longer than x with probability load · exp(-(1 - load) x)."""
    return max(math.log(load / (1 - percent / 100)) / (1 - load), 0.0)


def cell(estimates: list[SteadyEstimate], truth: float) -> str:
    """Write coverage, half-width and how many runs were long enough."""
    held = np.mean([estimate.low <= truth <= estimate.high for estimate in estimates])
    width = np.median([(estimate.high - estimate.low) / 2 / truth for estimate in estimates])
    enough = np.mean([estimate.is_enough for estimate in estimates])
    return f"{100 * held:.1f} (±{100 * width:.0f} %, {100 * enough:.0f})"


def row(load: float, length: int, num_runs: int, first: int = 0) -> str:
    """Return the cells of one queue: the mean and the percentiles."""
    runs = waits(np.random.default_rng(1), num_runs, length, load, first)
    cells = [cell([steady_mean(run) for run in runs], load / (1 - load))]
    for percent in PERCENTS:
        estimates = [steady_percentile(run, percent) for run in runs]
        cells.append(cell(estimates, true_percentile(load, percent)))
    return " | ".join(cells)


def main() -> None:
    """Print the table."""
    num_runs = number_option(__doc__, "runs", NUM_RUNS)
    print("Held, % (half-width, % of runs called long enough)")
    starts = [*((length, 0) for length in LENGTHS), (LENGTHS[1], CROWD)]
    print_rows(("load", "customers", "starts with", "mean", *(f"P{p}" for p in PERCENTS)), (
        (f"{load:g}", f"{length:,}", first, row(load, length, num_runs, first))
        for load in LOADS
        for length, first in starts
    ))  # fmt: skip


if __name__ == "__main__":
    main()

"""Worlds whose truth is known: differences of two strategies by seed, `[sample, seed]`.

The queue is M/M/1, and both strategies serve the same arrivals. Its first customer waits as long as one does in the
steady state, so that the mean wait of every customer of every run is ρ ÷ (μ - λ), exactly."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import NamedTuple

import numpy as np

from papers.pages import table_parser

NUM_CUSTOMERS = 100


class Pairs(NamedTuple):
    """A figure of two strategies by seed `[sample, seed]`, and the true difference of their means."""

    first: np.ndarray
    second: np.ndarray
    truth: float


def mean_wait(load: float) -> float:
    """Return the mean wait of customers of an M/M/1 queue that serves one per unit of time."""
    return load / (1 - load)


def queues(
    rng: np.random.Generator, shape: tuple[int, int], load: float = 0.7, faster: float = 1.0
) -> Pairs:
    """Draw mean waits of two queues with the same arrivals; the second serves `faster` times as fast.

    Services are drawn for each queue by itself, so that equal queues differ.
    """
    start = rng.uniform(size=shape)
    gaps = rng.exponential(1 / load, (NUM_CUSTOMERS, *shape))
    means = []
    for speed in (1.0, faster):
        of_this = load / speed
        is_busy = start > 1 - of_this
        safe = np.where(is_busy, (1 - start) / of_this, 1.0)
        wait = np.where(is_busy, -np.log(safe) / (speed * (1 - of_this)), 0.0)
        total = np.zeros(shape)
        for gap in gaps:
            total += wait
            wait = np.maximum(wait + rng.exponential(1 / speed, shape) - gap, 0.0)
        means.append(total / NUM_CUSTOMERS)
    true = [mean_wait(load / speed) / speed for speed in (1.0, faster)]
    return Pairs(means[0], means[1], true[1] - true[0])


def normal(rng: np.random.Generator, shape: tuple[int, int], effect: float = 0.0) -> Pairs:
    """Draw pairs whose differences have standard deviation 1 and mean `effect`."""
    first = 100 + 5 * rng.normal(size=shape)
    return Pairs(first, first + effect + rng.normal(size=shape), effect)


def recorded(
    rng: np.random.Generator, shape: tuple[int, int], first: np.ndarray, second: np.ndarray
) -> Pairs:
    """Draw with replacement from the seeds of a recorded comparison, as if no other seeds existed."""
    chosen = rng.integers(0, len(first), shape)
    return Pairs(first[chosen], second[chosen], float((second - first).mean()))


def from_comparison(path: str, metric: str, slo_class: str) -> tuple[np.ndarray, np.ndarray]:
    """Read a metric of the first two arms by seed, from the result file of `blis-jax compare`."""
    arms = json.loads(Path(path).read_text(encoding="utf-8"))["arms"]
    values = [np.array(arm["figures"][slo_class][metric]["per_seed"], float) for arm in arms[:2]]
    both = np.isfinite(values[0]) & np.isfinite(values[1])
    return values[0][both], values[1][both]


def number_option(description: str | None, name: str, default: int) -> int:
    """Return the number that the command line gives with `--NAME`, or the default."""
    number: int = getattr(_parser(description, name, default).parse_args(), name)
    return number


def recorded_options(description: str | None, default: int) -> argparse.Namespace:
    """Read the options: the number of samples, and the file, metric and SLO class of a recorded comparison, if one is
    given.
    """
    parser = _parser(description, "samples", default)
    parser.add_argument("--comparison", default=None, help="result file whose seeds are a world")
    parser.add_argument("--metric", default="pooled_ttft_p99_ms", help="of its runs")
    parser.add_argument("--class", dest="slo_class", default="critical", help="of its requests")
    return parser.parse_args()


def _parser(description: str | None, name: str, default: int) -> argparse.ArgumentParser:
    parser = table_parser(None, description)
    parser.add_argument(
        f"--{name}", type=int, default=default, metavar="N", help=f"{name} of each kind ({default})"
    )
    return parser

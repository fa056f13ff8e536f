"""`python -m benchmarks.coverage.ratios`: how often intervals of a ratio of means hold it, by method.

Pairs of positive figures that share what a seed does to both, as two strategies on one workload. Beside
the share of 95 % intervals that hold the true ratio: how many reach below 0 (a change of less than
-100 %), how many have no upper end, and how many contradict the paired t-test: hold 1 where it finds a
difference, or the other way round.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from scipy import stats

from benchmarks.coverage.worlds import number_option
from papers.pages import print_rows

NUM_SAMPLES = 20_000
LEVEL = 0.95
PAIRS = (3, 5, 10, 20)
RATIOS = (1.0, 0.3)
# of the variance of logarithms (of gamma: of the sum), that both strategies have in common
SHARED = 0.7
Ends = tuple[np.ndarray, np.ndarray]


class Pairs(NamedTuple):
    """Figures of two strategies, `[sample, seed]`."""

    first: np.ndarray
    second: np.ndarray


def lognormal(spread: float) -> Callable[[np.random.Generator, tuple[int, int]], Pairs]:
    """Return the function that draws pairs of lognormal laws with mean 1 and coefficient of variation `spread`."""
    variance = np.log1p(spread**2)

    def draw(rng: np.random.Generator, shape: tuple[int, int]) -> Pairs:
        common = np.sqrt(SHARED) * rng.normal(size=shape)
        logs = (common + np.sqrt(1 - SHARED) * rng.normal(size=shape) for _ in range(2))
        return Pairs(*(np.exp(np.sqrt(variance) * log - variance / 2) for log in logs))

    return draw


def gamma(spread: float) -> Callable[[np.random.Generator, tuple[int, int]], Pairs]:
    """Return the function that draws pairs of gamma laws with mean 1, sums of a common part and a part of their own."""
    shape_of_law = 1 / spread**2

    def draw(rng: np.random.Generator, shape: tuple[int, int]) -> Pairs:
        common = rng.gamma(SHARED * shape_of_law, size=shape)
        sums = (common + rng.gamma((1 - SHARED) * shape_of_law, size=shape) for _ in range(2))
        return Pairs(*(total / shape_of_law for total in sums))

    return draw


LAWS = {
    "lognormal, cv 0.2": lognormal(0.2),
    "lognormal, cv 0.5": lognormal(0.5),
    "lognormal, cv 1": lognormal(1.0),
    "gamma, cv 0.2": gamma(0.2),
    "gamma, cv 1": gamma(1.0),
}


def quantile(count: int) -> float:
    """Return the quantile of Student's t for means of `count` values."""
    return float(stats.t.ppf(0.5 + LEVEL / 2, count - 1))


def error_of(pairs: Pairs, ratio: np.ndarray) -> np.ndarray:
    """Return the standard error of the mean of second − ratio · first."""
    residuals = pairs.second - ratio[:, None] * pairs.first
    spread: np.ndarray = residuals.std(axis=1, ddof=1)
    return spread / np.sqrt(residuals.shape[1])


def linear(pairs: Pairs) -> Ends:
    """Return the interval: ratio ± t · its standard error by linearisation."""
    base, ratio = pairs.first.mean(axis=1), pairs.second.mean(axis=1) / pairs.first.mean(axis=1)
    half = quantile(pairs.first.shape[1]) * error_of(pairs, ratio) / base
    return ratio - half, ratio + half


def logarithmic(pairs: Pairs) -> Ends:
    """Return the interval of the ratio by its logarithm and linearisation."""
    ratio = pairs.second.mean(axis=1) / pairs.first.mean(axis=1)
    half = quantile(pairs.first.shape[1]) * error_of(pairs, ratio) / pairs.second.mean(axis=1)
    return ratio * np.exp(-half), ratio * np.exp(half)


def fieller(pairs: Pairs) -> Ends:
    """Return every ratio at which a t-test of second − ratio · first finds nothing; infinite where it never does."""
    count = pairs.first.shape[1]
    square = quantile(count) ** 2 / count
    first, second = pairs.first.mean(axis=1), pairs.second.mean(axis=1)
    apart = [values - values.mean(axis=1, keepdims=True) for values in pairs]
    products = [(left * right).sum(axis=1) / (count - 1) for left, right in (
        (apart[0], apart[0]), (apart[0], apart[1]), (apart[1], apart[1]))]  # fmt: skip
    a, b, c = (
        mean - square * product
        for mean, product in zip((first**2, first * second, second**2), products, strict=True)
    )
    root = np.sqrt(np.maximum(b**2 - a * c, 0))
    with np.errstate(divide="ignore", invalid="ignore"):
        low, high = (b - root) / a, (b + root) / a
    is_bounded = a > 0
    return np.where(is_bounded, low, -np.inf), np.where(is_bounded, high, np.inf)


METHODS = {"linear": linear, "logarithm": logarithmic, "Fieller": fieller}


def row(pairs: Pairs, ratio: float, ends: Ends) -> str:
    """Return in % the coverage, intervals below 0, intervals without an upper end, and contradictions of the t-test."""
    low, high = ends
    change = pairs.second - pairs.first
    error = change.std(axis=1, ddof=1) / np.sqrt(change.shape[1])
    is_found = np.abs(change.mean(axis=1)) > quantile(change.shape[1]) * error
    holds_one = (low <= 1) & (high >= 1)
    shares = [
        (low <= ratio) & (high >= ratio), low < 0, np.isinf(high), holds_one == is_found,
    ]  # fmt: skip
    return " / ".join(f"{100 * share.mean():.1f}" for share in shares)


def main() -> None:
    """Print the table."""
    num_samples = number_option(__doc__, "samples", NUM_SAMPLES)
    rng = np.random.default_rng(0)
    print(
        "%: intervals that hold the ratio / reach below 0 / have no upper end / contradict the t-test"
    )
    print_rows(("law", "ratio", "pairs", *METHODS), (
        (law, f"{ratio:g}", count, *(row(pairs, ratio, method(pairs)) for method in METHODS.values()))
        for law, draw in LAWS.items()
        for ratio in RATIOS
        for count in PAIRS
        for first, second in [draw(rng, (num_samples, count))]
        for pairs in [Pairs(first, ratio * second)]
    ))  # fmt: skip


if __name__ == "__main__":
    main()

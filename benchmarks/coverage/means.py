"""`python -m benchmarks.coverage.means`: how often intervals of a mean hold it, by seeds and method."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator

import numpy as np
from scipy import stats

from benchmarks.coverage.worlds import number_option
from papers.pages import print_rows

NUM_SAMPLES = 2000
LEVELS = (0.95, 0.997)  # of one comparison, and of one of 17 that are looked at together
PAIRS = (3, 5, 8, 10, 15, 20, 30)
LAWS: dict[str, Callable[[np.random.Generator, tuple[int, int]], np.ndarray]] = {
    "normal": lambda rng, shape: rng.normal(size=shape),
    "exponential": lambda rng, shape: rng.exponential(size=shape) - 1.0,
    "Student's t, 3 degrees": lambda rng, shape: rng.standard_t(3, size=shape),
}


def bootstrapped(values: np.ndarray, level: float, method: str) -> float:
    """Return the share of the rows whose bootstrap interval holds the true mean, 0."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of three values, some resamples are constant
        ends = stats.bootstrap(
            (values,),
            np.mean,
            axis=-1,
            confidence_level=level,
            n_resamples=4999,
            method=method,
            batch=100,
            rng=np.random.default_rng(1),
        ).confidence_interval
    return float(np.mean((ends.low <= 0) & (ends.high >= 0)))


def students(values: np.ndarray, level: float) -> float:
    """Return the share of the rows whose t interval holds the true mean, 0."""
    count = values.shape[1]
    half = stats.t.ppf(0.5 + level / 2, count - 1) * values.std(axis=1, ddof=1) / np.sqrt(count)
    return float(np.mean(np.abs(values.mean(axis=1)) <= half))


def shares(values: np.ndarray) -> Iterator[float]:
    """Yield, by level and then by method, the share of the rows whose interval holds the true mean."""
    for level in LEVELS:
        yield from (bootstrapped(values, level, name) for name in ("BCa", "percentile"))
        yield students(values, level)


def main() -> None:
    """Print the table."""
    num_samples = number_option(__doc__, "samples", NUM_SAMPLES)
    rng = np.random.default_rng(0)
    heads = [f"{method} {level:g}" for level in LEVELS for method in ("BCa", "percentile", "t")]
    print_rows(("law", "pairs", *heads), (
        (law, count, *(f"{100 * share:.1f} %" for share in shares(draw(rng, (num_samples, count)))))
        for law, draw in LAWS.items()
        for count in PAIRS
    ))  # fmt: skip


if __name__ == "__main__":
    main()

"""`python -m benchmarks.coverage.blocks`: how often intervals from one trace hold the difference between strategies.

Made-up traces of two strategies: logarithms of latencies are sums of a part that both have, a part of each
strategy, both autoregressive along the trace, and noise. So means and percentiles are known exactly.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from scipy import stats
from scipy.signal import lfilter

from benchmarks.coverage.worlds import number_option
from blis_jax.statistics import moving_blocks as blocks
from blis_jax.statistics.intervals import Inference
from blis_jax.statistics.moving_blocks import BlockResampling, Resampled
from papers.pages import print_rows

if TYPE_CHECKING:
    from jaxtyping import Float, Int

COMMON, OWN, NOISE = (0.5, 0.4), 0.25, 0.3  # standard deviations, of the first and second strategy
SHIFT = -0.1  # of the second strategy's logarithms
GAP_US = 1e5
WARM_UP = 400
NUM_TRACES = 300
LEVELS = {"p90": 0.9, "p99": 0.99}


@dataclass(frozen=True)
class Case:
    """A kind of trace; `correlation` is that of neighbouring requests."""

    num_requests: int
    correlation: float


CASES = tuple(
    Case(count, correlation) for count in (500, 2000, 10_000) for correlation in (0.0, 0.9, 0.98)
)


def made_up(
    case: Case, rng: np.random.Generator
) -> tuple[
    Int[np.ndarray, " request"], Float[np.ndarray, " request"], Float[np.ndarray, " request"]
]:
    """Draw a trace's arrivals in µs, and each request's latency under two strategies whose noise is partly shared."""
    count = case.num_requests
    arrival_us = np.cumsum(rng.exponential(GAP_US, count)).astype(np.int64)
    common = _correlated(case, rng)
    logarithms = [
        scale * common + OWN * _correlated(case, rng) + NOISE * rng.normal(size=count)
        for scale in COMMON
    ]
    return arrival_us, np.exp(logarithms[0]), np.exp(logarithms[1] + SHIFT)


def _correlated(case: Case, rng: np.random.Generator) -> Float[np.ndarray, " request"]:
    steps = rng.normal(size=case.num_requests + WARM_UP) * math.sqrt(1 - case.correlation**2)
    correlated: np.ndarray = lfilter([1.0], [1.0, -case.correlation], steps)[WARM_UP:]
    return correlated


def truths() -> dict[str, float]:
    """Compute the differences that intervals should hold, by figure."""
    spreads = [math.sqrt(scale**2 + OWN**2 + NOISE**2) for scale in COMMON]
    shifts = (0.0, SHIFT)
    means = [math.exp(m + s * s / 2) for m, s in zip(shifts, spreads, strict=True)]
    differences = {"mean": means[1] - means[0]}
    for name, level in LEVELS.items():
        z = float(stats.norm.ppf(level))
        ends = [math.exp(m + s * z) for m, s in zip(shifts, spreads, strict=True)]
        differences[name] = ends[1] - ends[0]
    return differences


def coverage(
    case: Case,
    num_traces: int,
    num_resamples: int = 499,
    figures: Sequence[str] = ("mean", *LEVELS),
) -> dict[str, float]:
    """Return the share of traces whose 95 % interval holds the truth, by figure."""
    inference, truth = Inference(num_resamples=num_resamples), truths()
    hits = dict.fromkeys(figures, 0)
    for number in range(num_traces):
        arrival_us, first, second = made_up(
            case, np.random.default_rng([number, case.num_requests])
        )
        resampling = _resampling(arrival_us, first, second, inference)
        for name in figures:
            take = _figures(resampling)[name]
            before, after = take(first), take(second)
            change = Resampled(after.value - before.value, after.draws - before.draws)
            hits[name] += blocks.interval_of(change, resampling.num_blocks, 0.95).holds(truth[name])
    return {name: count / num_traces for name, count in hits.items()}


def _resampling(
    arrival_us: Int[np.ndarray, " request"],
    first: Float[np.ndarray, " request"],
    second: Float[np.ndarray, " request"],
    inference: Inference,
) -> BlockResampling:
    bins = blocks.time_bins(arrival_us)
    beyond = [np.where(values > np.quantile(values, 0.99), 1.0, 0.0) for values in (first, second)]
    series = [
        np.bincount(bins.place, change - change.mean(), bins.num_bins)
        for change in (second - first, beyond[1] - beyond[0])
    ]
    length = blocks.usual_length(series)
    return BlockResampling(bins, length, blocks.block_weights(bins.num_bins, length, inference))


def _figures(resampling: BlockResampling) -> dict[str, Callable[[np.ndarray], Resampled]]:
    return {
        "mean": resampling.mean,
        **{
            name: lambda values, level=level: resampling.quantile(values, level)  # type: ignore[misc]
            for name, level in LEVELS.items()
        },
    }


def main() -> None:
    """Print the table of docs/traces.md."""
    num_traces = number_option(__doc__, "traces", NUM_TRACES)
    print_rows(("requests", "correlation of neighbours", "mean", "P90", "P99"), (
        (
            f"{case.num_requests:,}", f"{case.correlation:g}",
            *(f"{100 * share:.0f} %" for share in coverage(case, num_traces).values()),
        )
        for case in CASES
    ))  # fmt: skip


if __name__ == "__main__":
    main()

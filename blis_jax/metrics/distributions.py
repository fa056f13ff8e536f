"""Means and percentiles exactly as the reference forms them, of plain and of weighted samples.

Two percentile formulas exist, one per unit; they differ in the last bit, so both are kept.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from jaxtyping import Int, Shaped


@dataclass(frozen=True)
class Sample:
    """A multiset of numbers in ascending order; `ends[i]` counts its members up to value i."""

    values: Shaped[np.ndarray, "value"]
    ends: Int[np.ndarray, "value"] | None = None  # None: every value once

    @property
    def count(self) -> int:
        """How many members it has."""
        if self.ends is None:
            return len(self.values)
        return int(self.ends[-1]) if len(self.ends) else 0

    @property
    def total(self) -> float:
        """The sum of its members; exact for whole numbers below 2**53."""
        if self.ends is None:
            return float(self.values.sum())
        return float(np.dot(self.values, np.diff(self.ends, prepend=0)))

    def member(self, index: int) -> float:
        """The member at one place of the ascending order."""
        if self.ends is not None:
            index = int(np.searchsorted(self.ends, index, side="right"))
        return float(self.values[index])

    def neighbours(self, percent: float) -> tuple[float, float, float]:
        """The members around rank percent/100·(n-1), and how far between them it lies."""
        rank = percent / 100.0 * (self.count - 1)
        below = math.floor(rank)
        low = self.member(below)
        if below == rank:
            return low, low, 0.0
        return low, self.member(below + 1), rank - below


def sample_of(values: Shaped[np.ndarray, "value"]) -> Sample:
    """The sample that holds every value once."""
    return Sample(np.sort(values))


def weighted_sample(
    values: Shaped[np.ndarray, "value"], weights: Int[np.ndarray, "value"]
) -> Sample:
    """The sample that holds every value as often as its weight says."""
    present = weights > 0
    values, weights = values[present], weights[present]
    order = np.argsort(values)
    return Sample(values[order], np.cumsum(weights[order], dtype=np.int64))


def mean(sample: Sample) -> float:
    """The mean, 0 for an empty sample, as in the reference."""
    return sample.total / sample.count if sample.count else 0.0


def percentile(sample: Sample, percent: float) -> float:
    """A percentile in the sample's own unit, 0 for an empty sample."""
    if not sample.count:
        return 0.0
    low, high, fraction = sample.neighbours(percent)
    return low + fraction * (high - low)


def mean_ms(sample: Sample) -> float:
    """The mean of a sample in µs, in ms."""
    return mean(sample) / 1000


def percentile_ms(sample: Sample, percent: float) -> float:
    """A percentile of a sample in µs, in ms, rounded as in the reference's printed results."""
    if not sample.count:
        return 0.0
    low, high, fraction = sample.neighbours(percent)
    return low / 1000 + (high - low) * fraction / 1000


def summary_us(sample: Sample) -> dict[str, float]:
    """Mean, P50, P95, P99, least, greatest and count; zeros for an empty sample."""
    count = sample.count
    return {
        "mean": mean(sample),
        "p50": percentile(sample, 50),
        "p95": percentile(sample, 95),
        "p99": percentile(sample, 99),
        "min": sample.member(0) if count else 0.0,
        "max": sample.member(count - 1) if count else 0.0,
        "count": count,
    }

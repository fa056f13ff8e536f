"""What a report shows, as plain data; each command makes its own of its results."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from blis_jax.reports.run_words import SEEDS, RunWords
from blis_jax.reports.style import strategy_colours

if TYPE_CHECKING:
    import numpy as np

    from blis_jax.statistics.intervals import Estimate

# Shares of the requests by which a distribution is kept; finer where the tail is.
CURVE_LEVELS = (*(round(0.04 * step, 2) for step in range(25)), 0.98, 0.985, 0.99, 0.995, 1.0)
EVERYWHERE = "*"  # a place of what is drawn whichever place is chosen
MOST_CURVE_NUMBERS = 150_000  # of single seeds' distributions; beyond it, every k-th seed is kept


class ShownInterval(NamedTuple):
    """A mean and the ends of its interval; None where there is none."""

    mean: float | None
    low: float | None
    high: float | None

    @classmethod
    def of(cls, mean: float, low: float, high: float) -> ShownInterval:
        """Of numbers, NaN and infinity standing for none."""
        return cls(*(value if math.isfinite(value) else None for value in (mean, low, high)))


def shown_interval(estimate: Estimate) -> ShownInterval:
    """Return an estimate's mean and interval as they are shown."""
    return ShownInterval.of(estimate.mean, estimate.low, estimate.high)


@dataclass(frozen=True)
class ShownDifference:
    """One metric of one class: a strategy against its reference on the seeds that both have."""

    strategy: str
    reference: str
    slo_class: str
    metric: str
    unit: str
    better: str  # "lower" or "higher"
    reference_mean: float | None
    mean: float | None
    absolute: ShownInterval  # in the unit
    percent: ShownInterval
    num_pairs: int
    verdict: str
    place: str = ""
    joint_percent: ShownInterval | None = (
        None  # an interval that holds for all differences together
    )


@dataclass(frozen=True)
class SeedValues:
    """One metric of one class under one strategy, a value a seed; None where a run has none."""

    strategy: str
    slo_class: str
    metric: str
    values: tuple[float | None, ...]
    place: str = ""


@dataclass(frozen=True)
class Curves:
    """TTFT in ms at every level of `Study.levels` of one class under one strategy, by place of the seed."""

    strategy: str
    slo_class: str
    by_seed: Mapping[int, Sequence[float]]
    place: str = ""  # or EVERYWHERE


@dataclass(frozen=True)
class TtftShare:
    """One part of a view of a class's TTFT, mean over seeds; see metrics/ttft_parts.py."""

    strategy: str
    slo_class: str
    view: str
    group: str
    mean_ms: float


@dataclass(frozen=True)
class Timeline:
    """One run: of every instance and span of time, mean over the span."""

    strategy: str
    seed: int
    edges_s: Sequence[float]
    running: np.ndarray  # [instance, span], requests in the running batch, 0 between steps
    waiting: np.ndarray  # requests in the wait queue
    kv_percent: np.ndarray  # KV blocks in use, % of the instance's
    num_requests: int
    num_steps: int


@dataclass(frozen=True)
class Study:
    """A comparison; the first strategy is the reference of the others."""

    command: str
    workload: str
    strategies: tuple[str, ...]
    descriptions: Mapping[str, str]
    classes: tuple[str, ...]  # "all" first
    seeds: tuple[int, ...]
    differences: tuple[ShownDifference, ...]
    intervals: str  # how those of the differences are made, one sentence
    joint: str = ""  # the same of the joint ones
    verdicts: str = ""
    values: tuple[SeedValues, ...] = ()
    levels: tuple[float, ...] = ()
    curves: tuple[Curves, ...] = ()
    parts: tuple[TtftShare, ...] = ()
    parts_of: str = ""  # which runs the parts are means of
    timelines: tuple[Timeline, ...] = ()
    runs: RunWords = SEEDS  # what `seeds` number
    pairs: str = ""  # what a difference counts, if not the runs: blocks of one trace
    places: tuple[str, ...] = ("",)  # of a grid; parts and timelines are of the first
    place_title: str = "Place in the grid"  # what a choice of one is called
    title: str = ""  # of the page; made of the strategies if empty
    lead: str = ""  # its first sentences, in the same way
    kinds: Mapping[str, str] = field(default_factory=dict)  # which strategy a label stands for
    notes: tuple[str, ...] = ()  # targets, window, failures: one sentence each
    checks: tuple[str, ...] = ()  # outcomes, ties, invariants: one sentence each
    more: Mapping[str, Sequence[str]] = field(default_factory=dict)  # further findings, by title
    provenance: Mapping[str, Any] = field(default_factory=dict)

    @property
    def colours(self) -> dict[str, str]:
        """By strategy."""
        return strategy_colours(self.strategies, self.kinds)

    @property
    def metrics(self) -> tuple[str, ...]:
        """In the order of the differences."""
        return tuple(dict.fromkeys(one.metric for one in self.differences))


def every_kth(num_seeds: int, num_numbers_each: int) -> int:
    """1, or more where so many numbers a seed would make the page too large."""
    return max(1, math.ceil(num_seeds * num_numbers_each / MOST_CURVE_NUMBERS))


def finite(values: Sequence[float | None]) -> tuple[float | None, ...]:
    """None in place of what is no number."""
    return tuple(
        None if value is None or not math.isfinite(value) else float(value) for value in values
    )

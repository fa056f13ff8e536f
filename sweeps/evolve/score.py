"""What a program is worth: its gain over the baseline in %, and what it changes by class."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from blis_jax.metrics.metric import HIGHER
from blis_jax.metrics.run_summary import RunSummary
from blis_jax.metrics.scalars import lookup
from blis_jax.statistics.intervals import Estimate, Inference, interval_of
from blis_jax.statistics.paired import Difference
from sweeps.claims.judge import ByInterval, ByMean, ClaimVerdict, judge
from sweeps.compare.judge import BySeeds
from sweeps.runs.measured import metric_values

if TYPE_CHECKING:
    from sweeps.evolve.task import Guard, Task
    from sweeps.runs.requests import StudyRequests

Runs = Sequence[RunSummary]  # of one configuration on one workload, one a seed
MOST_DRAWS = 5000  # of sets of seeds as large as the search's


@dataclass(frozen=True)
class RunPair:
    """The baseline and a program on one workload, on the same seeds."""

    requests: StudyRequests
    baseline: Runs
    program: Runs

    def take(self, places: Sequence[int]) -> RunPair:
        """Return the runs of some seeds."""
        of = ([runs[place] for place in places] for runs in (self.baseline, self.program))
        return RunPair(self.requests, *of)


def weighted(runs: Runs, weights: Mapping[str, float]) -> np.ndarray:
    """Return the weighted sum of the score's metrics by seed; NaN where a run has none."""
    return np.sum([weight * metric_values(runs, name) for name, weight in weights.items()], axis=0)


def gain(pairs: Sequence[RunPair], weights: Mapping[str, float], inference: Inference) -> Estimate:
    """Return the gain over the baseline in %, the mean over the workloads, of values averaged over the seeds."""
    samples = [weighted(runs, weights) for pair in pairs for runs in (pair.baseline, pair.program)]
    sign = 1.0 if lookup(next(iter(weights)))[0].direction == HIGHER else -1.0
    return interval_of(functools.partial(mean_gain, sign=sign), samples, inference)


def mean_gain(*values: np.ndarray, axis: int = -1, sign: float = -1.0) -> np.ndarray:
    """Return the gain in % of baseline, program, baseline, … by workload; `sign` is 1 where higher is better."""
    means = [np.mean(of_runs, axis=axis) for of_runs in values]
    parts = [1 - after / before for before, after in zip(means[::2], means[1::2], strict=True)]
    return np.asarray(-sign * 100 * np.mean(parts, axis=0))


def reached(
    pairs: Sequence[RunPair], weights: Mapping[str, float], size: int, value: float
) -> tuple[int, int]:
    """Return how many sets of `size` seeds have a gain of `value` or more, and how many sets there are.

    None are looked at where there are too many.
    """
    count = len(pairs[0].baseline)
    if size > count or math.comb(count, size) > MOST_DRAWS:
        return 0, 0
    alone = Inference(num_resamples=0)
    gains = [
        gain([pair.take(places) for pair in pairs], weights, alone).mean
        for places in itertools.combinations(range(count), size)
    ]
    return sum(one >= value for one in gains), len(gains)


@dataclass(frozen=True)
class ClassChange:
    """What a program changes in a metric of one workload."""

    workload: str
    metric: str
    difference: Difference

    @property
    def slo_class(self) -> str:
        """Return the class, `all` for all requests."""
        return lookup(self.metric)[1] or "all"

    @property
    def name(self) -> str:
        """Return the metric without its class."""
        return lookup(self.metric)[0].name


def changes(
    pairs: Sequence[RunPair], names: Mapping[str, Sequence[str]], inference: Inference
) -> list[ClassChange]:
    """Return what a program changes against the baseline, all judged together; `names` are metrics by workload."""
    entries = [
        (pair, name)
        for pair in pairs
        for name in names[pair.requests.name]
        if np.isfinite(metric_values(pair.baseline, name)).any()
    ]
    compared = [(pair.baseline, pair.program, name) for pair, name in entries]
    found = BySeeds(inference).differences(compared)
    return [
        ClassChange(pair.requests.name, name, one)
        for (pair, name), one in zip(entries, found, strict=True)
    ]


@dataclass(frozen=True)
class GuardVerdict:
    """What became of a guard on one workload."""

    guard: Guard
    workload: str
    verdict: ClaimVerdict
    past: float  # how far its mean is past it; 0 where it keeps it

    @property
    def is_broken(self) -> bool:
        """Return whether the mean is past the bound."""
        return self.past > 0


def guarded(task: Task, pairs: Sequence[RunPair], by_mean: bool = False) -> Iterator[GuardVerdict]:
    """Yield the verdict on every guard of every workload; `by_mean` decides without an interval."""
    rule = ByMean() if by_mean else ByInterval()
    for pair in pairs:
        for guard in task.guards(pair.requests):
            claim = guard.claim
            ours, theirs = (
                {claim.metric: metric_values(runs, claim.metric)}
                for runs in (pair.program, pair.baseline)
            )
            verdict = judge(claim, rule, ours, theirs)
            mean = verdict.reading.mean.mean if verdict.reading is not None else math.nan
            past = max(claim.excess(mean), 0.0) if math.isfinite(mean) else 0.0
            yield GuardVerdict(guard, pair.requests.name, verdict, past)

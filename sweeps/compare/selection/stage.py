"""The final stage: arms on more and more common seeds until one is left, then the winner on fresh ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from blis_jax.metrics.metric import LOWER
from blis_jax.metrics.run_summary import RunSummary
from blis_jax.metrics.scalars import lookup
from blis_jax.statistics import paired
from blis_jax.statistics.intervals import BY_STUDENT
from blis_jax.statistics.paired import Difference, Pair
from blis_jax.statistics.sequential import (
    DECIDED,
    GOES_ON,
    MISSED,
    SPENT,
    Finalists,
    Look,
    Seen,
    Slack,
    WhatIsLeft,
    look_until_end,
)
from sweeps.claims.grammar import SHARE, Claim
from sweeps.runs.measured import metric_values, pair_of

if TYPE_CHECKING:
    from jaxtyping import Float

    from sweeps.runs.measured import KeptRuns
    from sweeps.strategies.arms import Arm

STEP = 10  # least number of seeds from one look to the next, and a tenth of those so far


@dataclass(frozen=True)
class FinalQuestion:
    """The metric and constraints of a choice, and how surely it is to be made."""

    metric: str
    zone: float  # differences below it do not matter, in the metric's unit
    constraints: tuple[Claim, ...]
    tolerance: float  # of a constraint, as a share of its limit
    confidence: float
    most_seeds: int

    def next_count(self, count: int, looked_at: Sequence[Seen]) -> int:
        """Return how many seeds the look after that on `count` has."""
        return min(count + max(STEP, count // 10), self.most_seeds)

    @property
    def names(self) -> tuple[str, ...]:
        """Return all metrics that are looked at, once each."""
        return tuple(
            dict.fromkeys((self.metric, *(constraint.metric for constraint in self.constraints)))
        )


@dataclass(frozen=True)
class FinalAnswer:
    """The outcome of the stage."""

    selection: WhatIsLeft
    num_seeds: int
    seeds_of: tuple[int, ...]  # how many each arm was run on
    means: tuple[float, ...]  # of the metric, over those
    failed: tuple[str, ...]  # arms with a run that did not end

    @property
    def winner(self) -> int | None:
        """Return the arm that is left; None if several are left, or none."""
        return self.selection.left[0] if self.selection.is_over and self.selection.left else None


class FinalStage:
    """Runs the arms; the first is what constraints in % compare with, and is run on all seeds."""

    def __init__(self, choice: FinalQuestion, arms: Sequence[Arm], kept: KeptRuns) -> None:
        self.choice, self.arms, self.kept = choice, arms, kept
        self.sign = 1.0 if lookup(choice.metric)[0].direction == LOWER else -1.0

    def run(self) -> FinalAnswer:
        """Run the arms on more and more seeds until one is left, or the seeds are spent."""
        error = 1 - self.choice.confidence
        num_first = len(self.kept.seeds)
        finalists = Finalists(len(self.arms), num_first, self.choice.zone, error)
        runs: list[tuple[RunSummary, ...]] = [() for _ in self.arms]
        going = list(range(len(self.arms)))

        def look_at(count: int) -> Look[WhatIsLeft]:
            again = sorted({0, *going})
            self.kept.reach(count, len(again))
            for at in again:
                runs[at] = self.kept.of(self.arms[at].config, self.arms[at].name)
            for at in going:
                if not all(run.is_whole for run in runs[at]):
                    finalists.feasible[at] = MISSED
            what_is_left = finalists.look(self._values(runs), self._slacks(runs))
            going[:] = what_is_left.left
            end = SPENT if count >= self.choice.most_seeds else GOES_ON
            return Look(count, what_is_left, end=DECIDED if what_is_left.is_over else end)

        looks = look_until_end(self.choice, num_first, look_at)
        return self._chosen(looks[-1].found, runs)

    def _values(self, runs: Sequence[tuple[RunSummary, ...]]) -> list[Float[np.ndarray, "seed"]]:
        return [self.sign * metric_values(of_arm, self.choice.metric) for of_arm in runs]

    def _slacks(self, runs: Sequence[tuple[RunSummary, ...]]) -> list[list[Slack]]:
        return [
            [self._slack(one, of_arm, runs[0][: len(of_arm)]) for one in self.choice.constraints]
            for of_arm in runs
        ]

    def _slack(
        self, constraint: Claim, runs: Sequence[RunSummary], reference: Sequence[RunSummary]
    ) -> Slack:
        if constraint.of == SHARE:
            pair = pair_of(reference, runs, constraint.metric)
        else:
            values = metric_values(runs, constraint.metric)
            pair = Pair(values, values)
        limit, values = constraint.limits(pair.second, pair.first), pair.second
        kept = limit - values if constraint.is_upper else values - limit
        scale = float(np.abs(np.nanmean(limit))) if len(limit) else 0.0
        return Slack(kept, self.choice.tolerance * scale)

    def _chosen(self, found: WhatIsLeft, runs: Sequence[tuple[RunSummary, ...]]) -> FinalAnswer:
        failed = [
            arm.name
            for arm, of_arm in zip(self.arms, runs, strict=True)
            if not all(run.is_whole for run in of_arm)
        ]
        return FinalAnswer(
            found,
            len(self.kept.seeds),
            tuple(map(len, runs)),
            tuple(float(metric_values(of_arm, self.choice.metric).mean()) for of_arm in runs),
            tuple(failed),
        )

    def afresh(self, winner: int, num_seeds: int) -> tuple[range, list[Difference]]:
        """Compare the winner with the first arm on seeds that chose nothing: return the seeds, and the
        difference of each metric.
        """
        last = self.kept.seeds[-1]
        seeds = range(last + 1, last + 1 + num_seeds)
        experiment = self.kept.experiment.on_seeds(seeds)
        configs = [self.arms[at].config for at in (0, winner)]
        first, second = (
            experiment.summaries([config], self.kept.recorder)[0] for config in configs
        )
        pairs = [pair_of(first, second, name) for name in self.choice.names]
        return seeds, paired.differences(pairs, BY_STUDENT)

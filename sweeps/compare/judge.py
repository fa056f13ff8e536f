"""What makes intervals and verdicts of arms' runs: over seeds or windows, or over the requests of one trace."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from blis_jax.metrics.scalars import lookup
from blis_jax.statistics import intervals, paired
from blis_jax.statistics.intervals import Estimate, Inference
from blis_jax.statistics.paired import Difference, Pair
from sweeps.compare.one_trace import OneTrace
from sweeps.runs.measured import Measured, metric_values, paired_values

if TYPE_CHECKING:
    from sweeps.compare.document import ComparedSetting


@dataclass(frozen=True)
class BySeeds:
    """Inference over the runs of seeds, or of the windows of a trace."""

    inference: Inference

    def differences(
        self, asked: Sequence[tuple[Sequence[Measured], Sequence[Measured], str]]
    ) -> list[Difference]:
        """Second minus first of every entry (first, second, metric), judged together."""
        pairs = [
            Pair(*paired_values(first, second, name), lookup(name)[0].direction)
            for first, second, name in asked
        ]
        return paired.differences(pairs, self.inference)

    def interval(self, runs: Sequence[Measured], name: str) -> Estimate:
        """A figure of one arm."""
        values = metric_values(runs, name)
        known = values[np.isfinite(values)]
        return intervals.interval_of(intervals.seed_mean, [known], self.inference)


Judge = BySeeds | OneTrace


def judge_of(setting: ComparedSetting, arms: Sequence[Sequence[Measured]]) -> Judge:
    """For the runs of these arms, the reference first."""
    if setting.is_one_trace:
        return OneTrace(arms, setting.inference, setting.block_s)
    return BySeeds(setting.inference)

"""Success criteria judged: what was reached, on how many seeds, how surely, and for the other classes too."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from blis_jax.metrics.scalars import lookup
from blis_jax.metrics.summaries import ALL
from blis_jax.statistics.intervals import Estimate, Inference, estimate, relative_change
from sweeps.runs.measured import Measured, metric_values, paired_values
from sweeps.runs.metrics import our_name
from sweeps.strategies.file import SuccessCriterion

if TYPE_CHECKING:
    from jaxtyping import Float


@dataclass(frozen=True)
class JudgedCriterion:
    """One criterion for one class. `is_asked`: the file asks for this class, not for another one."""

    metric: str
    slo_class: str
    criterion: SuccessCriterion
    is_asked: bool
    reached: Estimate  # in the metric's unit, or in % of the reference
    num_seeds: int
    num_seeds_met: int

    @property
    def is_met(self) -> bool:
        """By the mean over the seeds."""
        return bool(_is_kept(self.criterion, np.array(self.reached.mean)))

    @property
    def is_sure(self) -> bool:
        """Whether the interval lies on the same side as the mean."""
        ends = np.array([self.reached.low, self.reached.high])
        kept = _is_kept(self.criterion, ends)
        return bool(np.isfinite(ends).all() and (kept == self.is_met).all())


def metrics_of(criteria: Sequence[SuccessCriterion], classes: Sequence[str]) -> tuple[str, ...]:
    """The metrics that judging them takes."""
    return tuple(dict.fromkeys(name for one in criteria for name, _, _ in _forms(one, classes)))


def judged(
    criteria: Sequence[SuccessCriterion],
    classes: Sequence[str],
    runs: Sequence[Measured],
    reference: Sequence[Measured],
    inference: Inference,
) -> list[JudgedCriterion]:
    """Every criterion for every class; intervals hold for all of them at once (Bonferroni)."""
    asked = [(one, *form) for one in criteria for form in _forms(one, classes)]
    level = 1 - (1 - inference.confidence) / max(len(asked), 1)
    found = []
    for criterion, name, slo_class, is_asked in asked:
        if criterion.change_percent is None:
            values = metric_values(runs, name)
            values = values[np.isfinite(values)]
            reached, by_seed = estimate(values, level), values
        else:
            before, values = paired_values(reference, runs, name)
            both = np.isfinite(values) & np.isfinite(before)
            samples = [before[both], values[both]]
            reached, by_seed = _change(samples, level)
        kept = int(np.count_nonzero(_is_kept(criterion, by_seed)))
        found.append(
            JudgedCriterion(name, slo_class, criterion, is_asked, reached, len(by_seed), kept)
        )
    return found


def _change(
    samples: list[Float[np.ndarray, "pair"]], level: float
) -> tuple[Estimate, Float[np.ndarray, "pair"]]:
    before, after = samples
    is_base = before != 0
    by_seed = 100 * (after[is_base] / before[is_base] - 1)
    return relative_change(before, after, level), by_seed


def _forms(criterion: SuccessCriterion, classes: Sequence[str]) -> list[tuple[str, str, bool]]:
    """Name, class and whether it is the one that the file names; the latter first."""
    metric, asked = lookup(our_name(criterion.metric))
    asked = asked or ALL
    forms = [(our_name(criterion.metric), asked, True)]
    if metric.has_classes:
        for name in (ALL, *classes):
            if name != asked:
                full = metric.name if name == ALL else f"{metric.name}[{name}]"
                forms.append((full, name, False))
    return forms


def _is_kept(criterion: SuccessCriterion, values: np.ndarray) -> np.ndarray:
    limit = criterion.threshold if criterion.change_percent is None else criterion.change_percent
    assert limit is not None
    kept = values <= limit if criterion.direction == "min" else values >= limit
    return np.asarray(kept)

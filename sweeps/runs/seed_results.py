"""The result of each seed of a point, by metrics of the compiled call where they have that form."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import blis_jax.metrics.on_device.further  # noqa: F401  (registers the metrics of searches)
from blis_jax.metrics.measure import Measure
from blis_jax.metrics.on_device.compiled import Compute, Report
from blis_jax.metrics.on_device.figures import has_figure
from blis_jax.metrics.on_device.lane import MeasureNumbers
from blis_jax.metrics.on_device.run_figures import Figures, RunFigures, evaluated
from blis_jax.metrics.on_device.summary import CompiledSummary
from blis_jax.metrics.summaries import SloTargets
from blis_jax.results.records import RunRecord
from sweeps.search.objectives import SeedResult


def seed_results(
    names: Sequence[str], measure: Measure, targets: SloTargets
) -> Callable[[RunRecord], SeedResult]:
    """What makes a seed's result of a run; `targets` are the measure's."""
    if all(has_figure(name) for name in names):
        return SeedResults(RunFigures(names, targets, measure))
    return lambda record: _result(evaluated(record, names, targets, measure))


class SeedResults(CompiledSummary[SeedResult]):
    """Figures as the result of a seed."""

    def __init__(self, figures: RunFigures) -> None:
        self.figures = figures

    @property
    def compute(self) -> Compute:
        """Of the figures."""
        return self.figures.compute

    @property
    def numbers(self) -> MeasureNumbers:
        """Of the figures."""
        return self.figures.numbers

    def of_reports(self, report: Report, num_repairs: int | Sequence[int]) -> list[SeedResult]:
        """Of each row."""
        return [_result(one) for one in self.figures.of_reports(report, num_repairs)]

    def __call__(self, record: RunRecord) -> SeedResult:
        """Of a whole record."""
        return _result(self.figures(record))


def _result(figures: Figures) -> SeedResult:
    num_broken = sum(figures.violations.values())
    return SeedResult(figures.outcome.name, figures.metrics, num_broken)

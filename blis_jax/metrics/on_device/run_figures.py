"""Named metrics of each run of a batch, computed in the compiled call."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import jax
import jax.numpy as jnp

from blis_jax.core.outcome import WHOLE, Outcome
from blis_jax.errors import ConfigError
from blis_jax.metrics.measure import Measure
from blis_jax.metrics.on_device.compiled import Report
from blis_jax.metrics.on_device.figures import figure, has_figure
from blis_jax.metrics.on_device.lane import LaneSelection, MeasureNumbers, measure_numbers
from blis_jax.metrics.on_device.ranked import NUM_CLASSES
from blis_jax.metrics.on_device.summary import VIOLATIONS, CompiledSummary
from blis_jax.metrics.scalars import evaluate
from blis_jax.metrics.summaries import LATENCIES, SloTargets
from blis_jax.results.records import RunRecord

KEEP_FIGURES, KEEP_RECORDS = "figures", "records"


@dataclass(frozen=True)
class Figures:
    """How one run ended, and its metrics by name; none if it did not come to its end."""

    outcome: Outcome
    metrics: Mapping[str, float] = field(default_factory=dict)
    violations: Mapping[str, int] = field(default_factory=dict)  # of the cheap invariants
    record: RunRecord | None = None  # where it was asked for


@dataclass(frozen=True)
class NamedFigures:
    """The metrics of those names, `[metric]`."""

    names: tuple[str, ...]

    @property
    def groups(self) -> tuple[int | None, ...]:
        """Of the names, and all classes for what compares them."""
        return None, *range(NUM_CLASSES)

    @property
    def latencies(self) -> tuple[str, ...]:
        """Of the names."""
        return tuple(one for one in LATENCIES if any(name.startswith(one) for name in self.names))

    def __call__(self, selection: LaneSelection) -> jax.Array:
        """Of one lane."""
        nothing = jnp.zeros(0, jnp.float64)
        each = [figure(selection, name)[None] for name in self.names]
        return jnp.concatenate([nothing, *each])


def figures_of(
    names: Sequence[str],
    targets: SloTargets | None = None,
    measure: Measure | None = None,
    keep: str = KEEP_FIGURES,
) -> Callable[[RunRecord], Figures]:
    """Make a `summarize` for `over_seeds` and its like that gives named metrics.

    Args:
        names: metrics, with `[class]` behind for one SLO class; units stand in the names.
        targets: limits in ms by class, for goodput and attainment; none if None.
        measure: spans in s whose arrivals are left out, none if None; its own targets are not used.
        keep: `figures` computes the metrics in the compiled call, and some tens of bytes a run come back.
            `records` brings whole records back too, in `Figures.record`. A metric without a compiled form
            needs the record in either case. Priority inversions count under any policy.

    Returns:
        A function from a record to its `Figures`.

    Raises:
        ConfigError: a name is no metric, or `keep` is neither word.
    """
    if keep not in (KEEP_FIGURES, KEEP_RECORDS):
        raise ConfigError(f"keep is {keep!r}; give {KEEP_FIGURES!r} or {KEEP_RECORDS!r}")
    names = tuple(names)
    targets, measure = targets or SloTargets(), measure or Measure({})
    if keep == KEEP_FIGURES and all(has_figure(name) for name in names):
        return RunFigures(names, targets, measure)

    def of_record(record: RunRecord) -> Figures:
        figures = evaluated(record, names, targets, measure)
        return dataclasses.replace(figures, record=record) if keep == KEEP_RECORDS else figures

    return of_record


class RunFigures(CompiledSummary[Figures]):
    """Named metrics of the compiled call; see `figures_of`."""

    def __init__(self, names: Sequence[str], targets: SloTargets, measure: Measure) -> None:
        """Refuses names that are no metrics, or have no compiled form."""
        self.names, self.targets, self.measure = tuple(names), targets, measure
        missing = [name for name in self.names if not has_figure(name)]
        if missing:
            raise ConfigError(
                f"metric {missing[0]!r} has no compiled form; use a function of whole records"
            )
        self._numbers = numbers_of(targets, measure)

    @property
    def compute(self) -> NamedFigures:
        """Of all the names at once."""
        return NamedFigures(self.names)

    @property
    def numbers(self) -> MeasureNumbers:
        """Of the measure and its targets."""
        return self._numbers

    def of_reports(self, report: Report, num_repairs: int | Sequence[int]) -> list[Figures]:
        """Of each row."""
        rows = zip(
            report.outcome.tolist(),
            report.figures.tolist(),
            report.violations.tolist(),
            strict=True,
        )
        return [self._figures(Outcome(code), values, broken) for code, values, broken in rows]

    def _figures(self, outcome: Outcome, values: Sequence[float], broken: Sequence[int]) -> Figures:
        metrics = dict(zip(self.names, values, strict=True)) if outcome in WHOLE else {}
        return Figures(outcome, metrics, dict(zip(VIOLATIONS, broken, strict=True)))

    def __call__(self, record: RunRecord) -> Figures:
        """Of a whole record."""
        return evaluated(record, self.names, self.targets, self.measure)


def evaluated(
    record: RunRecord, names: Sequence[str], targets: SloTargets, measure: Measure
) -> Figures:
    """The named metrics of a whole record."""
    from blis_jax.metrics.measure import window_of

    if record.outcome not in WHOLE:
        return Figures(record.outcome, {}, record.invariant_failures)
    metrics = evaluate(record, names, targets, window_of(measure, record))
    return Figures(record.outcome, metrics, record.invariant_failures)


def numbers_of(targets: SloTargets, measure: Measure) -> MeasureNumbers:
    """The traced numbers of a measure."""
    spans = measure.warm_up_s, measure.cool_down_s
    return measure_numbers(targets, *(round(span * 1e6) for span in spans))

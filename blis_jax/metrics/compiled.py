"""The metrics in the engine's program: what comes back of a run is a report of some hundred bytes, or named figures."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, TypeVar

import jax
import jax.numpy as jnp

from blis_jax.core.outcome import WHOLE, Outcome
from blis_jax.core.pytrees import pytree
from blis_jax.core.types import EngineShape, Mechanism, Params
from blis_jax.errors import ConfigError
from blis_jax.metrics.distributions import EVERYBODY, NUM_CLASSES
from blis_jax.metrics.lane import (
    LaneRun,
    LaneSelection,
    MeasureNumbers,
    has_unfinished_decode,
    measure_numbers,
)
from blis_jax.metrics.measure import Measure, window_of
from blis_jax.metrics.run_summary import RunSummary
from blis_jax.metrics.scalars import evaluate, lookup
from blis_jax.metrics.summaries import LATENCIES, SloTargets
from blis_jax.records import stored
from blis_jax.records.invariants import CHEAP_CHECKS, CHEAP_NAMES
from blis_jax.records.record import RunRecord
from blis_jax.tables.state import Reg

if TYPE_CHECKING:
    from blis_jax.tables.raw import Raw
    from blis_jax.workload.table import RequestTable

T = TypeVar("T")
VIOLATIONS = (*CHEAP_NAMES, "monotone_clock")  # the last axis of a report's `violations`


class Compute(Protocol):
    """The figures of one lane. Programs are kept by it, so equal ones must be equal and hashable."""

    def __hash__(self) -> int:
        """Of what makes two of them equal."""

    @property
    def groups(self) -> Sequence[int]:
        """Return the codes of the SLO classes that are measured; EVERYBODY stands for all requests."""

    @property
    def latencies(self) -> Sequence[str]:
        """Return the names of the latencies that the figures need."""

    def __call__(self, selection: LaneSelection) -> Any:
        """A pytree of figures."""


@pytree
class Report:
    """The outcomes of runs `[row]`, and their figures."""

    outcome: jax.Array  # int32[row]
    num_iterations: jax.Array
    num_open_ties: jax.Array
    violations: jax.Array  # int32[row, invariant], by VIOLATIONS
    figures: Any


class CompiledSummary(ABC, Generic[T]):
    """Makes the same of a report as of a whole record; the latter where a run had to come back whole.

    Both are called from several threads.
    """

    fewest_rows: ClassVar[int] = 256  # of one program on a CPU from which compiling pays

    @property
    @abstractmethod
    def compute(self) -> Compute:
        """Return the figures to compute inside the call; equal ones share a program."""

    @property
    @abstractmethod
    def numbers(self) -> MeasureNumbers:
        """Return which requests are measured, and against what, as numbers of the call."""

    @abstractmethod
    def of_reports(self, report: Report, num_repairs: int | Sequence[int]) -> Any:
        """Return a sequence of what is kept of each row of a report of numpy arrays, whatever its outcome.

        `num_repairs` is one for all or one for each.
        """

    @abstractmethod
    def __call__(self, record: RunRecord) -> T:
        """The same of one record."""


@pytree
class Drawn:
    """The sizes of requests that were drawn in the call `[row]`, which the host checks."""

    is_short: jax.Array  # the generator drew too few
    most_tokens: jax.Array  # of a request, prompt and output
    num_node_blocks: jax.Array  # of all shared contents


def reports(
    shape: EngineShape,
    mechanism: Mechanism,
    compute: Compute,
    raw: Raw,
    tables: RequestTable,
    params: Params,
    numbers: MeasureNumbers,
) -> Report:
    """Return the reports of all rows; `raw`, `tables` and `params` have a leading axis."""

    def run_of(raw: Raw, table: RequestTable, params: Params) -> LaneRun:
        """Return one row as the metrics see it; the leading axis is gone."""
        return LaneRun(shape, mechanism, raw, table, params)

    def is_open(raw: Raw, table: RequestTable, params: Params) -> jax.Array:
        """Return whether decode of some request of the row ended early, a bool scalar."""
        return has_unfinished_decode(run_of(raw, table, params))

    def report_row(raw: Raw, table: RequestTable, params: Params) -> Report:
        """Return the report of one row, every field without its leading axis."""
        run = run_of(raw, table, params)
        selection = LaneSelection(
            run, numbers, may_be_unfinished, compute.groups, compute.latencies
        )
        broken = [check(run.requests, run.instances) for check in CHEAP_CHECKS]
        return Report(
            outcome=run.outcome.astype(jnp.int32),
            num_iterations=raw.registers[Reg.CURSOR],
            num_open_ties=raw.registers[Reg.NUM_OPEN_TIES],
            violations=jnp.stack([*broken, raw.registers[Reg.INVARIANT_FAILURES]]).astype(
                jnp.int32
            ),
            figures=compute(selection),
        )

    # the definitions are shared with the host and promote as numpy does
    with jax.numpy_dtype_promotion("standard"):
        # one for all rows, so that it stays a branch
        may_be_unfinished = jnp.any(jax.vmap(is_open)(raw, tables, params))
        return jax.vmap(report_row)(raw, tables, params)


# --- named metrics of each run of a batch ---------------------------------------------------------


KEEP_FIGURES, KEEP_RECORDS = "figures", "records"


@dataclass(frozen=True)
class NamedFigures:
    """Compute the metrics of these names, `[metric]`."""

    names: tuple[str, ...]
    # what they are, so that a program on disk is not taken for that of another metric of the name
    functions: tuple[Callable[[Any], Any], ...] = dataclasses.field(compare=False)

    @property
    def groups(self) -> tuple[int, ...]:
        """Return all requests and each SLO class: names may ask for a class, and some figures compare classes."""
        return EVERYBODY, *range(NUM_CLASSES)

    @property
    def latencies(self) -> tuple[str, ...]:
        """Return the latencies that the names of the figures begin with."""
        return tuple(
            latency for latency in LATENCIES if any(name.startswith(latency) for name in self.names)
        )

    def __call__(self, selection: LaneSelection) -> jax.Array:
        """Of one lane."""
        nothing = jnp.zeros(0, jnp.float64)
        each = [selection.figure(name)[None] for name in self.names]
        return jnp.concatenate([nothing, *each])


def figures_of(
    names: Sequence[str],
    targets: SloTargets | None = None,
    measure: Measure | None = None,
    keep: str = KEEP_FIGURES,
    store: str | Path | None = None,
) -> Callable[[RunRecord], RunSummary]:
    """Make a `summarize` for `over_seeds` and its like that gives named metrics.

    Args:
        names: metrics, with `[class]` behind for one SLO class; units stand in the names.
        targets: limits in ms by class, for goodput and attainment; none if None.
        measure: spans in s whose arrivals are left out, none if None; its own targets are not used.
        keep: `figures` computes the metrics in the compiled call, and some tens of bytes a run come back.
            `records` brings whole records back too, in `RunSummary.record`.
        store: a folder that every machine sees. Whoever makes a run writes its whole record there, and its file
            comes back with the figures, in `RunSummary.stored`, for `blis_jax.records.stored.load`.

    Returns:
        A function from a record to its `RunSummary`.

    Raises:
        ConfigError: a name is no metric, `keep` is neither word, or records are to come back and to be stored.
    """
    if keep not in (KEEP_FIGURES, KEEP_RECORDS):
        raise ConfigError(f"keep is {keep!r}; give {KEEP_FIGURES!r} or {KEEP_RECORDS!r}")
    if isinstance(names, str):
        raise ConfigError(f"names: got the text {names!r}; give a list, [{names!r}]")
    names = tuple(names)
    targets, measure = targets or SloTargets(), measure or Measure({})
    if keep == KEEP_RECORDS and store is not None:
        raise ConfigError(
            f"keep is {KEEP_RECORDS!r} and store is given; a record comes back or is stored, leave one out"
        )
    if keep == KEEP_FIGURES and store is None:
        return RunFigures(names, targets, measure)

    for name in names:
        lookup(name)

    def of_record(record: RunRecord) -> RunSummary:
        summary = evaluated(record, names, targets, measure)
        if store is not None:
            return dataclasses.replace(summary, stored=str(stored.store(record, store)))
        return dataclasses.replace(summary, record=record)

    return of_record


class RunFigures(CompiledSummary[RunSummary]):
    """Named metrics of the compiled call; see `figures_of`."""

    def __init__(self, names: Sequence[str], targets: SloTargets, measure: Measure) -> None:
        """Refuse names that are no metrics."""
        self.names, self.targets, self.measure = tuple(names), targets, measure
        self._functions = tuple(lookup(name)[0].compute for name in self.names)
        self._numbers = measure_numbers(targets, measure)

    @property
    def compute(self) -> NamedFigures:
        """Return all figures that are asked for by name, computed in one call."""
        return NamedFigures(self.names, self._functions)

    @property
    def numbers(self) -> MeasureNumbers:
        """Return the measure's window and targets as numbers of the call."""
        return self._numbers

    def of_reports(self, report: Report, num_repairs: int | Sequence[int]) -> list[RunSummary]:
        """Return the summary of each row of a report `[row]`."""
        rows = zip(
            report.outcome.tolist(),
            report.figures.tolist(),
            report.violations.tolist(),
            strict=True,
        )
        return [self._figures(Outcome(code), values, broken) for code, values, broken in rows]

    def _figures(
        self, outcome: Outcome, values: Sequence[float], broken: Sequence[int]
    ) -> RunSummary:
        metrics = dict(zip(self.names, values, strict=True)) if outcome in WHOLE else {}
        return RunSummary(outcome, metrics, dict(zip(VIOLATIONS, broken, strict=True)))

    def __call__(self, record: RunRecord) -> RunSummary:
        """Of a whole record."""
        return evaluated(record, self.names, self.targets, self.measure)


def evaluated(
    record: RunRecord, names: Sequence[str], targets: SloTargets, measure: Measure
) -> RunSummary:
    """Return the named metrics of a whole record."""
    if record.outcome not in WHOLE:
        return RunSummary(record.outcome, {}, record.invariant_failures)
    metrics = evaluate(record, names, targets, window_of(measure, record))
    return RunSummary(record.outcome, metrics, record.invariant_failures)

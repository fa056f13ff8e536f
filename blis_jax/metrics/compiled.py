"""Metrics computed in the engine's program: it returns a report of some hundred bytes for each run, not its record."""

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
    """Computes the figures of one lane. It is part of a compiled program's key, so it needs equality and a hash."""

    def __hash__(self) -> int:
        """Return a hash of all that equality compares."""

    @property
    def groups(self) -> Sequence[int]:
        """Return the codes of the SLO classes that are measured; EVERYBODY stands for all requests."""

    @property
    def latencies(self) -> Sequence[str]:
        """Return the names of the latencies that the figures need."""

    def __call__(self, selection: LaneSelection) -> Any:
        """Return the figures of a lane's measured requests, as a pytree."""


@pytree
class Report:
    """The outcomes of runs `[row]`, and their figures."""

    outcome: jax.Array  # int32[row]
    num_iterations: jax.Array
    num_open_ties: jax.Array
    violations: jax.Array  # int32[row, invariant], by VIOLATIONS
    figures: Any


class CompiledSummary(ABC, Generic[T]):
    """Summarises a run from its report, or, if the run came back whole, from its record, with equal results.

    Both methods are called from several threads.
    """

    fewest_rows: ClassVar[int] = 256  # of one program on a CPU from which compiling pays

    @property
    @abstractmethod
    def compute(self) -> Compute:
        """Return the figures to compute inside the call; equal ones share a program."""

    @property
    @abstractmethod
    def numbers(self) -> MeasureNumbers:
        """Return the measured window and the targets, as traced arguments of the compiled call."""

    @abstractmethod
    def of_reports(self, report: Report, num_repairs: int | Sequence[int]) -> Any:
        """Return the summary of each run in `report`, whose arrays `[row]` are numpy's, whatever its outcome.

        `num_repairs` is one number for all runs or one for each.
        """

    @abstractmethod
    def __call__(self, record: RunRecord) -> T:
        """Return the summary of a run from its record."""


@pytree
class Drawn:
    """Sizes, for each run `[row]`, of the requests drawn in the call, which the host checks."""

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
    """Return the reports of all runs; `raw`, `tables` and `params` have the runs as leading axis."""

    def run_of(raw: Raw, table: RequestTable, params: Params) -> LaneRun:
        """Return one run as metrics read it; its arrays have no leading axis."""
        return LaneRun(shape, mechanism, raw, table, params)

    def is_open(raw: Raw, table: RequestTable, params: Params) -> jax.Array:
        """Return whether some request of the run ended in decode without completing, or was evicted; a bool scalar."""
        return has_unfinished_decode(run_of(raw, table, params))

    def report_row(raw: Raw, table: RequestTable, params: Params) -> Report:
        """Return the report of one run, its fields without the leading axis."""
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
        """Return the codes of all requests and of each SLO class, since some figures compare classes."""
        return EVERYBODY, *range(NUM_CLASSES)

    @property
    def latencies(self) -> tuple[str, ...]:
        """Return the latencies with whose names the metrics' names begin."""
        return tuple(
            latency for latency in LATENCIES if any(name.startswith(latency) for name in self.names)
        )

    def __call__(self, selection: LaneSelection) -> jax.Array:
        """Return the metrics of one lane, `[metric]`."""
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
    """Return a `summarize` for `over_seeds` and similar functions, which computes named metrics.

    Args:
        names: metrics, with `[class]` behind for one SLO class; units stand in the names.
        targets: limits in ms by class, for goodput and attainment; none if None.
        measure: spans in s whose arrivals are left out, none if None; its own targets are not used.
        keep: `figures` computes the metrics in the compiled call, which returns some tens of bytes for each run;
            `records` returns whole records too, in `RunSummary.record`.
        store: a folder shared by all machines, to which the process that makes a run writes its whole record; the
            path is in `RunSummary.stored`, for `blis_jax.records.stored.load`.

    Returns:
        A function from a record to its `RunSummary`.

    Raises:
        ConfigError: a name is no metric, `keep` is neither word, or `keep` is `records` and a store is given.
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
    """Summarises a run by named metrics, computed in the compiled call; see `figures_of`."""

    def __init__(self, names: Sequence[str], targets: SloTargets, measure: Measure) -> None:
        """Look the metrics up; refuse unknown names."""
        self.names, self.targets, self.measure = tuple(names), targets, measure
        self._functions = tuple(lookup(name)[0].compute for name in self.names)
        self._numbers = measure_numbers(targets, measure)

    @property
    def compute(self) -> NamedFigures:
        """Return the function that computes all the named metrics in the call."""
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
        """Return the summary of a whole record."""
        return evaluated(record, self.names, self.targets, self.measure)


def evaluated(
    record: RunRecord, names: Sequence[str], targets: SloTargets, measure: Measure
) -> RunSummary:
    """Return the summary of a whole record, with the named metrics."""
    if record.outcome not in WHOLE:
        return RunSummary(record.outcome, {}, record.invariant_failures)
    metrics = evaluate(record, names, targets, window_of(measure, record))
    return RunSummary(record.outcome, metrics, record.invariant_failures)

"""Calls of compiled programs: runs that share sizes and a program, and what comes back of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import numpy as np

from blis_jax.core.outcome import Outcome
from blis_jax.metrics.arrays import stacked
from blis_jax.metrics.on_device.compiled import Drawn, Report
from blis_jax.metrics.on_device.summary import CompiledSummary
from blis_jax.results.from_tables import Observation, unstack
from blis_jax.runs.programs import Ran, compiled, reports_of, rows_of
from blis_jax.runs.runs import GivenRun, Run, larger_plan, observed
from blis_jax.runs.sizes import larger_shape


class Group:
    """Runs of one kind, and the sizes that hold them all."""

    def __init__(self, run: Run) -> None:
        """For a first run."""
        self.functions, self.shape, self.plan = run.functions, run.sizes.shape, run.plan

    def hold(self, runs: Iterable[Run]) -> None:
        """Grow to hold these runs, too."""
        for shape in {run.sizes.shape for run in runs}:
            self.shape = larger_shape(self.shape, shape)
        for plan in {run.plan for run in runs}:
            if self.plan is not None and plan is not None:
                self.plan = larger_plan(self.plan, plan)


class Call(NamedTuple):
    """Runs of one group that go through its program together."""

    group: Group
    runs: Sequence[Run]
    size: int  # rows of the program
    measured: CompiledSummary[Any] | None = None  # computes figures in the call

    @property
    def statics(self) -> tuple[Any, ...]:
        """What the program is built of, see `programs.rows_of`."""
        group, options = self.group, self.runs[0].sizes.options
        compute = self.measured.compute if self.measured and options.form == "lanes" else None
        width = options.num_lanes if options.form == "lanes" else None
        width = width if width and width < self.size else None
        return group.shape, group.functions, options.form, group.plan, compute, width

    @property
    def of_reports(self) -> tuple[Any, ...] | None:
        """What the program that measures rows is built of; None if nothing is measured, or lanes are."""
        if self.measured is None or self.runs[0].sizes.options.form == "lanes":
            return None
        return self.group.shape, self.group.functions, self.measured.compute

    def given(self) -> list[Any]:
        """Numbers and source of each run, filled up to the size."""
        shape, num_spare = self.group.shape, self.size - len(self.runs)
        members = [*self.runs, self.runs[-1].filler()] if num_spare else self.runs
        rows = [(run.numbers(shape), run.source(shape)) for run in members]
        return rows + rows[-1:] * (num_spare - 1)

    def arguments(self, given: Sequence[Any]) -> tuple[Any, ...]:
        """What the program is called with for these rows."""
        arguments = jax.tree.map(stacked, *given)
        options = self.runs[0].sizes.options
        steps = np.int32(options.max_scan_steps)
        if options.form == "rows":
            return *arguments, steps
        return *arguments, steps, self.measured.numbers if self.measured else None

    @property
    def long_run(self) -> GivenRun | None:
        """The run if it is long, by itself, and may have ties: it is made in stretches."""
        run = self.runs[0]
        is_alone = self.size == 1 and not self.measured and run.sizes.options.form == "rows"
        return run if is_alone and isinstance(run, GivenRun) and run.is_long else None

    def compile(self) -> None:
        """Make the program ready, so that many threads may call it."""
        if self.long_run is not None:
            return
        given = self._replace(runs=self.runs[:1]).given()
        with jax.enable_x64(True):
            program, arguments = compiled(rows_of, *self.statics), self.arguments(given)
            if self.of_reports is None:
                program.lower(*arguments).compile()
                return
            ran = jax.eval_shape(program, *arguments)
            tables = arguments[1][0] if ran.tables is None else ran.tables
            numbers = self.measured.numbers if self.measured else None
            reporting = compiled(reports_of, *self.of_reports)
            lowered = reporting.lower(ran.raw, tables, arguments[0], numbers)
            with ThreadPoolExecutor(1) as beside:
                measuring = beside.submit(lowered.compile)
                program.lower(*arguments).compile()
                measuring.result()


@dataclass(frozen=True)
class Results:
    """How the runs of a call ended."""

    outcomes: Sequence[Outcome]
    num_open_ties: Sequence[int]
    look: Callable[[int], Observation]  # at everything that one of them left behind
    report: Report | None = None  # of a call that measures
    drawn: Drawn | None = None


Execute = Callable[[Call], Results]


def execute(call: Call) -> Results:
    """Run a compiled call; the tables of one that measures stay on the device until they are looked at."""
    group, measured = call.group, call.measured
    if (run := call.long_run) is not None:
        return results_of([run.in_stretches(group.shape)])
    given = call.given()
    with jax.enable_x64(True):
        left = _ran(call, call.arguments(given))
        if measured is None:
            left = _on_host(left)
            drawn, report = left.drawn, left.report
        else:
            drawn, report = jax.device_get((left.drawn, left.report))

    def look(at: int) -> Observation:
        numbers, source = given[at]
        table = source[0] if group.plan is None else unstack(left.tables, at)
        return observed(unstack(left.raw, at), numbers, table, group.shape, group.functions)

    if report is None:
        return results_of([look(at) for at in range(len(call.runs))], drawn)
    codes = report.outcome
    if drawn is not None:
        codes = np.where(drawn.is_short, int(Outcome.WORKLOAD_SHORT), codes)
        report = dataclasses.replace(report, outcome=codes)
    outcomes = [Outcome(code) for code in codes.tolist()]
    return Results(outcomes, report.num_open_ties.tolist(), look, report, drawn)


def _ran(call: Call, arguments: Any) -> Ran:
    """What the call's programs return, on the device."""
    ran: Ran = compiled(rows_of, *call.statics)(*arguments)
    if call.measured is None or call.of_reports is None:
        return ran
    tables = arguments[1][0] if ran.tables is None else ran.tables
    measure = compiled(reports_of, *call.of_reports)
    report = measure(ran.raw, tables, arguments[0], call.measured.numbers)
    return dataclasses.replace(ran, report=report)


def _on_host(left: Ran) -> Any:
    """As numpy; `jax.device_get` prepares copies even where there are none, which costs six times as much."""
    if jax.default_backend() != "cpu":
        return jax.device_get(left)
    return jax.tree.map(np.asarray, left)


def results_of(seen: Sequence[Observation], drawn: Drawn | None = None) -> Results:
    """Of whole runs."""
    outcomes = [one.outcome() for one in seen]
    if drawn is not None:
        short = drawn.is_short[: len(seen)].tolist()
        pairs = zip(short, outcomes, strict=True)
        outcomes = [Outcome.WORKLOAD_SHORT if is_short else code for is_short, code in pairs]
    ties = [one.num_open_ties() for one in seen]
    return Results(outcomes, ties, lambda at: seen[at], drawn=drawn)

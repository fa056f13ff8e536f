"""Calls of compiled programs: runs that share table sizes and a program, and their results."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable, Iterable, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np

from blis_jax.core.arrays import stacked
from blis_jax.core.outcome import Outcome
from blis_jax.metrics.compiled import CompiledSummary, Drawn, Report
from blis_jax.records.observation import Observation, unstack
from blis_jax.runs.programs import Ran, compiled, drawn_of, reports_of, rows_of
from blis_jax.runs.runs import GivenRun, Run, larger_plan
from blis_jax.runs.sizes import larger_shape

if TYPE_CHECKING:
    from jaxtyping import Shaped

Build = Callable[..., Callable[..., Any]]
Use = Callable[[Build, tuple[Any, ...], tuple[Any, ...]], Any]


class Group:
    """Table sizes and plan of draws that hold all runs of one kind."""

    def __init__(self, run: Run) -> None:
        """Take the sizes of a first run."""
        self.functions, self.shape, self.plan = run.functions, run.sizes.shape, run.plan

    def hold(self, runs: Iterable[Run]) -> None:
        """Grow the sizes to hold these runs too."""
        for shape in {run.sizes.shape for run in runs}:
            self.shape = larger_shape(self.shape, shape)
        for plan in {plan for run in runs if (plan := run.plan)}:
            self.plan = larger_plan(self.plan or plan, plan)


class Call(NamedTuple):
    """Runs of one group that go through its program together."""

    group: Group
    runs: Sequence[Run]
    size: int  # rows of the program
    measured: CompiledSummary[Any] | None = None  # computes figures in the call

    @property
    def statics(self) -> tuple[Any, ...]:
        """Return the arguments of `programs.rows_of`; calls with equal ones share one compiled program."""
        group, options = self.group, self.runs[0].sizes.options
        if options.form == "rows":
            return group.shape, group.functions, options.form
        width = options.num_lanes
        width = width if width and width < self.size else None
        compute = self.measured.compute if self.measured else None
        return group.shape, group.functions, options.form, group.plan, compute, width

    @property
    def kind(self) -> Hashable:
        """Return all on which the call's compiled programs depend: `statics`, the plan of draws, the number of rows."""
        return self.statics, self.group.plan, self.size

    @property
    def is_in_rows(self) -> bool:
        """Return whether the call has the form `rows`, in which separate programs draw requests and measure."""
        return self.runs[0].sizes.options.form == "rows"

    def given(self) -> list[Any]:
        """Return numbers and source of each run, padded to `size` with runs without requests."""
        shape, num_spare = self.group.shape, self.size - len(self.runs)
        members = [*self.runs, self.runs[-1].filler()] if num_spare else self.runs
        rows = [(run.numbers(shape), run.source(shape)) for run in members]
        return rows + rows[-1:] * (num_spare - 1)

    def arguments(self, inputs: Sequence[Any]) -> tuple[Any, ...]:
        """Return the program's arguments: inputs `[row, ...]`, the limit of scan steps, numbers to measure with."""
        arguments = jax.tree.map(stacked, *inputs)
        options = self.runs[0].sizes.options
        steps = np.int32(options.max_scan_steps)
        if self.is_in_rows:
            return *arguments, steps
        return *arguments, steps, self.measured.numbers if self.measured else None

    @property
    def long_run(self) -> GivenRun | None:
        """Return the call's only run if it is long and may have ties, so is made in stretches; else None."""
        run = self.runs[0]
        is_alone = self.size == 1 and not self.measured and run.sizes.options.form == "rows"
        return run if is_alone and isinstance(run, GivenRun) and run.is_long else None

    def through(self, arguments: tuple[Any, ...], use: Use) -> Ran:
        """Apply `use(build, statics, arguments)` to each program of the call in turn; return the combined results."""
        params, source, *rest = arguments
        if not self.is_in_rows:
            ran: Ran = use(rows_of, self.statics, arguments)
            return ran
        tables = drawn = None
        if self.group.plan:
            source, drawn = use(drawn_of, (self.group.plan,), source)
            tables = source[0]
        raw = use(rows_of, self.statics, (params, source, *rest)).raw
        if not self.measured:
            return Ran(raw, tables, drawn)
        statics = self.group.shape, self.group.functions, self.measured.compute
        inputs = raw, source[0], params, self.measured.numbers
        return Ran(raw, tables, drawn, use(reports_of, statics, inputs))

    def begin_compiling(
        self, compilers: Executor, begun: dict[Hashable, Future[object]]
    ) -> list[Future[object]]:
        """Return the compilations that this call waits for; trace programs not yet in `begun`, and add them to it.

        Once a program is compiled, many threads may call it.
        """
        needed: list[Future[object]] = []
        if self.long_run:
            return needed

        def shapes_of(build: Build, statics: tuple[Any, ...], arguments: tuple[Any, ...]) -> Any:
            """Begin to compile a program; return the shapes of its results."""
            program, key = compiled(build, *statics), (build, statics, self.size)
            if key not in begun:
                begun[key] = compilers.submit(program.lower(*arguments))
            needed.append(begun[key])
            return program.shapes(*arguments)

        with jax.enable_x64(True):
            self.through(self.arguments(self._replace(runs=self.runs[:1]).given()), shapes_of)
        return needed


@dataclass(frozen=True)
class Results:
    """The outcomes and figures of the runs of a call."""

    outcomes: Sequence[Outcome]
    num_open_ties: Sequence[int]
    look: Callable[[int], Observation]  # at everything that one of them left behind
    report: Report | None = None  # of a call that measures
    drawn: Drawn | None = None


Execute = Callable[[Call], Results]


def execute(call: Call) -> Results:
    """Run a compiled call; if it measures, the runs' tables stay on the device until `look` reads them."""
    group = call.group
    if run := call.long_run:
        return results_of([run.in_stretches(group.shape)])
    inputs = call.given()
    with jax.enable_x64(True):
        left = ran(call, call.arguments(inputs))
        if call.measured:
            drawn, report = jax.device_get((left.drawn, left.report))
        else:
            left = _on_host(left)
            drawn, report = left.drawn, left.report

    def look(at: int) -> Observation:
        numbers, source = inputs[at]
        table = unstack(left.tables, at) if group.plan else source[0]
        return Observation(unstack(left.raw, at), table, numbers, group.shape, group.functions)

    if report is None:
        return results_of([look(at) for at in range(len(call.runs))], drawn)
    codes = _with_short(report.outcome, drawn)
    report = dataclasses.replace(report, outcome=codes)
    outcomes = [Outcome(code) for code in codes.tolist()]
    return Results(outcomes, report.num_open_ties.tolist(), look, report, drawn)


def _with_short(codes: Shaped[np.ndarray, "run"], drawn: Drawn | None) -> Any:
    """Replace the outcome codes of runs whose draws were too few by WORKLOAD_SHORT."""
    if drawn is None:
        return codes
    return np.where(drawn.is_short[: len(codes)], int(Outcome.WORKLOAD_SHORT), codes)


def ran(call: Call, arguments: tuple[Any, ...]) -> Ran:
    """Run the call's programs; return their results, on the device."""
    return call.through(
        arguments, lambda build, statics, inputs: compiled(build, *statics)(*inputs)
    )


def _on_host(left: Ran) -> Any:
    """Convert to numpy; on a CPU without `jax.device_get`, which costs six times as much by preparing copies."""
    if jax.default_backend() != "cpu":
        return jax.device_get(left)
    return jax.tree.map(np.asarray, left)


def results_of(seen: Sequence[Observation], drawn: Drawn | None = None) -> Results:
    """Return the results of whole runs; a run whose draws were too few has the outcome WORKLOAD_SHORT."""
    codes = _with_short(np.array([int(each.outcome()) for each in seen]), drawn)
    ties = [observation.num_open_ties() for observation in seen]
    return Results(
        [Outcome(code) for code in codes.tolist()], ties, lambda at: seen[at], drawn=drawn
    )

"""Many runs of requests that are there already: rows of a configuration and a table, side by side.

The repairs are those of a single run; what the rows of one mechanism need is compiled once, in
calls of one size that later batches of rows use again.
"""

from __future__ import annotations

import copy
import dataclasses
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, TypeVar

import jax
import numpy as np

from blis_jax.device_metrics.compiled import compiled_table_reports
from blis_jax.device_metrics.summary import CompiledSummary
from blis_jax.drawn_rows import ROWS_PER_CALL, in_call, num_workers
from blis_jax.observe import unstack
from blis_jax.records import RunRecord
from blis_jax.simulation import (
    Attempt,
    Options,
    Row,
    observed,
    run_attempts,
    stacked_arguments,
)
from blis_jax.types import EngineShape, Outcome
from blis_jax.workload.table import NEVER_US

T = TypeVar("T")
_WIDER_CLOCK = {"int32": 0, "int64": 1, "float64": 2, "continuous": 3}


class _Call(NamedTuple):
    kind: Any
    places: tuple[int, ...]  # of the rows


class TableRunner:
    """Runs rows on given tables; sizes only grow, so that later rows find their program compiled."""

    def __init__(self, options: Options, num_rows: int) -> None:
        """`num_rows` is how many rows a batch usually has."""
        self.options = options
        each = -(-num_rows // num_workers())
        is_one_call = options.form == "lanes"
        self.rows_per_call = num_rows if is_one_call else min(each, ROWS_PER_CALL)
        self.num_rows = num_rows
        self.shapes: dict[Any, EngineShape] = {}
        self.compiled: set[tuple[Any, EngineShape, Any]] = set()
        self.compile_s = 0.0  # wall time of calls that compiled, their runs included

    def expect(self, rows: Iterable[Row]) -> None:
        """Takes in the sizes of rows that will come, so that one program may serve all of them."""
        for row in rows:
            self._kind_of(Attempt(row, self.options))

    def run(self, rows: Sequence[Row], summarize: Callable[[RunRecord], T]) -> list[T]:
        """What `summarize` makes of each row's record, in order; it is called from several threads.

        A `CompiledSummary` gets its figures from the compiled call; whole runs come back only to be repaired.
        """
        attempts = [Attempt(row, self.options) for row in rows]
        done: dict[int, T] = {}

        def make(call: _Call) -> None:
            """Run, repair or summarise the rows of one call."""
            members = [attempts[place] for place in call.places]
            made = self._made(call.kind, members, summarize)
            done.update((call.places[at], kept) for at, kept in made.items())

        with ThreadPoolExecutor(num_workers()) as pool:
            while len(done) < len(rows):
                calls = self._calls(attempts, [p for p in range(len(rows)) if p not in done])
                first, rest = self._by_compilation(calls, summarize)
                start = time.perf_counter()
                list(pool.map(make, first))
                self.compile_s += (time.perf_counter() - start) if first else 0.0
                list(pool.map(make, rest))
        return [done[place] for place in range(len(rows))]

    def _calls(self, attempts: Sequence[Attempt], places: Iterable[int]) -> list[_Call]:
        """The rows by what they share, in calls of the usual size."""
        kinds: dict[Any, list[int]] = {}
        for place in places:
            kinds.setdefault(self._kind_of(attempts[place]), []).append(place)
        for kind, members in kinds.items():
            for place in members:
                attempts[place].shape = self.shapes[kind]
        size = self.rows_per_call
        return [
            _Call(kind, tuple(members[at : at + size]))
            for kind, members in kinds.items()
            for at in range(0, len(members), size)
        ]

    def _kind_of(self, attempt: Attempt) -> Any:
        """What the attempt's program depends on besides sizes, which are enlarged to hold it."""
        shape = attempt.shape
        kind = attempt.functions, shape.block_size, shape.num_blocks > 0
        self.shapes[kind] = larger_shape(self.shapes.get(kind, shape), shape)
        return kind

    def _by_compilation(
        self, calls: Sequence[_Call], summarize: Callable[[RunRecord], T]
    ) -> tuple[list[_Call], list[_Call]]:
        """One call for each program that is to be compiled, and the others."""
        measured = in_call(summarize, self.num_rows, self.options.form)
        compute = measured.compute if measured else None
        first: list[_Call] = []
        rest: list[_Call] = []
        for call in calls:
            program = call.kind, self.shapes[call.kind], compute
            (rest if program in self.compiled else first).append(call)
            self.compiled.add(program)
        return first, rest

    def _made(
        self, kind: Any, attempts: list[Attempt], summarize: Callable[[RunRecord], T]
    ) -> dict[int, T]:
        """What is kept of the attempts that are done, by their place; the others are repaired."""
        padding = [_nothing_like(attempts[0])] * (self.rows_per_call - len(attempts))
        filled = [*attempts, *padding]
        measured = in_call(summarize, self.num_rows, self.options.form)
        if measured is not None:
            return self._measured(self.shapes[kind], filled, len(attempts), measured)
        seen = run_attempts(self.shapes[kind], filled, self.options)
        records = [attempt.take(one) for attempt, one in zip(attempts, seen, strict=False)]
        return {at: summarize(record) for at, record in enumerate(records) if record is not None}

    def _measured(
        self, shape: EngineShape, filled: list[Attempt], count: int, summary: CompiledSummary[T]
    ) -> dict[int, T]:
        """The same with figures of the compiled call; the engine's tables stay on the device unless needed."""
        inputs, stacked = stacked_arguments(shape, filled)
        functions, steps = filled[0].functions, np.int32(self.options.max_scan_steps)
        with jax.enable_x64(True):
            function = compiled_table_reports(shape, functions, self.options.form, summary.compute)
            raw, on_device = function(*stacked, steps, summary.numbers)
            report = jax.device_get(on_device)
        kept = summary.of_reports(report, [attempt.repairs for attempt in filled])
        done = {}
        for at, attempt in enumerate(filled[:count]):
            if attempt.is_settled(Outcome(report.outcome[at]), int(report.num_open_ties[at])):
                done[at] = kept[at]
                continue
            record = attempt.take(observed(unstack(raw, at), inputs[at], shape, functions))
            if record is not None:
                done[at] = summary(record)
        return done


def _nothing_like(attempt: Attempt) -> Attempt:
    """The same run without requests: it fills a call up and costs next to nothing."""
    table = attempt.row.table
    never = np.full_like(np.asarray(table.arrival_us), NEVER_US)
    empty = copy.copy(attempt)
    nothing = dataclasses.replace(table, arrival_us=never)
    empty.row = dataclasses.replace(attempt.row, table=nothing)
    return empty


def larger_shape(one: EngineShape, other: EngineShape) -> EngineShape:
    """The sizes that hold what either holds."""
    values: dict[str, Any] = {}
    for field in dataclasses.fields(EngineShape):
        pair = getattr(one, field.name), getattr(other, field.name)
        values[field.name] = max(pair, key=lambda v: _WIDER_CLOCK[v] if isinstance(v, str) else v)
    return EngineShape(**values)

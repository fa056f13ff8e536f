"""The one driver: makes runs in compiled calls, and repeats those that did not fit, until none can be repaired.

Runs of one kind share table sizes and a program. Sizes only grow, so that later runs find their program compiled.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import time
from collections import Counter
from collections.abc import Callable, Generator, Hashable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from blis_jax import progress
from blis_jax.metrics.compiled import CompiledSummary, Drawn
from blis_jax.records.invariants import cheap_violations
from blis_jax.records.record import RunRecord
from blis_jax.runs.calls import Call, Execute, Group, Results
from blis_jax.runs.calls import execute as here
from blis_jax.runs.demand import LONG_TABLE
from blis_jax.runs.options import Options, num_devices, num_workers
from blis_jax.runs.runs import GivenRun, Row, Run
from blis_jax.runs.sizes import larger_shape

T = TypeVar("T")
Ready = Future[list[Future[object]]]  # the compilations that a call needs, once they have begun
NOTHING: Ready = Future()
NOTHING.set_result([])
ROWS_PER_CALL = 16
LANES_PER_CALL = 4096
ROWS_PER_LANE = 16  # of a call, where lanes take one row after another


@dataclass
class Timing:
    """Wall time of a batch, s, split into compiling and running."""

    compile_s: float = 0.0  # waited for compilations; those that ran beside rows are not in it
    run_s: float = 0.0
    num_rows: int = 0
    num_reruns: int = 0


class CallMaker(Protocol):
    """Makes calls in other processes; see scheduler.py."""

    def made(
        self, calls: Sequence[Call], summarize: Callable[[RunRecord], Any]
    ) -> Iterator[tuple[list[tuple[Run, Any]], int]]:
        """Yield for each call, in any order, its finished runs with summaries, and how many must be repeated."""


elsewhere: ContextVar[CallMaker | None] = ContextVar("elsewhere", default=None)


def in_call(
    summarize: Callable[[RunRecord], Any], num_rows: int, form: str
) -> CompiledSummary[Any] | None:
    """Return `summarize` if it can compute the figures in the compiled call, and that is faster; else None."""
    if not isinstance(summarize, CompiledSummary):
        return None
    return summarize if form == "lanes" or num_rows >= summarize.fewest_rows else None


class Runner:
    """Makes one batch of runs after another; runs of one kind share a compiled program."""

    def __init__(
        self, options: Options, num_rows: int | None = None, workers: CallMaker | None = None
    ) -> None:
        """Set the usual number of runs in a batch, `num_rows`, so that all calls have one size.

        With 1, runs are made in the caller's thread; with None, the size of calls follows each batch. Calls are made by
        `workers`, else by those of the command's --scheduler, else by threads.
        """
        self.options, self.num_rows, self.timing = options, num_rows, Timing()
        self.workers = workers or elsewhere.get()
        self.groups: dict[Hashable, Group] = {}
        self.compiled: set[Hashable] = set()

    def expect(self, rows: Iterable[Row]) -> None:
        """Grow table sizes for the runs `rows` to come, so that one program may serve all of them."""
        for row in rows:
            self._grouped([GivenRun(row, self.options)])

    def share_sizes(self) -> None:
        """Give every kind of runs the largest sizes of any kind, if they are one cluster under several routers.

        So a size that was too small for one kind is not tried, and compiled, again for the next.
        """
        shape = functools.reduce(larger_shape, (group.shape for group in self.groups.values()))
        for group in self.groups.values():
            group.shape = shape

    def run(self, rows: Sequence[Row], summarize: Callable[[RunRecord], T]) -> list[T]:
        """Make the runs; return the results of `summarize`, called from several threads, in order.

        A `CompiledSummary` gets its figures from the compiled call; records are read only to repair a run.
        """
        runs = [GivenRun(row, self.options) for row in rows]
        done: dict[Run, T] = {}
        for finished in self.stream(runs, summarize):
            done.update(finished)
        return [done[run] for run in runs]

    def alone(self, run: Run, execute: Execute = here) -> RunRecord:
        """Return the record of one run."""
        done = [pair for pairs in self.stream([run], _itself, execute) for pair in pairs]
        return done[0][1]

    def stream(
        self, runs: Sequence[Run], summarize: Callable[[RunRecord], T], execute: Execute = here
    ) -> Generator[list[tuple[Run, T]]]:
        """Yield, call by call, the finished runs with the results of `summarize`."""
        counts = Counter(run.kind for run in runs)

        def measured(kind: Hashable) -> CompiledSummary[Any] | None:
            """Return the compiled summary for calls of a kind; None if figures are computed from records."""
            return in_call(summarize, self.num_rows or counts[kind], self.options.form)

        def make(call: Call, ready: Ready) -> tuple[list[tuple[Run, T]], int]:
            """Run a call; return its finished runs with their summaries, and how many must be repeated."""
            _wait_for(ready)
            return finished_of(call, execute(call), summarize)

        left: Sequence[Run] = runs
        with contextlib.ExitStack() as used:
            each: Callable[..., Iterator[tuple[list[tuple[Run, T]], int]]] = map
            begin: Callable[[Sequence[Call]], list[Ready]] = _as_called
            if self.workers is not None and self.num_rows != 1 and execute is here:
                workers = self.workers
                each = lambda make, calls, ready: workers.made(calls, summarize)  # noqa: E731
            elif self.num_rows != 1:
                tracer, compilers, threads = (
                    ThreadPoolExecutor(num_threads)
                    for num_threads in (1, num_workers(), _num_threads(self.options.form))
                )
                for pool in (compilers, tracer, threads):  # the last one first
                    used.callback(pool.shutdown, cancel_futures=True)
                each, begin = threads.map, functools.partial(self._compilations, tracer, compilers)
            advance = used.enter_context(progress.runs(len(runs)))
            while left:
                calls = list(self._calls(left, measured))
                ready = begin(calls)
                done: set[Run] = set()
                for finished in self._timed(each(make, calls, ready), ready):
                    done.update(run for run, _ in finished)
                    advance(len(finished))
                    yield finished
                left = [run for run in left if run not in done]

    def _compilations(
        self, tracer: Executor, compilers: Executor, calls: Sequence[Call]
    ) -> list[Ready]:
        """Return for each call the compilations that it has to wait for.

        A single thread traces, since Python's lock allows only one; traced programs compile meanwhile.
        """
        compiling: dict[Hashable, Future[object]] = {}

        ready: dict[Hashable, Ready] = {}
        for call in calls:
            if call.kind not in self.compiled:
                self.compiled.add(call.kind)
                ready[call.kind] = tracer.submit(call.begin_compiling, compilers, compiling)
        return [ready.get(call.kind, NOTHING) for call in calls]

    def _timed(
        self,
        made: Iterator[tuple[list[tuple[Run, T]], int]],
        ready: Sequence[Ready],
    ) -> Iterator[list[tuple[Run, T]]]:
        timing, mark = self.timing, time.perf_counter()
        for compilation in ready:
            _wait_for(compilation)
            compiled_at = time.perf_counter()
            finished, num_again = next(made)
            timing.num_rows += len(finished)
            timing.num_reruns += num_again
            yield finished
            done_at = time.perf_counter()
            timing.compile_s += compiled_at - mark
            timing.run_s += done_at - compiled_at
            mark = done_at

    def _grouped(self, runs: Sequence[Run]) -> dict[Hashable, list[Run]]:
        """Return the runs by kind, after growing each kind's group to hold them."""
        kinds: dict[Hashable, list[Run]] = {}
        for run in runs:
            kinds.setdefault(run.kind, []).append(run)
        for kind, members in kinds.items():
            self.groups.setdefault(kind, Group(members[0])).hold(members)
        return kinds

    def _calls(
        self,
        runs: Sequence[Run],
        measured: Callable[[Hashable], CompiledSummary[Any] | None],
    ) -> Iterator[Call]:
        for kind, members in self._grouped(runs).items():
            group = self.groups[kind]
            size = self.rows_per_call(len(members), group.shape.num_requests)
            num_calls = -(-len(members) // size)
            if (
                self.options.form == "rows" and self.workers is None
            ):  # as many calls for one worker as for another
                num_calls = min(-(-num_calls // num_workers()) * num_workers(), len(members))
            each = -(-len(members) // num_calls)
            for at in range(0, len(members), each):
                yield Call(group, members[at : at + each], size, measured(kind))

    def rows_per_call(self, num_runs: int, num_requests: int = 0) -> int:
        """Return the rows of a call, such that every worker has calls; runs that are not long get one size."""
        if self.options.form == "lanes":
            num_lanes, share = self.options.num_lanes, num_devices()
            most = ROWS_PER_LANE * num_lanes if num_lanes else LANES_PER_CALL
            size = self.num_rows or min(most * share, num_runs)
            return size if size == 1 else -(-size // share) * share  # as many rows for each device
        num_runs = self.num_rows or num_runs
        if num_runs > num_workers() and num_requests < LONG_TABLE:
            return ROWS_PER_CALL  # what a call has too many costs next to nothing
        if self.num_rows:
            return min(-(-self.num_rows // num_workers()), ROWS_PER_CALL)
        each = max(num_runs // num_workers(), 1)
        return min(ROWS_PER_CALL, 1 << (each.bit_length() - 1))


def _as_called(calls: Sequence[Call]) -> list[Ready]:
    """Return for each call an empty wait: its program is compiled when it is called."""
    return [NOTHING] * len(calls)


def _wait_for(ready: Ready) -> None:
    for compilation in ready.result():
        compilation.result()


def _num_threads(form: str) -> int:
    """Return the number of threads that make calls: one more than cores, since Python's lock makes one of them wait."""
    cores = num_workers()
    return 1 if form == "lanes" else cores + 1 if cores > 1 else 1


def _itself(record: RunRecord) -> RunRecord:
    return record


def finished_of(
    call: Call, results: Results, summarize: Callable[[RunRecord], T]
) -> tuple[list[tuple[Run, T]], int]:
    """Return a call's finished runs with their summaries, and how many runs must be repeated."""
    finished: list[tuple[Run, T]] = []
    whole: list[tuple[Run, RunRecord]] = []
    kept: Sequence[T] = ()
    if call.measured and results.report:
        filler = [0] * (call.size - len(call.runs))
        repairs = [*(run.repairs for run in call.runs), *filler]
        kept = call.measured.of_reports(results.report, repairs)
    for at, run in enumerate(call.runs):
        run.hold(call.group.shape, _shown(call, results.drawn, at))
        outcome = results.outcomes[at]
        if len(kept) and run.is_settled(outcome, results.num_open_ties[at]):
            finished.append((run, kept[at]))
            continue
        record = run.take(outcome, lambda at=at: results.look(at))  # type: ignore[misc]
        if record is not None:
            whole.append((run, record))
    finished += [(run, summarize(record)) for run, record in _checked(whole)]
    return finished, len(call.runs) - len(finished)


def _shown(call: Call, drawn: Drawn | None, at: int) -> dict[str, int]:
    """Return the demand of a run's drawn requests that its call has reported."""
    if drawn is None:
        return {}
    longest = -(-int(drawn.most_tokens[at]) // call.group.shape.block_size)
    return {"longest": max(longest, 1), "shared_blocks": int(drawn.num_node_blocks[at])}


def _checked(runs: Sequence[tuple[Run, RunRecord]]) -> list[tuple[Run, RunRecord]]:
    """Return the records with the counts of the cheap invariants added, checked together for runs of equal size."""
    sizes: dict[tuple[int, int], list[int]] = {}
    for place, (_, record) in enumerate(runs):
        size = len(record.requests.status), len(record.instances.step_count)
        sizes.setdefault(size, []).append(place)
    checked = list(runs)
    for places in sizes.values():
        counts = cheap_violations([runs[place][1] for place in places])
        for place, broken in zip(places, counts, strict=True):
            run, record = runs[place]
            failures = record.invariant_failures | broken
            checked[place] = run, dataclasses.replace(record, invariant_failures=failures)
    return checked

"""The one driver: runs rows in compiled calls, and again what did not fit, until none can be repaired any more.

Runs of one kind share sizes and a program. Sizes only grow, so that later runs find their program compiled.
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
from blis_jax.runs.demand import LONG_TABLE, larger_shape
from blis_jax.runs.options import Options, num_devices, num_workers
from blis_jax.runs.runs import GivenRun, Row, Run

T = TypeVar("T")
Ready = Future[list[Future[object]]]  # the compilations that a call needs, once they have begun
NOTHING: Ready = Future()
NOTHING.set_result([])
ROWS_PER_CALL = 16
LANES_PER_CALL = 4096
ROWS_PER_LANE = 16  # of a call, where lanes take one row after another


@dataclass
class Timing:
    """Wall time of a batch by what was done, in seconds."""

    compile_s: float = 0.0  # waited for compilations; those that ran beside rows are not in it
    run_s: float = 0.0
    num_rows: int = 0
    num_reruns: int = 0


class CallMaker(Protocol):
    """Makes calls in other processes; see scheduler.py."""

    def made(
        self, calls: Sequence[Call], summarize: Callable[[RunRecord], Any]
    ) -> Iterator[tuple[list[tuple[Run, Any]], int]]:
        """Yield what is kept of each call's runs that are done, and how many are to be made again; in any order."""


elsewhere: ContextVar[CallMaker | None] = ContextVar("elsewhere", default=None)


def in_call(
    summarize: Callable[[RunRecord], Any], num_rows: int, form: str
) -> CompiledSummary[Any] | None:
    """Return what computes the figures in the compiled call, if that pays."""
    if not isinstance(summarize, CompiledSummary):
        return None
    return summarize if form == "lanes" or num_rows >= summarize.fewest_rows else None


class Runner:
    """Runs one batch of runs after another; what they need is compiled once."""

    def __init__(
        self, options: Options, num_rows: int | None = None, workers: CallMaker | None = None
    ) -> None:
        """`num_rows` is how many runs a batch usually has, so that all calls have one size.

        With 1, runs are made in the caller's thread; if None, the size of calls follows each batch. `workers` make
        the calls in place of threads, those of the command's --scheduler if None.
        """
        self.options, self.num_rows, self.timing = options, num_rows, Timing()
        self.workers = workers or elsewhere.get()
        self.groups: dict[Hashable, Group] = {}
        self.compiled: set[Hashable] = set()

    def expect(self, rows: Iterable[Row]) -> None:
        """Take in the sizes of runs that will come, so that one program may serve all of them."""
        for row in rows:
            self._grouped([GivenRun(row, self.options)])

    def share_sizes(self) -> None:
        """Let each kind hold what any of them holds, since they are one cluster's under several routers.

        What a run of one has found too small is then not found again, and compiled again, by the next.
        """
        shape = functools.reduce(larger_shape, (group.shape for group in self.groups.values()))
        for group in self.groups.values():
            group.shape = shape

    def run(self, rows: Sequence[Row], summarize: Callable[[RunRecord], T]) -> list[T]:
        """Return what `summarize` makes of each row's record, in order; it is called from several threads.

        A `CompiledSummary` gets its figures from the compiled call; whole runs come back only to be repaired.
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
        """Yield the runs as they are done, call by call, with what `summarize` makes of each record."""
        counts = Counter(run.kind for run in runs)

        def measured(kind: Hashable) -> CompiledSummary[Any] | None:
            """Return what computes figures in the calls of a kind."""
            return in_call(summarize, self.num_rows or counts[kind], self.options.form)

        def make(call: Call, ready: Ready) -> tuple[list[tuple[Run, T]], int]:
            """Run a call; return what is kept of its runs, and how many are to be made again."""
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
        """Return for each call what it has to wait for.

        One thread traces, for Python's lock lets no second one; what it has traced compiles meanwhile.
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
        """Return the runs by kind, each held by its group."""
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
        """Return the rows of a call: enough calls for every worker, and one size for any number of
        runs that are not long.
        """
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
    """Return for each call that it waits for nothing: its program is compiled as it is called."""
    return [NOTHING] * len(calls)


def _wait_for(ready: Ready) -> None:
    for compilation in ready.result():
        compilation.result()


def _num_threads(form: str) -> int:
    """Threads that make calls; one more than cores, since Python's lock lets only one of them prepare and look."""
    cores = num_workers()
    return 1 if form == "lanes" else cores + 1 if cores > 1 else 1


def _itself(record: RunRecord) -> RunRecord:
    return record


def finished_of(
    call: Call, results: Results, summarize: Callable[[RunRecord], T]
) -> tuple[list[tuple[Run, T]], int]:
    """Return what is kept of the runs of a call that are done, and how many are to be made again."""
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
    """What a call has shown of requests that were drawn in it."""
    if drawn is None:
        return {}
    longest = -(-int(drawn.most_tokens[at]) // call.group.shape.block_size)
    return {"longest": max(longest, 1), "shared_blocks": int(drawn.num_node_blocks[at])}


def _checked(runs: Sequence[tuple[Run, RunRecord]]) -> list[tuple[Run, RunRecord]]:
    """The records with the counts of the cheap invariants, taken over runs of one size at a time."""
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

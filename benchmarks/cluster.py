"""What many machines cost: what a task takes besides its runs, and what that leaves of 1 to 1,000 workers.

python -m benchmarks.cluster           the tables on stdout; some four minutes of two cores
python -m benchmarks.cluster --write   the same, and into docs/how-to/many-machines.md

The command, a scheduler and its workers are processes of this machine. CPU seconds of each are counted, which say the
same on a loaded machine. Stand-ins are threads that wait as long as runs take and answer with the result of real ones:
the command and the scheduler do for so many of them what they do for so many workers.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import NamedTuple
from unittest import mock

import psutil

from blis_jax import figures_of, load_builtin, run_grid
from blis_jax.backend import prepare_backend
from blis_jax.lazy import cloudpickle, distributed
from blis_jax.reports.render import table_text
from blis_jax.runs import scheduler, tasks
from blis_jax.runs.driver import ROWS_PER_CALL
from blis_jax.runs.options import Options
from papers.pages import ROOT, hand_over, table_parser
from sweeps.strategies.arms import arm_of

PAGE = ROOT / "docs" / "how-to" / "many-machines.md"
MILLION = 1_000_000
WORKERS = (1, 2, 10, 100, 1000)
THREADS_A_PROCESS = 50  # of stand-ins
CORES_A_MACHINE = 16
WARM = 16 * ROWS_PER_CALL  # enough that figures come from the call, as in what is measured
SUMMARIZE = figures_of(["ttft_p99_ms", "e2e_p99_ms", "tokens_per_sec"])
MEASURED = (
    "who makes the runs", "runs", "runs of a task", "sent, bytes a run", "back, bytes a run",
    "command, µs of CPU a run", "scheduler, µs of CPU a run", "workers, ms of CPU a run", "efficiency, by CPU",
)  # fmt: skip
MODELLED = (
    "workers", "runs/s", "efficiency", "a million runs", "machines of 16 cores", "core-hours", "at {}$ a core-hour",
)  # fmt: skip


class Spent(NamedTuple):
    """What some runs took: CPU seconds of each kind of process, wall seconds, and bytes sent to workers and back."""

    num_runs: int
    num_tasks: int
    sent: int  # bytes
    back: int
    command_s: float
    scheduler_s: float
    workers_s: float
    wall_s: float

    @property
    def run_s(self) -> float:
        """Return the CPU seconds of one run, summed over all processes."""
        return (self.command_s + self.scheduler_s + self.workers_s) / self.num_runs

    def row(self, who: str, alone: Spent) -> tuple[str, ...]:
        """Return the table's row named `who`; `alone` is what the runs took without workers."""
        runs, us = self.num_runs, 1e6 / self.num_runs
        times = f"{self.command_s * us:.0f}", f"{self.scheduler_s * us:.0f}"
        of_workers = f"{self.workers_s * us / 1e3:.2f}" if self.workers_s else "–"
        if not self.num_tasks:
            of_all = f"{self.command_s * us / 1e3:.2f}"
            return who, f"{runs:,}", "–", "–", "–", "–", "–", of_all, "1"
        sizes = (
            f"{size:.0f}" for size in (runs / self.num_tasks, self.sent / runs, self.back / runs)
        )
        efficiency = f"{alone.run_s / self.run_s:.0%}" if self.workers_s else "–"
        return who, f"{runs:,}", *sizes, *times, of_workers, efficiency


class Model(NamedTuple):
    """CPU seconds of one run in a worker, of each task and run in the command and the scheduler, and of a worker's
    start.
    """

    run_s: float  # in one thread, without scheduler
    worker_s: float  # a run in a worker
    command_s: tuple[float, float]  # a task, a run
    scheduler_s: tuple[float, float]
    first_s: float  # a worker starts, and compiles

    def rate(self, count: int, runs_of_task: float) -> float:
        """Return the runs per second of `count` workers, if each worker, the command and the scheduler have a core
        each.
        """
        bounds = (
            of_task / runs_of_task + of_run
            for of_task, of_run in (self.command_s, self.scheduler_s)
        )
        return min(count / self.worker_s, *(1 / bound for bound in bounds if bound > 0))

    def seconds(self, num_runs: int, count: int) -> float:
        """Return the wall seconds of `num_runs` runs: start, all tasks, and the last task of the slowest worker."""
        of_task = self.runs_of_task(num_runs, count)
        return self.first_s + num_runs / self.rate(count, of_task) + of_task * self.worker_s / 2

    def runs_of_task(self, num_runs: int, count: int) -> float:
        """Return how many runs a task has: as many as take a second, or fewer, so that every worker gets two tasks."""
        calls = min(scheduler.TASK_S / self.worker_s, num_runs / (2 * count)) // ROWS_PER_CALL
        return max(calls, 1) * ROWS_PER_CALL

    def row(self, count: int, price: float) -> tuple[str, ...]:
        """Return the row of `count` workers in the table for a million runs."""
        seconds = self.seconds(MILLION, count)
        hours = (count + 2) * seconds / 3600  # command and scheduler have a core each
        efficiency = MILLION * self.run_s / (count * seconds)
        time_ = f"{seconds / 60:.1f} min" if seconds > 90 else f"{seconds:.0f} s"
        machines = -(-(count + 2) // CORES_A_MACHINE)
        return (
            f"{count:,}", f"{MILLION / seconds:,.0f}", f"{efficiency:.0%}", time_, f"{machines:,}", f"{hours:.2f}",
            f"{hours * price:.2f} $",
        )  # fmt: skip


def fitted(alone: Spent, small: Spent, large: Spent, worker_s: float, first_s: float) -> Model:
    """Fit the model, which tells a task's cost from a run's, to measurements with small and large tasks."""

    def split(name: str) -> tuple[float, float]:
        """Return the CPU seconds per task and per run in the field `name` of `Spent`."""
        (of_small, tasks_of_one), (of_large, tasks_of_other) = (
            (getattr(seen, name) / seen.num_runs, seen.num_tasks / seen.num_runs)
            for seen in (small, large)
        )
        of_task = max((of_small - of_large) / (tasks_of_one - tasks_of_other), 0.0)
        return of_task, max(of_large - of_task * tasks_of_other, 0.0)

    return Model(alone.run_s, worker_s, split("command_s"), split("scheduler_s"), first_s)


# --- measuring ------------------------------------------------------------------------------------


class Cluster:
    """A scheduler and its workers, each a process whose CPU seconds can be read."""

    def __init__(self, folder: Path, num_processes: int, num_threads: int) -> None:
        self.file = folder / "scheduler.json"
        self.scheduler = self._start("scheduler", "--host", "127.0.0.1", "--port", "0", "--no-show")
        while not self.file.exists():
            time.sleep(0.05)
        words = (
            "worker",
            "--nthreads",
            str(num_threads),
            "--no-nanny",
            "--local-directory",
            str(folder),
        )
        self.workers = [self._start(*words) for _ in range(num_processes)]

    def _start(self, *words: str) -> psutil.Popen:
        words = (*words, "--scheduler-file", str(self.file), "--dashboard-address", "127.0.0.1:0")
        path = os.pathsep.join((str(ROOT), os.environ.get("PYTHONPATH", "")))
        return psutil.Popen(
            [sys.executable, "-m", "dask", *words], env=os.environ | {"PYTHONPATH": path},
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip

    def seconds(self) -> tuple[float, float, float, float]:
        """Return the CPU seconds of this process, the scheduler and all workers, and the wall clock's time."""
        of_workers = sum(_cpu_s(worker) for worker in self.workers)
        return time.process_time(), _cpu_s(self.scheduler), of_workers, time.perf_counter()

    def close(self) -> None:
        """End all processes."""
        for process in (*self.workers, self.scheduler):
            process.kill()
            process.wait()


def _cpu_s(process: psutil.Popen) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


@contextlib.contextmanager
def cluster(
    num_processes: int, num_threads: int = 1
) -> Iterator[tuple[Cluster, scheduler.Workers]]:
    """Start a cluster, wait for all of its workers, and yield it with the `Workers` that pass calls to it."""
    with tempfile.TemporaryDirectory() as folder:
        made = Cluster(Path(folder), num_processes, num_threads)
        try:
            with distributed.Client(scheduler_file=str(made.file)) as client:
                client.wait_for_workers(num_processes)
                with scheduler.used(client) as workers:
                    assert workers is not None
                    yield made, workers
        finally:
            made.close()


def runs(num_runs: int) -> None:
    """Simulate `num_runs` runs of the baseline."""
    run_grid(
        [arm_of("baseline").config],
        load_builtin("mixed"),
        range(num_runs),
        SUMMARIZE,
        Options(resolve_ties=False),
    )


def spent(num_runs: int, made: Cluster, workers: scheduler.Workers) -> Spent:
    """Simulate `num_runs` runs on the cluster's workers; return the seconds and bytes that they took."""
    counts = workers.num_tasks, workers.num_bytes, workers.num_bytes_back
    before = made.seconds()
    runs(num_runs)
    after = made.seconds()
    now = workers.num_tasks, workers.num_bytes, workers.num_bytes_back
    differences = [b - a for a, b in zip((*counts, *before), (*now, *after), strict=True)]
    num_tasks, sent, back, *seconds = differences
    return Spent(num_runs, int(num_tasks), int(sent), int(back), *seconds)


def in_a_thread(num_runs: int) -> Spent:
    """Simulate `num_runs` runs on one core of this process, compiled before; return the seconds that they took."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    try:
        runs(WARM)
        began, wall = time.process_time(), time.perf_counter()
        runs(num_runs)
        return Spent(
            num_runs, 0, 0, 0, time.process_time() - began, 0.0, 0.0, time.perf_counter() - wall
        )
    finally:
        os.sched_setaffinity(0, cores)


_sample: list[
    tasks.Made
] = []  # in a stand-in's process: one call, as often as the largest task has calls
_lock = threading.Lock()


def answered(task: tasks.PackedCalls, call_s: float) -> bytes:
    """Answer a task as a worker would: wait `call_s` seconds for each call, and return the results of other runs."""
    with _lock:
        if not _sample:
            made = tasks.opened(tasks.make(task)).made[0]
            _sample.extend(copy.deepcopy(made) for _ in range(256))
    calls, _ = tasks._unpack(task.packed, task.shelf)
    time.sleep(call_s * len(calls))
    packed: bytes = cloudpickle.dumps(tasks.Reply(_sample[: len(calls)], call_s))
    return packed


def measured(num_runs: int, count: int) -> tuple[list[tuple[str, ...]], Model, Spent]:
    """Measure one thread, workers and `count` stand-ins; return the table's rows, the model fitted to them, and a
    check.
    """
    alone = in_a_thread(num_runs // 2)
    rows, first_s, of_worker = [alone.row("one thread of the command", alone)], 0.0, alone
    for num_workers in (1, 2):
        with cluster(num_workers) as (made, workers):
            runs(WARM * num_workers)  # each compiles
            first_s = first_s or _cpu_s(made.workers[0])
            of_worker = spent(num_runs, made, workers)
            rows.append(of_worker.row(f"{num_workers} worker{'s' * (num_workers > 1)}", alone))
    worker_s = of_worker.workers_s / num_runs
    seen: dict[tuple[int, float], Spent] = {}
    for size, task_s in ((count, 0.0), (count, scheduler.TASK_S), (count // 10, scheduler.TASK_S)):
        seen[size, task_s] = by_stand_ins(4 * num_runs, size, task_s, ROWS_PER_CALL * worker_s)
        what = "tasks of a second at most" if task_s else "tasks of a call"
        rows.append(seen[size, task_s].row(f"{size} stand-ins, {what}", alone))
    small, check, large = seen.values()  # of the most and the least tasks a run
    return rows, fitted(alone, small, large, worker_s, first_s), check


def by_stand_ins(num_runs: int, count: int, task_s: float, call_s: float) -> Spent:
    """Simulate `num_runs` runs with `count` stand-in workers; return what command and scheduler took."""
    processes = -(-count // THREADS_A_PROCESS)
    answer = functools.partial(answered, call_s=call_s)
    with (
        mock.patch.object(scheduler, "make", answer),
        mock.patch.object(scheduler, "TASK_S", task_s),
        cluster(processes, count // processes) as (made, workers),
    ):
        runs(WARM * processes)  # each makes its sample
        return spent(num_runs, made, workers)._replace(workers_s=0.0)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    parser = table_parser("benchmarks.cluster", __doc__, f"docs/how-to/{PAGE.name}")
    parser.add_argument(
        "--num-runs", type=int, default=4096, help="runs of each measurement (4096)"
    )
    parser.add_argument("--price", type=float, default=0.05, help="dollars of a core-hour (0.05)")
    parser.add_argument("--stand-ins", type=int, default=100, help="how many (100)")
    options = parser.parse_args(arguments)
    prepare_backend()
    rows, model, check = measured(options.num_runs, options.stand_ins)
    head = *MODELLED[:-1], MODELLED[-1].format(f"{options.price:g} ")
    table = table_text(head, [model.row(count, options.price) for count in WORKERS])
    return hand_over(
        f"{table_text(MEASURED, rows)}\n\n{said(model, check)}\n\n{table}",
        PAGE if options.write else None,
        "cluster",
    )


def said(model: Model, check: Spent) -> str:
    """Return a sentence with the model's costs, and how far it is off for `check`, to which it was not fitted."""
    per_task = check.num_tasks / check.num_runs
    (command, of_run), (at_scheduler, of_run_there) = model.command_s, model.scheduler_s
    told = 1e6 * (command * per_task + of_run), 1e6 * (at_scheduler * per_task + of_run_there)
    seen = 1e6 * check.command_s / check.num_runs, 1e6 * check.scheduler_s / check.num_runs
    return (
        f"CPU time: a worker takes {model.first_s:.0f} s to start and compile, then {1e3 * model.worker_s:.2f} ms "
        f"a run. The command takes {1e3 * command:.1f} ms a task and {1e6 * of_run:.0f} µs a run, the scheduler "
        f"{1e3 * at_scheduler:.1f} ms and {1e6 * of_run_there:.0f} µs. Of tasks with {1 / per_task:.0f} runs, to which "
        f"it was not fitted, it says {told[0]:.0f} µs a run for the command and {told[1]:.0f} for the scheduler; "
        f"measured were {seen[0]:.0f} and {seen[1]:.0f}."
    )


if __name__ == "__main__":
    # by its name, so that workers find what they are asked for
    sys.exit(import_module("benchmarks.cluster").main())

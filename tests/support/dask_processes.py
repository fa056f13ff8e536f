"""A Dask scheduler and its workers as processes of their own, which a test may kill or stop."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[2]
SILENT_S = 10  # after which a worker that says nothing counts as lost
NO_SPACE = """
import resource


def dask_setup(worker):
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
"""
# after some whole runs; a limit on files would leave room for any number of them
FILLS = """
import errno

from blis_jax.records import stored

real = getattr(stored.replacing, "real", stored.replacing)  # Dask may run this twice
space = [{num_files}]


def with_less_space(path):
    if not space[0]:
        raise OSError(errno.ENOSPC, "No space left on device")
    space[0] -= 1
    return real(path)


with_less_space.real, stored.replacing = real, with_less_space
"""


class Cluster:
    """A scheduler, and workers that are added to it."""

    def __init__(self, folder: Path, used: ExitStack, silent_s: int = SILENT_S) -> None:
        self.silent_s = silent_s
        self.folder, self.used, self.file = folder, used, folder / "scheduler.json"
        self.workers: list[subprocess.Popen[bytes]] = []
        self.file.unlink(missing_ok=True)
        self.scheduler = self._start("scheduler", "--host", "127.0.0.1", "--port", "0", "--no-show")
        until = time.monotonic() + 60
        while not self.file.exists() and time.monotonic() < until:
            time.sleep(0.05)

    def _start(self, *words: str, environ: Mapping[str, str] = {}) -> subprocess.Popen[bytes]:
        """Start a process of Dask, which ends with the test."""
        words = (*words, "--scheduler-file", str(self.file), "--dashboard-address", "127.0.0.1:0")
        given = {
            "PYTHONPATH": str(ROOT),
            "DASK_DISTRIBUTED__SCHEDULER__WORKER_TTL": f"{self.silent_s}s",
            "DASK_DISTRIBUTED__COMM__RETRY__COUNT": "0",
            **environ,
        }
        log = self.used.enter_context((self.folder / f"{words[0]}.log").open("ab"))
        process = subprocess.Popen(
            [sys.executable, "-m", "dask", *words],
            env=os.environ | given, cwd=self.folder, stdout=log, stderr=log,
        )  # fmt: skip
        self.used.callback(end, process)
        return process

    def add_worker(self, preload: str = "", **environ: str) -> subprocess.Popen[bytes]:
        """Start a worker of one thread, which runs a text first."""
        words = ["worker", "--nthreads", "1", "--no-nanny", "--local-directory", str(self.folder)]
        if preload:
            file = self.folder / f"preload_{len(self.workers)}.py"
            file.write_text(preload, encoding="utf-8")
            words += ["--preload", str(file)]
        self.workers.append(self._start(*words, environ=environ))
        return self.workers[-1]


def end(process: subprocess.Popen[bytes]) -> None:
    """Kill a process, a stopped one too."""
    if process.poll() is None:
        process.send_signal(signal.SIGKILL)
    process.wait()


@contextmanager
def cluster(folder: Path, num_workers: int, silent_s: int = SILENT_S) -> Iterator[Cluster]:
    """Yield a scheduler with workers; all end with the block."""
    with ExitStack() as used:
        made = Cluster(folder, used, silent_s)
        for _ in range(num_workers):
            made.add_worker()
        yield made

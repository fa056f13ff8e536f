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
SILENT_S = 300  # after which a worker that says nothing counts as lost; on a loaded machine one says nothing for long
LOADED = "import blis_jax.runs.many_runs, blis_jax.runs.tasks\n"  # before the worker is there, since it takes seconds
NO_SPACE = """
import resource


def dask_setup(worker):
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
"""
# a disk of its own in the place of a folder, without space; `unshare` lets a user mount one
FULL_DISK = 'mount -t tmpfs -o size=16k tmpfs "$0" && head -c 16k /dev/zero > "$0/full"; exec "$@"'
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

    def _start(
        self, *words: str, environ: Mapping[str, str] = {}, full: Path | None = None
    ) -> subprocess.Popen[bytes]:
        """Start a process of Dask, which ends with the test; in the `full` folder it has no space."""
        words = (*words, "--scheduler-file", str(self.file), "--dashboard-address", "127.0.0.1:0")
        given = {
            "PYTHONPATH": str(ROOT),
            "DASK_DISTRIBUTED__SCHEDULER__WORKER_TTL": f"{self.silent_s}s",
            "DASK_DISTRIBUTED__COMM__RETRY__COUNT": "0",
            **environ,
        }
        log = self.used.enter_context((self.folder / f"{words[0]}.log").open("ab"))
        process = subprocess.Popen(
            [*on_full_disk(full), sys.executable, "-m", "dask", *words],
            env=os.environ | given, cwd=self.folder, stdout=log, stderr=log,
        )  # fmt: skip
        self.used.callback(end, process)
        return process

    def add_worker(
        self, preload: str = "", full: Path | None = None, **environ: str
    ) -> subprocess.Popen[bytes]:
        """Start a worker of one thread, which runs a text first; in the `full` folder it has no space."""
        words = ["worker", "--nthreads", "1", "--no-nanny", "--local-directory", str(self.folder)]
        file = self.folder / f"preload_{len(self.workers)}.py"
        file.write_text(LOADED + preload, encoding="utf-8")
        words += ["--preload", str(file)]
        self.workers.append(self._start(*words, environ=environ, full=full))
        return self.workers[-1]


def on_full_disk(folder: Path | None) -> list[str]:
    """Return what begins the words of a process that has no space in a folder; nothing without one."""
    return [] if folder is None else ["unshare", "-rm", "sh", "-c", FULL_DISK, str(folder)]


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

"""Calls made by the workers of a Dask scheduler: on other cores, other machines, other GPUs.

A task is as many calls of one compiled program (tasks.py) as take about a second: the overhead of a task, here and at
the scheduler, bounds the number of workers (`python -m benchmarks.cluster`). Dask places tasks, repeats those of a lost
worker and holds results until they are fetched. Results are matched to runs, so their order does not matter.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import time
import warnings
from collections import deque
from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from concurrent import futures
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from blis_jax import progress
from blis_jax.errors import ConfigError, ConfigWarning, shortened
from blis_jax.lazy import distributed
from blis_jax.records.record import RunRecord
from blis_jax.runs import driver, tasks
from blis_jax.runs.calls import Call
from blis_jax.runs.runs import Run
from blis_jax.runs.tasks import Reply, Shelf, identity, make, opened, refusal, taken, task_of

if TYPE_CHECKING:
    from distributed import Client, Future

LOOK_S = 2.0  # between two looks at the workers while no task ends
PATIENCE_S = 300.0  # without any worker
RETRIES = 3  # of a task that could not be read or begun
PER_THREAD = 4  # tasks on their way, so that no worker waits for the next
TASK_S = 1.0  # of a task; a worker that is lost takes as much with it
CANCELLED = (asyncio.CancelledError, futures.CancelledError)  # Dask raises either
FORMS = "local:N (N processes of this machine), tcp://HOST:PORT or a scheduler file, .json"
_LOCAL = re.compile(r"local:([1-9]\d{0,3})")
_ADDRESS = re.compile(r"(tcp|tls|ucx|ws|wss)://[^\s/]+:\d+")


def checked(text: str) -> str:
    """Return the value of --scheduler, checked.

    Raises:
        ConfigError: the text has none of the allowed forms, or the scheduler file does not exist.
    """
    if _LOCAL.fullmatch(text) or _ADDRESS.fullmatch(text):
        return text
    if not text.endswith(".json"):
        raise ConfigError(f"--scheduler: got {shortened(text)}, allowed is {FORMS}")
    if not Path(text).is_file():
        raise ConfigError(
            f"--scheduler: {text} does not exist; `dask scheduler --scheduler-file {text}` writes it"
        )
    return text


class Workers:
    """The workers of one Dask scheduler, which make a runner's calls.

    Workers are started or connected only when there are calls.
    """

    def __init__(self, where: str | Client) -> None:
        """Set the scheduler: the value of --scheduler, or a client of the user's own, which stays open."""
        self.where, self.known = where, set[str]()
        self.shelf: Shelf | None = None
        self.open = contextlib.ExitStack()
        self._client: Client | None = None if isinstance(where, str) else where
        self.is_checked = False
        self.call_s: dict[Hashable, float] = {}  # wall seconds of a call in a worker, by kind
        self.threads: dict[str, int] = {}  # of each worker
        self.lacking: set[str] = set()  # workers that get no more tasks
        self.looked_at = -LOOK_S
        self.num_tasks, self.num_bytes, self.num_bytes_back = 0, 0, 0
        if isinstance(where, str) and _LOCAL.fullmatch(where):
            # JAX would take most of each GPU's memory for the command, which its workers need
            os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

    def __enter__(self) -> Workers:
        """Begin a block; at its end the processes started here are stopped."""
        return self

    def __exit__(self, *_: object) -> None:
        """Stop the processes and connections started here."""
        self.open.close()

    @property
    def client(self) -> Client:
        """Return the connected client, after checking that its workers match this process.

        Raises:
            ConfigError: there is no scheduler, it has no workers, or one of them is of another version.
        """
        if not self._client:
            self._client = self._connected(str(self.where))
        if not self.is_checked:
            self._check(self._client)
            self.is_checked = True
        return self._client

    def _connected(self, where: str) -> Client:
        settings: dict[str, Any] = {"address": where}
        local = _LOCAL.fullmatch(where)
        if local:
            cluster = distributed.LocalCluster(
                n_workers=int(local[1]), threads_per_worker=1, dashboard_address="127.0.0.1:0",
                silence_logs="CRITICAL", preload=[tasks.__name__],
            )  # fmt: skip
            settings = {"address": self.open.enter_context(cluster)}
        elif where.endswith(".json"):
            settings = {"scheduler_file": where}
        try:
            client = distributed.Client(**settings, timeout="30s", set_as_default=False)
        except (OSError, TimeoutError, ValueError) as error:
            raise ConfigError(
                f"--scheduler {where}: no scheduler answers there ({type(error).__name__}); start one with "
                "`dask scheduler`, and workers with `dask worker`"
            ) from None
        return self.open.enter_context(client)

    def _check(self, client: Client) -> None:
        """Refuse workers of another version, and print how many workers there are."""
        try:
            client.wait_for_workers(1, timeout=60)
        except TimeoutError:
            raise ConfigError(
                f"{self._name} has no workers; start some with `dask worker {self._address(client)}`"
            ) from None
        packages = cast("Any", client.get_versions(packages=["blis_jax"]))["workers"]
        for worker, has in packages.items():
            if not has["packages"].get("blis_jax"):
                raise ConfigError(
                    f"the worker {worker} has no blis_jax; install blis-jax[distributed] where workers run"
                )
        ours = identity()
        # one may be lost meanwhile; a task looks for itself
        told = client.run(identity, on_error="ignore")
        for worker, theirs in told.items():
            differs = refusal(theirs, ours, f"the worker {worker}")
            if differs:
                raise ConfigError(differs)
        self.known = set(packages)
        if isinstance(self.where, str):
            count = _counted(len(packages))
            _tell(f"{count} of {self.where}; Dask's dashboard: {client.dashboard_link}")

    @property
    def _name(self) -> str:
        return self.where if isinstance(self.where, str) else "the client given"

    def _address(self, client: Client) -> str:
        scheduler = client.scheduler
        return str(scheduler.address) if scheduler is not None else self._name

    # --- calls ---

    def made(
        self, calls: Sequence[Call], summarize: Callable[[RunRecord], Any]
    ) -> Iterator[tuple[list[tuple[Run, Any]], int]]:
        """Yield for each call, as it ends, its finished runs with their summaries, and how many runs must be repeated.

        Raises:
            ConfigError: the scheduler or all workers are gone, or workers differ from this process.
        """
        client, waiting = self.client, deque(calls)
        pending: dict[Future, list[Sequence[Call]]] = {}
        self._share(summarize)
        try:
            while True:
                self._submit(client, waiting, pending)
                if not pending:
                    return
                replies = [
                    (self._fetched(client, future), pending.pop(future))
                    for future in self._ended(client, pending)
                ]
                if not pending and not waiting:  # nobody asks for more than all calls
                    with contextlib.suppress(ConfigError):
                        self._look(client)
                for reply, batches in sorted(replies, key=lambda pair: bool(pair[0].lacks)):
                    if reply.lacks:
                        self._do_without(client, reply)
                        waiting.extendleft(call for batch in batches for call in batch[::-1])
                    for batch in batches:
                        if reply.call_s is not None:
                            self.call_s[batch[0].kind] = reply.call_s
                        yield from map(taken, batch, reply.made)
        finally:
            if pending and client.status == "running":
                client.cancel(list(pending), force=True)

    def _share(self, summarize: Callable[[RunRecord], Any]) -> None:
        if not self.shelf:
            self.shelf = Shelf(summarize)
        elif self.shelf.summarize is not summarize:
            self.shelf = replace(self.shelf, summarize=summarize)
            self.shelf.names.pop("summarize", None)

    def _submit(
        self, client: Client, waiting: deque[Call], pending: dict[Future, list[Sequence[Call]]]
    ) -> None:
        """Submit tasks until every worker has some to do next."""
        assert self.shelf is not None
        threads = self._watch(client)
        able = [worker for worker in threads if worker not in self.lacking]
        num_threads = max(sum(threads[worker] for worker in able), 2)
        where: dict[str, Any] = {"workers": able} if self.lacking else {}
        while len(pending) < PER_THREAD * num_threads and waiting:
            batch = self._batch(waiting, num_threads)
            task = task_of(batch, self.shelf)
            self.num_tasks += 1
            self.num_bytes += task.num_bytes
            try:
                key = f"{task.key}-{len(self.lacking)}"
                future = client.submit(make, task, key=key, retries=RETRIES, pure=True, **where)
            except Exception as error:
                raise self._gone(error) from None
            pending.setdefault(future, []).append(batch)  # equal tasks are one

    def _batch(self, waiting: deque[Call], num_threads: int) -> list[Call]:
        """Take the next task's calls from `waiting`: of one kind, and fewer towards the end to balance workers."""
        kind = waiting[0].kind
        call_s = self.call_s.get(kind)
        most = min(int(TASK_S / call_s), len(waiting) // (2 * num_threads)) if call_s else 1
        batch = [waiting.popleft()]
        while waiting and len(batch) < most and waiting[0].kind == kind:
            batch.append(waiting.popleft())
        return batch

    def _ended(self, client: Client, pending: Collection[Future]) -> list[Future]:
        """Wait until a task has ended; return all ended tasks."""
        idle_s = 0.0
        while True:
            self._watch(client)
            try:
                with client.as_current():
                    settings: dict[str, Any] = {"timeout": LOOK_S, "return_when": "FIRST_COMPLETED"}
                    return list(distributed.wait(list(pending), **settings).done)
            except TimeoutError:
                idle_s = 0.0 if self.known else idle_s + LOOK_S
                if idle_s > PATIENCE_S:
                    raise ConfigError(
                        f"all workers of {self._name} are gone for {progress.duration(idle_s)}; what is done is "
                        "saved: start some and add --resume"
                    ) from None
            except CANCELLED as error:
                raise self._gone(error) from None

    def _watch(self, client: Client) -> dict[str, int]:
        """Return the number of threads of each worker, asked of the scheduler every few seconds."""
        if client.status != "running":
            raise self._gone(None)
        if time.monotonic() - self.looked_at >= LOOK_S:
            self._look(client)
        return self.threads

    def _look(self, client: Client) -> None:
        """Ask the scheduler for its workers; print which workers are gone since the last time."""
        try:
            # asked of the scheduler, where client.scheduler_info() may be old
            threads: dict[str, int] = client.nthreads()
        except (OSError, TimeoutError) as error:
            raise self._gone(error) from None
        now = set(threads)
        for worker in sorted(self.known - now):
            _tell(
                f"the worker {worker} is gone; its runs are made again by others ({len(now)} left)"
            )
        self.known, self.threads, self.looked_at = now, dict(threads), time.monotonic()
        progress.note(_counted(len(now)))

    def _do_without(self, client: Client, reply: Reply) -> None:
        """Submit no more tasks to the worker of `reply`, whose machine lacks something; print a remark.

        Raises:
            ConfigError: no worker is left.
        """
        self._look(client)
        is_new = reply.worker not in self.lacking
        self.lacking.add(reply.worker)
        num_left = len(self.known - self.lacking)
        if not num_left:
            raise ConfigError(
                f"workers of {self._name} cannot go on ({reply.lacks}); what is done is saved: free what they lack, "
                "and add --resume"
            )
        if is_new:
            _tell(
                f"the worker {reply.worker} cannot go on ({reply.lacks}); its runs are made by others ({num_left} left)"
            )

    def _fetched(self, client: Client, future: Future) -> Reply:
        try:
            packed: bytes = future.result()
        except distributed.KilledWorker as error:
            raise ConfigError(
                f"a block of runs ended {RETRIES + 1} workers, {error.last_worker.address} last, perhaps for want "
                "of memory; give workers more (`dask worker --memory-limit`), or fewer requests, and add --resume"
            ) from None
        except OSError as error:
            raise self._gone(error) from None
        except CANCELLED as error:
            raise self._gone(error) from None
        self.num_bytes_back += len(packed)
        return opened(packed)

    def _gone(self, error: BaseException | None) -> ConfigError:
        why = f" ({type(error).__name__})" if error else ""
        return ConfigError(
            f"the scheduler {self._name} is gone{why}; what is done is saved: start it again, with workers, and add "
            "--resume"
        )


def _counted(count: int) -> str:
    return f"{count} worker{'s' * (count != 1)}"


def _tell(message: str) -> None:
    warnings.warn(message, ConfigWarning, stacklevel=3)


@contextlib.contextmanager
def used(where: str | Client | None) -> Iterator[Workers | None]:
    """Make all runners created in the block send their calls to these workers; with None, to threads.

    Args:
        where: the value of --scheduler, or a `distributed.Client`.

    Yields:
        The workers, None for threads.

    Raises:
        ConfigError: the text has none of the allowed forms, or the scheduler has no workers.
    """
    if where is None:
        yield None
        return
    with Workers(checked(where) if isinstance(where, str) else where) as workers:
        before = driver.elsewhere.set(workers)
        try:
            yield workers
        finally:
            driver.elsewhere.reset(before)

"""The client in a search's evaluator: send programs to a server of the task. `blis-jax evolve evaluator` writes it out.

The client needs Python alone. The search may run where blis_jax is not installed. None of its processes loads JAX, so
the search may fork. All processes of a search share one server, which the first of them starts.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

START_S = 300.0  # for a server to take a program in
GRACE_S = 20.0  # beyond the limit, in which the server gives a late program up by itself
MOST_STARTS = 5
RESULTS = ("openevolve.evaluation_result", "skydiscover.evaluation.evaluation_result")


class SetupError(RuntimeError):
    """An error of the task or of the installation, not of a program."""


class DeadServerError(OSError):
    """The server died before it answered."""


class PlainResult(
    NamedTuple
):  # dataclasses fail where a search has not registered the module that it loads
    """The result class used where neither OpenEvolve nor SkyDiscover is loaded."""

    metrics: dict[str, float]
    artifacts: dict[str, str]


class TaskClient(NamedTuple):
    """Send programs to the server of a task.

    Attributes:
        python: the path of the interpreter that has blis_jax installed.
        task: path of TASK.yaml.
        limit_s: the longest time that one program may take, s.
        failure_score: the score of a program that fails.
        environment: variables that the server gets in addition to the caller's.
    """

    python: str
    task: str
    limit_s: float
    failure_score: float
    environment: dict[str, str]

    @property
    def folder(self) -> Path:
        """Return the server's folder, named after a hash of the task's content: an edited task gets a new server."""
        content = Path(self.task).read_bytes() + self.task.encode() + self.python.encode()
        name = f"blis-jax-evolve-{os.getuid()}-{hashlib.sha256(content).hexdigest()[:12]}"
        return Path(tempfile.gettempdir()) / name

    def evaluate(self, program_path: str, stage: str = "all") -> Any:
        """Return metrics and artifacts of a program; `stage` is `first` (the few seeds of stage 1) or `all`.

        Raises:
            SetupError: the task or the installation is at fault.
        """
        path = Path(program_path)
        request = {"text": path.read_text(encoding="utf-8"), "suffix": path.suffix, "stage": stage}
        for attempt in (1, 2):
            try:
                return _result(self._answered(request))
            except TimeoutError:
                return self._failure(f"the program took longer than {self.limit_s:g} s")
            except DeadServerError:
                if attempt == 2:
                    return self._failure("the server died twice while it ran the program")
        raise AssertionError

    def stop(self) -> None:
        """Stop the server, if one runs."""
        with contextlib.suppress(OSError), self._connected() as connection:
            _send(connection, {"stop": True})
            connection.makefile().read()

    def _failure(self, why: str) -> Any:
        metrics = {"combined_score": self.failure_score, "failed": 1.0}
        return _result({"metrics": metrics, "artifacts": {"error": why}})

    def _answered(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return the server's answer.

        Raises:
            TimeoutError: no answer came in time; the server has been killed.
            DeadServerError: the server died while it ran this program.
            SetupError: see `evaluate`.
        """
        pid = 0
        for _ in range(MOST_STARTS):  # another program may have ended the server
            with self._connection() as connection:
                answers = connection.makefile()
                try:
                    connection.settimeout(START_S)
                    _send(connection, request)
                    pid = _read(answers)["taken"]
                    connection.settimeout(None)  # those before it have limits of their own
                    _refuse_setup(_read(answers))
                except TimeoutError:
                    _kill(pid)
                    continue
                except OSError:
                    continue
                try:
                    connection.settimeout(self.limit_s + GRACE_S)
                    answer = _read(answers)
                except TimeoutError:
                    _kill(pid)
                    raise
                except OSError as error:
                    raise DeadServerError(str(error)) from None
                _refuse_setup(answer)
                return answer
        raise SetupError(f"no server could be kept for {self.task}; {self.folder / 'log'} says why")

    @contextlib.contextmanager
    def _connected(self) -> Iterator[socket.socket]:
        connection = socket.socket(socket.AF_UNIX)
        with connection:
            connection.connect(str(self.folder / "socket"))
            yield connection

    @contextlib.contextmanager
    def _connection(self) -> Iterator[socket.socket]:
        """Connect to the server; start a server if none runs."""
        folder = self.folder
        folder.mkdir(mode=0o700, exist_ok=True)
        if folder.stat().st_uid != os.getuid():
            raise SetupError(f"{folder} belongs to another user; remove it")
        with contextlib.ExitStack() as used:
            try:
                yield used.enter_context(self._connected())
                return
            except (FileNotFoundError, ConnectionRefusedError):
                pass
            yield used.enter_context(self._started(folder))

    @contextlib.contextmanager
    def _started(self, folder: Path) -> Iterator[socket.socket]:
        with contextlib.ExitStack() as used:
            with open(folder / "lock", "w", encoding="utf-8") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)  # one process starts it
                try:
                    connection = used.enter_context(self._connected())
                except OSError:
                    self._start(folder)
                    connection = used.enter_context(self._connected())
            yield connection

    def _start(self, folder: Path) -> None:
        place = folder / "socket"
        place.unlink(missing_ok=True)
        command = [self.python, "-m", "sweeps.evolve.server", self.task, str(folder)]
        with open(folder / "log", "ab") as log:
            done = subprocess.run(  # it leaves a process behind that listens
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, check=False,
                start_new_session=True, env=os.environ | self.environment,
            )  # fmt: skip
        if done.returncode:
            said = (folder / "log").read_text(encoding="utf-8", errors="replace").strip()
            last = said.splitlines()[-1] if said else f"exit code {done.returncode}"
            raise SetupError(f"the server does not start: {last}")


def _send(connection: socket.socket, message: dict[str, Any]) -> None:
    connection.sendall(json.dumps(message).encode() + b"\n")


def _read(answers: Any) -> dict[str, Any]:
    line = answers.readline()
    if not line:
        raise ConnectionResetError("the server has gone")
    message: dict[str, Any] = json.loads(line)
    return message


def _refuse_setup(answer: dict[str, Any]) -> None:
    if "setup" in answer:
        raise SetupError(answer["setup"])


def _kill(pid: int) -> None:
    if pid:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _result(answer: dict[str, Any]) -> Any:
    """Return an answer as the result class of the search framework that is loaded."""
    loaded = [sys.modules[name] for name in RESULTS if name in sys.modules]
    kind = loaded[0].EvaluationResult if loaded else PlainResult
    return kind(metrics=answer["metrics"], artifacts=answer["artifacts"])

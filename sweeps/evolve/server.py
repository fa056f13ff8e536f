"""`python -m sweeps.evolve.server TASK.yaml FOLDER`: evaluate one program after another, for the clients of a task.

The server listens on a socket in the folder. Each connection sends one program. The server answers when the program is
accepted, when it starts, and with its score. The process ends when a program exceeds its limit, after many programs,
and after a time without programs.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import shutil
import socket
import sys
import threading
import traceback
from pathlib import Path
from typing import Any

from blis_jax.backend import prepare_backend
from blis_jax.errors import ConfigError

IDLE_S = 900.0
MOST_PROGRAMS = 2000  # what they leave behind adds up
MOST_COMPILED = 200  # of these; a compiled one leaves more
LATE, DONE = 3, 0
Waiting = queue.Queue[tuple[socket.socket, dict[str, Any]]]


def main(arguments: list[str] | None = None) -> int:
    """Start a background process that serves until no client asks for some time; return the exit code."""
    task, folder = map(Path, arguments or sys.argv[1:])
    listener = socket.socket(socket.AF_UNIX)
    fresh = folder / f"socket.{os.getpid()}"
    listener.bind(str(fresh))
    listener.listen(64)
    fresh.rename(folder / "socket")  # who sees it can connect
    if os.fork():  # whoever started this may go on
        os._exit(DONE)
    waiting: Waiting = queue.Queue()
    threading.Thread(target=_take, args=(listener, waiting), daemon=True).start()
    prepare_backend()
    try:
        _serve(task, folder, waiting)
    finally:
        with contextlib.suppress(OSError):
            (folder / "socket").unlink()
    return DONE


def _take(listener: socket.socket, waiting: Waiting) -> None:
    """Accept programs as they come, each in a thread of its own."""
    while True:
        connection, _ = listener.accept()
        threading.Thread(target=_take_one, args=(connection, waiting), daemon=True).start()


def _take_one(connection: socket.socket, waiting: Waiting) -> None:
    with contextlib.suppress(OSError, ValueError):
        request = json.loads(connection.makefile().readline())
        if "stop" not in request:
            _tell(connection, {"taken": os.getpid()})
        waiting.put((connection, request))


def _tell(connection: socket.socket, message: dict[str, Any]) -> None:
    with contextlib.suppress(OSError):  # nobody waits any more
        connection.sendall(json.dumps(message).encode() + b"\n")


def _serve(task: Path, folder: Path, waiting: Waiting) -> None:
    evaluator: Any = None
    for _ in range(MOST_PROGRAMS):
        if evaluator is not None and evaluator.num_compiled >= MOST_COMPILED:
            return
        try:
            connection, request = waiting.get(timeout=IDLE_S)
        except queue.Empty:
            shutil.rmtree(folder / "programs", ignore_errors=True)
            return
        with connection:
            if "stop" in request:
                return
            try:
                if evaluator is None:
                    from sweeps.evolve.score import TaskEvaluator

                    evaluator = TaskEvaluator(task, folder / "programs")
                _tell(connection, {"begun": True})
                with _limited(evaluator.limit_s, connection, evaluator.late):
                    answer = evaluator.answer(request["text"], request["suffix"], request["stage"])
            except (ConfigError, ImportError) as error:
                answer = {"setup": str(error)}
            except Exception as error:
                traceback.print_exc()
                answer = {"setup": f"{type(error).__name__}: {error}; {folder / 'log'} says where"}
            _tell(connection, answer)


@contextlib.contextmanager
def _limited(limit_s: float, connection: socket.socket, answer: dict[str, Any]) -> Any:
    """End the process if the block below takes longer than the limit: nothing else can stop a loop in a program."""

    def end() -> None:
        _tell(connection, answer)
        os._exit(LATE)

    timer = threading.Timer(limit_s, end)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


if __name__ == "__main__":
    sys.exit(main())

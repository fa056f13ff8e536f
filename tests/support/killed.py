"""Processes that are killed at a chosen place, for tests: at the n-th change of a folder's files, or at one.

As a program: `python -m tests.support.killed FOLDER STEP` runs a step of STEPS on a copy of FOLDER's `start` again and
again, in forked processes that are killed (SIGKILL) at their first, second, … change of a file, until one
ends by itself. The copies stay, as FOLDER/0, FOLDER/1, …
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[2]
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT
EVENTS = ("open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "shutil.rmtree")


def kill_when(is_time: Callable[[str, str], bool]) -> None:
    """From now on, this process is killed just before the file operation that is meant."""

    def hook(event: str, arguments: tuple[object, ...]) -> None:
        if event not in EVENTS or (event == "open" and not int(str(arguments[2])) & WRITING):
            return
        path = os.fspath(arguments[0]) if isinstance(arguments[0], str | os.PathLike) else ""
        if is_time(event, path):
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)


def kill_at(place: int, folder: Path) -> None:
    """From now on, this process is killed just before its n-th file operation in a folder."""
    left = [place]

    def is_time(_: str, path: str) -> bool:
        left[0] -= path.startswith(str(folder))
        return left[0] < 0

    kill_when(is_time)


def replace_folder(folder: Path) -> None:
    """Replaces the folder `result`."""
    from blis_jax.files.atomic_write import replacing

    with replacing(folder / "result") as written:
        written.mkdir()
        (written / "one").write_text("new")
        (written / "two").write_text("new")


def replace_file(folder: Path) -> None:
    """Replaces the file `result`."""
    from blis_jax.files.atomic_write import replacing

    with replacing(folder / "result") as written:
        written.write_text("new")


def discard(folder: Path) -> None:
    """Removes the folder `result`."""
    from blis_jax.files import atomic_write

    atomic_write.discard(folder / "result")


def begin_journal(folder: Path) -> None:
    """Goes on with the journal `result`."""
    from blis_jax.files.journal import Journal

    Journal(folder / "result", "work", {"seeds": "1"}).begin()


def write_part(folder: Path) -> None:
    """Fills the second part of the store `parts.zarr`."""
    from blis_jax.commands.store import Store
    from tests.commands.made_parts import PART

    Store(folder / "parts.zarr", "test").write(2, PART)


def promote(folder: Path) -> None:
    """Makes every stage of a promotion in `promotion`."""
    from tests.sweeps.promote.fakes import finish

    finish(folder / "promotion")


STEPS = {
    step.__name__: step
    for step in (replace_folder, replace_file, discard, begin_journal, write_part, promote)
}


def main(folder: Path, step: str) -> None:
    """Kills the step everywhere."""
    for place in range(1000):
        copy = folder / str(place)
        shutil.copytree(folder / "start", copy)
        child = os.fork()
        if child == 0:
            kill_at(place, copy)
            STEPS[step](copy)
            os._exit(0)
        if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != -signal.SIGKILL:
            return


if __name__ == "__main__":
    if sys.argv[2] == "write_part":
        import tests.commands.made_parts
    if sys.argv[2] == "promote":
        import tests.sweeps.promote.fakes  # noqa: F401 (once for all forked processes)
    main(Path(sys.argv[1]), sys.argv[2])

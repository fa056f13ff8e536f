"""Shows the progress of a command on stderr: a bar on a terminal, else a line now and then."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Iterator
from typing import Any, TextIO

from blis_jax.lazy import rich_console, rich_progress, rich_table
from blis_jax.progress import Board, board, duration

SWITCH = "BLIS_JAX_PROGRESS"  # in the environment; `off`: no progress is shown, `on`: also of calls in scripts
FIRST_S = 3.0  # commands that take less show nothing
PAUSE_S = 10.0  # between two lines of the same phase
SETTLED_S = 1.0  # a phase that has just begun has nothing to tell
TICK_S = 0.25


class Display:
    """The progress of one command; nothing moves but in `tick`."""

    def __init__(self, name: str, board: Board, stream: TextIO, *, is_terminal: bool) -> None:
        """`name` begins each plain line."""
        self.name, self.board, self.stream, self.is_terminal = name, board, stream, is_terminal
        self.began = self.said_at = board.clock()
        self.said: tuple[str, bool] | None = None
        self.board.is_used = False
        self.bar: Any = None
        self.is_quiet = False
        self.lock = threading.RLock()

    def tick(self) -> None:
        """Show what is due."""
        with self.lock:
            line, now = self.board.line(), self.board.clock()
            if not self.board.is_used:  # imports, files: nothing that anybody has named yet
                line = f"working: {duration(now - self.began)} so far"
            if self.is_quiet or not line or now - self.began < FIRST_S:
                return
            if self.is_terminal:
                self._draw(line)
                return
            headline = self.board.headline()
            pause = PAUSE_S if headline == self.said else FIRST_S
            is_settled = self.board.age() >= SETTLED_S or not self.board.is_used
            if now - self.said_at >= pause and is_settled:
                self.said, self.said_at = headline, now
                print(f"{self.name}: {line}", file=self.stream, flush=True)

    def hide(self) -> None:
        """Take the bar away, so that something else can be printed; the next tick brings it back."""
        with self.lock:
            if self.bar is not None:
                self.bar.stop()
                self.bar = None

    def _draw(self, line: str) -> None:
        if self.bar is None:
            whole = rich_table.Column(no_wrap=True)
            text = rich_progress.TextColumn("{task.description}", markup=False, table_column=whole)
            # `file` is stderr: what is printed on stdout must not come through the bar's console
            console = rich_console.Console(file=self.stream, force_terminal=True)
            columns = (rich_progress.BarColumn(bar_width=10), text)
            self.bar = rich_progress.Progress(
                *columns, console=console, transient=True, auto_refresh=False, redirect_stdout=False
            )
            self.bar.add_task("", total=None)
            self.bar.start()
        done, total = self.board.share() or (0, None)
        self.bar.update(self.bar.task_ids[0], description=line, completed=done, total=total)
        self.bar.refresh()


_shown: Display | None = None
_num_inner = 0  # commands inside the one that is shown


def is_watched() -> bool:
    """Return whether calls of Python show progress: in notebooks and at a prompt, in scripts where it is asked for."""
    return hasattr(sys, "ps1") or os.environ.get(SWITCH) == "on"


@contextlib.contextmanager
def shown(name: str) -> Iterator[None]:
    """Show the progress of a command; a command inside another one adds to what that one shows."""
    global _shown, _num_inner
    if _shown is not None:
        _num_inner += 1
        try:
            yield
        finally:
            _num_inner -= 1
        return
    if os.environ.get(SWITCH) == "off":
        yield
        return
    is_terminal = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
    display = _shown = Display(name, board, sys.stderr, is_terminal=is_terminal)
    board.on_idle = display.hide
    over = threading.Event()

    def tick() -> None:
        while not over.wait(TICK_S):
            display.tick()

    ticker = threading.Thread(target=tick, name="progress", daemon=True)
    ticker.start()
    try:
        yield
    finally:
        over.set()
        ticker.join()
        display.hide()
        board.phases.clear()
        board.on_idle = None
        _shown, _num_inner = None, 0


def rename(name: str) -> None:
    """Let the command that is called next take the place of the one shown: its name, and what it asks for."""
    global _num_inner
    if _shown is not None and not _num_inner:
        _shown.name = name
        _num_inner = -1


def silence() -> None:
    """Show no progress, since the command was asked to be quiet; a command inside another one decides nothing."""
    if _shown is not None and not _num_inner:
        _shown.is_quiet = True


def make_way() -> None:
    """Hide the progress, since something else is about to be printed."""
    if _shown is not None:
        _shown.hide()

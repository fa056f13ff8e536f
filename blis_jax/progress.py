"""What a command is doing, how much of it is done, and how long the rest takes; shown as a bar or as lines.

Work is reported in nested phases. A phase costs next to nothing if nobody shows it, so library code reports its work
too. JAX itself reports every compilation. Commands show the progress on
stderr: a bar on a terminal, else a line now and then.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, TextIO

from blis_jax.lazy import jax, rich_console, rich_progress, rich_table

COMPILING = (
    "/jax/core/compile/jaxpr_trace_duration",
    "/jax/core/compile/jaxpr_to_mlir_module_duration",
    "/jax/core/compile/backend_compile_duration",
)
MINUTES_FROM_S, HOURS_FROM_S = 100, 6000
SWITCH = "BLIS_JAX_PROGRESS"  # in the environment; `off`: no progress is shown, `on`: also of calls in scripts
FIRST_S = 3.0  # commands that take less show nothing
PAUSE_S = 10.0  # between two lines of the same phase
SETTLED_S = 1.0  # a phase that has just begun has nothing to tell
TICK_S = 0.25


class Phase:
    """A piece of work with a name, a total of units, and the number of units done."""

    def __init__(
        self, board: Board, what: str, total: int | None, unit: str, done: int = 0
    ) -> None:
        """Begin the work; `total` is None or 1 if no units can be counted, `done` units were done in an earlier run."""
        self.board, self.what, self.total, self.unit = board, what, total, unit
        self.item, self.noted = "", False
        self.done = self.done_earlier = done
        self.began = board.clock()
        self.compile_s, self.done_meanwhile, self.num_compilations = 0.0, 0, 0
        self.later_compile_s = 0.0  # of programs that were compiled once a unit was done

    def advance(self, count: int = 1) -> None:
        """Count `count` more units as done."""
        self.done += count

    def show(self, done: int, item: str = "") -> None:
        """Show that `done` units are done in all and that `item` is being worked on."""
        self.done, self.item, self.noted = done, item, False
        self.board.reopen(self)

    def clear(self) -> None:
        """Close the phase and hide its line, so that something else can be printed; `show` reopens it."""
        self.board.close(self)

    def seconds_each(self, now: float) -> float | None:
        """Return the mean time of a unit, s, while nothing was compiled; None if no unit shows it yet.

        If about every unit compiles a program, as in an ablation, its compilation is part of its time. Units done while
        another program was compiled are left out, since they do not show the pace of the others.
        """
        compile_s, meanwhile = self.board.compiling_in(self, now)
        elapsed, num_done = now - self.began, self.done - self.done_earlier
        if num_done > meanwhile:
            return (elapsed - compile_s) / (num_done - meanwhile)
        return elapsed / num_done if 0 < num_done <= self.num_compilations else None

    def counted(self, now: float) -> str:
        """Return a text such as `3 of 15 runs, 2.1 runs/s, 6 s left`, or the time so far if no units can be counted."""
        if self.total is None or self.total < 2:
            return f"{duration(now - self.began)} so far"
        words = f"{self.done:,} of {self.total:,} {self.unit}"
        each = self.seconds_each(now)
        if not each:
            return words
        each += self.compiling_each(now)
        rate = f"{_short(1 / each)} {self.unit}/s" if each < 1 else f"{_short(each)} s each"
        return f"{words}, {rate}, {duration(each * max(self.total - self.done, 0))} left"

    def compiling_each(self, now: float) -> float:
        """Return the expected compilation time of a further unit, s, by the units after the first; 0 if none did.

        The first unit is left out, since it compiles the programs that all units share.
        """
        _, meanwhile = self.board.compiling_in(self, now)
        num_later = self.done - self.done_earlier - 1
        if num_later < 1 or self.done - self.done_earlier <= meanwhile:
            return 0.0  # the mean time of a unit has its compilation already
        return self.later_compile_s / num_later


class Board:
    """The phases that are open, outermost first, and what JAX is compiling."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self.phases: list[Phase] = []
        self.is_used = False  # whether any phase was open since somebody began to show them
        self.on_idle: Callable[[], None] | None = None  # of who shows it: no phase is open any more
        self.num_compiling, self.compiling_since = 0, 0.0
        self.done_before: dict[Phase, int] = {}  # when the compilation began
        self.lock = threading.RLock()

    def reopen(self, phase: Phase) -> None:
        """Open a phase inside the innermost open one, unless it is open already."""
        with self.lock:
            self.is_used = True
            if phase not in self.phases:
                self.phases.append(phase)

    def close(self, phase: Phase) -> None:
        """Close a phase, if it is open."""
        with self.lock:
            if phase in self.phases:
                self.phases.remove(phase)
            is_idle = not self.phases
        if is_idle and self.on_idle is not None:
            self.on_idle()

    def compiling(self, begun: bool) -> None:
        """Record that a compilation has begun or ended in some thread."""
        with self.lock:
            now = self.clock()
            if begun and not self.num_compiling:
                self.compiling_since = now
                self.done_before = {phase: phase.done for phase in self.phases}
            if not begun and self.num_compiling == 1:
                for phase in self.phases:
                    before = phase.compile_s
                    phase.compile_s, phase.done_meanwhile = self.compiling_in(phase, now)
                    if self.done_before.get(phase, 0) > phase.done_earlier:
                        phase.later_compile_s += phase.compile_s - before
                    phase.num_compilations += 1
            self.num_compiling = max(self.num_compiling + (1 if begun else -1), 0)

    def compiling_in(self, phase: Phase, now: float) -> tuple[float, int]:
        """Return how many seconds of a phase programs were being compiled, and the units done during them."""
        if not self.num_compiling:
            return phase.compile_s, phase.done_meanwhile
        seconds = now - max(self.compiling_since, phase.began)
        units = phase.done - self.done_before.get(phase, 0)
        return phase.compile_s + seconds, phase.done_meanwhile + units

    def headline(self) -> tuple[str, bool]:
        """Return the outermost phase's name, and whether a program is compiling; a change of either prints a line."""
        with self.lock:
            return self.phases[0].what if self.phases else "", self.num_compiling > 0

    def age(self) -> float:
        """Return the seconds since the outermost phase began; 0 if none is open."""
        with self.lock:
            return self.clock() - self.phases[0].began if self.phases else 0.0

    def line(self) -> str:
        """Return a line on the outermost phase, its compilations and its innermost phase; empty if no phase is open."""
        with self.lock:
            now = self.clock()
            if not self.phases:
                return ""
            outer, inner = self.phases[0], self.phases[-1]
            words = [f"{outer.what}: {outer.counted(now)}"]
            if self.num_compiling:
                seconds = now - self.compiling_since
                words.append(f"compiling for {duration(seconds)}" if seconds >= 1 else "compiling")
            words += [phase.item for phase in (outer, inner)[: len(self.phases)] if phase.item]
            if inner is not outer and inner.total is not None and inner.total > 1:
                words.append(f"{inner.what} {inner.counted(now)}")
            return "; ".join(words)

    def share(self) -> tuple[int, int] | None:
        """Return the done and the total units of the outermost phase; None if no units can be counted."""
        with self.lock:
            outer = self.phases[0] if self.phases else None
            if outer is None or outer.total is None or outer.total < 2:
                return None
            return outer.done, outer.total


board = Board()


def begin(what: str, total: int | None = None, unit: str = "runs", done: int = 0) -> Phase:
    """Open and return a phase, shown until its `clear`; `done` units were done in an earlier run."""
    opened = Phase(board, what, total, unit, done)
    board.reopen(opened)
    _listen()
    return opened


@contextlib.contextmanager
def phase(
    what: str, total: int | None = None, unit: str = "runs", done: int = 0
) -> Iterator[Phase]:
    """Show the progress of a piece of work while the block lasts."""
    opened = begin(what, total, unit, done)
    try:
        yield opened
    finally:
        opened.clear()


@contextlib.contextmanager
def runs(count: int) -> Iterator[Callable[[int], None]]:
    """Yield a function that counts finished runs, in the open phase if that counts runs, else in a new phase."""
    around = board.phases[-1] if board.phases else None
    if around is not None and around.unit == "runs" and around.total is not None:
        yield around.advance
        return
    with phase("simulating", count) as opened:
        yield opened.advance


def note(item: str) -> None:
    """Show `item` beside the innermost open phase, unless that phase shows an item of its own."""
    with board.lock:
        if board.phases and (not board.phases[-1].item or board.phases[-1].noted):
            board.phases[-1].item, board.phases[-1].noted = item, True


def duration(seconds: float) -> str:
    """Format a waiting time in s, min or h."""
    if seconds < MINUTES_FROM_S:
        return f"{seconds:.0f} s"
    if seconds < HOURS_FROM_S:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.1f}"


_is_listening = False


def _listen() -> None:
    """Register for JAX's events on compilations, once JAX is imported and progress is shown."""
    global _is_listening
    if _is_listening or board.on_idle is None or "jax" not in sys.modules:
        return
    _is_listening = True

    def began(event: str, *_: object, **__: object) -> None:
        if event in COMPILING:
            board.compiling(begun=True)

    def ended(event: str, *_: object, **__: object) -> None:
        if event in COMPILING:
            board.compiling(begun=False)

    jax.monitoring.register_scalar_listener(began)
    jax.monitoring.register_event_duration_secs_listener(ended)


# --- on a screen ----------------------------------------------------------------------------------


class Display:
    """Shows the progress of one command; only `tick` draws."""

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
        """Draw the bar, or print a line if one is due."""
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
    """Return whether calls from Python show progress: in notebooks and at a prompt; in scripts only on request."""
    return hasattr(sys, "ps1") or os.environ.get(SWITCH) == "on"


@contextlib.contextmanager
def shown(name: str) -> Iterator[None]:
    """Show a command's progress while the block lasts; a nested command adds to the outer command's display."""
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
    """Show the next command's progress under `name`, in the place of the command shown now."""
    global _num_inner
    if _shown is not None and not _num_inner:
        _shown.name = name
        _num_inner = -1


def silence() -> None:
    """Hide the progress of a command that was asked to be quiet; ignored in a nested command."""
    if _shown is not None and not _num_inner:
        _shown.is_quiet = True


def make_way() -> None:
    """Hide the progress, since something else is about to be printed."""
    if _shown is not None:
        _shown.hide()

"""Progress of commands: what is said, when, and where; the clock is the test's own."""

import io
import os
import subprocess
import sys
from dataclasses import dataclass, field

import pytest

from blis_jax import backend, progress
from blis_jax.commands import cli
from blis_jax.commands.door.dispatch import main as door
from blis_jax.commands.parser import Parser
from blis_jax.errors import ConfigError
from blis_jax.progress import Board, Display, Phase


@dataclass
class Clock:
    """Stands still until it is moved."""

    now: float = 100.0
    stream: io.StringIO = field(default_factory=io.StringIO)

    def __call__(self) -> float:
        return self.now


def shown(*, is_terminal: bool) -> tuple[Clock, Board, Display]:
    clock = Clock()
    board = Board(clock)
    display = Display("sweeps.review", board, clock.stream, is_terminal=is_terminal)
    board.on_idle = display.hide
    return clock, board, display


def begun(board: Board, what: str, total: int, unit: str) -> Phase:
    phase = Phase(board, what, total, unit)
    board.reopen(phase)
    return phase


def test_lines_come_after_three_seconds_when_the_work_changes_and_every_ten_seconds() -> None:
    clock, board, display = shown(is_terminal=False)
    work = begun(board, "judging", 10, "opinions")
    for seconds in range(1, 31):
        clock.now = 100.0 + seconds
        if seconds == 5:
            board.compiling(begun=True)
        if seconds == 9:
            board.compiling(begun=False)
        if seconds in (12, 20):
            work.show(work.done + 2, "inert on mine")
        display.tick()
    assert clock.stream.getvalue().splitlines() == [
        "sweeps.review: judging: 0 of 10 opinions",
        "sweeps.review: judging: 0 of 10 opinions; compiling for 1 s",
        "sweeps.review: judging: 0 of 10 opinions",
        "sweeps.review: judging: 2 of 10 opinions, 7.5 s each, 60 s left; inert on mine",
        "sweeps.review: judging: 4 of 10 opinions, 6.2 s each, 38 s left; inert on mine",
    ]


def test_runs_are_shown_inside_the_work_and_compilation_is_no_part_of_the_rate() -> None:
    clock, board, _ = shown(is_terminal=False)
    work = begun(board, "searching", 4, "points")
    board.compiling(begun=True)
    board.compiling(begun=True)  # a second program beside the first one
    clock.now += 60
    work.advance()  # a program that was there already went on meanwhile
    board.compiling(begun=False)
    board.compiling(begun=False)
    clock.now += 6
    work.advance(2)
    inner = begun(board, "simulating", 1500, "runs")
    clock.now += 2
    inner.advance(1200)
    assert board.line() == (
        "searching: 3 of 4 points, 4.0 s each, 4 s left; simulating 1,200 of 1,500 runs, 600 runs/s, 0 s left"
    )
    inner.clear()
    earlier = Phase(board, "simulating", 1000, "runs", done=900)
    clock.now += 2
    earlier.advance(50)
    assert earlier.counted(clock.now) == "950 of 1,000 runs, 25 runs/s, 2 s left"


def test_runs_beside_a_compilation_give_no_rate_unless_each_compiles() -> None:
    clock, board, _ = shown(is_terminal=False)
    many, few = begun(board, "simulating", 512, "runs"), Phase(board, "ablating", 4, "arms")
    board.phases.append(few)
    board.compiling(begun=True)
    clock.now += 60
    many.advance(256)
    few.advance()
    assert many.counted(clock.now) == "256 of 512 runs"
    board.compiling(begun=False)
    assert many.counted(clock.now) == "256 of 512 runs"
    assert few.counted(clock.now) == "1 of 4 arms, 60 s each, 3 min left"
    clock.now += 1
    many.advance(128)
    assert many.counted(clock.now) == "384 of 512 runs, 128 runs/s, 1 s left"


def test_the_time_left_counts_the_programs_that_are_still_to_be_compiled() -> None:
    """Every arm compiles 20 s and runs 1 s: 13 arms are left, and 13 compilations."""
    clock, board, _ = shown(is_terminal=False)
    arms = begun(board, "simulating", 16, "arms")
    for _ in range(3):
        board.compiling(begun=True)
        clock.now += 20
        board.compiling(begun=False)
        clock.now += 1
        arms.advance()
    assert arms.counted(clock.now) == "3 of 16 arms, 21 s each, 5 min left"  # 273 s
    one = Phase(board, "simulating", 16, "arms")  # a program that all share is compiled once
    board.phases.append(one)
    board.compiling(begun=True)
    clock.now += 20
    board.compiling(begun=False)
    clock.now += 3
    one.advance(3)
    assert one.counted(clock.now) == "3 of 16 arms, 1.0 s each, 13 s left"


def test_a_command_that_has_named_no_work_yet_says_that_it_works() -> None:
    clock, board, display = shown(is_terminal=False)
    clock.now += 2
    display.tick()
    assert clock.stream.getvalue() == ""
    clock.now += 2
    display.tick()
    assert clock.stream.getvalue().endswith("working: 4 s so far\n")
    begun(board, "judging", 10, "opinions").clear()
    clock.now += 20
    display.tick()
    assert clock.stream.getvalue().count("\n") == 1  # between two pieces of work nothing is said


def test_a_terminal_has_one_line_that_makes_way() -> None:
    clock, board, display = shown(is_terminal=True)
    work = begun(board, "judging", 10, "opinions")
    display.tick()
    assert clock.stream.getvalue() == ""
    clock.now += 4
    work.advance(2)
    display.tick()
    assert "judging: 2 of 10 opinions, 2.0 s each, 16 s left" in clock.stream.getvalue()
    assert "━" in clock.stream.getvalue() and display.bar is not None
    work.clear()
    assert display.bar is None
    assert clock.stream.getvalue().endswith("\x1b[1A\x1b[2K")  # the line is gone


def test_a_quiet_command_shows_nothing_unless_it_is_part_of_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(progress.SWITCH)
    parser = Parser(prog="some")
    parser.add_switches("switches", {"quiet": "print nothing"})
    seen = []

    def command(arguments: object) -> int:
        parser.given(["--quiet"])
        assert progress._shown is not None
        seen.append(progress._shown.is_quiet)
        return 0

    def outer(arguments: object) -> int:
        return cli.run_command("inner", command, [])

    def door(arguments: object) -> int:
        progress.rename("inner")
        return outer(arguments)

    for name, run in (("some", command), ("outer", outer), ("door", door)):
        assert cli.run_command(name, run, []) == 0
    assert seen == [True, False, True] and progress.board.on_idle is None


@pytest.mark.parametrize("is_prompt", [False, True], ids=["a script", "a notebook or a prompt"])
def test_calls_of_python_show_progress_where_somebody_looks(
    monkeypatch: pytest.MonkeyPatch, is_prompt: bool
) -> None:
    monkeypatch.delenv(progress.SWITCH)
    if is_prompt:
        monkeypatch.setattr(sys, "ps1", ">>> ", raising=False)
    seen = []

    def command(arguments: object) -> int:
        seen.append(progress._shown is not None)
        return 0

    with cli.called_from_python():
        cli.run_command("some", command, [])
        monkeypatch.setenv(progress.SWITCH, "on")
        cli.run_command("some", command, [])
    assert seen == [is_prompt, True]


def test_progress_and_errors_begin_with_the_same_words(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv(progress.SWITCH)
    seen = []

    def given(self: Parser, arguments: object) -> None:
        assert progress._shown is not None
        seen.append(progress._shown.name)
        raise ConfigError("no")

    monkeypatch.setattr(Parser, "given", given)
    assert door(["compose", "--from", "x"]) == 2
    assert seen == ["blis-jax compose"]
    assert capsys.readouterr().err == "blis-jax compose: error: no\n"


def test_jax_tells_of_compilations(monkeypatch: pytest.MonkeyPatch) -> None:
    import jax
    import jax.numpy as jnp

    told: list[bool] = []
    monkeypatch.setattr(progress.board, "on_idle", lambda: None)
    monkeypatch.setattr(progress.board, "compiling", lambda begun: told.append(begun))
    with progress.phase("something"):
        jax.jit(lambda x: jnp.sin(x) * 17.25)(jnp.float32(1.5))
    assert told.count(True) == told.count(False) >= 3 and told[0]


def test_xla_logs_only_what_ends_the_process() -> None:
    code = "import os, blis_jax, jax; print(os.environ['TF_CPP_MIN_LOG_LEVEL']); jax.devices()"
    usual = {key: value for key, value in os.environ.items() if key != backend.LOG_LEVEL}

    def run(**more: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", code]
        return subprocess.run(command, env=usual | more, capture_output=True, text=True)

    broken = run(XLA_FLAGS="--xla_no_such_flag=1")
    assert broken.returncode and "Unknown flag in XLA_FLAGS" in broken.stderr
    assert broken.stdout.strip() == "3"
    assert run(**{backend.LOG_LEVEL: "0"}).stdout.strip() == "0"

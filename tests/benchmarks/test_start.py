"""The clock of whole commands: every moment is booked once, and commands are started as users start them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.clock import Clock
from benchmarks.start import COMMANDS, row


def test_every_moment_is_booked_under_what_is_innermost(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter(range(20))
    monkeypatch.setattr("time.perf_counter", lambda: next(now))
    monkeypatch.setattr("time.thread_time", lambda: 0.0)
    clock = Clock()
    with clock.doing("other"):
        with clock.doing("tracing"), clock.doing("import"):
            pass
        clock.around(lambda: None, "running")()
    wall = {what: seconds[0] for what, seconds in clock.figures().items()}
    assert wall == {"preparing": 2, "tracing": 2, "import": 1, "running": 1, "reporting": 1}


def test_a_command_is_started_as_its_user_starts_it(tmp_path: Path) -> None:
    path = tmp_path / "seconds.json"
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.clock", str(path), "blis_jax.run", "--rate", "x"],
        env=os.environ | {"PYTHONPATH": os.getcwd()}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 2 and "--rate" in done.stderr
    seconds = json.loads(path.read_text())
    assert 0 < seconds["import"][0] < seconds["whole"][0]
    assert len(row("run", "empty", seconds)) == 14


def test_modules_of_commands_are_there() -> None:
    for words, _ in COMMANDS.values():
        assert (
            Path(*words[0].split(".")).with_suffix(".py").exists()
            or Path(*words[0].split("."), "__main__.py").exists()
        )

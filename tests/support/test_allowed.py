"""Newest and oldest versions: every Python of the project has its turn, and what is missing is said, not failed."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.support import allowed


def test_every_python_has_its_turn(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(allowed, "interpreter", lambda version: None)
    versions = allowed.pythons()
    assert [allowed.main(turn, tmp_path) for turn in range(len(versions))] == [0] * len(versions)
    said = capsys.readouterr().out.splitlines()
    assert [line.split()[2] for line in said] == versions and "3.11" in versions
    assert all("nothing is shown about other versions" in line for line in said)


def test_this_python_is_found_and_one_that_is_not_there_is_not() -> None:
    found = allowed.interpreter(f"{sys.version_info[0]}.{sys.version_info[1]}")
    assert found is not None and Path(found).exists()
    assert allowed.interpreter("3.0") is None


@pytest.mark.parametrize(
    ("turn", "failing", "code", "words"),
    [
        (0, "--dry-run", 0, "no package index can be reached; nothing is shown"),
        (0, "--upgrade", 1, "the newest dependencies do not install"),
        (1, "numpy==2.4", 1, "the oldest dependencies do not install"),
    ],
)
def test_without_an_index_nothing_is_shown_but_what_does_not_install_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    tmp_path: Path, turn: int, failing: str, code: int, words: str,
) -> None:  # fmt: skip
    def failed(command: Sequence[str]) -> str:
        return "no route to host" if failing in command else ""

    monkeypatch.setattr(allowed, "interpreter", lambda version: sys.executable)
    monkeypatch.setattr(allowed, "failed", failed)
    assert allowed.main(turn, tmp_path) == code
    assert words in capsys.readouterr().out


def test_the_oldest_versions_are_the_lower_bounds() -> None:
    required = allowed.project()["dependencies"]
    assert all(each.count(">=") == 1 for each in required)
    assert [each.split("==") for each in allowed.lowest()] == [
        each.split(">=") for each in required
    ]

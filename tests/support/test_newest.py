"""Newest versions: every Python that the project names has its turn, and what is missing is said, not failed."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.support import newest


def test_every_python_has_its_turn(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(newest, "interpreter", lambda version: None)
    versions = newest.pythons()
    assert [newest.main(turn, tmp_path) for turn in range(len(versions))] == [0] * len(versions)
    said = capsys.readouterr().out.splitlines()
    assert [line.split()[2] for line in said] == versions and "3.11" in versions
    assert all("nothing is shown about newer versions" in line for line in said)


def test_this_python_is_found_and_one_that_is_not_there_is_not() -> None:
    found = newest.interpreter(f"{sys.version_info[0]}.{sys.version_info[1]}")
    assert found is not None and Path(found).exists()
    assert newest.interpreter("3.0") is None


@pytest.mark.parametrize(
    ("failing", "code", "words"),
    [
        ("--dry-run", 0, "no package index can be reached; nothing is shown"),
        ("--upgrade", 1, "the dependencies do not install"),
    ],
)
def test_without_an_index_nothing_is_shown_but_what_does_not_install_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    tmp_path: Path, failing: str, code: int, words: str,
) -> None:  # fmt: skip
    def failed(command: Sequence[str]) -> str:
        return "no route to host" if failing in command else ""

    monkeypatch.setattr(newest, "interpreter", lambda version: sys.executable)
    monkeypatch.setattr(newest, "failed", failed)
    assert newest.main(0, tmp_path) == code
    assert words in capsys.readouterr().out

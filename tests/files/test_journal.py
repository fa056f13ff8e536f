"""The journal of a long command: torn lines, other people's files."""

from __future__ import annotations

from pathlib import Path

import pytest

from blis_jax.errors import ConfigError
from blis_jax.files.journal import Journal
from tests.files.test_leftovers import killed_everywhere


def journal(path: Path, identity: str = "me", kind: str = "comparison") -> Journal:
    return Journal(path, kind, {"seeds": identity})


def test_lines_survive_and_torn_ones_do_not(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    first = journal(path)
    assert first.lines() == []
    first.begin()
    first.append(["a", float("nan")])
    first.append(["b", 2])
    with path.open("a") as file:
        file.write('["c", ')
    again = journal(path)
    assert [key for key, _ in again.lines()] == ["a", "b"]
    again.begin()
    again.append(["d", 4])
    assert [key for key, _ in journal(path).lines()] == ["a", "b", "d"]


def test_killed_while_a_torn_line_is_dropped_it_keeps_the_others(tmp_path: Path) -> None:
    path = tmp_path / "start" / "result"
    path.parent.mkdir()
    first = journal(path, "1", "work")
    first.begin()
    first.append("a")
    path.write_text(path.read_text() + '["torn')
    copies = killed_everywhere(tmp_path, "begin_journal")
    assert len(copies) > 5
    for copy in copies:
        again = journal(copy / "result", "1", "work")
        again.begin()
        assert again.lines() == ["a"]


@pytest.mark.parametrize("length", [0, 1, 10, 30])
def test_a_torn_header_is_written_again(tmp_path: Path, length: int) -> None:
    path = tmp_path / "runs.jsonl"
    journal(path).begin()
    path.write_text(path.read_text()[:length])
    journal(path).begin()
    assert journal(path).lines() == []
    journal(path).append(1)
    assert journal(path).lines() == [1]


def test_files_of_others_are_refused_and_kept(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    for text in ("mine", "{}\n", "1\n2\n"):
        path.write_text(text)
        with pytest.raises(ConfigError, match="--overwrite or another --output"):
            journal(path).begin()
        assert path.read_text() == text
    path.unlink()
    journal(path, "you").begin()
    with pytest.raises(ConfigError, match="was made with different seeds;"):
        journal(path).lines()
    with pytest.raises(ConfigError, match="not the record of a search"):
        journal(path, kind="search").lines()

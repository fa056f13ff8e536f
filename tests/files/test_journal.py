"""The journal of a long command: damaged and torn lines, other people's files, other writers."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from blis_jax.errors import ConfigError, ConfigWarning
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
    path.write_text(path.read_text() + '{"torn')
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
    with pytest.raises(ConfigError, match=r"not a record of this work \(search\)"):
        journal(path, kind="search").lines()


# --- damage ---------------------------------------------------------------------------------------


class InOrder(Journal):
    is_ordered = True


def written(path: Path, kind: type[Journal] = Journal, count: int = 5) -> Journal:
    made = kind(path, "comparison", {"seeds": "me"})
    made.begin()
    for place in range(count):
        made.append([f"key{place}", {"z": place, "a": float("nan") if place == 3 else 1.5}])
    return made


Lines = list[bytes]
DAMAGES: dict[str, tuple[Callable[[Lines], Lines], Sequence[int], int]] = {
    # lines behind the header, to what they become; the parts that count; in an ordered journal, so many
    "a digit": (lambda lines: [*lines[:2], lines[2].replace(b"1.5", b"9.5"), *lines[3:]], (0, 1, 3, 4), 2),
    "a key": (lambda lines: [*lines[:2], lines[2].replace(b"key2", b"kex2"), *lines[3:]], (0, 1, 3, 4), 2),
    "no JSON": (lambda lines: [*lines[:2], b"\xff" + lines[2][1:], *lines[3:]], (0, 1, 3, 4), 2),
    "missing": (lambda lines: lines[:2] + lines[3:], (0, 1, 3, 4), 2),
    "the first is missing": (lambda lines: lines[1:], (1, 2, 3, 4), 0),
    "doubled": (lambda lines: [*lines[:3], lines[2], *lines[3:]], (0, 1, 2, 3, 4), 3),
    "swapped": (lambda lines: [lines[0], lines[2], lines[1], *lines[3:]], (0, 1, 2, 3, 4), 1),
    "all twice": (lambda lines: lines + lines, (0, 1, 2, 3, 4), 5),
    "a line of its own": (lambda lines: [*lines[:2], b'["key9", 1]', *lines[2:]], (0, 1, 2, 3, 4), 2),
}  # fmt: skip


@pytest.mark.parametrize("name", DAMAGES)
@pytest.mark.parametrize("kind", [Journal, InOrder])
def test_what_is_damaged_does_not_count_and_this_is_said(
    tmp_path: Path, name: str, kind: type[Journal]
) -> None:
    change, rest, in_order = DAMAGES[name]
    path = tmp_path / "runs.jsonl"
    made = written(path, kind)
    whole, before = path.read_bytes(), made.lines()
    header, *lines = whole.splitlines()
    path.write_bytes(b"".join(line + b"\n" for line in [header, *change(lines)]))
    kept = list(range(in_order)) if kind is InOrder else list(rest)
    again = kind(path, "comparison", {"seeds": "me"})
    assert repr(again.lines()) == repr([before[place] for place in kept])
    with pytest.warns(ConfigWarning, match=r"line \d is broken: .*; what does not count is done"):
        again.begin()
    for place in range(5):
        if place not in kept:
            again.append(before[place])
    assert sorted(map(repr, again.lines())) == sorted(map(repr, before))
    assert kind is Journal or path.read_bytes() == whole
    again.begin()  # nothing to say any more


def test_a_line_of_other_work_does_not_count(tmp_path: Path) -> None:
    path, other = tmp_path / "runs.jsonl", tmp_path / "other.jsonl"
    written(path, count=2)
    second = Journal(other, "comparison", {"seeds": "other"})
    second.begin()
    for place in range(3):
        second.append([place, "other"])
    path.write_bytes(path.read_bytes() + other.read_bytes().splitlines(keepends=True)[-1])
    assert [key for key, _ in journal(path).lines()] == ["key0", "key1"]


def test_every_flipped_bit_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    before = [repr(line) for line in written(path, count=2).lines()]
    data = path.read_bytes()
    for place, bit in itertools.product(range(0, len(data), 3), (1, 4, 128)):
        changed = bytearray(data)
        changed[place] ^= bit
        path.write_bytes(bytes(changed))
        try:
            found = [repr(line) for line in journal(path).lines()]
        except ConfigError as error:
            assert place <= data.index(b"\n"), place
            assert "--overwrite or another --output" in str(error)
        else:
            assert set(found) <= set(before) and len(found) == len(set(found))


def test_the_second_writer_is_told_who_the_first_is(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    with journal(path).held(is_resumed=False):
        for is_resumed in (True, False):
            with (
                pytest.raises(ConfigError, match=r"is being written by another process \(\d+ on"),
                journal(path).held(is_resumed),
            ):
                raise AssertionError
    assert list(tmp_path.iterdir()) == []


def test_held_again_it_goes_on_or_begins_anew(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    written(path, count=2)
    with journal(path).held(is_resumed=True):
        assert len(journal(path).lines()) == 2
    with journal(path).held(is_resumed=False):
        assert journal(path).lines() == []


def test_work_that_ends_before_its_first_part_leaves_no_file(tmp_path: Path) -> None:
    """A mistyped policy is found behind the header; the same command, mended, must not be refused."""
    path = tmp_path / "runs.jsonl"
    with pytest.raises(ConfigError), journal(path).held(is_resumed=False):
        journal(path).begin()
        assert path.exists()
        raise ConfigError("a policy")
    assert not path.exists()


def test_a_full_disk_names_the_file_and_leaves_no_part_of_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "runs.jsonl"
    made = written(path, count=2)
    before, usual = path.read_bytes(), os.write

    def full(descriptor: int, data: bytes) -> int:
        if len(data) < 100:
            raise OSError(28, "No space left on device")
        return usual(descriptor, data[: len(data) // 2])

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(ConfigError, match=r"runs\.jsonl cannot be written \(No space left"):
        made.append(["key2", "x" * 1000])
    assert path.read_bytes() == before

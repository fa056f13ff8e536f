"""The chain of records: what is appended stays, and every change of what is there is found."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from blis_jax.errors import ConfigError
from blis_jax.files import chain
from blis_jax.files.chain import Record, append, parse, read
from blis_jax.files.content import canonical
from tests.support.recorded.reference_data import REPO_ROOT

WRITER = """
import sys
from pathlib import Path
from blis_jax.files.chain import append
path, name, count = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
for place in range(count):
    record = append(path, "note", lambda records: {"id": f"{name}{place}", "text": "x" * 5000})
    print(record["number"], record["hash"], flush=True)
"""


def begun(folder: Path) -> Path:
    path = folder / "ledger.jsonl"
    append(path, chain.BEGIN, lambda records: {"version": chain.VERSION, "problem": "tiny"})
    return path


def filled(folder: Path, count: int = 4) -> Path:
    path = begun(folder)
    for place in range(count):
        append(path, "note", lambda records, place=place: {"id": str(place), "text": "naïve µ"})
    return path


def writer(path: Path, name: str, count: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path), name, str(count)],
        stdout=subprocess.PIPE,
        text=True,
        cwd=REPO_ROOT,
    )


def problem_of(lines: Sequence[bytes]) -> str:
    problem = parse(b"".join(line + b"\n" for line in lines)).problem
    assert problem is not None
    return problem


def test_records_follow_each_other(tmp_path: Path) -> None:
    path = filled(tmp_path)
    records = read(path).records
    assert [record["number"] for record in records] == list(range(5))
    assert [record["previous"] for record in records[1:]] == [r["hash"] for r in records[:-1]]
    assert read(path).problem is None and not read(path).torn
    assert chain.content_of(records[1]) == {"id": "0", "text": "naïve µ"}


def test_earlier_bytes_never_change(tmp_path: Path) -> None:
    path = begun(tmp_path)
    for place in range(3):
        before = path.read_bytes()
        append(path, "note", lambda records, place=place: {"id": str(place)})
        assert path.read_bytes().startswith(before)


def test_every_flipped_byte_is_found(tmp_path: Path) -> None:
    data = filled(tmp_path, 2).read_bytes()
    ends = [place for place, byte in enumerate(data) if byte == ord("\n")]
    for place in range(len(data)):
        changed = bytearray(data)
        changed[place] ^= 1
        contents = parse(bytes(changed))
        line = sum(end < place for end in ends)
        assert len(contents.records) <= line, place
        is_cut = (
            place == ends[-1]
        )  # the end of line itself: the last record has an odd byte behind it
        assert contents.problem is not None or (is_cut and contents.torn), place


def test_removed_swapped_and_repeated_lines_are_found(tmp_path: Path) -> None:
    lines = filled(tmp_path).read_bytes().splitlines()
    assert "line 3" in problem_of(lines[:2] + lines[3:])
    assert "line 2" in problem_of([lines[0], lines[2], lines[1], *lines[3:]])
    assert "line 3" in problem_of([*lines[:2], lines[1], *lines[2:]])
    assert "line 1" in problem_of(lines[1:])
    assert "line 3" in problem_of([*lines[:2], b"", *lines[2:]])
    assert "not a record" in problem_of([*lines[:2], b"{}x", *lines[2:]])


def test_a_record_that_was_hashed_again_breaks_the_next(tmp_path: Path) -> None:
    path = filled(tmp_path)
    lines = path.read_bytes().splitlines()
    record = json.loads(lines[2])
    record["text"] = "better"
    record["hash"] = chain.hash_of(record)
    lines[2] = canonical(record).encode()
    problem = problem_of(lines)
    assert "line 4" in problem and "the last good record is 2 (1)" in problem


def test_the_same_content_in_another_layout_is_found(tmp_path: Path) -> None:
    lines = filled(tmp_path).read_bytes().splitlines()
    lines[1] = json.dumps(json.loads(lines[1])).encode()
    assert "not written as records are" in problem_of(lines)


def test_nothing_is_added_to_a_broken_file(tmp_path: Path) -> None:
    path = filled(tmp_path)
    data = path.read_bytes().replace("naïve".encode(), b"clever", 1)
    path.write_bytes(data)
    with pytest.raises(ConfigError, match="line 2 is broken"):
        append(path, "note", lambda records: {})
    assert path.read_bytes() == data


# --- killed and competing writers -----------------------------------------------------------------


@pytest.mark.parametrize("kept", [1, 30, -2])
def test_a_torn_line_is_reported_and_stays(tmp_path: Path, kept: int) -> None:
    path = filled(tmp_path)
    whole = path.read_bytes()
    start = whole.rstrip(b"\n").rindex(b"\n") + 1
    torn = whole[start:][:kept]
    path.write_bytes(whole[:start] + torn)
    contents = read(path)
    assert len(contents.records) == 4 and contents.torn == torn and contents.problem is None
    record = append(path, "note", lambda records: {"id": "next"})
    assert record["number"] == 4 and record[chain.TORN]["bytes"] == len(torn)
    after = read(path)
    assert after.problem is None and len(after.records) == 5
    assert torn in path.read_bytes()
    problem = problem_of([line for line in path.read_bytes().splitlines() if line != torn])
    assert "speaks of an unfinished line" in problem


def test_a_line_torn_twice(tmp_path: Path) -> None:
    path = begun(tmp_path)
    with path.open("ab") as file:
        file.write(b'{"half\n{"another')
    assert read(path).torn == b'{"half\n{"another'
    append(path, "note", lambda records: {"id": "next"})
    assert read(path).problem is None and len(read(path).records) == 2


def test_a_whole_record_without_its_end_of_line_counts(tmp_path: Path) -> None:
    path = filled(tmp_path)
    path.write_bytes(path.read_bytes().removesuffix(b"\n"))
    contents = read(path)
    assert len(contents.records) == 5 and contents.lacks_end and not contents.torn
    append(path, "note", lambda records: {"id": "next"})
    assert len(read(path).records) == 6 and read(path).problem is None


def test_a_refused_record_leaves_the_file_alone(tmp_path: Path) -> None:
    path = filled(tmp_path)
    before = path.read_bytes()

    def refuses(records: Sequence[Record]) -> dict[str, object]:
        raise ConfigError("no")

    with pytest.raises(ConfigError):
        append(path, "note", refuses)
    assert path.read_bytes() == before


def test_a_full_disk_leaves_no_part_of_a_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = filled(tmp_path)
    before = path.read_bytes()
    usual = os.write

    def full(descriptor: int, data: bytes) -> int:
        if len(data) < 100:
            raise OSError(28, "No space left on device")
        return usual(descriptor, data[: len(data) // 2])

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(ConfigError, match=r"ledger\.jsonl cannot be written \(No space left"):
        append(path, "note", lambda records: {"id": "5", "text": "x" * 1000})
    assert path.read_bytes() == before


def test_writers_at_once_lose_nothing(tmp_path: Path) -> None:
    path = begun(tmp_path)
    writers = [writer(path, name, 20) for name in "abcd"]
    said = [line for one in writers for line in one.communicate()[0].splitlines()]
    assert [one.returncode for one in writers] == [0] * 4
    contents = read(path)
    assert contents.problem is None and len(contents.records) == 81
    assert {f"{r['number']} {r['hash']}" for r in contents.records[1:]} == set(said)
    assert {r["id"] for r in contents.records[1:]} == {f"{n}{p}" for n in "abcd" for p in range(20)}


def test_killed_writers_lose_nothing_that_was_said(tmp_path: Path) -> None:
    path = begun(tmp_path)
    chance = random.Random(1)
    said: list[str] = []
    for turn in range(6):
        one = writer(path, f"t{turn}-", 10_000)
        assert one.stdout is not None
        said.append(one.stdout.readline().strip())
        time.sleep(chance.uniform(0.01, 0.1))
        one.send_signal(signal.SIGKILL)
        said += one.communicate()[0].splitlines()
    contents = read(path)
    assert contents.problem is None
    found = {f"{r['number']} {r['hash']}" for r in contents.records}
    assert {line for line in said if len(line.split()) == 2 and len(line.split()[1]) == 64} <= found
    append(path, "note", lambda records: {"id": "last"})
    assert read(path).problem is None and read(path).records[-1]["id"] == "last"

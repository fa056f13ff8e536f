"""What is said of two answers to a command line."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from benchmarks.blis import __main__ as blis
from benchmarks.blis.lines import Line


def answer(code: int, printed: str) -> subprocess.CompletedProcess[str]:
    return subprocess.CompletedProcess([], code, printed, "first\nno such pool")


@pytest.mark.parametrize(
    ("theirs", "made", "printed", "said"),
    [
        (answer(0, "a\nb\n"), True, "a\nb\n", "equal"),
        (answer(0, "a\n b\n"), True, "a\n c\n", "different:\n  BLIS b | blis-jax c"),
        (answer(0, "a\nb\n"), True, "a\n", "different:\n  BLIS b | blis-jax "),
        (answer(1, ""), False, "", "refused"),
        (answer(1, ""), True, "a\n", "refused by BLIS alone: no such pool"),
        (answer(0, "a\n"), False, "", "refused by blis-jax alone: not here"),
    ],
)
def test_what_a_line_came_to(
    theirs: subprocess.CompletedProcess[str], made: bool, printed: str, said: str
) -> None:
    assert blis.verdict(theirs, made, printed, "not here") == said


def test_without_the_program_nothing_begins(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        blis.main(["--repository", str(tmp_path)])
    assert stopped.value.code == 2
    assert "is not there" in capsys.readouterr().err


def test_files_are_compared_but_for_what_ours_says_besides(tmp_path: Path) -> None:
    theirs, out = tmp_path / "theirs", tmp_path / "out"
    for folder in (theirs, out):
        folder.mkdir()
        (folder / "t.csv").write_text("a,b\n")
    first, second = ({"arrived_at": 0.5, "requestID": f"request_{number}"} for number in (0, 1))
    theirs_says = {"b": 1, "a": 2, "requests": [second, first]}
    (theirs / "m.json").write_text(json.dumps(theirs_says))
    ours_says = {"a": 2, "b": 1, "kv": {}, "requests": [first | {"client_ttft_ms": 3.0}, second]}
    (out / "m.json").write_text(json.dumps(ours_says))
    assert blis.of_files(theirs, out, False) == ""
    (out / "m.json").write_text(json.dumps(ours_says | {"a": 3}))
    assert "m.json" in blis.of_files(theirs, out, False) and '"a": 3' in blis.of_files(
        theirs, out, False
    )
    (out / "m.json").unlink()
    assert "BLIS wrote" in blis.of_files(theirs, out, False)


def test_a_line_is_told_where_the_checkout_is(tmp_path: Path) -> None:
    line = Line(
        ("replay",), ["--tp", "2", "--hardware-config", "REPOSITORY/h.json"], ["REPOSITORY/m"]
    )
    assert blis.placed(line, tmp_path) == Line(
        ("replay",), ["--tp", "2", "--hardware-config", f"{tmp_path}/h.json"], [f"{tmp_path}/m"]
    )


def test_ours_writes_into_its_own_folder_and_says_what_it_refuses(tmp_path: Path) -> None:
    made, printed, _ = blis.ours(Line(("convert", "preset"), ["--name", "chatbot"], []), tmp_path)
    assert made and "clients:" in printed
    made, _, said = blis.ours(Line(("convert", "preset"), ["--name", "OUT/x"], []), tmp_path)
    assert not made and f"{tmp_path}/x" in said


def test_what_became_of_split_requests_is_not_compared(tmp_path: Path) -> None:
    theirs, out = tmp_path / "theirs", tmp_path / "out"
    header = "request_id,first_chunk_time_us,last_chunk_time_us,status\n"
    for folder, rows in ((theirs, "0,0,0,incomplete\n1,5,6,ok\n"), (out, "0,2,3,ok\n1,5,6,ok\n")):
        folder.mkdir()
        (folder / "t.csv").write_text(header + rows)
    assert blis.of_files(theirs, out, True) == ""
    assert "incomplete" in blis.of_files(theirs, out, False)
    (out / "t.csv").write_text(header + "0,2,3,ok\n1,5,7,ok\n")
    assert "1,5,7,ok" in blis.of_files(theirs, out, True)

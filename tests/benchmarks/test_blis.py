"""Random command lines, and what is said of two answers to one of them."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from benchmarks import blis
from blis_jax.cluster.config import AUGUST
from blis_jax.commands.run.flags import make_parser
from blis_jax.workload.spec import load_spec


def test_a_line_is_the_same_each_time_and_known_to_run(tmp_path: Path) -> None:
    for number in range(40):
        words = blis.line(number, tmp_path)
        path = tmp_path / f"{number}.yaml"
        text = path.read_text() if path.exists() else ""
        assert words == blis.line(number, tmp_path)
        assert not text or path.read_text() == text
        assert make_parser().given(["--profile", "blis-2026-08", *words])
        if text:
            load_spec(path, AUGUST)


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

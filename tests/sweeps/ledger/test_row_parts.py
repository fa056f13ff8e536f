"""The runs of a row in parts: the record of the undivided row, byte for byte; one sentence for what does not fit."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from blis_jax.files import chain
from sweeps import merge
from sweeps.ledger import __main__ as command
from sweeps.runs import experiment
from tests.runs.test_scheduler import InThisProcess, elsewhere
from tests.sweeps.ledger.tiny_track import ROW, make_track

RATES = (
    *ROW[:4],
    "--family",
    "performance",
    "--type",
    "monotonicity",
    "--over",
    "rate=100,300",
    "--predict",
    "ttft_p99_ms rises",
    *ROW[-2:],
)


@pytest.fixture
def track(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A track, in whose ledger one row is planned; every record is written at one time."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(chain, "now", lambda: "2026-01-01T00:00:00+00:00")
    return make_track(tmp_path)


def ledger(*words: str) -> int:
    return command.main([*words, "--track", "tiny"])


def in_parts(*words: str, count: int = 3) -> None:
    """Make the runs of an action in parts, and join them to all.jsonl."""
    for number in range(count, 0, -1):
        assert ledger(*words, "--part", f"{number}/{count}", "--output", f"p{number}.jsonl") == 0
    parts = [f"p{number}.jsonl" for number in range(1, count + 1)]
    assert merge.main([*parts, "--output", "all.jsonl"]) == 0


def nothing_is_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise AssertionError("a run was made")

    monkeypatch.setattr(experiment.Experiment, "each", refused)


@pytest.mark.parametrize("row", [ROW, RATES], ids=["conditions", "rates"])
def test_a_row_in_parts_is_the_undivided_row(
    row: tuple[str, ...], track: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:  # fmt: skip
    assert ledger("plan", "1", *row) == 0
    shutil.copytree(track, "planned")
    assert ledger("add", "1") == 0
    whole = {
        path.relative_to(track): path.read_bytes() for path in track.rglob("*") if path.is_file()
    }
    shutil.rmtree(track)
    shutil.copytree("planned", track)
    in_parts("add", "1")
    assert "blis-jax ledger add 1 --track tiny --from all.jsonl" in capsys.readouterr().out
    nothing_is_run(monkeypatch)
    assert ledger("add", "1", "--from", "all.jsonl") == 0
    again = {
        path.relative_to(track): path.read_bytes() for path in track.rglob("*") if path.is_file()
    }
    assert again == whole


def test_a_replay_in_parts_compares_every_figure(
    track: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ledger("add", "1", *ROW) == 0
    capsys.readouterr()
    assert ledger("replay", "1") == 0
    undivided = capsys.readouterr().out
    in_parts("replay", "1", count=2)
    capsys.readouterr()
    nothing_is_run(monkeypatch)
    assert ledger("replay", "1", "--from", "all.jsonl") == 0
    assert capsys.readouterr().out == undivided


def test_a_part_of_a_row_goes_on(track: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert ledger("plan", "1", *ROW) == 0
    words = ("add", "1", "--part", "1/1", "--output", "p1.jsonl")
    assert ledger(*words) == 0
    whole = Path("p1.jsonl").read_bytes()
    Path("p1.jsonl").write_bytes(b"".join(whole.splitlines(keepends=True)[:3]))
    assert ledger(*words) == 2
    assert "p1.jsonl exists" in capsys.readouterr().err
    assert ledger(*words, "--resume") == 0
    assert merge.main(["p1.jsonl", "--output", "all.jsonl", "--quiet"]) == 0
    assert ledger("add", "1", "--from", "all.jsonl") == 0


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["add", "2", "--part", "1/2", "--output", "p.jsonl"], "write it first, blis-jax ledger plan 2"),
        (["add", "1", "--part", "1/2"], "give --output"),
        (["add", "1", "--part", "1/99", "--output", "p.jsonl"], "at most 24 parts"),
        (["add", "1", "--output", "p.jsonl"], "--output is about --part"),
        (["add", "1", "--from", "none.jsonl"], "none.jsonl does not exist"),
        (["add", "1", "--from", "a.jsonl", "--part", "1/2", "--output", "p.jsonl"], "give one"),
        (["add", "3", "--part", "1/2", "--output", "p.jsonl"], "adds seeds by what was found"),
        (["replay", "1", "--part", "1/2", "--output", "p.jsonl"], "there is nothing to replay"),
        (["replay", "1", "--from", "rows.yaml"], "allowed is a .jsonl"),
    ],
)  # fmt: skip
def test_what_fits_no_row_is_refused(
    words: list[str], problem: str, track: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ledger("plan", "1", *ROW) == 0
    adds = ("--rng", "jax", "--seeds", "20", "--decide", "--most-seeds", "30")
    assert ledger("plan", "3", *ROW, *adds) == 0
    capsys.readouterr()
    assert ledger(*words) == 2
    said = capsys.readouterr().err
    assert problem in said and said.count("\n") == 1


def test_runs_of_another_row_are_refused(track: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in "12":
        assert ledger("plan", name, *ROW) == 0
    in_parts("add", "1", count=1)
    capsys.readouterr()
    assert ledger("add", "2", "--from", "all.jsonl") == 2
    assert "not a record of this work (ledger add 2)" in capsys.readouterr().err
    Path("tracks/tiny/ledger.jsonl").unlink()
    assert ledger("plan", "1", *ROW[:3], "Another sentence.", *ROW[4:]) == 0
    assert ledger("add", "1", "--from", "all.jsonl") == 2
    assert "different hypothesis" in capsys.readouterr().err


def test_other_processes_make_the_runs_of_a_row(
    track: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    used = []

    @contextmanager
    def in_this_process(text: str) -> Iterator[None]:
        used.append(text)
        end = elsewhere(InThisProcess())
        yield
        end()

    monkeypatch.setattr("blis_jax.runs.scheduler.used", in_this_process)
    assert ledger("add", "1", *ROW, "--scheduler", "local:2") == 0
    assert ledger("replay", "1", "--scheduler", "local:3") == 0
    assert used == ["local:2", "local:3"]

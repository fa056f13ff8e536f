"""A revision beside another: turns, ratios, and nothing left behind."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks import __main__ as command
from benchmarks.speed import against, worker
from benchmarks.speed.against import AgainstError, Comparison, Pairs, Side

ANSWERING = """
import json, sys, time
name, tree, work = sys.argv[1], sys.argv[2], int(sys.argv[3])
print(json.dumps({"work": work, "unit": "runs", "package": tree}), flush=True)
for line in sys.stdin:
    with open("../turns", "a") as turns:
        turns.write(name + " " + line)
    seconds = {"old": 2.0, "new": 1.0}[name]
    compiled = 3.0 * seconds if line.strip() == "compile" else None
    print(json.dumps({"run_s": seconds, "compile_s": compiled}), flush=True)
"""


def side(folder: Path, name: str, work: int = 8, package: Path | None = None) -> Side:
    tree = folder / name
    tree.mkdir()
    words = [sys.executable, "-c", ANSWERING, name, str(package or tree), str(work)]
    return Side(tree, words, {})


def worktrees() -> str:
    listed = ["git", "-C", str(against.REPO), "worktree", "list"]
    return subprocess.run(listed, capture_output=True, text=True, check=True).stdout


def test_sides_take_turns_and_each_begins_as_often(tmp_path: Path) -> None:
    sides = side(tmp_path, "old"), side(tmp_path, "new")
    try:
        found = against.compare("a-case", sides, repetitions=2, compilations=1)
    finally:
        for one in sides:
            one.end()
    assert (tmp_path / "turns").read_text().splitlines() == [
        *("old run", "new run", "new run", "old run"),
        *("old compile", "new compile"),
    ]
    assert found.run.joined(found.run).ratio == pytest.approx((2.0, 2.0, 2.0))
    assert found.compile is not None and found.compile.other_s.tolist() == [[6.0]]


def test_sides_with_unequal_work_are_not_compared(tmp_path: Path) -> None:
    sides = side(tmp_path, "old", work=8), side(tmp_path, "new", work=9)
    try:
        with pytest.raises(AgainstError, match="is 8 runs there and 9 runs here"):
            against.compare("a-case", sides, 1, 1)
    finally:
        for one in sides:
            one.end()


def test_a_worker_with_another_package_is_refused_and_ended(tmp_path: Path) -> None:
    with pytest.raises(AgainstError, match="imported blis_jax from"):
        side(tmp_path, "old", package=tmp_path)


def test_what_a_worker_said_last_is_told(tmp_path: Path) -> None:
    with pytest.raises(AgainstError, match="no such policy"):
        Side(tmp_path, [sys.executable, "-c", "raise SystemExit('no such policy')"], {})


def test_the_ratio_is_that_of_pairs_and_its_interval_covers_the_workers_spread() -> None:
    slow = np.array([[1.0, 10.0, 1.0], [1.0, 1.0, 10.0]])  # the machine, disturbed now and then
    assert Pairs(1.1 * slow, slow).ratio == pytest.approx((1.1, 1.1, 1.1))
    here = np.ones((4, 3))
    ratio, low, high = Pairs(here * np.array([[0.9], [1.0], [1.0], [1 / 0.9]]), here).ratio
    assert ratio == pytest.approx(1.0) and low < 0.9 and high > 1 / 0.9


def test_table_and_document_hold_run_and_compile_apart(tmp_path: Path) -> None:
    ones = np.ones((2, 1))
    run, compiled = Pairs(2.0 * ones, ones), Pairs(0.3 * ones, 0.6 * ones)
    results = [
        Comparison("both", 256, "runs", run, compiled),
        Comparison("drawn", 1000, "requests", run, None),
    ]
    lines = against.table("v1", results).splitlines()
    assert lines[2] == (
        "| both | 2.00 s | 1.00 s | 2.000 [2.000, 2.000] | 256 runs/s | "
        "300.00 ms | 600.00 ms | 0.500 [0.500, 0.500] |"
    )
    assert lines[3].endswith("| 1,000 requests/s | - | - | - |")
    found = json.loads(json.dumps(against.document("v1", "abc", results)))
    assert found["cases"]["both"]["compile"]["interval"] == pytest.approx([0.5, 0.5])
    assert found["against"] == {"revision": "v1", "commit": "abc"}


def test_the_worktree_is_gone_after_an_interruption() -> None:
    before = worktrees()
    with pytest.raises(KeyboardInterrupt):  # noqa: SIM117 - the signal ends the inner block
        with against.ended_by_signals(), against.checked_out(against.commit_of("HEAD")) as tree:
            assert (tree / "blis_jax" / "__init__.py").is_file() and str(tree) in worktrees()
            signal.raise_signal(signal.SIGTERM)
    assert worktrees() == before and not tree.parent.exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--against", "no-such-rev"], "'no-such-rev' is no revision"),
        (["--against", "HEAD", "--repetitions", "0"], "--repetitions: got 0, allowed is 1 or more"),
        (["--against", "HEAD", "--processes", "1"], "--processes: got 1, allowed is 2 or more"),
        (["--against", "HEAD", "--case", "compile-cold"], "compile-cold has no comparison"),
        (["--against", "HEAD", "--write"], "do not go with --against"),
        (["--against", "HEAD", "--output", "speed.csv"], "'speed.csv' must end in .json"),
        (["--output", "speed.json"], "--output belongs to --against"),
    ],
)
def test_options_that_say_nothing_are_refused(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main(words) == 2
    error = capsys.readouterr().err
    assert said in error and len(error.splitlines()) == 1


def test_every_comparable_case_is_one_of_the_benchmarks() -> None:
    assert set(worker.CASES) <= set(command.CASES)


def test_a_worker_answers_run_and_compile_with_the_package_on_its_path() -> None:
    words = [sys.executable, "-P", str(against.WORKER), "reference-requests", "."]
    one = Side(against.REPO, words, {})
    try:
        assert one.about["work"] == 1000 and one.about["unit"] == "requests"
        assert 0 < one.ask("run")["run_s"] < one.ask("compile")["run_s"] * 100
        assert one.ask("compile")["compile_s"] is None
    finally:
        one.end()

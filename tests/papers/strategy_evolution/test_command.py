"""The command at its smallest: row 0, its files, what is kept, and refusals."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

import pytest

from papers.record.runs import PaperRuns
from papers.strategy_evolution.__main__ import main


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("out")
    words = ["--rows", "0", "--num-seeds", "4", "--no-figures", "--quiet", "--output", str(folder)]
    assert main(words) == 0
    return folder


@pytest.mark.slow
def test_row_zero_is_exact(output: Path) -> None:
    rows = {row["claim"]: row for row in rows_of(output / "results" / "published.csv")}
    assert rows["TTFT P99"]["ours"] == "269.12 ms"
    assert rows["throughput"]["class"] == "exact on its seeds"
    assert rows["scheduling delay P99"]["class"] == "other basis"
    assert "202.35" in rows["scheduling delay P99"]["ours"]
    text = (output / "results" / "published.md").read_text(encoding="utf-8")
    assert "seeds 42, 43 and 44" in text and text.count("\n|") == len(rows) + 2


@pytest.mark.slow
def test_many_seeds_have_intervals(output: Path) -> None:
    rows = rows_of(output / "results" / "survival_jax_4.csv")
    tail = rows[0]
    assert float(tail["low"]) < float(tail["mean"]) < float(tail["high"])
    assert tail["seeds"] == "4" and tail["three_seeds_low"] == ""
    assert all(row["verdict"] for row in rows)


@pytest.mark.slow
def test_second_time_nothing_is_simulated(
    output: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("papers.record.runs._Work", None)
    before = (output / "results" / "published.csv").read_bytes()
    assert main(["--rows", "0", "--no-figures", "--output", str(output)]) == 0
    shown = capsys.readouterr().out
    assert "269.1 ms" in shown and "exact on its seeds: 4" in shown
    assert (output / "results" / "published.csv").read_bytes() == before
    assert main(["--rows", "0", "--plan", "--output", str(output)]) == 0
    assert "all kept" in capsys.readouterr().out


def test_plan_simulates_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(PaperRuns, "get", None)
    assert main(["--num-seeds", "1000", "--figures", "--plan", "--output", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3 and all("about" in line for line in lines)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--rows", "12"], "has no row '12'"),
        (["--num-seeds", "1"], "--num-seeds is 1; allowed is 2 to"),
        (["--rng", "jax"], "--rng is about the seeds of --seeds"),
        (["--figures", "--no-figures"], "contradict"),
        (["--resume", "--fresh"], "contradict"),
        (["--num-seed", "3"], "did you mean '--num-seeds'"),
        (["--output", __file__], "is not a folder"),
    ],
)
def test_refusals_are_one_sentence(
    words: Sequence[str], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    said = capsys.readouterr().err
    assert problem in said and said.count("\n") == 1

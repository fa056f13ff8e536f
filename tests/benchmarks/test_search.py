"""Figures of the search benchmark."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from benchmarks.search import __main__ as search
from benchmarks.search.plan import BEST_FILE, target
from benchmarks.search.statistics import median_interval, needed, padded, regret_table


def test_evaluations_needed_are_censored() -> None:
    curve = np.minimum.accumulate([90.0, 80.0, 71.0, 75.0, 70.2])
    goal = target(70.0)
    assert goal == pytest.approx(70.7)
    assert needed(curve, goal) == 5
    assert needed(curve[:4], goal) == math.inf


def test_median_of_censored_counts_and_its_interval() -> None:
    counts = [10.0, 20.0, 30.0, 40.0, 50.0, 60.0, math.inf, math.inf, math.inf]
    middle, low, high = median_interval(counts)
    assert middle == 50 and low == 20 and math.isinf(high)  # order statistics 2 and 8 of 9
    assert median_interval([5.0, math.inf])[0] == math.inf
    assert np.isnan(median_interval([1.0, 2.0, 3.0])[1:]).all()  # too few for 95 %


def test_median_intervals_hold_the_median_as_often_as_they_say() -> None:
    """2,000 samples of 12; the exact coverage is 0.961, five standard errors are 0.022."""
    random = np.random.default_rng(3)
    inside = 0
    for sample in random.exponential(size=(2000, 12)):
        _, low, high = median_interval(sample.tolist())
        inside += low <= math.log(2) <= high
    assert 0.939 <= inside / 2000 <= 0.983


def test_regret_is_relative_and_goes_on_where_a_search_stopped() -> None:
    curves = {"gp": [np.array([110.0, 105.0, 100.5]), np.array([120.0, 101.0])]}
    table = regret_table(curves, 100.0, 4)
    assert table["evaluation"].tolist() == [1, 2, 3, 4]
    np.testing.assert_allclose(table["median"], [0.15, 0.03, 0.0075, 0.0075])
    assert padded(np.array([3.0, 2.0]), 4).tolist() == [3.0, 2.0, 2.0, 2.0]


def test_unknown_engines_and_missing_searches_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert search.main(["--engines", "magic"]) == 2
    assert "--engines: 'magic' is unknown" in capsys.readouterr().err
    assert search.main(["--report", "--output", str(tmp_path)]) == 2
    assert "has no searches yet" in capsys.readouterr().err
    assert search.main(["--repetitions", "0"]) == 2
    assert "--repetitions: got 0" in capsys.readouterr().err


def test_a_scan_meets_the_best_known_point_again(tmp_path: Path) -> None:
    """The score is that which a search found there, so the other parameters stay as they were."""
    known = json.loads(BEST_FILE.read_text())["full-combined, seeds 42 to 57"]
    assert known["point"][4] == 938
    given = ["--scan", "max_tokens=937:938", "--batch", "2", "--output", str(tmp_path)]
    assert search.main(given) == 0
    table = pd.read_csv(tmp_path / "full-combined" / "scan_max_tokens.csv").set_index("max_tokens")
    assert table.index.tolist() == [937, 938]
    assert table["score"][938] == pytest.approx(known["score"], rel=1e-12)
    assert table["score"][937] > table["score"][938]


def test_the_ends_are_the_best_points_of_the_records(tmp_path: Path) -> None:
    given = ["--engines", "random,sobol", "--repetitions", "2", "--calls", "4", "--initial", "2"]
    assert search.main([*given, "--batch", "2", "--output", str(tmp_path)]) == 0
    folder = tmp_path / "full-combined"
    table = pd.read_csv(folder / "ends.csv")
    assert table[["engine", "random_state"]].to_numpy().tolist() == [
        ["random", 0], ["random", 1], ["sobol", 0], ["sobol", 1],
    ]  # fmt: skip
    for _, row in table.iterrows():
        record = folder / f"{row['engine']}_{row['random_state']:02d}.jsonl"
        batches = [json.loads(line) for line in record.read_text().splitlines()[1:]]
        points = [tried["point"] for batch in batches for tried in batch]
        assert len(points) == row["evaluations"] == 4
        assert row.tolist()[5:] == points[row["at"] - 1]
    summary = pd.read_csv(folder / "summary.csv").set_index("engine")["median_final_score"]
    medians = table.groupby("engine")["score"].median()
    np.testing.assert_allclose(medians[summary.index], summary, atol=1e-4)
    regret = pd.read_csv(folder / "regret.csv")
    assert len(regret) == 2 * 4


def test_an_unfinished_search_is_left_out_and_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["--engines", "random", "--repetitions", "2", "--calls", "4", "--initial", "2"]
    given += ["--batch", "2", "--output", str(tmp_path)]
    assert search.main(given) == 0
    assert "Unfinished" not in capsys.readouterr().out
    folder = tmp_path / "full-combined"
    whole = pd.read_csv(folder / "ends.csv")
    for number, count in (("01", 1), ("00", 0)):
        record = folder / f"random_{number}.jsonl"
        lines = record.read_text().splitlines(keepends=True)
        record.write_text("".join(lines[:-1]))  # killed before its last batch
        assert search.main([*given, "--report"]) == (0 if count else 2)
        if count:
            said = capsys.readouterr().out
            assert "Unfinished and left out everywhere: random 1 (2 evaluations)." in said
            pd.testing.assert_frame_equal(pd.read_csv(folder / "ends.csv"), whole[:1])
            assert pd.read_csv(folder / "summary.csv")["repetitions"].tolist() == [1]
    assert "has unfinished searches only" in capsys.readouterr().err


def test_shipped_ends_are_of_the_finished_searches() -> None:
    folder = Path(search.__file__).parents[1] / "results"
    for name in ("search_iter08_token_budget", "search_joint_all_layers"):
        ends = pd.read_csv(folder / f"{name}_ends.csv")
        counts = pd.read_csv(folder / f"{name}.csv").set_index("engine")["repetitions"]
        assert ends["engine"].value_counts().to_dict() == counts.to_dict()
        assert set(ends["evaluations"]) == {200}


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("magic=1:2", "--scan: 'magic=1:2' is not NAME=LOW:HIGH of a whole-number parameter"),
        ("max_tokens", "--scan: max_tokens: '' is not a whole number"),
        ("max_tokens=900:9.5", "--scan: max_tokens: '9.5' is not a whole number"),
        ("max_tokens=900:100000", "100000 is out of range; allowed is"),
        ("max_tokens=950:900", "'950:900' must go up"),
    ],
)
def test_scans_of_nothing_are_refused(
    text: str, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert search.main(["--scan", text]) == 2
    assert sentence in capsys.readouterr().err


def test_a_scan_needs_a_best_known_point(capsys: pytest.CaptureFixture[str]) -> None:
    assert search.main(["--scan", "max_tokens=900:901", "--num-seeds", "3"]) == 2
    assert "has no point of full-combined, seeds 42 to 44" in capsys.readouterr().err

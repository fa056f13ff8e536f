"""Figures of the search benchmark."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from benchmarks import search
from benchmarks.search import target
from benchmarks.search_statistics import median_interval, needed, padded, regret_table


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

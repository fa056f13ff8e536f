"""Fronts and hypervolumes against values worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from sweeps.search import report
from sweeps.search.objectives import hypervolume, nondominated, reference_point


def test_front_of_a_staircase() -> None:
    points = np.array([[1.0, 4.0], [2.0, 2.0], [4.0, 1.0], [3.0, 3.0], [2.0, 2.0]])
    assert nondominated(points).tolist() == [True, True, True, False, False]


@pytest.mark.parametrize(
    ("points", "reference", "volume"),
    [
        ([[1.0, 1.0]], [3.0, 3.0], 4.0),
        # strips of width 1, 2, 1 below heights 1, 3 and 4 from the reference
        ([[1.0, 4.0], [2.0, 2.0], [4.0, 1.0]], [5.0, 5.0], 1 * 1 + 2 * 3 + 1 * 4),
        ([[6.0, 1.0]], [5.0, 5.0], 0.0),
        # two boxes of 2 × 2 × 1 and 1 × 1 × 2 that share 1 × 1 × 1
        ([[0.0, 0.0, 1.0], [1.0, 1.0, 0.0]], [2.0, 2.0, 2.0], 4.0 + 2.0 - 1.0),
        ([], [1.0, 1.0], 0.0),
    ],
)
def test_hypervolume(points: list[list[float]], reference: list[float], volume: float) -> None:
    shaped = np.array(points).reshape(len(points), len(reference))
    assert hypervolume(shaped, reference) == pytest.approx(volume)


def test_reference_is_the_worst_of_each() -> None:
    assert reference_point(np.array([[1.0, 4.0], [2.0, 3.0]])).tolist() == [2.0, 4.0]


def test_a_search_whose_points_all_break_a_limit_has_the_picture_of_its_calls(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(report, "_calls", lambda document: None)
    monkeypatch.setattr(report, "_caption", lambda document: "")
    nothing = {"calls": [], "metrics": ["a", "b"], "hypervolume": 0.0}
    drawn = report.picture({"front": nothing, "strategy": "s", "points": [{}, {}]})
    assert drawn.panels == [[None]] and "call by call" in drawn.title

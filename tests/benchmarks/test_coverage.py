"""The worlds whose truth is known, and the measurements of coverage at a small size."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks.coverage import pooled
from benchmarks.coverage.controls import controls, share_left
from benchmarks.coverage.searches import selection
from benchmarks.coverage.verdicts import sequential
from benchmarks.coverage.worlds import from_comparison, mean_wait, normal, queues, recorded


def test_queues_wait_as_theory_says() -> None:
    """10,000 runs each; four standard errors of a mean of 10,000."""
    pairs = queues(np.random.default_rng(0), (100, 100), load=0.6, faster=1.1)
    for values, truth in (
        (pairs.first, mean_wait(0.6)),
        (pairs.second, mean_wait(0.6 / 1.1) / 1.1),
    ):
        assert values.mean() == pytest.approx(truth, abs=4 * values.std() / 100)
    assert pairs.truth == pytest.approx(mean_wait(0.6 / 1.1) / 1.1 - mean_wait(0.6))
    change = pairs.second - pairs.first
    assert change.std() < np.hypot(pairs.first.std(), pairs.second.std())  # arrivals are shared


def test_recorded_seeds_are_the_world(tmp_path: Path) -> None:
    values = [[1.0, 2.0, None], [2.0, 4.0, 5.0]]
    arms = [{"figures": {"all": {"m": {"per_seed": one}}}} for one in values]
    path = tmp_path / "out.json"
    path.write_text(json.dumps({"arms": arms}))
    first, second = from_comparison(str(path), "m", "all")
    assert first.tolist() == [1.0, 2.0] and second.tolist() == [2.0, 4.0]
    pairs = recorded(np.random.default_rng(0), (3, 50), first, second)
    assert pairs.truth == 1.5 and set(pairs.first.ravel()) == {1.0, 2.0}
    np.testing.assert_array_equal(pairs.second, 2 * pairs.first)


def test_looking_often_costs_the_t_test_its_level_and_not_the_other() -> None:
    cells = sequential.decided(normal, 200).split(" | ")
    assert float(cells[0]) > 15 and float(cells[1]) <= 5
    assert cells[-1].startswith("100 ")
    assert sequential.looks()[:4] == [20, 30, 45, 68] and sequential.looks()[-1] == 640


def test_a_precision_is_reached_and_its_intervals_hold() -> None:
    """40 samples at each precision: fewer than 33 that hold have a chance under 0.2 % at 95 %."""
    cells = [cell.split(" ") for cell in sequential.precise(normal, 160).split(" | ")]
    held, seeds = zip(
        *((float(share), float(count.strip("()"))) for share, count in cells), strict=True
    )
    assert min(held) >= 82 and list(seeds) == sorted(seeds) and seeds[0] < seeds[-1]


def test_the_best_is_chosen_where_the_smallest_mean_errs() -> None:
    right, _, _, naive = selection.row(selection.normal(5, 0.0, has_constraints=True), 20).split(
        " | "
    )
    assert float(right) >= 80 and float(naive) <= 20  # the fastest misses its constraint


def test_coverage_of_pooled_percentiles() -> None:
    """30 samples of 20 seeds: below 80 % has a chance under 0.1 % at the coverage that the page has."""
    contributions, *_ = pooled.coverage(pooled.lognormal(), 20, 30)
    one, difference, wide = map(float, contributions.split(" / "))
    assert min(one, difference) >= 76 and wide >= 93


def test_a_control_takes_its_part_out() -> None:
    rng = np.random.default_rng(1)
    known = rng.normal(size=(400, 2))
    values = 3 * known[:, 0] - known[:, 1] + rng.normal(size=400)
    assert share_left(values, known) == pytest.approx(1 / 11, abs=0.03)
    found = controls(np.array([0, 20_000, 70_000]), np.array([5, 6, 7]), np.array([1, 10, 2]))
    assert found == [70_000, 18, 13, 10, 180_000, 2, 3]

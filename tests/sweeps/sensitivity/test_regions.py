"""Indices in regions and of logarithms, on a function with a corner that has nearly all variance."""

from __future__ import annotations

import numpy as np
import pytest

from blis_jax.errors import ConfigError
from sweeps.sensitivity.effects import (
    BEST,
    Region,
    best_region,
    region_indices,
    regions_of,
    whole,
)
from sweeps.sensitivity.indices import MATTERS, Resampling, verdict
from sweeps.sensitivity.model import Sizes, saltelli
from sweeps.strategies.space import Dimension

NAMES = ("chunk", "budget", "inert")
DIMENSIONS = (
    Dimension("chunk", "chunk", "integer", 0, 255),
    Dimension("budget", "budget", "real", 1000.0, 2000.0),
    Dimension("mode", "mode", "categorical", categories=("one", "two")),
)
SIZES = Sizes(base=512)
RESAMPLING = Resampling(resamples=200)


def waits(shares: np.ndarray) -> np.ndarray:
    """A thousand in the corner of small chunks; elsewhere 1 and twice the budget, `[point, seed, 1]`."""
    means = np.where(shares[:, 0] < 0.05, 1000.0, 0.0) + 1 + 2 * shares[:, 1]
    noise = np.random.default_rng(2).normal(size=(len(means), 4)) * 0.01
    found: np.ndarray = (means[:, None] + noise)[..., None]
    return found


def indices(region: Region):
    shares = region.inside(saltelli(NAMES, SIZES, has_pairs=False))
    return region_indices(region, ("wait",), waits(shares), len(NAMES) + 2, RESAMPLING)


def test_what_is_left_to_tune_is_seen_inside_a_region_and_not_over_the_space() -> None:
    everywhere = indices(whole(3)).plain["wait"]
    np.testing.assert_allclose(everywhere.total[:2, 0], [1, 0], atol=0.15)
    assert everywhere.total[1, 2] < 1e-4
    inside = indices(Region("large chunks", (0.25, 0.0, 0.0), (1.0, 1.0, 1.0))).plain["wait"]
    np.testing.assert_allclose(inside.total[:, 0], [0, 1, 0], atol=0.02)
    assert verdict(inside.total[1], inside.dummy) == MATTERS


def test_a_logarithm_gives_the_corner_less_of_the_variance() -> None:
    """Closed form, but for the noise: the variances of log(1 + 2b) and of the corner's jump."""
    found = indices(whole(3)).log["wait"]
    share = np.linspace(0, 1, 20001)
    low, high = np.log(1 + 2 * share), np.log(1001 + 2 * share)
    jump = 0.05 * 0.95 * (high - low).mean() ** 2
    of_budget = 0.95 * low.var() + 0.05 * high.var()
    both = jump + (0.95 * low + 0.05 * high).var() + 0.05 * 0.95 * (high - low).var()
    assert found.total[1, 0] == pytest.approx(of_budget / both, abs=0.03)
    assert verdict(found.total[1], found.dummy) == MATTERS


def test_a_metric_that_reaches_zero_has_no_logarithm() -> None:
    values = waits(saltelli(NAMES, SIZES, has_pairs=False)) - 2
    found = region_indices(whole(3), ("wait",), values, 5, RESAMPLING)
    assert "wait" in found.plain and not found.log


def test_the_best_quarter_leaves_the_bad_corner_and_all_choices() -> None:
    shares = np.random.default_rng(3).random((4000, 3))
    scores = np.where(shares[:, 0] < 0.5, 9.0, shares[:, 1])
    scores[shares[:, 1] < 0.1] = np.nan  # a run failed there
    found = best_region(DIMENSIONS, shares, scores)
    assert found.name == BEST and found.low[2] == 0 and found.high[2] == 1
    assert found.low[0] > 0.5 and found.low[1] > 0.1 and found.high[1] < 0.7
    assert "chunk 1" in found.words(DIMENSIONS) and "mode" not in found.words(DIMENSIONS)


def test_regions_are_read_with_both_ends_in_them() -> None:
    best, box = regions_of("best; chunk=64:,budget=1200:1400", DIMENSIONS)
    assert best.name == BEST and best.low == (0, 0, 0)
    corners = box.inside(np.array([[0.0, 0.0, 0.0], [1.0, 1.0, 1.0]]))
    assert [DIMENSIONS[0].at(share) for share in corners[:, 0]] == [64, 255]
    assert [DIMENSIONS[1].at(share) for share in corners[:, 1]] == pytest.approx([1200, 1400])
    assert regions_of("none", DIMENSIONS) == ()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("chunks=64:", "'chunks' is no parameter of this strategy; use one of chunk, budget, mode"),
        ("chunk", "'chunk' is no region; give best, none, or PARAMETER=LOW:HIGH"),
        ("chunk=9:3", "got chunk=9:3; allowed is LOW below HIGH, from 0 to 255"),
        ("chunk=a:3", "'a' is no number"),
        ("mode=a:b", "mode is a choice, which has no range to narrow"),
        ("budget=nan:1500", "allowed is LOW below HIGH, from 1000 to 2000"),
    ],
)
def test_other_words_are_refused(text: str, words: str) -> None:
    with pytest.raises(ConfigError) as refused:
        regions_of(text, DIMENSIONS)
    assert words in str(refused.value)

"""What an engine is: a pure function from what was found so far to the points to try next.

Nothing is kept between two calls, so a search that was interrupted goes on exactly as it would have.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np

from sweeps.strategies.parts import Search
from sweeps.strategies.space import Point, Space


class Told(NamedTuple):
    """A point that was tried; all figures are minimised, and those of a failure are placeholders."""

    point: Point
    score: float
    objectives: tuple[float, ...] = ()
    penalty: float = 0.0
    has_failed: bool = False
    excesses: tuple[float, ...] = ()  # by constraint; their positive parts make up the penalty
    errors: tuple[float, ...] = ()  # standard errors of these where the penalty is an expected one
    spreads: tuple[float, ...] = ()  # the same standard errors whatever the penalty
    num_runs: int = 1  # that the figures come from; with rungs, points differ in it


class Engine(Protocol):
    """Made once for a space; must give the same points for the same history."""

    def __init__(self, space: Space, search: Search) -> None:
        """Without history."""

    def ask(self, told: Sequence[Told], count: int) -> list[Point]:
        """Return at most `count` points to try next; none if there are no more."""


@runtime_checkable
class Recommender(Protocol):
    """An engine that says which of the points that were tried is best; of others it is the lowest score."""

    def ranked(self, told: Sequence[Told]) -> list[int]:
        """Return the places of points that did not fail, the best one first; not all points have failed."""


def first_of(ranked: Sequence[int], told: Sequence[Told], num_runs: int) -> int:
    """Return the first of some places whose point has at least `num_runs` runs, or else the first one."""
    return next((place for place in ranked if told[place].num_runs >= num_runs), ranked[0])


def generator(search: Search, *places: int) -> np.random.Generator:
    """Return a random stream of its own for each place in a search."""
    return np.random.default_rng([search.random_state, *places])


def modelled(told: Sequence[Told], values: Sequence[float] | None = None) -> np.ndarray:
    """Return scores `[point]`, or `values`, for a model: failures a range above the worst of the others.

    The placeholder score of failures would leave a smooth model nothing to tell the others apart by.
    """
    scores = np.array([one.score for one in told] if values is None else values, float)
    failed = np.array([one.has_failed for one in told], bool)
    if failed.all() or not failed.any():
        return np.zeros_like(scores) if failed.all() else scores
    worst, best = scores[~failed].max(), scores[~failed].min()
    scores[failed] = worst + max(worst - best, abs(worst), 1.0) * 0.5
    return scores

"""What an engine is: a pure function from what was tried to the points to try next; and points as features.

Nothing is kept between two calls, so a search that was interrupted goes on exactly as it would have.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

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
    scores = np.array([point.score for point in told] if values is None else values, float)
    failed = np.array([point.has_failed for point in told], bool)
    if failed.all() or not failed.any():
        return np.zeros_like(scores) if failed.all() else scores
    worst, best = scores[~failed].max(), scores[~failed].min()
    scores[failed] = worst + max(worst - best, abs(worst), 1.0) * 0.5
    return scores


# --- points of a space as features in the unit cube, and back ---------------------------------------


BRANCH_SHARE = 0.25  # of drawn points that lie in a branch
SWITCHED = 0.2  # of the points around another one that get another choice or branch


class Encoding:
    """A number is a share of its range, a choice one feature for each of its values.

    A number that the strategy's overrides name (0 for whole prompts, say) is a branch: settings change
    there at once, so it has a feature of its own, 1 at that value, and models need not expect that its
    neighbours are like it.
    """

    def __init__(self, space: Space) -> None:
        """Find the features of each dimension, and the branches."""
        self.space = space
        self.places: list[slice] = []
        at = 0
        for dimension in space.dimensions:
            width = len(dimension.categories) or 1
            self.places.append(slice(at, at + width))
            at += width
        self.branches = _branches(space)
        self.width = at + len(self.branches)

    @property
    def first_branch(self) -> int:
        """Return the place of the first branch's feature; the others follow."""
        return self.width - len(self.branches)

    def is_free(self, features: np.ndarray) -> np.ndarray:
        """Return which of features `[…, feature]` a gradient may move: not those of choices and branches."""
        free = np.ones(features.shape, bool)
        for dimension, place in zip(self.space.dimensions, self.places, strict=True):
            free[..., place] = dimension.kind != "categorical"
        for number, (column, _) in enumerate(self.branches, self.first_branch):
            free[..., number] = False
            free[..., self.places[column].start] &= features[..., number] < 0.5
        return free

    def features(self, points: Sequence[Point]) -> np.ndarray:
        """Encode points as features `[point, feature]`."""
        made = self.of_shares(np.array([self.shares(point) for point in points]))
        for number, (column, value) in enumerate(self.branches, self.first_branch):
            made[:, number] = [point[column] == value for point in points]
        return made

    def of_shares(self, shares: np.ndarray) -> np.ndarray:
        """Encode shares `[point, parameter]` of the ranges as features; branches stay 0."""
        made = np.zeros((len(shares), self.width))
        for column, (dimension, place) in enumerate(
            zip(self.space.dimensions, self.places, strict=True)
        ):
            if dimension.kind != "categorical":
                made[:, place.start] = shares[:, column]
                continue
            count = len(dimension.categories)
            chosen = np.minimum((shares[:, column] * count).astype(int), count - 1)
            made[np.arange(len(shares)), place.start + chosen] = 1.0
        return made

    def drawn(self, random: np.random.Generator, count: int) -> np.ndarray:
        """Draw features `[point, feature]` from all over the space, a part of them in branches."""
        made = self.of_shares(random.random((count, len(self.space.dimensions))))
        for number in range(len(self.branches)):
            self._enter(made, number, random.random(count) < BRANCH_SHARE)
        return made

    def around(
        self, centres: np.ndarray, steps: np.ndarray, random: np.random.Generator
    ) -> np.ndarray:
        """Return features a step `[point, feature]` from a centre each; some with another choice or branch."""
        drawn = self.drawn(random, len(steps))
        made = np.array(np.broadcast_to(centres, steps.shape))
        for dimension, place in zip(self.space.dimensions, self.places, strict=True):
            if dimension.kind == "categorical":
                is_other = random.random(len(steps)) < SWITCHED
                made[is_other, place] = drawn[is_other, place]
        for number, (column, _) in enumerate(self.branches, self.first_branch):
            is_other = random.random(len(steps)) < SWITCHED
            start = self.places[column].start
            is_left = is_other & (made[:, number] > 0.5)
            made[is_left, number] = 0.0
            made[is_left, start] = drawn[is_left, start]
            self._enter(made, number - self.first_branch, is_other & ~is_left)
        moved: np.ndarray = np.clip(made + steps * self.is_free(made), 0.0, 1.0)
        return moved

    def in_branch(self, point: Point, number: int) -> Point:
        """Return the point with one branch's value."""
        column, value = self.branches[number]
        return (*point[:column], value, *point[column + 1 :])

    def point(self, features: np.ndarray) -> Point:
        """Decode features `[feature]` to the point that they stand for."""
        shares = []
        for dimension, place in zip(self.space.dimensions, self.places, strict=True):
            if dimension.kind == "categorical":
                count = len(dimension.categories)
                shares.append((int(features[place].argmax()) + 0.5) / count)
            else:
                shares.append(float(features[place.start]))
        point = self.space.at(shares)
        for number in range(len(self.branches)):
            if features[self.first_branch + number] > 0.5:
                point = self.in_branch(point, number)
        return point

    def shares(self, point: Point) -> list[float]:
        """Return the shares of the ranges that give a point."""
        return [
            dimension.share(value)
            for dimension, value in zip(self.space.dimensions, point, strict=True)
        ]

    def _enter(self, features: np.ndarray, number: int, is_meant: np.ndarray) -> None:
        """Move some rows into a branch, and out of others of its parameter, in place."""
        column, value = self.branches[number]
        for other, (its_column, _) in enumerate(self.branches, self.first_branch):
            if its_column == column:
                features[is_meant, other] = 0.0
        features[is_meant, self.first_branch + number] = 1.0
        features[is_meant, self.places[column].start] = self.space.dimensions[column].share(value)


def _branches(space: Space) -> tuple[tuple[int, Any], ...]:
    """Return numbers within their range that overrides name, with the place of their dimension."""
    branches: dict[tuple[int, Any], None] = {}
    for override in space.strategy.overrides:
        for name, value in override.when.items():
            column = space.names.index(name)
            dimension = space.dimensions[column]
            if dimension.kind != "categorical" and dimension.low <= value <= dimension.high:
                branches[column, value] = None
    return tuple(branches)

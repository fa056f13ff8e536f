"""The interface of engines, pure functions from tried points to the next points; and the encoding of points as
features.

Engines keep no state between two calls, so an interrupted search continues exactly as if it had not been interrupted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np

from sweeps.strategies.parts import Search
from sweeps.strategies.space import Point, Space


class Told(NamedTuple):
    """A tried point; all figures are to be minimised, and those of a failed point are placeholders."""

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
    """A search engine, built once for a space; must return the same points for the same history."""

    def __init__(self, space: Space, search: Search) -> None:
        """Build the engine, without any history."""

    def ask(self, told: Sequence[Told], count: int) -> list[Point]:
        """Return at most `count` points to try next; none if there are no more."""


@runtime_checkable
class Recommender(Protocol):
    """An engine that ranks the tried points itself; for other engines the lowest score is best."""

    def ranked(self, told: Sequence[Told]) -> list[int]:
        """Return the indices of points that did not fail, the best first; not all points have failed."""


def first_of(ranked: Sequence[int], told: Sequence[Told], num_runs: int) -> int:
    """Return the first index whose point has at least `num_runs` runs, or else the first index."""
    return next((place for place in ranked if told[place].num_runs >= num_runs), ranked[0])


def generator(search: Search, *places: int) -> np.random.Generator:
    """Return a random generator of its own for each position in a search."""
    return np.random.default_rng([search.random_state, *places])


def modelled(told: Sequence[Told], values: Sequence[float] | None = None) -> np.ndarray:
    """Return scores `[point]`, or `values`, for a model to fit; failed points get a value beyond the worst of the
    others.

    The placeholder score of failures would be so large that a smooth model could not resolve the others.
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
    """Points as features: a number is a share of its range, a choice has one feature for each of its values.

    A value of a number that the strategy's overrides name (0 for whole prompts, say) is a branch: settings jump there,
    so the value has a feature of its own, 1 at that value, and a model need not treat neighbouring values as similar.
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
        """Return the index of the first branch's feature; those of other branches follow."""
        return self.width - len(self.branches)

    def is_free(self, features: np.ndarray) -> np.ndarray:
        """Return which features `[…, feature]` a gradient may change: all but those of choices and branches."""
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
        """Encode shares `[point, parameter]` of the ranges as features; features of branches are 0."""
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
        """Return random features `[point, feature]` from the whole space, some of them in branches."""
        made = self.of_shares(random.random((count, len(self.space.dimensions))))
        for number in range(len(self.branches)):
            self._enter(made, number, random.random(count) < BRANCH_SHARE)
        return made

    def around(
        self, centres: np.ndarray, steps: np.ndarray, random: np.random.Generator
    ) -> np.ndarray:
        """Return features one step `[point, feature]` from each centre; some with another choice or branch."""
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
        """Return the point with its parameter set to one branch's value."""
        column, value = self.branches[number]
        return (*point[:column], value, *point[column + 1 :])

    def point(self, features: np.ndarray) -> Point:
        """Decode features `[feature]` to their point."""
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
        """Return a point's shares of the ranges."""
        return [
            dimension.share(value)
            for dimension, value in zip(self.space.dimensions, point, strict=True)
        ]

    def _enter(self, features: np.ndarray, number: int, is_meant: np.ndarray) -> None:
        """Move the points marked in `is_meant` into a branch, and out of other branches of its parameter, in place."""
        column, value = self.branches[number]
        for other, (its_column, _) in enumerate(self.branches, self.first_branch):
            if its_column == column:
                features[is_meant, other] = 0.0
        features[is_meant, self.first_branch + number] = 1.0
        features[is_meant, self.places[column].start] = self.space.dimensions[column].share(value)


def _branches(space: Space) -> tuple[tuple[int, Any], ...]:
    """Return the values within a number's range that overrides name, with the index of the number's dimension."""
    branches: dict[tuple[int, Any], None] = {}
    for override in space.strategy.overrides:
        for name, value in override.when.items():
            column = space.names.index(name)
            dimension = space.dimensions[column]
            if dimension.kind != "categorical" and dimension.low <= value <= dimension.high:
                branches[column, value] = None
    return tuple(branches)

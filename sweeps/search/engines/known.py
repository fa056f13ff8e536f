"""Engines without a model of ours, and parts shared by those with models: first points, targets, distinct new points.

The objective and every constraint's excess are modelled separately: their sum has a kink where a constraint begins
to hold. `surrogate.fitting.online.merged` adds them again.
"""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from skopt import Optimizer
from skopt.space import Categorical, Integer, Real
from skopt.utils import cook_estimator, normalize_dimensions
from threadpoolctl import threadpool_limits

from blis_jax.errors import ConfigError
from surrogate.fitting import online
from sweeps.search.engines.encoding import Encoding, Engine, Told, generator, modelled
from sweeps.strategies.parts import Search
from sweeps.strategies.space import Dimension, Point, Space, sobol_shares

BRANCHED = 4  # of so many first points one is in a branch
LEAST_GAIN = 2e-3  # of the best score; what a point may bring below that does not count
RESOLUTION = 0.02  # of the best score, that models tell apart well at the least
NEAR = 1e-3  # in shares, within which two points are one


class BranchedStart:
    """The points of an engine without a model, with every fourth moved into a branch.

    Otherwise hardly any point would be in a branch.
    """

    def __init__(self, encoding: Encoding, first: Engine) -> None:
        """Take the encoding, which finds the branches, and the engine of the points."""
        self.encoding, self.first = encoding, first

    def ask(self, told: Sequence[Told], count: int) -> list[Point]:
        """Return the next points, with branches set at every fourth."""
        points = self.first.ask(told, count)
        return [self._placed(point, len(told) + place) for place, point in enumerate(points)]

    def _placed(self, point: Point, place: int) -> Point:
        turn, number = place % BRANCHED, place // BRANCHED
        if turn != BRANCHED - 1 or not self.encoding.branches:
            return point
        return self.encoding.in_branch(point, number % len(self.encoding.branches))


class KnownPoints(NamedTuple):
    """The points tried so far, as models use them."""

    features: np.ndarray  # [point, feature]
    targets: np.ndarray  # [point, output], see `surrogate.fitting.online.merged`
    goal: float  # merged score to get below
    place: int  # of the best point
    errors: np.ndarray | None  # [excess], standard errors at the best point
    num_runs: np.ndarray  # [point]

    @property
    def centre(self) -> np.ndarray:
        """Return the features of the best point."""
        features: np.ndarray = self.features[self.place]
        return features


def known_of(encoding: Encoding, told: Sequence[Told]) -> KnownPoints:
    """Return the tried points, of which not all may have failed, with targets for models."""
    features = encoding.features([point.point for point in told])
    return KnownPoints(features, *targets_of(told), np.array([point.num_runs for point in told]))


def targets_of(told: Sequence[Told]) -> tuple[np.ndarray, float, int, np.ndarray | None]:
    """Return compressed objectives and excesses `[point, output]`; the further values are those of `KnownPoints`."""
    whole = [point for point in told if not point.has_failed]
    width = max(len(point.excesses) for point in whole)
    plain = [
        point.score if point.has_failed or not point.excesses else point.score - point.penalty
        for point in told
    ]
    objectives, scores = modelled(told, plain), modelled(told)
    place = int(scores.argmin())
    above = scores - scores[place]
    scale = max(float(np.quantile(above, 0.25)), RESOLUTION * abs(float(scores[place])), 1e-9)
    lowest = min(objectives.min(), scores[place])
    excesses = np.zeros((len(told), width))
    for row, point in enumerate(told):
        excesses[row] = point.excesses if not point.has_failed else 0.0
    columns = [
        np.log1p((objectives - lowest) / scale)[:, None],
        np.arcsinh(excesses / online.EXCESS_SCALE / scale),
    ]
    goal = (scores[place] - LEAST_GAIN * abs(float(scores[place])) - lowest) / scale
    compressed = float(np.log1p(max(goal, 0.0)) + min(goal, 0.0))
    errors = None
    if told[place].errors:
        least = 1e-3  # below it the positive part is as good as its expectation
        errors = np.maximum(np.array(told[place].errors) / online.EXCESS_SCALE / scale, least)
        errors = errors.astype(np.float32)
    return np.concatenate(columns, axis=1), compressed, place, errors


def distinct(
    encoding: Encoding,
    search: Search,
    proposed: Sequence[np.ndarray],
    known: Sequence[Point],
    count: int,
) -> list[Point]:
    """Return the first `count` proposed points that are new; draw random points if there are too few."""
    kept: list[Point] = []
    shares_of_known = np.array([encoding.shares(point) for point in known])
    random = generator(search, len(known), 3)
    more = (encoding.drawn(random, 1)[0] for _ in range(256))
    for features in (*proposed, *more):
        if len(kept) == count:
            break
        point = encoding.point(np.asarray(features, float))
        shares = np.array(encoding.shares(point))
        if np.abs(shares_of_known - shares).max(axis=1).min() > NEAR:
            kept.append(point)
            shares_of_known = np.vstack([shares_of_known, shares])
    return kept


def greedy(values: np.ndarray, lowest: np.ndarray, count: int) -> list[int]:
    """Return candidates that together improve most on the lowest values `[draw]`, by draws `[draw, candidate]`."""
    chosen: list[int] = []
    left = np.ones(values.shape[1], bool)
    for _ in range(min(count, values.shape[1])):
        gains = np.maximum(lowest[:, None] - values, 0).mean(axis=0)
        gains = np.where(left, gains - 1e-6 * values.mean(axis=0), -np.inf)
        place = int(gains.argmax())
        chosen.append(place)
        left[place] = False
        lowest = np.minimum(lowest, values[:, place])
    return chosen


# --- points without a model: drawn, of a Sobol sequence, or on a grid ----------------------------


class Random:
    """The engine `random`: uniform, or uniform in the logarithm, over every dimension."""

    def __init__(self, space: Space, search: Search) -> None:
        """Keep the space and the random state."""
        self.space, self.search = space, search

    def ask(self, told: Sequence[Told], count: int) -> list[Point]:
        """Return the next points; a point depends on its index alone."""
        points = []
        for place in range(len(told), len(told) + count):
            shares = generator(self.search, place).random(len(self.space.dimensions))
            points.append(self.space.at(shares))
        return points


class Sobol:
    """The engine `sobol`: even in every dimension and over pairs of dimensions; best balanced at powers of two."""

    def __init__(self, space: Space, search: Search) -> None:
        """Keep the space and the random state."""
        self.space, self.search = space, search

    def ask(self, told: Sequence[Told], count: int) -> list[Point]:
        """Return the next points of the sequence."""
        end, width = len(told) + count, len(self.space.dimensions)
        shares = sobol_shares(width, end, self.search.random_state)[len(told) :]
        return [self.space.at(share) for share in shares]


class Grid:
    """The engine `grid`: all categories, and evenly spaced values with both ends; the last parameter varies fastest."""

    def __init__(self, space: Space, search: Search) -> None:
        """Choose the grid's values; refuse budgets below the number of combinations of categories."""
        self.points = list(itertools.product(*_values(space, search)))

    def ask(self, told: Sequence[Told], count: int) -> list[Point]:
        """Return the next points of the grid; none after its end."""
        return self.points[len(told) : len(told) + count]


def _values(space: Space, search: Search) -> list[list[object]]:
    sizes = [len(dimension.categories) or 1 for dimension in space.dimensions]
    if math.prod(sizes) > search.calls:
        raise ConfigError(
            f"search.calls: a grid over the categories alone has {math.prod(sizes)} points, but the "
            f"budget is {search.calls}; raise it, or use another engine"
        )
    while True:
        growing = [
            place
            for place, dimension in enumerate(space.dimensions)
            if sizes[place] < _most(dimension)
            and math.prod(sizes) // sizes[place] * (sizes[place] + 1) <= search.calls
        ]
        if not growing:
            break
        sizes[min(growing, key=lambda place: sizes[place])] += 1
    return [
        _spread(dimension, size) for dimension, size in zip(space.dimensions, sizes, strict=True)
    ]


def _most(dimension: Dimension) -> float:
    if dimension.kind == "categorical":
        return len(dimension.categories)
    return dimension.high - dimension.low + 1 if dimension.kind == "integer" else math.inf


def _spread(dimension: Dimension, size: int) -> list[object]:
    if dimension.kind == "categorical":
        return list(dimension.categories)
    if size == 1:
        return [dimension.at(0.5)]
    shares = [place / (size - 1) for place in range(size)]
    if dimension.kind == "integer" and not dimension.is_log:
        width = dimension.high - dimension.low
        return [round(dimension.low + share * width) for share in shares]
    return [dimension.at(share) for share in shares]


# --- scikit-optimize's gp_minimize ---------------------------------------------------------------


class GpMinimize:
    """The engine `gp_minimize`: random points first, then three acquisition functions in competition.

    Its proposals depend on all earlier draws, so a history that extends the last one continues from there, and any
    other history is replayed.
    """

    def __init__(self, space: Space, search: Search) -> None:
        """Build the engine for a space."""
        self.space, self.search = space, search
        self.followed: list[Told] = []
        self.optimizer: Any = None
        self.proposal: list[Any] = []  # of the optimizer: an `ask` more would draw again

    def ask(self, told: Sequence[Told], count: int) -> list[Point]:
        """Return the next point: only one, whatever `count` is."""
        if not count:
            return []
        with warnings.catch_warnings(), threadpool_limits(1):
            # about points tried twice, and fits that were cut short
            warnings.simplefilter("ignore")
            if self.optimizer is None or list(told[: len(self.followed)]) != self.followed:
                self.optimizer, self.followed = self._new(), []
                self.proposal = self.optimizer.ask()
            for result in told[len(self.followed) :]:
                self.optimizer.tell(self.proposal, result.score)
                self.followed.append(result)
                self.proposal = self.optimizer.ask()
            return [tuple(_plain(value) for value in self.proposal)]

    def _new(self) -> Any:
        """Return a new optimizer, set up as `gp_minimize` does, draw by draw."""
        random = np.random.RandomState(self.search.random_state)
        dimensions = [_skopt_dimension(dimension) for dimension in self.space.dimensions]
        space = normalize_dimensions(dimensions)
        state = random.randint(0, np.iinfo(np.int32).max)
        return Optimizer(
            space,
            cook_estimator("GP", space=space, random_state=state, noise="gaussian"),
            n_initial_points=self.search.initial,
            acq_func="gp_hedge",
            random_state=random,
            acq_optimizer_kwargs={"n_points": 10_000, "n_restarts_optimizer": 5, "n_jobs": 1},
            acq_func_kwargs={"xi": 0.01, "kappa": 1.96},
        )


def _skopt_dimension(dimension: Dimension) -> Any:
    """Return the dimension as a scikit-optimize dimension."""
    if dimension.kind == "categorical":
        return Categorical(dimension.categories)
    prior = "log-uniform" if dimension.is_log else "uniform"
    kind = Integer if dimension.kind == "integer" else Real
    return kind(dimension.low, dimension.high, prior=prior)


def _plain(value: object) -> Any:
    """Return a Python value for a numpy scalar, which JSON cannot represent."""
    return value.item() if isinstance(value, np.generic) else value

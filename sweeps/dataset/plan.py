"""A dataset before its runs: the points of each role and the seeds that each point gets.

Training points are a Sobol sequence, so that any first part of them fills the space evenly, too. Calibration and test
points are independent draws, which is what conformal intervals and binomial tests take for granted. All share one pool
of seeds: the effect of the seeds on a metric's level is then the same at every point, and differences between points
are exact for the pool.

In a dataset with `own_seeds` every point runs on a few seeds of its own, dealt from a deck of its role:
results then generalise to seeds outside the dataset.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from blis_jax.errors import ConfigError
from surrogate.columns import FEWEST_POINTS, UNLIMITED_SETTINGS, InputColumn, Kind
from surrogate.data import (
    BASELINE,
    BRANCH_CALIBRATION,
    BRANCH_TEST,
    CALIBRATION,
    ROLES,
    TEST,
    TRAIN,
)
from sweeps.dataset.axes import column_at
from sweeps.strategies.arms import Arm
from sweeps.strategies.space import Dimension, Space, sobol_shares

MOST_POINTS, MOST_SEEDS = 1_000_000, 100_000
RUNS_PER_PART = 1024
LIMITS_EVERY = 16  # one training point in so many has no such limit, another a tight one


@dataclass(frozen=True)
class DatasetSizes:
    """The number of points of each role, and of their seeds."""

    train: int
    calibration: int
    test: int
    seeds: int  # of the pool, which calibration and test points have all of
    train_seeds: int  # of the pool, for each training point
    other_points: int = 0  # test points that are also run on other seeds
    first_seed: int = 0
    branch: int = 0  # further calibration points, and as many test points, where a limit is off
    # of each point, from a deck of `seeds` that its role has; 0: one pool for all
    own_seeds: int = 0

    def check(self) -> None:
        """Refuse sizes that are impossible."""
        for name, count in (
            ("points", self.train),
            ("calibration", self.calibration),
            ("test", self.test),
        ):
            if not FEWEST_POINTS <= count <= MOST_POINTS:
                raise ConfigError(
                    f"--{name}: got {count}, allowed is {FEWEST_POINTS} to {MOST_POINTS}"
                )
        if not 2 <= self.seeds <= MOST_SEEDS:
            raise ConfigError(f"--seeds: got {self.seeds}, allowed is 2 to {MOST_SEEDS}")
        if not 1 <= self.train_seeds <= self.seeds:
            raise ConfigError(
                f"--train-seeds: got {self.train_seeds}, allowed is 1 to {self.seeds}, the seeds "
                "of the pool"
            )
        if not 0 <= self.other_points <= self.test:
            raise ConfigError(
                f"--other-points: got {self.other_points}, allowed is 0 to {self.test}, the test "
                "points"
            )
        if not 0 <= self.branch <= MOST_POINTS:
            raise ConfigError(f"--branch: got {self.branch}, allowed is 0 to {MOST_POINTS}")
        if not 0 <= self.own_seeds <= self.seeds:
            raise ConfigError(
                f"--own-seeds: got {self.own_seeds}, allowed is 0 to {self.seeds}, the seeds of a "
                "role's deck; raise --seeds"
            )
        if self.own_seeds and self.other_points:
            raise ConfigError(
                "--other-points: no two points share seeds with --own-seeds; leave it out"
            )

    @property
    def num_runs(self) -> int:
        """Return the total number of runs, without those of a baseline."""
        held_out = self.calibration + self.test + 2 * self.branch
        if self.own_seeds:
            return (self.train + held_out) * self.own_seeds
        return self.train * self.train_seeds + (held_out + self.other_points) * self.seeds

    @property
    def all_seeds(self) -> tuple[int, ...]:
        """Return the pool's seeds, then as many other seeds if there are any; with own seeds the roles' decks."""
        decks = len(ROLES) if self.own_seeds else 2 if self.other_points else 1
        return tuple(range(self.first_seed, self.first_seed + decks * self.seeds))


@dataclass(frozen=True)
class DatasetPlan:
    """Every point with its role and its seeds: `codes[point, column]`, `is_planned[point, place]`.

    `places[point, place]` are indices into all seeds. The codes of the baseline's points are NaN.
    """

    space: Space
    axes: tuple[Dimension, ...]
    columns: tuple[InputColumn, ...]
    sizes: DatasetSizes
    codes: np.ndarray
    roles: np.ndarray
    is_planned: np.ndarray
    places: np.ndarray
    baseline: Arm | None = None

    @property
    def points_per_part(self) -> int:
        """Return the number of points that are written together."""
        return max(RUNS_PER_PART // self.is_planned.shape[1], 1)

    def values(self, point: int) -> tuple[dict[str, Any], dict[str, float]]:
        """Return a point's parameters and descriptors by name."""
        values = [
            column.value(code) for column, code in zip(self.columns, self.codes[point], strict=True)
        ]
        count = len(self.space.dimensions)
        parameters = dict(zip(self.space.names, values[:count], strict=True))
        return parameters, dict(zip((axis.name for axis in self.axes), values[count:], strict=True))


def make_plan(
    space: Space,
    axes: Sequence[Dimension],
    sizes: DatasetSizes,
    random_state: int,
    baseline: Arm | None = None,
) -> DatasetPlan:
    """Draw the points and deal out the seeds; the same arguments give the same plan."""
    sizes.check()
    columns = (
        *(column_of(dimension, space) for dimension in space.dimensions),
        *map(column_at, axes),
    )
    if not columns:
        raise ConfigError("the strategy has no parameters; give --vary something")
    counts = {
        TRAIN: sizes.train,
        CALIBRATION: sizes.calibration,
        TEST: sizes.test,
        BRANCH_CALIBRATION: sizes.branch,
        BRANCH_TEST: sizes.branch,
    }
    shares = [
        _shares(role, count, len(columns), [random_state, *_stream(place)])
        for place, (role, count) in enumerate(counts.items())
    ]
    sources: tuple[Dimension, ...] = (*space.dimensions, *axes)
    codes = np.array(
        [
            [
                column.code(source.at(share))
                for column, source, share in zip(columns, sources, row, strict=True)
            ]
            for row in np.concatenate(shares).tolist()
        ]
    )
    _set_limits(codes[: sizes.train], columns, random_state)
    _set_branch(codes[len(codes) - 2 * sizes.branch :], columns)
    roles = np.repeat(list(counts), list(counts.values()))
    rng = np.random.default_rng([random_state, len(ROLES)])
    planned, places = _own_seeds(sizes, roles, rng) if sizes.own_seeds else _pooled(sizes, rng)
    if baseline is not None:
        further, of_baseline = _baseline_rows(len(sizes.all_seeds), planned.shape[1])
        planned, places = np.concatenate([planned, further]), np.concatenate([places, of_baseline])
        codes = np.concatenate([codes, np.full((len(further), len(columns)), np.nan)])
        roles = np.concatenate([roles, np.repeat(BASELINE, len(further))])
    return DatasetPlan(space, tuple(axes), columns, sizes, codes, roles, planned, places, baseline)


def _stream(place: int) -> list[int]:
    """Return the words that seed a role's random stream; those of the first roles never change."""
    return [place] if place < len(ROLES) else [len(ROLES) + 3, place]


def column_of(dimension: Dimension, space: Space) -> InputColumn:
    """Return a parameter of a space as an input of a surrogate."""
    if dimension.kind == "categorical":
        high = len(dimension.categories) - 1.0
        return InputColumn(
            dimension.name, "categorical", 0.0, high, categories=dimension.categories
        )
    is_unlimited = dimension.target in UNLIMITED_SETTINGS and dimension.low == 0
    kind: Kind = "integer" if dimension.kind == "integer" else "real"
    return InputColumn(
        dimension.name, kind, float(dimension.low), float(dimension.high), dimension.is_log,
        unlimited_at=0.0 if is_unlimited else None,
        fixed_weights=space.fixed_weights if dimension.scorer else None,
    )  # fmt: skip


def _shares(role: str, count: int, num_columns: int, seed: list[int]) -> np.ndarray:
    """Return points in the unit cube: a Sobol sequence for training, independent draws for other roles."""
    if role != TRAIN:
        return np.random.default_rng(seed).random((count, num_columns))
    return sobol_shares(num_columns, count, seed)


def _set_limits(codes: np.ndarray, columns: Sequence[InputColumn], random_state: int) -> None:
    """Set some training points, in place, to a column's value for "no limit", and some to tight limits.

    A Sobol sequence hardly reaches either. The cost of a limit is proportional to its inverse, so limits of one and of
    two tokens per chunk differ more than those of a hundred and of the maximum: tight limits are log-uniform.
    """
    for place, column in enumerate(columns):
        if column.unlimited_at is None:
            continue
        rng = np.random.default_rng([random_state, len(ROLES) + 1, place])
        tight = np.random.default_rng([random_state, len(ROLES) + 2, place])
        for first in range(0, len(codes) - LIMITS_EVERY + 1, LIMITS_EVERY):
            chosen = int(rng.integers(LIMITS_EVERY))
            codes[first + chosen, place] = column.unlimited_at
            other = (chosen + int(tight.integers(1, LIMITS_EVERY))) % LIMITS_EVERY
            codes[first + other, place] = math.floor((column.high + 1) ** tight.random())


def _set_branch(codes: np.ndarray, columns: Sequence[InputColumn]) -> None:
    """Switch off one limit at every point, in place; points take turns if there are several limits."""
    limits = [place for place, column in enumerate(columns) if column.unlimited_at is not None]
    if len(codes) and not limits:
        raise ConfigError(
            "--branch: no parameter of this strategy has a value that means no limit; leave it out"
        )
    for row in range(len(codes)):
        place = limits[row % len(limits)]
        codes[row, place] = columns[place].unlimited_at


def _pooled(sizes: DatasetSizes, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Return which points run on which seeds of one pool; training points take turns, each seed equally often."""
    num_points = sizes.train + sizes.calibration + sizes.test + 2 * sizes.branch
    planned = np.zeros((num_points, len(sizes.all_seeds)), bool)
    for point, seeds in enumerate(_dealt(sizes.train, sizes.train_seeds, sizes.seeds, rng)):
        planned[point, seeds] = True
    planned[sizes.train :, : sizes.seeds] = True
    first_test = sizes.train + sizes.calibration
    planned[first_test : first_test + sizes.other_points, sizes.seeds :] = True
    return planned, np.tile(np.arange(planned.shape[1]), (num_points, 1))


def _own_seeds(
    sizes: DatasetSizes, roles: np.ndarray, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Return seeds for every point, dealt from its role's deck; branch points use the deck of their role."""
    places = np.empty((len(roles), sizes.own_seeds), int)
    decks = ((TRAIN,), (CALIBRATION, BRANCH_CALIBRATION), (TEST, BRANCH_TEST))
    for deck, names in enumerate(decks):
        rows = np.flatnonzero(np.isin(roles, names))
        dealt = _dealt(len(rows), sizes.own_seeds, sizes.seeds, rng)
        places[rows] = deck * sizes.seeds + np.array(dealt)
    return np.ones(places.shape, bool), places


def _dealt(num_points: int, each: int, num_seeds: int, rng: np.random.Generator) -> list[list[int]]:
    """Return shuffled seeds for every point; each seed comes equally often, and at most once at a point."""
    dealt, deck = [], []  # type: tuple[list[list[int]], list[int]]
    for _ in range(num_points):
        if len(deck) < each:
            kept = deck
            fresh = [seed for seed in rng.permutation(num_seeds).tolist() if seed not in kept]
            deck = kept + fresh + kept
        dealt.append(deck[:each])
        deck = deck[each:]
    return dealt


def _baseline_rows(num_seeds: int, width: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the baseline's rows, which have every seed once: the places that are planned, and their seeds."""
    places = np.arange(-(-num_seeds // width) * width).reshape(-1, width)
    return places < num_seeds, np.minimum(places, num_seeds - 1)

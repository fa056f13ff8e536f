"""A dataset before it is run: the points of each role and the seeds that each point gets.

Training points are a Sobol sequence, so that any first part of them fills the space as well.
Calibration and test points are independent draws, which is what conformal intervals and binomial
tests take for granted. All share one pool of seeds: what a metric's level owes to the seeds is then
the same at every point, and differences between points are exact for the pool.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from blis_jax.errors import ConfigError
from surrogate.columns import InputColumn, Kind
from surrogate.data import CALIBRATION, FEWEST_POINTS, ROLES, TEST, TRAIN
from sweeps.dataset.axes import DescriptorAxis
from sweeps.strategies.space import Dimension, Space

MOST_POINTS, MOST_SEEDS = 1_000_000, 100_000
RUNS_PER_PART = 1024
UNLIMITED_SETTINGS = (  # settings in which 0 means no limit
    "long_prefill_token_threshold", "slo_prefill_critical", "slo_prefill_standard",
    "slo_prefill_sheddable",
)  # fmt: skip
LIMITS_EVERY = 16  # one training point in so many has no such limit, another a tight one


@dataclass(frozen=True)
class DatasetSizes:
    """How many points of each role, and on how many seeds."""

    train: int
    calibration: int
    test: int
    seeds: int  # of the pool, which calibration and test points have all of
    train_seeds: int  # of the pool, for each training point
    other_points: int = 0  # test points that are also run on other seeds
    first_seed: int = 0

    def check(self) -> None:
        """Refuses sizes that cannot be."""
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

    @property
    def num_runs(self) -> int:
        """Runs in all."""
        held_out = (self.calibration + self.test + self.other_points) * self.seeds
        return self.train * self.train_seeds + held_out

    @property
    def all_seeds(self) -> tuple[int, ...]:
        """The pool, then as many other seeds if there are any."""
        count = self.seeds * (2 if self.other_points else 1)
        return tuple(range(self.first_seed, self.first_seed + count))


@dataclass(frozen=True)
class DatasetPlan:
    """Every point with its role and its seeds: `codes[point, column]`, `is_planned[point, seed]`."""

    space: Space
    axes: tuple[DescriptorAxis, ...]
    columns: tuple[InputColumn, ...]
    sizes: DatasetSizes
    codes: np.ndarray
    roles: np.ndarray
    is_planned: np.ndarray

    @property
    def points_per_part(self) -> int:
        """Points that are written at a time."""
        return max(RUNS_PER_PART // self.is_planned.shape[1], 1)

    def values(self, point: int) -> tuple[dict[str, Any], dict[str, float]]:
        """A point's parameters and descriptors by name."""
        values = [
            column.value(code) for column, code in zip(self.columns, self.codes[point], strict=True)
        ]
        count = len(self.space.dimensions)
        parameters = dict(zip(self.space.names, values[:count], strict=True))
        return parameters, dict(
            zip((axis.kind.name for axis in self.axes), values[count:], strict=True)
        )


def make_plan(
    space: Space, axes: Sequence[DescriptorAxis], sizes: DatasetSizes, random_state: int
) -> DatasetPlan:
    """Draws the points and deals out the seeds; the same arguments give the same plan."""
    sizes.check()
    columns = (
        *(column_of(dimension) for dimension in space.dimensions),
        *(axis.column for axis in axes),
    )
    if not columns:
        raise ConfigError("the strategy has no parameters; give --vary something")
    counts = {TRAIN: sizes.train, CALIBRATION: sizes.calibration, TEST: sizes.test}
    shares = {
        role: _shares(role, counts[role], len(columns), [random_state, place])
        for place, role in enumerate(ROLES)
    }
    sources: tuple[Dimension | DescriptorAxis, ...] = (*space.dimensions, *axes)
    codes = np.array(
        [
            [
                column.code(source.at(share))
                for column, source, share in zip(columns, sources, row, strict=True)
            ]
            for role in ROLES
            for row in shares[role].tolist()
        ]
    )
    _set_limits(codes[: sizes.train], columns, random_state)
    roles = np.repeat(ROLES, [counts[role] for role in ROLES])
    planned = _planned(sizes, np.random.default_rng([random_state, len(ROLES)]))
    return DatasetPlan(space, tuple(axes), columns, sizes, codes, roles, planned)


def column_of(dimension: Dimension) -> InputColumn:
    """A strategy's parameter as an input of a surrogate."""
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
    )  # fmt: skip


def _shares(role: str, count: int, num_columns: int, seed: list[int]) -> np.ndarray:
    """Points in the unit cube: a Sobol sequence to train on, independent draws elsewhere."""
    from scipy.stats import qmc

    rng = np.random.default_rng(seed)
    if role != TRAIN:
        return rng.random((count, num_columns))
    engine = qmc.Sobol(num_columns, scramble=True, rng=rng)
    points: np.ndarray = engine.random_base2(max(count - 1, 1).bit_length())
    return points[:count]


def _set_limits(codes: np.ndarray, columns: Sequence[InputColumn], random_state: int) -> None:
    """Puts some training points where a column means no limit, and some where the limit is tight.

    A Sobol sequence hardly meets either. What a limit costs goes as its inverse, so between one
    token a chunk and two lies more than between a hundred and the highest: the tight ones are
    log-uniform.
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


def _planned(sizes: DatasetSizes, rng: np.random.Generator) -> np.ndarray:
    """Which points run on which seeds; training points take turns, every seed as often."""
    num_points = sizes.train + sizes.calibration + sizes.test
    planned = np.zeros((num_points, len(sizes.all_seeds)), bool)
    deck: list[int] = []
    for point in range(sizes.train):
        if len(deck) < sizes.train_seeds:
            kept = deck
            fresh = [seed for seed in rng.permutation(sizes.seeds).tolist() if seed not in kept]
            deck = kept + fresh + kept
        planned[point, deck[: sizes.train_seeds]] = True
        deck = deck[sizes.train_seeds :]
    planned[sizes.train :, : sizes.seeds] = True
    first_test = sizes.train + sizes.calibration
    planned[first_test : first_test + sizes.other_points, sizes.seeds :] = True
    return planned

"""Where sensitivity looks: designs in the unit cube, a share of every parameter's range each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from SALib.sample import morris as method
from SALib.sample import sobol

from blis_jax.errors import ConfigError
from sweeps.strategies.space import Dimension, sobol_shares

MORRIS_LEVELS = 4
STEP = 0.1  # of a range, for finite differences: smaller ones see single requests change places


@dataclass(frozen=True)
class Sizes:
    """The sizes of the designs; `base` × (2 parameters + 2) points are the largest part."""

    base: int = 128  # rows of the Saltelli design
    trajectories: int = 20  # of Morris
    gradients: int = 64  # points that derivatives are taken at
    levels: int = 9  # of a parameter in its one-dimensional effect
    bases: int = 16  # points that an effect is averaged over
    pairs: int = 3  # two-dimensional effects
    pair_levels: int = 7
    pair_bases: int = 8
    random_state: int = 0

    def check(self) -> None:
        """Refuse sizes that give no index or no interval."""
        if self.base < 16 or self.base & (self.base - 1) or self.base > 65_536:
            raise ConfigError(
                f"--base: got {self.base}, allowed is a power of two from 16 to 65536, since only "
                "then the Sobol sequence is balanced"
            )
        limits = {
            "trajectories": (4, 10_000),
            "gradients": (4, 65_536),
            "levels": (3, 101),
            "bases": (4, 4096),
            "pairs": (0, 20),
            "random_state": (0, 2**31),
        }
        for name, (low, high) in limits.items():
            value = getattr(self, name)
            if not low <= value <= high:
                flag = name.replace("_", "-")
                raise ConfigError(f"--{flag}: got {value}, allowed is {low} to {high}")

    def num_points(self, num_parameters: int, num_regions: int = 0) -> int:
        """Return the most points that a study has; choices and whole numbers with few values take fewer."""
        pairs = min(self.pairs, num_parameters * (num_parameters - 1) // 2)
        return (
            self.base * (2 * num_parameters + 2 + num_regions * (num_parameters + 2))
            + (self.trajectories + self.gradients) * (num_parameters + 1)
            + num_parameters * self.levels * self.bases
            + pairs * self.pair_levels**2 * self.pair_bases
        )


def problem(names: Sequence[str]) -> dict[str, Any]:
    """Return the unit cube over these parameters, as SALib describes a problem."""
    return {"num_vars": len(names), "names": list(names), "bounds": [[0.0, 1.0]] * len(names)}


def saltelli(names: Sequence[str], sizes: Sizes, has_pairs: bool = True) -> np.ndarray:
    """Return Saltelli's design for first and total order, and for second order if it `has_pairs`.

    `[base × (2 parameters + 2), parameter]`, without pairs `[base × (parameters + 2), parameter]`
    """
    made: np.ndarray = sobol.sample(
        problem(names), sizes.base, calc_second_order=has_pairs, seed=sizes.random_state
    )
    return made


def morris(names: Sequence[str], sizes: Sizes) -> np.ndarray:
    """Return Morris's trajectories, `[trajectories × (parameters + 1), parameter]`."""
    made: np.ndarray = method.sample(
        problem(names), sizes.trajectories, num_levels=MORRIS_LEVELS, seed=sizes.random_state
    )
    return made


def differences(names: Sequence[str], sizes: Sizes) -> np.ndarray:
    """Return points, each followed by one with a step inward in every parameter.

    `[gradients × (parameters + 1), parameter]`
    """
    starts = sobol_shares(len(names), sizes.gradients, sizes.random_state + 1)
    blocks = np.repeat(starts[:, None, :], len(names) + 1, axis=1)
    step = np.where(starts + STEP <= 1, STEP, -STEP)
    for place in range(len(names)):
        blocks[:, place + 1, place] += step[:, place]
    return blocks.reshape(-1, len(names))


def levels_of(dimension: Dimension, count: int) -> np.ndarray:
    """Return the shares of a range at which an effect is taken, both ends included; at most `count` of them."""
    if dimension.kind == "categorical":
        num_values = len(dimension.categories)
        return (np.arange(num_values) + 0.5) / num_values
    shares = np.linspace(0.0, 1.0, count)
    if dimension.kind == "integer":
        values = [dimension.at(float(share)) for share in shares]
        kept = [place for place, value in enumerate(values) if value not in values[:place]]
        shares = shares[kept]
    return shares


def along(starts: np.ndarray, place: int, levels: np.ndarray) -> np.ndarray:
    """Return every start at every level of one parameter, `[start × level, parameter]`."""
    points = np.repeat(starts[:, None, :], len(levels), axis=1)
    points[:, :, place] = levels
    return points.reshape(-1, starts.shape[1])


def across(
    starts: np.ndarray, places: tuple[int, int], levels: tuple[np.ndarray, np.ndarray]
) -> np.ndarray:
    """Return every start at every pair of levels of two parameters, `[start × level × level, parameter]`."""
    shape = len(starts), len(levels[0]), len(levels[1]), starts.shape[1]
    points = np.broadcast_to(starts[:, None, None, :], shape).copy()
    points[..., places[0]] = levels[0][:, None]
    points[..., places[1]] = levels[1]
    return points.reshape(-1, starts.shape[1])

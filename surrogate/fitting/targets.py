"""What a surrogate learns: the mean over the seeds of every point, and single runs about it.

Points may have different seeds of one pool. A seed's own effect, the same for all points, is taken
out first: as a factor where an output is learned by its logarithm, else as a summand.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

LOG_RATIO = 1.5  # an output above 0 whose means span such a factor is learned by its logarithm
ROUNDS = 30  # of the alternation between points and seeds
SPREAD_FLOOR = 1e-6  # relative: an output that varies less is a constant


@dataclass(frozen=True)
class Scale:
    """The standardisation of an output: (f(y) - center) / width, where f is the logarithm or nothing."""

    is_log: bool
    center: float
    width: float  # 0: the output is the same everywhere
    low: float | None  # bounds of what it can be
    high: float | None

    @property
    def is_constant(self) -> bool:
        """Return whether the output is constant, so that there is nothing to learn."""
        return self.width == 0


@dataclass(frozen=True)
class Scales:
    """The scales of all outputs, as arrays of one entry an output."""

    entries: tuple[Scale, ...]

    @property
    def is_learned(self) -> np.ndarray:
        """Return which outputs are not constant."""
        return np.array([not scale.is_constant for scale in self.entries])

    def standardized(self, values: np.ndarray) -> np.ndarray:
        """Return standard values of the learned outputs, `[..., output]`; NaN stays."""
        kept = [(place, scale) for place, scale in enumerate(self.entries) if not scale.is_constant]
        parts = []
        for place, scale in kept:
            y = values[..., place].astype(np.float64)
            if scale.is_log:
                y = np.log(np.maximum(y, 1e-30))
            parts.append((y - scale.center) / scale.width)
        return np.stack(parts, axis=-1).astype(np.float32)

    def arrays(self) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Return `is_log`, center and width of the learned outputs."""
        kept = [scale for scale in self.entries if not scale.is_constant]
        is_log = jnp.asarray(np.array([scale.is_log for scale in kept]))
        center = jnp.asarray(np.array([scale.center for scale in kept], np.float32))
        return is_log, center, jnp.asarray(np.array([scale.width for scale in kept], np.float32))

    def to_json(self) -> str:
        """Write the scales as a text."""
        return json.dumps([dataclasses.asdict(scale) for scale in self.entries])

    @staticmethod
    def from_json(text: str) -> Scales:
        """Read the scales from a text that `to_json` wrote."""
        return Scales(tuple(Scale(**entry) for entry in json.loads(text)))


def scales_of(runs: np.ndarray, means: np.ndarray, units: Sequence[str]) -> Scales:
    """Return the scales that suit training runs `[point, seed, output]` and means `[point, output]`."""
    entries = []
    for place, unit in enumerate(units):
        y, mean = runs[..., place], means[:, place]
        low = 0.0 if np.nanmin(y) >= 0 else None
        high = 1.0 if unit == "1" and low == 0.0 and np.nanmax(y) <= 1 else None
        spread = float(np.nanmax(y) - np.nanmin(y))
        if spread <= SPREAD_FLOOR * max(abs(float(np.nanmean(y))), 1e-12):
            entries.append(Scale(False, float(np.nanmean(y)), 0.0, low, high))
            continue
        is_log = bool(np.nanmin(y) > 0 and np.nanmax(mean) > LOG_RATIO * np.nanmin(mean))
        z = np.log(mean) if is_log else mean
        width = float(np.std(z))
        if width <= SPREAD_FLOOR * spread:  # seeds differ, points do not but for rounding
            width = spread
        entries.append(Scale(is_log, float(np.mean(z)), width, low, high))
    return Scales(tuple(entries))


def pool_means(runs: np.ndarray) -> np.ndarray:
    """Estimate each point's mean over all seeds of the pool, `[point, output]`, from the seeds that it has."""
    has_all = not np.isnan(runs).any()
    means = np.nanmean(runs, axis=1)
    if has_all:
        return np.asarray(means)
    adjusted = np.empty_like(means, dtype=np.float64)
    for output in range(runs.shape[2]):
        y = runs[:, :, output].astype(np.float64)
        is_factor = bool(np.nanmin(y) > 0)
        adjusted[:, output] = _by_factors(y) if is_factor else _by_summands(y)
    return adjusted


def _by_summands(y: np.ndarray) -> np.ndarray:
    """Effects of points where a run is a point's plus a seed's; seeds' effects have mean 0."""
    point = np.nanmean(y, axis=1)
    for _ in range(ROUNDS):
        seed = np.nanmean(y - point[:, None], axis=0)
        seed -= seed.mean()
        point = np.nanmean(y - seed[None, :], axis=1)
    return np.asarray(point)


def _by_factors(y: np.ndarray) -> np.ndarray:
    """Effects of points where a run is a point's times a seed's; seeds' effects have mean 1."""
    is_there = ~np.isnan(y)
    filled = np.where(is_there, y, 0.0)
    point = filled.sum(axis=1) / is_there.sum(axis=1)
    for _ in range(ROUNDS):
        seed = filled.sum(axis=0) / (is_there * point[:, None]).sum(axis=0)
        seed /= seed.mean()
        point = filled.sum(axis=1) / (is_there * seed[None, :]).sum(axis=1)
    return np.asarray(point)


def compact(runs: np.ndarray) -> np.ndarray:
    """Put the runs of every point side by side, `[point, run, output]`; NaN where a point has fewer."""
    is_there = ~np.isnan(runs).all(axis=2)
    most = int(is_there.sum(axis=1).max())
    order = np.argsort(~is_there, axis=1, kind="stable")[:, :most]
    return np.asarray(np.take_along_axis(runs, order[:, :, None], axis=1))

"""Sensitivity indices with bootstrap intervals from the responses at a design; arrays end in the axis `FIGURES`.

A dummy parameter, which only draws new seeds, shows the index that noise alone gives. A parameter without any
effect would leave every run unchanged, so its index would be exactly 0.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
from SALib.analyze import morris, sobol

from blis_jax.statistics.intervals import percentile_ends
from sweeps.sensitivity.model import STEP, problem

FIGURES = ("estimate", "low", "high")
MOST_LEFT_OUT = 0.2  # of the rows of a design, beyond which there is no index
NO_EFFECT, NOISE, MATTERS = "no effect", "not distinguishable from noise", "matters"


@dataclass(frozen=True)
class Resampling:
    """A bootstrap of the rows of a design, for percentile intervals."""

    confidence: float = 0.95
    resamples: int = 1000
    state: int = 0

    def interval(self, estimate: Any, drawn: np.ndarray) -> np.ndarray:
        """Return `[…, figure]`: estimates with percentile ends of their resampled values, `[resample, …]`."""
        low, high = percentile_ends(drawn, self.confidence)
        return np.stack([np.asarray(estimate, float), low, high], axis=-1)

    def rows(self, count: int) -> np.ndarray:
        """Return the indices of the rows in each resample, `[resample, row]`."""
        random = np.random.default_rng([self.state, count])
        drawn: np.ndarray = random.integers(count, size=(self.resamples, count))
        return drawn


@dataclass(frozen=True)
class SobolIndices:
    """Shares of the variance that a metric has over the space."""

    first: np.ndarray  # [parameter, figure]
    total: np.ndarray  # [parameter, figure]
    second: np.ndarray  # [parameter, parameter, figure], above the diagonal
    dummy: np.ndarray  # [figure], total index of a new draw of the seeds
    halves: np.ndarray  # [half of the seeds, parameter, figure], total
    num_rows: int
    num_left_out: int  # rows in which a run failed

    def act_together(self, first: int, second: int) -> bool:
        """Return whether two parameters (lower index first) interact more than a new draw of the seeds would."""
        return bool(self.second[first, second, 1] > max(float(self.dummy[2]), 0.0))


@dataclass(frozen=True)
class TotalIndices:
    """Total indices alone, of a metric in a region; see `SobolIndices`."""

    total: np.ndarray  # [parameter, figure]
    dummy: np.ndarray  # [figure], total index of a new draw of the seeds


def rows_of(values: np.ndarray, size: int) -> tuple[np.ndarray, int]:
    """Return the rows `[row, point, seed]` of a design in which no run failed, and the number of rows left out."""
    rows = values.reshape(-1, size, values.shape[-1])
    is_whole = np.isfinite(rows).all(axis=(1, 2))
    return rows[is_whole], int((~is_whole).sum())


def is_usable(rows: np.ndarray, num_left_out: int) -> bool:
    """Return whether indices can be computed: enough rows, and a response that varies."""
    total = len(rows) + num_left_out
    if len(rows) < 4 or num_left_out > MOST_LEFT_OUT * total:
        return False
    means = rows.mean(axis=-1)
    return bool(np.ptp(means) > 1e-12 * max(1.0, float(np.abs(means).max())))


def sobol_indices(
    values: np.ndarray, num_parameters: int, resampling: Resampling
) -> SobolIndices | None:
    """Return Sobol's indices of values `[point, seed]` at Saltelli's design; None without enough rows or variation."""
    rows, num_left_out = rows_of(values, 2 * num_parameters + 2)
    if not is_usable(rows, num_left_out):
        return None
    cube = problem([f"x{place}" for place in range(num_parameters)])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about responses that are constant in part of the design
        indices = sobol.analyze(
            cube, rows.mean(axis=-1).ravel(), num_resamples=resampling.resamples,
            conf_level=resampling.confidence, keep_resamples=True, seed=resampling.state + 1,
        )  # fmt: skip
    second = np.stack(
        [indices["S2"], indices["S2"] - indices["S2_conf"], indices["S2"] + indices["S2_conf"]],
        axis=-1,
    )
    halves = np.full((2, num_parameters, 3), np.nan)
    if rows.shape[-1] > 1:
        for half in range(2):
            halves[half] = _totals(rows[..., half::2].mean(axis=-1), num_parameters, resampling)
    return SobolIndices(
        first=resampling.interval(indices["S1"], indices["S1_conf_all"]),
        total=resampling.interval(indices["ST"], indices["ST_conf_all"]),
        second=second,
        dummy=_dummy_total(rows, resampling),
        halves=halves,
        num_rows=len(rows),
        num_left_out=num_left_out,
    )


def total_indices(
    rows: np.ndarray, num_left_out: int, num_parameters: int, resampling: Resampling
) -> TotalIndices | None:
    """Return total indices of rows `[row, point, seed]`, of a first- or second-order design; None without variation."""
    if not is_usable(rows, num_left_out):
        return None
    totals = _totals(rows.mean(axis=-1), num_parameters, resampling)
    return TotalIndices(totals, _dummy_total(rows, resampling))


def _totals(means: np.ndarray, num_parameters: int, resampling: Resampling) -> np.ndarray:
    """Return total indices `[parameter, figure]` of means over seeds `[row, point]`."""
    kept = np.concatenate([means[:, : num_parameters + 1], means[:, -1:]], axis=1)
    if np.ptp(kept) == 0:
        return np.full((num_parameters, 3), np.nan)
    cube = problem([f"x{place}" for place in range(num_parameters)])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        analysed = sobol.analyze(
            cube, kept.ravel(), calc_second_order=False, num_resamples=resampling.resamples,
            conf_level=resampling.confidence, keep_resamples=True, seed=resampling.state + 1,
        )  # fmt: skip
    return resampling.interval(analysed["ST"], analysed["ST_conf_all"])


def seed_variance(rows: np.ndarray) -> np.ndarray:
    """Return the variance of the mean over seeds, `[row]`, without the effects that a seed has on all points alike."""
    num_seeds = rows.shape[-1]
    if num_seeds < 2:
        return np.zeros(len(rows))
    residuals = rows - rows.mean(axis=-1, keepdims=True)
    residuals = residuals - residuals.mean(axis=(0, 1), keepdims=True)
    variance: np.ndarray = np.square(residuals).sum(axis=-1).mean(axis=-1) / (num_seeds - 1)
    return variance / num_seeds


def _dummy_total(rows: np.ndarray, resampling: Resampling) -> np.ndarray:
    """Return the total index `[figure]` of the dummy parameter, which only draws new seeds."""
    per_row = seed_variance(rows)
    variance = rows[:, [0, -1]].mean(axis=-1)
    drawn = resampling.rows(len(rows))
    estimate = per_row.mean() / variance.var()
    spread = variance[drawn].var(axis=(1, 2))
    shares = per_row[drawn].mean(axis=1) / np.where(spread > 0, spread, variance.var())
    return resampling.interval(estimate, shares)


@dataclass(frozen=True)
class MorrisMeasures:
    """Elementary effects, in the metric's unit over a whole range; intervals over trajectories."""

    mu: np.ndarray  # [parameter, figure], mean
    mu_star: np.ndarray  # mean size
    sigma: np.ndarray  # standard deviation: interactions and curvature
    dummy: float  # mean size that a new draw of the seeds would give


def morris_measures(
    shares: np.ndarray, values: np.ndarray, resampling: Resampling
) -> MorrisMeasures | None:
    """Return Morris's measures of values `[point, seed]` along trajectories; None without enough rows or variation."""
    num_parameters = shares.shape[1]
    rows, num_left_out = rows_of(values, num_parameters + 1)
    if not is_usable(rows, num_left_out):
        return None
    is_whole = np.isfinite(values.reshape(-1, num_parameters + 1, values.shape[-1])).all((1, 2))
    points = shares.reshape(-1, num_parameters + 1, num_parameters)[is_whole]
    effects = elementary_effects(points, rows.mean(axis=-1))
    cube = problem([f"x{place}" for place in range(num_parameters)])
    measures = morris.analyze(
        cube, points.reshape(-1, num_parameters), rows.mean(axis=-1).ravel(),
        num_resamples=2, seed=resampling.state,
    )  # fmt: skip
    drawn = effects[resampling.rows(len(effects))]  # [resample, trajectory, parameter]
    step = float(np.abs(np.diff(points, axis=1)).max())
    noise = np.sqrt(2 * seed_variance(rows)) * np.sqrt(2 / np.pi) / step
    return MorrisMeasures(
        mu=resampling.interval(measures["mu"], drawn.mean(axis=1)),
        mu_star=resampling.interval(measures["mu_star"], np.abs(drawn).mean(axis=1)),
        sigma=resampling.interval(measures["sigma"], drawn.std(axis=1, ddof=1)),
        dummy=float(noise.mean()),
    )


def elementary_effects(points: np.ndarray, means: np.ndarray) -> np.ndarray:
    """Return change ÷ step, `[trajectory, parameter]`, of points `[trajectory, place, parameter]`."""
    steps = np.diff(points, axis=1)  # [trajectory, place, parameter], one of them not zero
    moved = np.abs(steps).argmax(axis=2)
    size = np.take_along_axis(steps, moved[:, :, None], axis=2)[:, :, 0]
    effects = np.empty((len(points), points.shape[2]))
    np.put_along_axis(effects, moved, np.diff(means, axis=1) / size, axis=1)
    return effects


def derivative_measures(
    shares: np.ndarray, values: np.ndarray, resampling: Resampling
) -> tuple[np.ndarray, np.ndarray] | None:
    """Return derivative-based measures `[parameter, figure]`, and that of the dummy parameter, a new draw of the seeds
    `[figure]`.

    A measure is the mean squared derivative ÷ (π² variance), which bounds the total index of a uniform parameter from
    above (Sobol' and Kucherenko 2009). Steps are finite, so the measure is only approximately a bound.
    """
    num_parameters = shares.shape[1]
    rows, num_left_out = rows_of(values, num_parameters + 1)
    if not is_usable(rows, num_left_out):
        return None
    means = rows.mean(axis=-1)
    slopes = np.square((means[:, 1:] - means[:, :1]) / STEP)  # [row, parameter]
    noise = 2 * seed_variance(rows) / STEP**2
    drawn = resampling.rows(len(rows))
    variance = means[:, 0].var()
    if variance == 0:
        return None
    spread = means[drawn, 0].var(axis=1)
    spread = np.pi**2 * np.where(spread > 0, spread, variance)
    estimate = slopes.mean(axis=0) / (np.pi**2 * variance)
    measures = resampling.interval(estimate, slopes[drawn].mean(axis=1) / spread[:, None])
    dummy = resampling.interval(noise.mean() / (np.pi**2 * variance), noise[drawn].mean(1) / spread)
    return measures, dummy


def verdict(total: np.ndarray, dummy: np.ndarray) -> str:
    """Return the verdict on a total index `[figure]`, compared with the dummy's: no effect, noise, or it matters."""
    if total[0] == 0 and total[2] == 0:
        return NO_EFFECT
    return MATTERS if total[1] > max(float(dummy[2]), 0.0) else NOISE


def with_noise(total: np.ndarray, dummy: np.ndarray) -> np.ndarray:
    """Return a total index `[figure]` with the lower end of its interval lowered by the noise in the index.

    The bootstrap resamples rows but not seeds (or a surrogate's members). Their noise raises every index by as much as
    the index of the dummy.
    """
    noise = max(float(dummy[2]), 0.0)
    return np.array([total[0], min(float(total[1]), max(float(total[1]) - noise, 0.0)), total[2]])


@dataclass(frozen=True)
class Agreement:
    """Two models' total indices `[figure]`; whether their intervals overlap is tested with and without noise."""

    bootstrap: tuple[np.ndarray, np.ndarray]
    with_noise: tuple[np.ndarray, np.ndarray]

    @property
    def do_meet(self) -> bool:
        """Return whether the bootstrap intervals overlap."""
        return do_meet(*self.bootstrap)

    @property
    def do_meet_with_noise(self) -> bool:
        """Return whether the intervals overlap once their lower ends are lowered by noise."""
        return do_meet(*self.with_noise)


def agreement_of(
    totals: tuple[np.ndarray, np.ndarray], dummies: tuple[np.ndarray, np.ndarray]
) -> Agreement:
    """Compare the total indices of two models; the indices of the models' dummies measure their noise."""
    return Agreement(totals, (with_noise(totals[0], dummies[0]), with_noise(totals[1], dummies[1])))


def do_meet(first: np.ndarray, second: np.ndarray) -> bool:
    """Return whether two intervals `[figure]` overlap."""
    return bool(first[1] <= second[2] and second[1] <= first[2])

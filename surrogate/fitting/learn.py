"""From a dataset to a surrogate: standardise, fit, calibrate."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np

from surrogate.data import Data, Part
from surrogate.domain import Domain
from surrogate.fitting import conformal
from surrogate.fitting.features import features
from surrogate.fitting.fit import FitState, Samples, Settings, fit, init
from surrogate.fitting.targets import Scales, compact, pool_means, scales_of
from surrogate.predictor import ConformalScores, Surrogate, band

FLOOR_SHARE = 0.5  # of the median residual at training points: the least sigma of an output
LEAST_FLOOR = 1e-4  # in standard units
DISAGREEMENT = 1.5  # times the most of any calibration point: the limit of the domain


def samples_of(data: Data, num_points: int | None = None) -> tuple[Samples, Scales]:
    """The first training points in standard units, and the scales that make them so."""
    runs, inputs = data.train.runs[:num_points], data.train.inputs[:num_points]
    means = pool_means(runs)
    scales = scales_of(runs, means, data.units)
    seen = features(data.columns, jnp.asarray(inputs, jnp.float32))
    z_runs = scales.standardized(compact(runs))
    return Samples(seen, jnp.asarray(scales.standardized(means)), jnp.asarray(z_runs)), scales


def learn(
    data: Data,
    settings: Settings,
    num_points: int | None = None,
    state_at: Callable[[FitState], FitState | None] | None = None,
    on_call: Callable[[FitState, float], None] | None = None,
    about: Mapping[str, Any] | None = None,
) -> Surrogate:
    """A calibrated surrogate; `state_at` may put an earlier state in the place of a fresh one."""
    samples, scales = samples_of(data, num_points)
    state = init(settings, samples)
    if state_at is not None:
        state = state_at(state) or state
    state = fit(settings, samples, state, on_call)
    num_learned = int(scales.is_learned.sum())
    blank = ConformalScores(*(np.zeros((num_learned, 1)),) * 2, np.zeros(num_learned))
    raw = Surrogate(
        data.columns, data.outputs, data.units, scales, settings, state.params, blank,
        Domain(data.columns, np.inf), about or {},
    )  # fmt: skip
    return calibrated(raw, data, samples)


def calibrated(raw: Surrogate, data: Data, samples: Samples) -> Surrogate:
    """The same surrogate with the scores of the calibration points."""
    train = raw.standard(data.train.inputs[: len(samples.means)])
    residuals = np.abs(train.mean - np.asarray(samples.means))
    floor = np.maximum(FLOOR_SHARE * np.median(residuals, axis=0), LEAST_FLOOR)
    standard = raw.standard(data.calibration.inputs)
    sigma = np.hypot(standard.epistemic, floor)
    means = raw.scales.standardized(data.calibration.means)
    runs = raw.scales.standardized(one_run_each(data.calibration))
    middle, half = band(standard)
    calibration = ConformalScores(
        conformal.scores(_without_gaps(means - standard.mean), sigma),
        conformal.scores(_without_gaps(runs - middle), half),
        floor.astype(np.float32),
    )
    most = DISAGREEMENT * float(standard.epistemic.mean(axis=1).max())
    return Surrogate(
        raw.columns, raw.outputs, raw.units, raw.scales, raw.settings, raw.params, calibration,
        Domain(raw.columns, most), raw.about,
    )  # fmt: skip


def one_run_each(part: Part, seed: int = 0) -> np.ndarray:
    """One run of every point, drawn among those that came to their end, `[point, output]`."""
    rng = np.random.default_rng(seed)
    is_there = ~np.isnan(part.runs).all(axis=2)
    chosen = [rng.choice(np.flatnonzero(row)) for row in is_there]
    return np.asarray(part.runs[np.arange(len(chosen)), chosen])


def _without_gaps(residuals: np.ndarray) -> np.ndarray:
    """Residuals where a metric had no value count as infinite: they can only widen intervals."""
    return np.where(np.isnan(residuals), np.inf, residuals)


__all__ = ["calibrated", "learn", "one_run_each", "samples_of"]

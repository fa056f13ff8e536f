"""From a dataset to a surrogate: standardise, fit, calibrate."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from itertools import compress
from typing import Any

import jax.numpy as jnp
import numpy as np

from blis_jax.errors import ConfigError, closest
from surrogate.columns import Domain, regions_of
from surrogate.columns import scores as scores_of
from surrogate.data import Data, Part
from surrogate.fitting.network import FitState, Samples, Settings, features, fit, init
from surrogate.fitting.targets import Scales, band, compact, pool_means, scales_of
from surrogate.predictor import ConformalScores, Surrogate

MAIN = "ttft_p99_ms[critical]"  # its lowest quarter is a region, where it is learned
FLOOR_SHARE = 0.5  # of the median residual at training points: the least sigma of an output
LEAST_FLOOR = 1e-4  # in standard units
DISAGREEMENT = 1.5  # times the most of any calibration point: the limit of the domain


def samples_of(data: Data, num_points: int | None = None) -> tuple[Samples, Scales]:
    """Return the first training points in standard units, and the scales that standardise outputs."""
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
    main: str | None = None,
) -> Surrogate:
    """Fit a surrogate and calibrate it; `state_at` may replace the fresh state by an earlier one."""
    samples, scales = samples_of(data, num_points)
    state = init(settings, samples)
    if state_at is not None:
        state = state_at(state) or state
    state = fit(settings, samples, state, on_call)
    num_learned = int(scales.is_learned.sum())
    blank = ConformalScores(
        *(np.zeros((num_learned, 1)),) * 2, np.zeros(num_learned), np.zeros(1, int)
    )
    raw = Surrogate(
        data.columns, data.outputs, data.units, scales, settings, state.params, blank,
        Domain(data.columns, np.inf), about or {},
    )  # fmt: skip
    return calibrated(raw, data, samples, main)


def calibrated(raw: Surrogate, data: Data, samples: Samples, main: str | None = None) -> Surrogate:
    """Return the surrogate with the scores of the calibration points and its domain."""
    train = raw.standard(data.train.inputs[: len(samples.means)])
    residuals = np.abs(train.mean - np.asarray(samples.means))
    floor = np.maximum(FLOOR_SHARE * np.median(residuals, axis=0), LEAST_FLOOR)
    part = data.calibration.with_others(data.branch_calibration)
    standard = raw.standard(part.inputs)
    sigma = np.hypot(standard.epistemic, floor)
    means = raw.scales.standardized(part.means)
    runs = raw.scales.standardized(one_run_each(part))
    middle, half = band(standard)
    predicted = raw.raw(standard.mean)
    regions = regions_of(data.columns, _main_of(raw, main), part.inputs, predicted)
    calibration = ConformalScores(
        scores_of(means - standard.mean, sigma),
        scores_of(runs - middle, half),
        floor.astype(np.float32),
        regions.of(part.inputs, predicted).astype(np.int32),
    )
    most = DISAGREEMENT * float(standard.epistemic.mean(axis=1).max())
    return dataclasses.replace(
        raw, calibration=calibration, domain=Domain(raw.columns, most), regions=regions
    )


def _main_of(raw: Surrogate, main: str | None) -> int:
    """Return the index, among the learned outputs, of the output whose best quarter is a region."""
    learned = list(compress(raw.outputs, raw.scales.is_learned))
    if main is None:
        return learned.index(MAIN) if MAIN in learned else 0
    if main not in learned:
        raise ConfigError(
            f"--best-of: {main!r} is not among what is learned{closest(main, learned)}; there are "
            f"{', '.join(learned)}"
        )
    return learned.index(main)


def one_run_each(part: Part, seed: int = 0) -> np.ndarray:
    """Draw one run of every point among those that came to their end, `[point, output]`."""
    rng = np.random.default_rng(seed)
    is_there = ~np.isnan(part.runs).all(axis=2)
    chosen = [rng.choice(np.flatnonzero(row)) for row in is_there]
    return np.asarray(part.runs[np.arange(len(chosen)), chosen])

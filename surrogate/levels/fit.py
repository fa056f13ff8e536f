"""Fits what seeds do, and calibrates its intervals on points whose seeds nothing was fitted to."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING

import numpy as np

from surrogate.fitting.conformal import scores
from surrogate.levels.data import OwnData, OwnPart
from surrogate.levels.model import (
    DIFFERENCE,
    FOLDS,
    GIVEN,
    KINDS,
    LEVEL,
    MODES,
    RUNGS,
    SIMULATED,
    UNKNOWN,
    Levels,
    Noise,
    key,
    regress,
)
from surrogate.levels.predict import Parts, means, predicted

if TYPE_CHECKING:
    from surrogate.data import Data
    from surrogate.predictor import Surrogate


def with_levels(surrogate: Surrogate, data: Data, own: OwnData) -> Surrogate:
    """The same surrogate, which also predicts for seeds outside its pool."""
    fitted = dataclasses.replace(surrogate, levels=_fitted(surrogate, data, own))
    return dataclasses.replace(surrogate, levels=_calibrated(fitted, own))


def _fitted(surrogate: Surrogate, data: Data, own: OwnData) -> Levels:
    assert data.seeds is not None
    learned = surrogate.scales.is_learned
    pool = data.seeds.of(np.isin(data.seeds.seeds, data.pool))
    empty = np.zeros(0)
    blank = Levels(
        pool.covariates.mean(axis=0), own.seeds.covariates.std(axis=0), empty, empty,
        pool.baseline[:, learned].mean(axis=0), empty, {}, {}, empty, pool.name, data.workload,
        float(json.loads(data.workload)["aggregate_rate"]), data.stream,
        own.seeds.baseline[:, learned].std(axis=0), empty, data.baseline, data.targets,
    )  # fmt: skip
    every = blank.standard(own.seeds.covariates)
    simulated = blank.standard(own.seeds.covariates, own.seeds.baseline[:, learned])
    parts, train = Parts(surrogate, own.train.inputs), own.train
    count = train.at.shape[1]
    target = (train.runs[..., learned] - parts.mean[:, None]) / parts.run_sd[:, None]
    target = target.reshape(-1, target.shape[2])
    at = train.at.ravel()
    is_there = ~np.isnan(target).any(axis=1)
    at, target, phi = at[is_there], target[is_there], np.repeat(parts.phi, count, axis=0)[is_there]
    point = np.repeat(np.arange(len(train.at)), count)[is_there]
    weights, left = regress(phi, every[at], target, at % FOLDS, point)
    beside, left_beside = regress(phi, simulated[at], target, at % FOLDS, point)
    used = np.unique(at)
    of_baseline = own.seeds.baseline[used][:, learned] - blank.baseline_mean
    scale = np.maximum(of_baseline.std(axis=0), 1e-12)
    one = np.ones((len(used), 1))
    bare, bare_left = regress(one, every[used], of_baseline / scale, used % FOLDS)
    place = np.searchsorted(used, at)
    total = of_baseline - of_baseline.mean(axis=0)
    noise = {
        GIVEN: _noise(left, (bare_left * scale)[place]),
        UNKNOWN: _noise(target - _by_point(target, phi), total[place]),
        SIMULATED: _noise(left_beside, np.zeros_like(left_beside)),
    }
    return dataclasses.replace(
        blank, typical=every.mean(axis=0), weights=weights, noise=noise,
        baseline_weights=bare[:, 0] * scale, beside=beside,
    )  # fmt: skip


def _by_point(target: np.ndarray, phi: np.ndarray) -> np.ndarray:
    """What of the targets the points' features explain, without the seeds."""
    found = np.linalg.lstsq(phi, target, rcond=None)[0]
    return np.asarray(phi @ found)


def _noise(own: np.ndarray, baseline: np.ndarray) -> Noise:
    """Sd and correlation of what is left of runs and of the baseline's runs on their seeds, `[run, output]`.

    Runs of which nothing was left out have NaN and do not count.
    """
    is_there = ~np.isnan(own).any(axis=1)
    own, baseline = own[is_there], baseline[is_there]
    sds = own.std(axis=0), baseline.std(axis=0)
    both = (own * baseline).mean(axis=0) - own.mean(axis=0) * baseline.mean(axis=0)
    return Noise(*sds, both / np.maximum(sds[0] * sds[1], 1e-30))


def _calibrated(surrogate: Surrogate, own: OwnData) -> Levels:
    """With the scores of the calibration points, for means over 1, 2, 4, … of their seeds."""
    levels, part = surrogate.levels, own.calibration
    assert levels is not None
    parts = Parts(surrogate, part.inputs)
    found = {}
    for mode in MODES:
        for rung in (rung for rung in RUNGS if rung <= part.at.shape[1]):
            off = residuals(surrogate, parts, part, own, mode, rung)
            for kind in KINDS if mode != SIMULATED else (LEVEL,):
                sigma = levels.sigma(mode, kind, parts.fixed, parts.run_sd, rung)
                found[key(mode, kind, rung)] = scores(off[kind], sigma)
    return dataclasses.replace(levels, scores=found, region=parts.region.astype(np.int32))


def residuals(
    surrogate: Surrogate, parts: Parts, part: OwnPart, own: OwnData, mode: str, rung: int
) -> dict[str, np.ndarray]:
    """How far means over the first `rung` seeds of each point are from predictions, `[point, output]`."""
    simulated, mean, baseline = on_own_seeds(surrogate, parts, part, own, mode, rung)
    learned = surrogate.scales.is_learned
    on_baseline = own.seeds.baseline[part.at[:, :rung]][..., learned].mean(axis=1)
    level = simulated - mean
    return {KINDS[0]: level, DIFFERENCE: level - (on_baseline - baseline)}


def on_own_seeds(
    surrogate: Surrogate, parts: Parts, part: OwnPart, own: OwnData, mode: str, rung: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Simulated and predicted means over each point's first seeds, and what is known or predicted of the baseline."""
    levels = surrogate.levels
    assert levels is not None
    learned = surrogate.scales.is_learned
    simulated = part.runs[:, :rung, learned].mean(axis=1)
    at, level, baseline = part.at[:, :rung], levels.typical, None
    if mode == GIVEN:
        level = levels.standard(own.seeds.covariates)[at].mean(axis=1)
    elif mode == SIMULATED:
        runs = own.seeds.baseline[:, learned]
        level = levels.standard(own.seeds.covariates, runs)[at].mean(axis=1)
        baseline = runs[at].mean(axis=1)
    return simulated, *means(surrogate, parts, level, mode, baseline)


__all__ = ["on_own_seeds", "predicted", "residuals", "with_levels"]

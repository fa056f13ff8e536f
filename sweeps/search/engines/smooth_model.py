"""A Gaussian process of results with noise: what of a point's result is chance is smoothed away.

A mean over a few seeds differs from the expected one by what these seeds did to this very point. The process takes
that for noise, whose size it learns; points with few runs have more of it. Lengths get a prior that grows with the
number of features (Hvarfner et al. 2024), so that twenty features and a few dozen points do not make it see patterns
in chance.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from scipy.linalg import cho_solve, cholesky, solve_triangular
from scipy.optimize import minimize
from threadpoolctl import threadpool_limits

from surrogate.fitting import online

LENGTH_PRIOR = (
    math.sqrt(2.0),
    math.sqrt(3.0),
)  # of log lengths: half of log features is added to the first
NOISE_PRIOR = (-3.0, 1.0)  # of the logarithm of the noise's share of the variance
SCALE_PRIOR = (0.0, 1.0)  # of the logarithm of the smooth part's
BOUNDS = ((math.log(0.02), math.log(50.0)), (math.log(1e-5), 1.0), (math.log(0.02), math.log(50.0)))
STEPS = 60  # of the search for the most probable parameters
JITTER = 1e-8


class SmoothModel(NamedTuple):
    """A fitted process; the results are `centre + spread × process`."""

    features: np.ndarray  # [point, feature]
    lengths: np.ndarray  # [feature]
    scale: float  # variance of the smooth part
    noise: float  # variance of the noise
    root: np.ndarray  # [point, point], lower Cholesky factor of the points' covariance
    weights: np.ndarray  # [point]
    centre: float
    spread: float

    def mean(self, features: np.ndarray) -> np.ndarray:
        """Return expected results `[candidate]` without noise at features `[candidate, feature]`."""
        cross = self.scale * _shape(_distances(features, self.features, self.lengths))
        expected: np.ndarray = self.centre + self.spread * (cross @ self.weights)
        return expected

    def draws(self, features: np.ndarray, count: int, random: np.random.Generator) -> np.ndarray:
        """Return joint draws `[draw, candidate]` of results without noise at features `[candidate, feature]`."""
        cross = self.scale * _shape(_distances(features, self.features, self.lengths))
        solved = solve_triangular(self.root, cross.T, lower=True, check_finite=False)
        own = self.scale * _shape(_distances(features, features, self.lengths))
        covariance = own - solved.T @ solved
        covariance[np.diag_indices_from(covariance)] += 1e-5 * self.scale
        root = cholesky(covariance, lower=True, overwrite_a=True, check_finite=False)
        drawn = cross @ self.weights + random.normal(size=(count, len(features))) @ root.T
        results: np.ndarray = self.centre + self.spread * drawn
        return results


def fitted(
    features: np.ndarray, results: np.ndarray, noisiness: np.ndarray | None = None
) -> SmoothModel:
    """Fit the process with the most probable parameters to results `[point]` at features `[point, feature]`.

    `noisiness` `[point]` is the variance of each point's noise in units of the one learnt; by default all are 1.
    """
    centre, spread = float(results.mean()), max(float(results.std()), 1e-9)
    wanted = (results - centre) / spread
    width = features.shape[1]
    noisiness = np.ones(len(results)) if noisiness is None else noisiness
    start = np.full(width + 2, math.log(0.5) + 0.5 * math.log(width))
    start[-2:] = NOISE_PRIOR[0], SCALE_PRIOR[0]
    bounds = [BOUNDS[0]] * width + list(BOUNDS[1:])
    with threadpool_limits(1):  # more threads are slower at this size
        fit = minimize(
            _loss, np.clip(start, *np.array(bounds).T), (features, wanted, noisiness), "L-BFGS-B",
            jac=True, bounds=bounds, options={"maxiter": STEPS},
        )  # fmt: skip
        lengths, (noise, scale) = np.exp(fit.x[:-2]), np.exp(fit.x[-2:])
        covariance = scale * _shape(_distances(features, features, lengths))
        covariance[np.diag_indices_from(covariance)] += noise * noisiness + JITTER
        root = cholesky(covariance, lower=True, check_finite=False)
        weights = cho_solve((root, True), wanted, check_finite=False)
    return SmoothModel(features, lengths, float(scale), float(noise), root, weights, centre, spread)


class SmoothOutputs(NamedTuple):
    """A process for each output of `KnownPoints.targets`; one that is the same at all points is a constant."""

    processes: tuple[SmoothModel | float, ...]
    errors: np.ndarray | None  # [excess], see `KnownPoints`

    def scores(self, features: np.ndarray, count: int, random: np.random.Generator) -> np.ndarray:
        """Return merged scores `[draw, candidate]` of `count` joint draws at features `[candidate, feature]`."""
        with threadpool_limits(1):  # the same bits on any number of cores
            drawn = [
                np.full((count, len(features)), process)
                if isinstance(process, float)
                else process.draws(features, count, random)
                for process in self.processes
            ]
        padded = 1 << (len(features) - 1).bit_length()  # few shapes, since each is compiled
        outputs = np.zeros((count, padded, len(drawn)), np.float32)
        outputs[:, : len(features)] = np.stack(drawn, axis=-1)
        return np.asarray(online.merged(outputs, self.errors))[:, : len(features)]


def fitted_outputs(
    features: np.ndarray, targets: np.ndarray, errors: np.ndarray | None, num_runs: np.ndarray
) -> SmoothOutputs:
    """Return processes of targets `[point, output]`; a point with few runs `[point]` has more noise."""
    noisiness = np.median(num_runs) / num_runs
    return SmoothOutputs(
        tuple(
            float(column[0]) if np.ptp(column) < 1e-9 else fitted(features, column, noisiness)
            for column in targets.T
        ),
        errors,
    )


def _loss(
    logs: np.ndarray, features: np.ndarray, wanted: np.ndarray, noisiness: np.ndarray
) -> tuple[float, np.ndarray]:
    """Minus the log posterior of log lengths, log noise and log scale, and its gradient."""
    lengths, (noise, scale) = np.exp(logs[:-2]), np.exp(logs[-2:])
    count, width = features.shape
    distances = _distances(features, features, lengths)
    smooth = scale * _shape(distances)
    covariance = smooth.copy()
    covariance[np.diag_indices(count)] += noise * noisiness + JITTER
    root = cholesky(covariance, lower=True, check_finite=False)
    inverse = cho_solve((root, True), np.eye(count), check_finite=False)
    weights = inverse @ wanted
    loss = 0.5 * float(wanted @ weights) + float(np.log(root.diagonal()).sum())
    slopes = np.outer(weights, weights) - inverse  # -2 times the loss's, by covariance
    apart = math.sqrt(5.0) * distances
    pulls = slopes * (5.0 / 3.0 * scale) * (1.0 + apart) * np.exp(-apart)
    scaled = features / lengths
    squares = 2 * pulls.sum(axis=1) @ scaled**2 - 2 * ((pulls @ scaled) * scaled).sum(axis=0)
    gradient = np.empty(width + 2)
    gradient[:-2] = -0.5 * squares
    gradient[-2] = -0.5 * noise * float((slopes.diagonal() * noisiness).sum())
    gradient[-1] = -0.5 * float((slopes * smooth).sum())
    middles = np.full(width + 2, LENGTH_PRIOR[0] + 0.5 * math.log(width))
    sizes = np.full(width + 2, LENGTH_PRIOR[1])
    middles[-2:], sizes[-2:] = (NOISE_PRIOR[0], SCALE_PRIOR[0]), (NOISE_PRIOR[1], SCALE_PRIOR[1])
    away = (logs - middles) / sizes
    return loss + 0.5 * float(away @ away), gradient + away / sizes


def _distances(ours: np.ndarray, theirs: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Distances `[our, their]` in lengths."""
    first, second = ours / lengths, theirs / lengths
    squares = (first**2).sum(axis=1)[:, None] + (second**2).sum(axis=1) - 2 * first @ second.T
    distances: np.ndarray = np.sqrt(np.maximum(squares, 0.0))
    return distances


def _shape(distances: np.ndarray) -> np.ndarray:
    """Matérn covariance (5/2) at distances in lengths."""
    apart = math.sqrt(5.0) * distances
    shape: np.ndarray = (1.0 + apart + apart * apart / 3.0) * np.exp(-apart)
    return shape

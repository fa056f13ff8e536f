"""A Gaussian process of results that are rough: smooth at large, and jumping from value to value.

A result over fixed seeds is a step function: the next token budget orders the batches otherwise, while
moving a weight often changes nothing at all. The process is the sum of a smooth part, one of very short
lengths in those parameters in which results jump, and hardly any noise. So a value that was tried is
known, its neighbours are not, and points that differ only in what changes nothing are worth nothing.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

SMOOTH_BOUNDS = (0.02, 20.0)  # of lengths, in shares of a range
LENGTHS = (1e-4, 1e-3, 1e-2, 0.1, 100.0)  # of the rough part; the last one is none
MOST_ROUGH = 1.0  # of the variance
SWEEPS = 3  # over the parameters, when the rough part's lengths are chosen
NOISE = 1e-6
RIDGE = 1e-10  # that scikit-learn adds to a covariance


def draws(
    features: np.ndarray,
    targets: np.ndarray,
    candidates: np.ndarray,
    count: int,
    random: np.random.Generator,
    is_rough: bool = True,
) -> np.ndarray:
    """Draws `[draw, candidate]` of a process fitted to targets `[point]` at features `[point, feature]`.

    `is_rough` False leaves the part of short lengths out.
    """
    from threadpoolctl import threadpool_limits

    if np.ptp(targets) < 1e-9:
        return np.full((count, len(candidates)), float(targets[0]))
    with threadpool_limits(1):  # more threads are slower at this size
        model = fitted(features, targets, int(random.integers(2**31)), is_rough)
        mean, cov = model.predict(candidates, return_cov=True)
        cov[np.diag_indices_from(cov)] += NOISE * float(cov.diagonal().mean())
        root = np.linalg.cholesky(cov)
    drawn: np.ndarray = mean + random.normal(size=(count, len(cov))) @ root.T
    return drawn


def fitted(features: np.ndarray, targets: np.ndarray, seed: int, is_rough: bool = True) -> Any:
    """The process: a smooth part and noise by likelihood, that noise as a rough part, then both again."""
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel

    width = features.shape[1]
    smooth = ConstantKernel(1.0, (0.01, 100.0)) * Matern(np.full(width, 0.5), SMOOTH_BOUNDS, nu=2.5)

    def model(kernel: Any, **settings: Any) -> Any:
        """A process with a kernel, fitted."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about parameters that reach their bounds
            made = GaussianProcessRegressor(kernel, normalize_y=True, **settings)
            return made.fit(features, targets)

    def rough(variance: float, lengths: tuple[float, ...]) -> Any:
        """The rough part and what noise is left."""
        shape = Matern(np.array(lengths), "fixed", nu=0.5)
        bounds = (min(variance, 1e-4), 10.0)
        return ConstantKernel(variance, bounds) * shape + WhiteKernel(NOISE, "fixed")

    plain = model(smooth + WhiteKernel(1e-3, (NOISE, MOST_ROUGH)), random_state=seed)
    if not is_rough:
        plain.kernel_.k2.noise_level = NOISE  # draws are of the process, not of noisy results
        return plain
    first = plain.kernel_
    variance = float(first.k2.noise_level)
    lengths = _likeliest(
        likelihood_of_rough(features, targets, first.k1(features), variance), width
    )
    return model(smooth + rough(variance, lengths), random_state=seed)


def likelihood_of_rough(
    features: np.ndarray, targets: np.ndarray, smooth: np.ndarray, variance: float
) -> Callable[[tuple[float, ...]], float]:
    """Logarithm of the points' likelihood by the rough part's lengths; minus infinity where it has none.

    `smooth` is the covariance of the smooth part, `[point, point]`, which stays; `variance` is the rough
    part's. scikit-learn's process has the likelihood, too, in many times the time: it builds its
    kernels anew for every call.
    """
    from scipy.linalg import LinAlgError, cho_solve, cholesky

    size = len(targets)
    fixed = smooth + (NOISE + RIDGE) * np.eye(size)
    scaled = (targets - targets.mean()) / targets.std()
    steps = features.T[:, :, None] - features.T[:, None, :]
    squares = (steps * steps).reshape(len(steps), -1)  # by feature

    def likelihood(lengths: tuple[float, ...]) -> float:
        """With these lengths."""
        rough = np.exp(-np.sqrt(np.array(lengths) ** -2.0 @ squares)).reshape(fixed.shape)
        try:
            root = cholesky(fixed + variance * rough, lower=True, check_finite=False)
        except LinAlgError:
            return -np.inf
        weights = cho_solve((root, True), scaled, check_finite=False)
        return float(
            -0.5 * scaled @ weights - np.log(root.diagonal()).sum() - size / 2 * np.log(2 * np.pi)
        )

    return likelihood


def _likeliest(likelihood: Callable[[tuple[float, ...]], float], width: int) -> tuple[float, ...]:
    """The likeliest lengths: rough in one parameter to begin with, then all in turn."""
    none = (LENGTHS[-1],) * width
    begun = [likelihood(_with(none, place, LENGTHS[0])) for place in range(width)]
    order = sorted(range(width), key=lambda place: -begun[place])
    best, lengths = begun[order[0]], _with(none, order[0], LENGTHS[0])
    for _ in range(SWEEPS):
        before = lengths
        for place in order:
            for length in LENGTHS:
                trial = _with(lengths, place, length)
                found = best if trial == lengths else likelihood(trial)
                if found > best + 1e-6:
                    lengths, best = trial, found
        if lengths == before:
            break
    return lengths


def _with(lengths: tuple[float, ...], place: int, length: float) -> tuple[float, ...]:
    return (*lengths[:place], length, *lengths[place + 1 :])

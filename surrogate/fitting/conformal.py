"""Calibrated intervals: how far calibration points lie off, in units of their own uncertainty.

A split conformal interval at confidence 1 - a covers a new exchangeable point with probability at
least 1 - a, whatever the network is like (Papadopoulos et al. 2002). The scores are crepes'.
"""

from __future__ import annotations

import numpy as np


def scores(residuals: np.ndarray, sigmas: np.ndarray) -> np.ndarray:
    """Sorted scores `[output, point]`, largest first, from residuals and sigmas `[point, output]`."""
    from crepes import ConformalRegressor

    return np.array(
        [
            ConformalRegressor().fit(residual, sigmas=sigma).alphas
            for residual, sigma in zip(residuals.T, sigmas.T, strict=True)
        ]
    ).reshape(residuals.shape[1], residuals.shape[0])


def factors(sorted_scores: np.ndarray, confidence: float) -> np.ndarray:
    """How many sigmas an interval reaches to each side, `[output]`; as in crepes' `predict_int`.

    Infinite where there are too few calibration points for the confidence.
    """
    place = int((1 - confidence) * (sorted_scores.shape[1] + 1)) - 1
    if place < 0:
        return np.full(len(sorted_scores), np.inf)
    return np.asarray(sorted_scores[:, place])

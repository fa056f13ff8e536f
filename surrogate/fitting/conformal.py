"""Calibrated intervals: how far calibration points lie off, in units of their own uncertainty.

A split conformal interval at confidence 1 - a covers a new exchangeable point with probability at
least 1 - a, whatever the network is like (Papadopoulos et al. 2002). Scores and factors are crepes'.
Each region of the space has factors of its own, so the same holds within a region (Vovk 2012).
"""

from __future__ import annotations

import numpy as np

from surrogate.regions import calibrated_as


def scores(residuals: np.ndarray, sigmas: np.ndarray) -> np.ndarray:
    """Scores `[output, point]` from residuals and sigmas `[point, output]`; infinite for a gap."""
    found = np.abs(residuals) / sigmas
    return np.asarray(np.where(np.isnan(found), np.inf, found).T)


def factors(scores: np.ndarray, confidence: float) -> np.ndarray:
    """How many sigmas an interval reaches to each side, `[output]`; as in crepes' `predict_int`.

    Infinite where there are too few calibration points for the confidence.
    """
    place = int((1 - confidence) * (scores.shape[1] + 1)) - 1
    if place < 0:
        return np.full(len(scores), np.inf)
    return np.asarray(-np.sort(-scores, axis=1)[:, place])


def factors_by_region(scores: np.ndarray, region: np.ndarray, confidence: float) -> np.ndarray:
    """The same in each region, `[region, output]`."""
    group = calibrated_as(region)
    of_point = group[region]
    return np.stack([factors(scores[:, of_point == one], confidence) for one in group])

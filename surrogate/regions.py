"""Regions of a space that get intervals of their own: where optima lie, and where a limit is off.

An interval that holds at nine of ten points of a whole space may hold far more seldom at the few that
anybody wants. The regions follow from a point and its predicted mean alone, so they are known before
anything is simulated, and split conformal intervals hold within each of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from surrogate.columns import InputColumn

WHOLE = "whole space"
ELSEWHERE, BEST, BRANCH = REGIONS = ("elsewhere", "best quarter", "branch")
SHARE = 0.25  # of the points, with the lowest predicted means of the main output
FEWEST = 50  # calibration points of a region; one with fewer is calibrated with what is elsewhere


@dataclass(frozen=True)
class Regions:
    """The best quarter, by one learned output's mean, and the branch of the columns with a limit off."""

    main: int  # place among the learned outputs
    threshold: float  # means up to it are in the best quarter, in the output's unit
    off_at: np.ndarray  # [column], the value that turns a limit off; NaN where there is none

    def of(self, inputs: Any, mean: Any) -> Any:
        """Places in REGIONS, `[point]`, from inputs and means of the learned outputs, in their units."""
        is_branch = (inputs == self.off_at).any(axis=1).astype(np.int32)
        is_best = (mean[:, self.main] <= self.threshold).astype(np.int32)
        return 2 * is_branch + (1 - is_branch) * is_best


def regions_of(
    columns: Sequence[InputColumn], main: int, inputs: np.ndarray, mean: np.ndarray
) -> Regions:
    """The regions by what is predicted of points that fill the space."""
    off = [np.nan if one.unlimited_at is None else one.unlimited_at for one in columns]
    off_at = np.array(off, np.float32)
    is_off = (inputs == off_at).any(axis=1)
    return Regions(main, float(np.quantile(mean[~is_off, main], SHARE)), off_at)


def calibrated_as(region: np.ndarray) -> np.ndarray:
    """The region by whose points each region is calibrated, `[region]`."""
    counts = np.bincount(region, minlength=len(REGIONS))
    return np.where(counts >= FEWEST, np.arange(len(REGIONS)), 0)

"""The Pareto front of a search's points and the hypervolume that it dominates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from moocore import hypervolume as volume_of
from moocore import is_nondominated

if TYPE_CHECKING:
    from jaxtyping import Bool, Float


def nondominated(objectives: Float[np.ndarray, "point goal"]) -> Bool[np.ndarray, "point"]:
    """Return which points no other point beats, all objectives minimised; of equal ones the first."""
    if not len(objectives):
        return np.zeros(0, bool)
    mask: Bool[np.ndarray, "point"] = is_nondominated(np.asarray(objectives, float))
    return mask


def reference_point(objectives: Float[np.ndarray, "point goal"]) -> Float[np.ndarray, "goal"]:
    """Return the worst value of each objective `[goal]`: hypervolumes of one search are measured from it."""
    worst: Float[np.ndarray, "goal"] = np.max(objectives, axis=0)
    return worst


def hypervolume(
    objectives: Float[np.ndarray, "point goal"], reference: Sequence[float] | np.ndarray
) -> float:
    """Return the volume between the points and the reference, in the product of the objectives' units."""
    if not len(objectives):
        return 0.0
    return float(volume_of(np.asarray(objectives, float), ref=np.asarray(reference, float)))

"""Evaluations needed, censored medians with intervals, and regret curves of repeated searches."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from scipy.stats import binom


def needed(curve: np.ndarray, goal: float) -> float:
    """Evaluations up to the first within the goal; infinite if there is none."""
    reached = np.flatnonzero(curve <= goal)
    return float(reached[0] + 1) if len(reached) else math.inf


def median_interval(
    values: Sequence[float], confidence: float = 0.95
) -> tuple[float, float, float]:
    """Median and its interval from order statistics (exact binomial); infinite values are censored."""
    ordered = np.sort(np.asarray(values, float))
    count = len(ordered)
    middle = float(ordered[(count - 1) // 2])
    if count % 2 == 0:
        pair = ordered[count // 2 - 1 : count // 2 + 1]
        middle = float(pair.mean()) if np.isfinite(pair).all() else float(pair[1])
    rank = int(binom.ppf((1 - confidence) / 2, count, 0.5))
    if rank < 1:
        return middle, math.nan, math.nan
    return middle, float(ordered[rank - 1]), float(ordered[count - rank])


def regret_table(
    curves: Mapping[str, Sequence[np.ndarray]], best: float, calls: int
) -> pd.DataFrame:
    """Relative regret by engine and evaluation: median and quartiles over repetitions."""
    rows = []
    for engine, found in curves.items():
        if not found:
            continue
        regret = np.array([padded(curve, calls) for curve in found]) / best - 1
        for call in range(calls):
            low, middle, high = np.percentile(regret[:, call], (25, 50, 75))
            interval = median_interval(regret[:, call].tolist())
            rows.append({
                "engine": engine, "evaluation": call + 1, "median": middle, "lower_quartile": low,
                "upper_quartile": high, "low": interval[1], "high": interval[2],
            })  # fmt: skip
    return pd.DataFrame(rows)


def padded(curve: np.ndarray, calls: int) -> np.ndarray:
    """A curve of the full length; one that was stopped near enough stays where it was."""
    return np.concatenate([curve, np.full(max(calls - len(curve), 0), curve[-1])])[:calls]

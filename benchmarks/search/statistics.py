"""Evaluations needed, censored medians and shares, each with an exact interval."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from scipy.stats import beta, binom


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


def ratio_interval(
    ours: Sequence[float], theirs: Sequence[float], most: float, draws: int = 4000
) -> tuple[float, float, float]:
    """Ratio of two medians of pairs, and its 95 % interval: bootstrap over the pairs (percentiles).

    Medians above `most` count as `most`, infinite ones too.
    """
    pairs = np.stack([np.asarray(ours, float), np.asarray(theirs, float)])
    chosen = np.random.default_rng(0).integers(pairs.shape[1], size=(draws, pairs.shape[1]))
    drawn = np.minimum(np.median(pairs[:, chosen], axis=2), most)
    found = np.minimum(np.median(pairs, axis=1), most)
    low, high = np.quantile(drawn[0] / drawn[1], [0.025, 0.975])
    return float(found[0] / found[1]), float(low), float(high)


def share_interval(hits: int, count: int, confidence: float = 0.95) -> tuple[float, float]:
    """Exact interval (Clopper and Pearson) of a share that was met `hits` times of `count`."""
    tail = (1 - confidence) / 2
    low = float(beta.ppf(tail, hits, count - hits + 1)) if hits else 0.0
    high = float(beta.ppf(1 - tail, hits + 1, count - hits)) if hits < count else 1.0
    return low, high


def needed(places: Sequence[int], is_near: Sequence[bool]) -> float:
    """Evaluations up to the first of some places whose point is near enough; infinite if none is."""
    found = [place + 1 for place, near in zip(places, is_near, strict=True) if near]
    return float(min(found)) if found else math.inf

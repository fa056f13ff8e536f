"""Which layout wins: how often pairs of layouts are put in the measured order, and where intervals do not say."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from papers.real_servers.designs import Error

TIE = 0.02  # pairs that measured nearer than this share do not count
DRAWS = 1000


class LayoutAgreement(NamedTuple):
    """Pairs of layouts at one concurrency."""

    layouts: int
    pairs: int
    right: float  # share of the pairs in the measured order
    low: float  # 95 %, layouts drawn again
    high: float
    decided: float  # share of the pairs that intervals keep apart
    decided_right: float  # of these, the share in the measured order; NaN without any


def agreement(
    errors: Sequence[Error], layout_of: Mapping[str, str], half: Mapping[str, float]
) -> LayoutAgreement:
    """Compare all pairs of layouts.

    Args:
        errors: one figure of runs that differ in their layout.
        layout_of: the layout of a run, by its name.
        half: half of an interval of the figure, in logarithms, by the name of the run.
    """
    errors = list(errors)
    sides: dict[tuple[int, int], tuple[bool, bool]] = {}
    for one, other in itertools.combinations(range(len(errors)), 2):
        measured = math.log(errors[one].measured / errors[other].measured)
        guess = math.log(errors[one].predicted / errors[other].predicted)
        if abs(measured) > math.log1p(TIE):
            unsure = math.hypot(half[errors[one].run], half[errors[other].run])
            sides[one, other] = (measured * guess > 0, abs(guess) > unsure)
    if not sides:
        return LayoutAgreement(len(errors), 0, math.nan, math.nan, math.nan, math.nan, math.nan)
    rng = np.random.default_rng(0)
    shares = []
    for _ in range(DRAWS):
        weight = np.bincount(rng.integers(0, len(errors), len(errors)), minlength=len(errors))
        pairs = np.array([weight[one] * weight[other] for one, other in sides])
        if pairs.sum():
            right = np.array([is_right for is_right, _ in sides.values()])
            shares.append(float(pairs @ right / pairs.sum()))
    low, high = np.percentile(shares, [2.5, 97.5])
    decided = [is_right for is_right, is_decided in sides.values() if is_decided]
    return LayoutAgreement(
        len({layout_of[one.run] for one in errors}),
        len(sides),
        float(np.mean([is_right for is_right, _ in sides.values()])),
        float(low),
        float(high),
        len(decided) / len(sides),
        float(np.mean(decided)) if decided else math.nan,
    )

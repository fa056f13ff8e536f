"""Whether a cluster meets its targets: looks at more and more seeds until that is clear.

A run `i` has `n_i` requests of a target's class, of which `g_i` are in time; the share in time is
`E[g] / E[n]`, and it is at least `q` where the mean of `g_i - q n_i` is not negative. Each look takes a bound of that
mean that allows for its skewness. The allowed error is divided among the looks (Bonferroni) and, since one target
alone is enough for a cluster to fail, among the targets where that is decided. No bound sees what happens once in more
runs than there are seeds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

import numpy as np

from blis_jax.statistics.skewed import skewed_bounds

if TYPE_CHECKING:
    from jaxtyping import Float

FIRST_LOOK = 32  # seeds; the number doubles from look to look


class Answer(Enum):
    """What the seeds so far say of a cluster."""

    MEETS = "meets"
    FAILS = "fails"
    OPEN = "open"


@dataclass(frozen=True)
class Attained:
    """The share of requests in time, with the interval of the last look."""

    share: float
    low: float
    high: float


@dataclass(frozen=True)
class Decision:
    """What is known of one cluster."""

    answer: Answer
    num_seeds: int
    attained: tuple[Attained, ...]  # by target


def looks(num_seeds: int) -> tuple[int, ...]:
    """After how many seeds one looks: 32, 64, … and all."""
    found, count = [], FIRST_LOOK
    while count < num_seeds:
        found.append(count)
        count *= 2
    return (*found, num_seeds)


def decide(
    num_good: Float[np.ndarray, "seed target"],
    num_requests: Float[np.ndarray, "seed target"],
    shares: Sequence[float],
    error: float,
    num_looks: int,
) -> Decision:
    """What one look says.

    Args:
        num_good: requests in time.
        num_requests: all requests that count for the target.
        shares: what is asked for, 0 to 1.
        error: probability that any of the looks is wrong.
        num_looks: how many looks there are at most.
    """
    num_targets = num_good.shape[1]
    each = error / num_looks
    excess = num_good - np.asarray(shares)[None, :] * num_requests
    is_enough = [skewed_bounds(column, each)[0] >= 0 for column in excess.T]
    is_short = [skewed_bounds(column, each / num_targets)[1] < 0 for column in excess.T]
    attained = tuple(
        _attained(good, total, each / num_targets)
        for good, total in zip(num_good.T, num_requests.T, strict=True)
    )
    answer = Answer.MEETS if all(is_enough) else Answer.FAILS if any(is_short) else Answer.OPEN
    return Decision(answer, len(num_good), attained)


def _attained(good: np.ndarray, total: np.ndarray, error: float) -> Attained:
    """Ratio of the sums, with the bounds of its linearisation."""
    if not total.sum():
        return Attained(math.nan, math.nan, math.nan)
    share = float(good.sum() / total.sum())
    low, high = skewed_bounds((good - share * total) / total.mean(), error)
    return Attained(share, max(share + low, 0.0), min(share + high, 1.0))

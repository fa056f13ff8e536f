"""Lognormal laws fitted to the distributions of ServeGen data, and sums as BLIS adds them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from blis_jax.workload import go_math
from blis_jax.workload.servegen.reading import DAY_S, Lengths

LEAST_VARIANCE = -1e-10  # below 0 by rounding alone
Fit = tuple[float, float]  # mu and sigma


class Fitted(NamedTuple):
    """The laws of prompts and of answers from a second on; None where a distribution has none."""

    start_s: int
    prompts: Fit | None
    answers: Fit | None


def fitted(lengths: Lengths) -> Fitted:
    """Return the laws fitted to both distributions."""
    laws = _lognormal(lengths.input_tokens), _lognormal(lengths.output_tokens)
    return Fitted(int(lengths.start_s), *laws)


def last_before(fits: Sequence[Fitted], start_s: int) -> Fitted | None:
    """Return the last of the fits that holds from `start_s` or from before it."""
    before = [each for each in fits if 0 <= each.start_s <= start_s]
    return before[-1] if before else None


def each_day(fits: Sequence[Fitted], start_s: int) -> list[Fitted]:
    """Return the fits of all days at the time of day of the last one before `start_s`; none if there is none."""
    last = last_before(fits, start_s)
    if last is None:
        return []
    return [each for each in fits if each.start_s % DAY_S == last.start_s % DAY_S]


def _lognormal(law: Mapping[int, float]) -> Fit | None:
    """Return mu and sigma of the lengths above 0; None if there are none, or one has a negative probability."""
    weight, logs, squares = 0.0, 0.0, 0.0
    for tokens, share in sorted(law.items()):
        if tokens > 0 and share < 0:
            return None
        if tokens > 0 and share:
            log = go_math.log(tokens)
            weight += share
            logs += share * log
            squares += share * log * log
    if weight <= 0:
        return None
    mu = logs / weight
    variance = squares / weight - mu * mu
    return (mu, math.sqrt(max(variance, 0.0))) if variance > LEAST_VARIANCE else None


def means(chosen: Sequence[Fit], count: int) -> Fit:
    """Return the sums of mu and of sigma, divided by `count`."""
    mu, sigma = (total(fit[part] for fit in chosen) / count for part in (0, 1))
    return mu, sigma


def mean(values: Sequence[float]) -> float:
    """Return the mean of values."""
    return total(values) / len(values)


def total(values: Iterable[float]) -> float:
    """Return the sum of values added in order, which Python's own `sum` rounds differently."""
    reached = 0.0
    for value in values:
        reached += value
    return reached

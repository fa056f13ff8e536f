"""Token counts, each law drawn as the reference draws it."""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable

from blis_jax.workload.go_random.stream import Stream
from blis_jax.workload.lengths import laws
from blis_jax.workload.reference import go_math
from blis_jax.workload.revised.laws import (
    BoundedExponentialLaw,
    BoundedParams,
    LognormalLaw,
    LognormalParams,
    RevisedLengthLaw,
)

Length = Callable[[Stream], int]
AnyLaw = laws.LengthLaw | RevisedLengthLaw


def length_law(law: AnyLaw) -> Length:
    """The law as a function of a stream; a law with one possible value draws nothing."""
    if isinstance(law, laws.GaussianLaw):
        return _gaussian(law.params)
    if isinstance(law, BoundedExponentialLaw):
        return _bounded_exponential(law.params)
    if isinstance(law, LognormalLaw):
        return _lognormal(law.params)
    if isinstance(law, laws.ExponentialLaw):
        mean = law.params.mean
        return lambda stream: whole_tokens(stream.exp_float64() * mean)
    if isinstance(law, laws.ParetoLognormalLaw):
        return _pareto_lognormal(law.params)
    if isinstance(law, laws.ConstantLaw):
        tokens = max(law.params.value, 1)
        return lambda stream: tokens
    return _empirical(law.params)


def _bounded_exponential(params: BoundedParams) -> Length:
    def length(stream: Stream) -> int:
        drawn = go_math.to_int64(go_math.round_half_away(stream.exp_float64() * params.mean))
        return _within(drawn, params.min, params.max)

    return length


def _lognormal(params: LognormalParams) -> Length:
    def length(stream: Stream) -> int:
        drawn = go_math.exp(params.mu + params.sigma * stream.norm_float64())
        if math.isinf(drawn):
            return max(params.min, 1)
        return _within(go_math.to_int64(go_math.round_half_away(drawn)), params.min, params.max)

    return length


def _within(tokens: int, low: int, high: int) -> int:
    """Raised to the lower bound, then lowered to the upper one if there is one; at least 1."""
    raised = max(tokens, low)
    return max(min(raised, high) if high else raised, 1)


def whole_tokens(length: float) -> int:
    """Rounded half away from zero, at least 1; also 1 where the number does not fit."""
    return max(go_math.to_int64(go_math.round_half_away(length)), 1)


def _gaussian(params: laws.GaussianParams) -> Length:
    low, high = params.min, params.max
    if low == high:
        return lambda stream: low

    def length(stream: Stream) -> int:
        drawn = stream.norm_float64() * params.std_dev + params.mean
        return whole_tokens(min(float(high), max(float(low), drawn)))

    return length


def _pareto_lognormal(params: laws.ParetoLognormalParams) -> Length:
    def length(stream: Stream) -> int:
        if stream.float64() < params.mix_weight:
            uniform = stream.float64() or go_math.LEAST_POSITIVE
            divisor = go_math.power(uniform, 1.0 / params.alpha)
            return whole_tokens(params.xm / divisor) if divisor else 1
        return whole_tokens(go_math.exp(params.mu + params.sigma * stream.norm_float64()))

    return length


def _empirical(weights: dict[int, float]) -> Length:
    counts = sorted(weights)
    total = 0.0
    for count in counts:  # one by one: Python's sum rounds less from 3.12 on
        total += weights[count]
    values, cumulative, reached = [], [], 0.0
    for count in counts:
        if weights[count] > 0:
            reached += weights[count] / total
            values.append(count)
            cumulative.append(reached)
    if len(values) == 1:
        return lambda stream: values[0]
    # the last value takes what rounding leaves
    return lambda stream: values[
        bisect.bisect_left(cumulative, stream.float64(), hi=len(values) - 1)
    ]

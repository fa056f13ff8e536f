"""Gaps between arrivals, each law drawn as the reference draws it: whole microseconds, at least 1."""

from __future__ import annotations

import math
from collections.abc import Callable

from blis_jax.workload.go_random.stream import Stream
from blis_jax.workload.inference_perf import ExactCount, Pace
from blis_jax.workload.reference import go_math
from blis_jax.workload.revised.spec import RevisedArrival
from blis_jax.workload.spec import ArrivalSpec, is_gamma_too_bursty

Gap = Callable[[Stream], int]  # 0: no request is left

LEAST_RATE_US = 1e-15  # requests per microsecond
WEIBULL_SHAPES = (0.1, 100.0)
WEIBULL_CV_TOLERANCE = 0.001
WEIBULL_BISECTIONS = 100


def gap_law(arrival: ArrivalSpec, rate_us: float) -> Gap:
    """The law of a client that sends so many requests per microsecond."""
    fitted = _fitted_law(arrival)
    if fitted is not None:
        return fitted
    rate_us = max(rate_us, LEAST_RATE_US)
    cv = 1.0 if arrival.cv is None else arrival.cv
    if arrival.process == "constant":
        return _constant(max(go_math.to_int64(1.0 / rate_us), 1))
    if arrival.process == "gamma" and not is_gamma_too_bursty(cv):
        return _gamma(1.0 / (cv * cv), 1.0 / rate_us * cv * cv)
    if arrival.process == "weibull":
        shape = weibull_shape(cv)
        return _weibull(shape, 1.0 / rate_us / math.gamma(1.0 + 1.0 / shape))
    return _poisson(rate_us)


def _fitted_law(arrival: ArrivalSpec) -> Gap | None:
    """The law of given shape and scale, whatever the rate."""
    if not isinstance(arrival, RevisedArrival) or arrival.shape is None or arrival.scale is None:
        return None
    laws = {"gamma": _gamma, "weibull": _weibull}
    law = laws.get(arrival.process)
    return None if law is None else law(arrival.shape, arrival.scale)


def paced_gaps(pace: Pace, own: Stream) -> Gap:
    """The gaps of a client with a pace of its own, for which it may use a stream of its own."""
    if isinstance(pace, ExactCount):
        return _listed(exact_gaps(pace, own))
    return _poisson(pace.rate_us)


def exact_gaps(pace: ExactCount, stream: Stream) -> list[int]:
    """Exponential gaps, scaled so that together they fill the span."""
    rate_us = float(pace.count) / float(pace.duration_us)
    raw = [stream.exp_float64() / rate_us for _ in range(pace.count)]
    total = 0.0
    for gap in raw:  # one by one: Python's sum rounds less from 3.12 on
        total += gap
    scale = float(pace.duration_us) / total
    return [_whole(gap * scale) for gap in raw]


def _listed(gaps: list[int]) -> Gap:
    left = iter(gaps)
    return lambda stream: next(left, 0)


def weibull_shape(cv: float) -> float:
    """Shape whose coefficient of variation is within 0.001 of `cv`, by the reference's bisection."""
    low, high = WEIBULL_SHAPES
    for _ in range(WEIBULL_BISECTIONS):
        middle = (low + high) / 2.0
        found = _weibull_cv(middle)
        if abs(found - cv) < WEIBULL_CV_TOLERANCE:
            return middle
        low, high = (middle, high) if found > cv else (low, middle)
    return (low + high) / 2.0


def _weibull_cv(shape: float) -> float:
    first, second = math.gamma(1.0 + 1.0 / shape), math.gamma(1.0 + 2.0 / shape)
    return math.sqrt(second / (first * first) - 1.0)


def _whole(gap_us: float) -> int:
    return max(go_math.to_int64(gap_us), 1)


def _constant(gap_us: int) -> Gap:
    return lambda stream: gap_us


def _poisson(rate_us: float) -> Gap:
    return lambda stream: _whole(stream.exp_float64() / rate_us)


def _gamma(shape: float, scale_us: float) -> Gap:
    return lambda stream: _whole(gamma(stream, shape, scale_us))


def _weibull(shape: float, scale_us: float) -> Gap:
    def gap(stream: Stream) -> int:
        uniform = stream.float64() or go_math.LEAST_POSITIVE
        return _whole(scale_us * go_math.power(-math.log(uniform), 1.0 / shape))

    return gap


def gamma(stream: Stream, shape: float, scale: float) -> float:
    """Gamma by the rejection method of Marsaglia and Tsang (ACM TOMS 26, 2000).

    A shape below 1 is drawn as shape + 1 times a power of a uniform number, which comes first.
    """
    if shape < 1.0:
        uniform = stream.float64()
        grown = gamma(stream, shape + 1.0, scale)
        return grown * go_math.power(uniform, 1.0 / shape) if uniform else 0.0
    centre = shape - 1.0 / 3.0
    spread = 1.0 / math.sqrt(9.0 * centre)
    while True:
        normal, root = 0.0, 0.0
        while root <= 0.0:
            normal = stream.norm_float64()
            root = 1.0 + spread * normal
        cube = root * root * root
        uniform = stream.float64()
        if uniform < 1.0 - 0.0331 * (normal * normal) * (normal * normal):
            return centre * cube * scale
        log_density_ratio = 0.5 * normal * normal + centre * (1.0 - cube + math.log(cube))
        if uniform == 0.0 or math.log(uniform) < log_density_ratio:
            return centre * cube * scale

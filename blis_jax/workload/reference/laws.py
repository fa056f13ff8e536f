"""Laws from which the reference draws: deadlines, rates, gaps, lengths."""

from __future__ import annotations

import bisect
import functools
import math
from collections.abc import Callable, Sequence

from blis_jax.workload import length_laws
from blis_jax.workload.distribution import is_gamma_too_bursty
from blis_jax.workload.go_math import LEAST_POSITIVE, exp, power, round_half_away, to_int64
from blis_jax.workload.go_random import Stream
from blis_jax.workload.inference_perf import ExactCount, Pace
from blis_jax.workload.length_laws import (
    BoundedExponentialLaw,
    BoundedParams,
    LognormalLaw,
    LognormalParams,
    RevisedLengthLaw,
)
from blis_jax.workload.reference.requests import NO_DEADLINE
from blis_jax.workload.revised_spec import RevisedArrival, RevisedClient, RevisedWindow
from blis_jax.workload.spec import ActiveWindow, ArrivalSpec, ClientSpec

SESSION_TIMEOUT_US = 300_000_000  # of requests that others wait for


def timeout_of(spec: ClientSpec, is_round: bool) -> int:
    """Return the time from an arrival to its deadline in µs; 0 for none.

    Rounds of sessions, and all requests of a closed loop, have a deadline unless the file says otherwise.
    """
    if not isinstance(spec, RevisedClient):
        return 0
    if spec.timeout is not None:
        return spec.timeout
    return SESSION_TIMEOUT_US if is_round or spec.is_closed_loop else 0


def slo_target_us(spec: ClientSpec) -> int:
    """Return the client's bound on the time to the first token, 0 for none."""
    return (spec.slo_target_us or 0) if isinstance(spec, RevisedClient) else 0


def deadline_us(spec: ClientSpec, arrival_us: int, is_round: bool) -> int:
    """Return the deadline of a request that arrives at this time; NO_DEADLINE for none."""
    timeout_us = timeout_of(spec, is_round)
    return arrival_us + timeout_us if timeout_us else NO_DEADLINE


# --- how clients share a workload's rate ----------------------------------------------------------


Spans = tuple[tuple[int, int], ...]  # start and end in us; none: always


def shared_rates(clients: Sequence[ClientSpec], aggregate_rate: float) -> list[float]:
    """Return the arrivals per microsecond of each client.

    A client shares the rate with all clients whose active windows overlap its own. BLIS's first revision treats every
    client as always active.
    """
    spans = [tuple(map(_span, _windows(client))) for client in clients]
    total_of: dict[Spans, float] = {}
    meets = functools.cache(_overlap)
    for span in dict.fromkeys(spans):
        total = 0.0  # one by one: Python's sum rounds less from 3.12 on
        for client, other in zip(clients, spans, strict=True):
            if client.rate_fraction > 0.0 and meets(span, other):
                total += client.rate_fraction
        total_of[span] = total
    return [
        aggregate_rate * (client.rate_fraction / total_of[span]) / 1e6
        if client.rate_fraction > 0.0
        else 0.0
        for client, span in zip(clients, spans, strict=True)
    ]


def has_own_windows(clients: Sequence[ClientSpec]) -> bool:
    """Return whether any window replaces its client's rate or laws, so that all clients are drawn window by window."""
    return any(
        isinstance(window, RevisedWindow) and window.has_own_laws
        for client in clients
        for window in _windows(client)
    )


def window_rate(
    client: RevisedClient,
    window: RevisedWindow,
    clients: Sequence[ClientSpec],
    aggregate_rate: float,
) -> float:
    """Return the requests per second in one window: the aggregate rate times its share of overlapping weights.

    Only the first overlapping window of each client counts. Without an aggregate rate, the window's own rate is
    returned.
    """
    if not aggregate_rate and window.trace_rate is not None:
        return window.trace_rate
    total = 0.0
    for other in clients:
        windows = _windows(other)
        if not windows:
            total += other.rate_fraction
        first = next((each for each in windows if _meets(_span(each), _span(window))), None)
        if first is not None:
            total += _weight(other, first)
    return aggregate_rate * (_weight(client, window) / total) if total else 0.0


def _weight(client: ClientSpec, window: ActiveWindow) -> float:
    if isinstance(window, RevisedWindow) and window.trace_rate is not None:
        return window.trace_rate
    return client.rate_fraction


def _windows(client: ClientSpec) -> tuple[ActiveWindow, ...]:
    """Return the client's windows over which the rate is divided; none for a client that is always active."""
    if isinstance(client, RevisedClient) and client.lifecycle is not None:
        return client.lifecycle.windows
    return ()


def _span(window: ActiveWindow) -> tuple[int, int]:
    return window.start_us, window.end_us


def _overlap(spans: Spans, other: Spans) -> bool:
    if not spans or not other:
        return True
    return any(_meets(span, another) for span in spans for another in other)


def _meets(first: tuple[int, int], second: tuple[int, int]) -> bool:
    return first[0] < second[1] and second[0] < first[1]


# --- gaps between arrivals, each law drawn as the reference draws it ------------------------------


Gap = Callable[[Stream], int]  # 0: no request is left

LEAST_RATE_US = 1e-15  # requests per microsecond
WEIBULL_SHAPES = (0.1, 100.0)
WEIBULL_CV_TOLERANCE = 0.001
WEIBULL_BISECTIONS = 100


def gap_law(arrival: ArrivalSpec, rate_us: float) -> Gap:
    """Return the gap law of a client with this arrival law and `rate_us` requests per µs."""
    fitted = _fitted_law(arrival)
    if fitted is not None:
        return fitted
    rate_us = max(rate_us, LEAST_RATE_US)
    cv = 1.0 if arrival.cv is None else arrival.cv
    if arrival.process == "constant":
        gap_us = _whole(1.0 / rate_us)
        return lambda stream: gap_us
    if arrival.process == "gamma" and not is_gamma_too_bursty(cv):
        return _gamma(1.0 / (cv * cv), 1.0 / rate_us * cv * cv)
    if arrival.process == "weibull":
        shape = weibull_shape(cv)
        return _weibull(shape, 1.0 / rate_us / math.gamma(1.0 + 1.0 / shape))
    return _poisson(rate_us)


def _fitted_law(arrival: ArrivalSpec) -> Gap | None:
    """Return the gap law with the given shape and scale, independent of the rate; None if they are not both given."""
    if not isinstance(arrival, RevisedArrival) or arrival.shape is None or arrival.scale is None:
        return None
    laws = {"gamma": _gamma, "weibull": _weibull}
    law = laws.get(arrival.process)
    return None if law is None else law(arrival.shape, arrival.scale)


def paced_gaps(pace: Pace, stream: Stream) -> Gap:
    """Return the gap law of a client with its own pace; for an exact count, draw its gaps from `stream` at once."""
    if isinstance(pace, ExactCount):
        return _listed(exact_gaps(pace, stream))
    return _poisson(pace.rate_us)


def exact_gaps(pace: ExactCount, stream: Stream) -> list[int]:
    """Return drawn exponential gaps, scaled so that together they fill the span."""
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
    """Return the shape whose coefficient of variation is within 0.001 of `cv`, by the reference's bisection."""
    low, high = WEIBULL_SHAPES
    for _ in range(WEIBULL_BISECTIONS):
        middle = (low + high) / 2.0
        reached = _weibull_cv(middle)
        if abs(reached - cv) < WEIBULL_CV_TOLERANCE:
            return middle
        low, high = (middle, high) if reached > cv else (low, middle)
    return (low + high) / 2.0


def _weibull_cv(shape: float) -> float:
    first, second = math.gamma(1.0 + 1.0 / shape), math.gamma(1.0 + 2.0 / shape)
    return math.sqrt(second / (first * first) - 1.0)


def _whole(gap_us: float) -> int:
    return max(to_int64(gap_us), 1)


def _poisson(rate_us: float) -> Gap:
    return lambda stream: _whole(stream.exp_float64() / rate_us)


def _gamma(shape: float, scale_us: float) -> Gap:
    return lambda stream: _whole(gamma(stream, shape, scale_us))


def _weibull(shape: float, scale_us: float) -> Gap:
    def gap(stream: Stream) -> int:
        uniform = stream.float64() or LEAST_POSITIVE
        return _whole(scale_us * power(-math.log(uniform), 1.0 / shape))

    return gap


def gamma(stream: Stream, shape: float, scale: float) -> float:
    """Return a draw from a gamma law by the rejection method of Marsaglia and Tsang (ACM TOMS 26, 2000).

    A shape below 1 is drawn as shape + 1 times a power of a uniform number, which comes first.
    """
    if shape < 1.0:
        uniform = stream.float64()
        grown = gamma(stream, shape + 1.0, scale)
        return grown * power(uniform, 1.0 / shape) if uniform else 0.0
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


# --- token counts, each law drawn as the reference draws it ---------------------------------------


Length = Callable[[Stream], int]
AnyLaw = length_laws.LengthLaw | RevisedLengthLaw


def length_law(law: AnyLaw) -> Length:
    """Return the law as a function that draws from a stream; a law with one possible value uses no draw."""
    if isinstance(law, length_laws.GaussianLaw):
        return _gaussian(law.params)
    if isinstance(law, BoundedExponentialLaw):
        return _bounded_exponential(law.params)
    if isinstance(law, LognormalLaw):
        return _lognormal(law.params)
    if isinstance(law, length_laws.ExponentialLaw):
        mean = law.params.mean
        return lambda stream: whole_tokens(stream.exp_float64() * mean)
    if isinstance(law, length_laws.ParetoLognormalLaw):
        return _pareto_lognormal(law.params)
    if isinstance(law, length_laws.ConstantLaw):
        tokens = max(law.params.value, 1)
        return lambda stream: tokens
    return _empirical(law.params)


def _bounded_exponential(params: BoundedParams) -> Length:
    def length(stream: Stream) -> int:
        drawn = to_int64(round_half_away(stream.exp_float64() * params.mean))
        return _within(drawn, params.min, params.max)

    return length


def _lognormal(params: LognormalParams) -> Length:
    def length(stream: Stream) -> int:
        drawn = exp(params.mu + params.sigma * stream.norm_float64())
        if math.isinf(drawn):
            return max(params.min, 1)
        return _within(to_int64(round_half_away(drawn)), params.min, params.max)

    return length


def _within(tokens: int, low: int, high: int) -> int:
    """Return tokens raised to the lower bound, then lowered to the upper bound if there is one; at least 1."""
    raised = max(tokens, low)
    return max(min(raised, high) if high else raised, 1)


def whole_tokens(length: float) -> int:
    """Return a length rounded to whole tokens, halves away from zero; 1 if it is below 1 or does not fit."""
    return max(to_int64(round_half_away(length)), 1)


def _gaussian(params: length_laws.GaussianParams) -> Length:
    low, high = params.min, params.max
    if low == high:
        return lambda stream: low

    def length(stream: Stream) -> int:
        drawn = stream.norm_float64() * params.std_dev + params.mean
        return whole_tokens(min(float(high), max(float(low), drawn)))

    return length


def _pareto_lognormal(params: length_laws.ParetoLognormalParams) -> Length:
    def length(stream: Stream) -> int:
        if stream.float64() < params.mix_weight:
            uniform = stream.float64() or LEAST_POSITIVE
            divisor = power(uniform, 1.0 / params.alpha)
            return whole_tokens(params.xm / divisor) if divisor else 1
        return whole_tokens(exp(params.mu + params.sigma * stream.norm_float64()))

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
    # the last value takes the remainder of rounding
    return lambda stream: values[
        bisect.bisect_left(cumulative, stream.float64(), hi=len(values) - 1)
    ]

"""Arithmetic that Go does differently from Python and C.

Drawing requests uses Python's logarithm and exponential, which may differ from Go's in the last bit, about one part in
2^52. Their results are truncated to microseconds or rounded to tokens; the last bit changes one in 4e9 gaps of a
second, and one in 4e12 lengths of a thousand tokens. `log` has Go's bits.
"""

from __future__ import annotations

import math

LEAST_INT64 = -(2**63)
# FreeBSD's constants of the logarithm: its series, and the logarithm of 2 in two parts
_LOG = (
    0.6666666666666735, 0.3999999999940942, 0.2857142874366239, 0.22222198432149784, 0.1818357216161805,
    0.15313837699209373, 0.14798198605116586,
)  # fmt: skip
_LN2_HIGH, _LN2_LOW = 0.6931471803691238, 1.9082149292705877e-10
LEAST_POSITIVE = 5e-324  # stands for a uniform number of 0 where it would divide


def to_int64(value: float) -> int:
    """Return the truncated value; a value that does not fit becomes the least int64, as on the processor."""
    if not -(2.0**63) <= value < 2.0**63:
        return LEAST_INT64
    return int(value)


def round_half_away(value: float) -> float:
    """Return the nearest whole number, halves away from zero; infinities and NaN are returned unchanged."""
    if not math.isfinite(value):
        return value
    whole = math.trunc(value)
    return whole + math.copysign(1.0, value) if abs(value - whole) >= 0.5 else float(whole)


def exp(value: float) -> float:
    """Return the exponential; infinity where it overflows."""
    try:
        return math.exp(value)
    except OverflowError:
        return math.inf


def power(base: float, exponent: float) -> float:
    """Return a positive number raised to a positive power, by repeated squaring for the whole part, as in Go.

    The rounding error grows to as many units of the last place as the exponent, unlike that of C's pow.
    """
    if base == 1.0 or not math.isfinite(exponent):
        return 1.0 if base == 1.0 else (0.0 if base < 1.0 else math.inf)
    if exponent == 0.5:
        return math.sqrt(base)
    fraction, whole = math.modf(exponent)
    if whole >= 2.0**63:
        return 0.0 if base < 1.0 else math.inf
    remaining = int(whole)
    if fraction > 0.5:
        fraction, remaining = fraction - 1.0, remaining + 1
    mantissa = math.exp(fraction * math.log(base)) if fraction else 1.0
    factor, factor_exponent = math.frexp(base)
    binary_exponent = 0
    while remaining:
        if remaining & 1:
            mantissa *= factor
            binary_exponent += factor_exponent
        factor, factor_exponent = factor * factor, 2 * factor_exponent
        if factor < 0.5:
            factor, factor_exponent = 2.0 * factor, factor_exponent - 1
        remaining >>= 1
    try:
        return math.ldexp(mantissa, binary_exponent)
    except OverflowError:
        return math.inf


def log(value: float) -> float:
    """Return the natural logarithm of a positive number, to Go's last bit, by the series of FreeBSD's e_log.c."""
    factor, exponent = math.frexp(value)
    if factor < math.sqrt(0.5):
        factor, exponent = 2.0 * factor, exponent - 1
    beyond = factor - 1.0
    ratio = beyond / (2.0 + beyond)
    square = ratio * ratio
    fourth = square * square
    odd = square * (_LOG[0] + fourth * (_LOG[2] + fourth * (_LOG[4] + fourth * _LOG[6])))
    even = fourth * (_LOG[1] + fourth * (_LOG[3] + fourth * _LOG[5]))
    half = 0.5 * beyond * beyond
    rest = ratio * (half + (odd + even)) + exponent * _LN2_LOW
    return exponent * _LN2_HIGH - ((half - rest) - beyond)

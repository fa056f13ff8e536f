"""Go's arithmetic: powers, rounding, truncation of what does not fit."""

import math

import pytest

from blis_jax.workload import go_math


@pytest.mark.parametrize("base", [1e-9, 0.2, 0.5, 0.999, 1.0, 3.7, 1e3])
@pytest.mark.parametrize("exponent", [1e-3, 0.5, 0.7, 1.0, 2.0, 2.49, 16.0, 81.3])
def test_powers_are_those_of_c_but_for_rounding(base, exponent):
    found, expected = go_math.power(base, exponent), math.pow(base, exponent)
    assert math.isclose(found, expected, rel_tol=2.0**-52 * (exponent + 4))


@pytest.mark.parametrize(
    ("base", "exponent", "expected"),
    [
        (0.5, 1e300, 0.0),
        (2.0, 1e300, math.inf),
        (0.5, math.inf, 0.0),
        (2.0, math.inf, math.inf),
        (1.0, math.inf, 1.0),
        (1e-300, 2.0, 0.0),
        (1e300, 2.0, math.inf),
    ],
)
def test_powers_out_of_range(base, exponent, expected):
    assert go_math.power(base, exponent) == expected


def test_whole_powers_are_products_of_squares():
    base = 1.0 + 2.0**-40
    assert go_math.power(base, 3.0) == base * (base * base)


@pytest.mark.parametrize(
    ("value", "rounded"),
    [(0.5, 1), (-0.5, -1), (2.5, 3), (0.49999999999999994, 0), (2.4, 2), (2.0**52 + 1, 2**52 + 1)],
)
def test_halves_go_away_from_zero(value, rounded):
    assert go_math.round_half_away(value) == rounded


@pytest.mark.parametrize(
    ("value", "whole"),
    [
        (1.99, 1),
        (-1.99, -1),
        (2.0**63, -(2**63)),
        (math.inf, -(2**63)),
        (math.nan, -(2**63)),
        (-(2.0**63), -(2**63)),
    ],
)
def test_truncation(value, whole):
    assert go_math.to_int64(value) == whole


def test_exponentials_overflow_to_infinity():
    assert go_math.exp(709.785) == go_math.exp(800.0) == math.inf
    assert go_math.exp(1.0) == math.e

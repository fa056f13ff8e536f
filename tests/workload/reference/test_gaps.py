"""Laws of gaps: means and spreads, what each draws, and the reference's ways out."""

import math

import numpy as np
import pytest

from blis_jax.workload.go_random import Stream
from blis_jax.workload.inference_perf import ExactCount, OwnRate
from blis_jax.workload.reference.laws import gamma, gap_law, paced_gaps, weibull_shape
from blis_jax.workload.revised_spec import RevisedArrival
from blis_jax.workload.spec import ArrivalSpec

RATE_US = 1e-4  # one in 10 ms
COUNT = 20_000


def drawn(process, cv, rate_us=RATE_US, count=COUNT):
    law, stream = gap_law(ArrivalSpec(process=process, cv=cv), rate_us), Stream(9)
    return np.array([law(stream) for _ in range(count)], np.float64)


@pytest.mark.parametrize(
    ("process", "cv", "spread"),
    [
        ("poisson", None, 1.0),
        ("poisson", 3.0, 1.0),
        ("gamma", None, 1.0),
        ("gamma", 0.4, 0.4),
        ("gamma", 2.0, 2.0),
        ("gamma", 12.0, 1.0),
        ("weibull", None, 1.0),
        ("weibull", 0.5, 0.5),
        ("weibull", 2.0, 2.0),
        ("constant", 2.0, 0.0),
    ],
)
def test_mean_and_coefficient_of_variation(process, cv, spread):
    """20,000 gaps: 5 standard errors of the mean, a tenth of the spread."""
    gaps = drawn(process, cv)
    assert abs(gaps.mean() * RATE_US - 1) <= 5 * spread / math.sqrt(COUNT) + 1e-4
    assert math.isclose(gaps.std() / gaps.mean(), spread, rel_tol=0.1, abs_tol=1e-9)


@pytest.mark.parametrize("process", ["poisson", "gamma", "weibull", "constant"])
def test_gaps_are_whole_and_at_least_1(process):
    gaps = drawn(process, 2.0, rate_us=5.0, count=2000)
    assert gaps.min() == 1
    assert np.array_equal(gaps, np.round(gaps))


@pytest.mark.parametrize("process", ["poisson", "constant"])
def test_gaps_are_truncated(process):
    rate_us = 1 / 3.75
    law, stream = gap_law(ArrivalSpec(process=process), rate_us), Stream(2)
    exact = 3.75 if process == "constant" else Stream(2).exp_float64() / rate_us
    assert law(stream) == max(int(exact), 1)


def test_constant_gaps_draw_nothing():
    stream = Stream(3)
    gap_law(ArrivalSpec(process="constant"), RATE_US)(stream)
    assert stream.int63() == Stream(3).int63()


def test_small_gamma_shapes_draw_the_power_first():
    stream, expected = Stream(5), Stream(5)
    uniform = expected.float64()
    assert math.isclose(gamma(stream, 0.25, 8.0), gamma(expected, 1.25, 8.0) * uniform**4)


def test_too_bursty_gamma_gaps_are_exponential():
    assert np.array_equal(drawn("gamma", 10.01, count=50), drawn("poisson", None, count=50))
    assert not np.array_equal(drawn("gamma", 10.0, count=50), drawn("poisson", None, count=50))


@pytest.mark.parametrize("cv", [0.02, 0.3, 1.0, 2.5, 10.4])
def test_weibull_shapes_are_the_first_middles_that_are_near_enough(cv):
    shape = weibull_shape(cv)
    first, second = math.gamma(1 + 1 / shape), math.gamma(1 + 2 / shape)
    assert abs(math.sqrt(second / first**2 - 1) - cv) < 1e-3
    steps = (shape - 0.1) / 99.9  # a middle is a fraction with a power of two below
    assert any(math.isclose(steps * 2**k, round(steps * 2**k), abs_tol=1e-6) for k in range(20))


def test_rates_too_low_to_divide_by_count_as_the_least():
    lowest = gap_law(ArrivalSpec(process="constant"), 1e-15)(Stream(1))
    assert gap_law(ArrivalSpec(process="constant"), 1e-300)(Stream(1)) == lowest
    assert math.isclose(lowest, 1e15)


@pytest.mark.parametrize("process", ["gamma", "weibull"])
def test_a_fitted_shape_and_scale_replace_rate_and_cv(process):
    def gaps(rate_us, **more):
        arrival = RevisedArrival(process=process, cv=2.0, **more)
        stream, gap = Stream(3), gap_law(arrival, rate_us)
        return [gap(stream) for _ in range(30)]

    fitted = {"shape": 2.0, "scale": 900.0}
    assert gaps(1e-3, **fitted) == gaps(1e-5, **fitted) != gaps(1e-3)
    assert gaps(1e-3, shape=2.0) == gaps(1e-3)


def test_exact_gaps_fill_the_span_and_are_no_more():
    pace, stream = ExactCount(40, 1_000_000), Stream(3)
    gap = paced_gaps(pace, Stream(3))
    drawn = [gap(stream) for _ in range(42)]
    assert 1_000_000 - 40 <= sum(drawn[:40]) <= 1_000_000 and min(drawn[:40]) > 0
    assert drawn[40:] == [0, 0]
    assert stream.int63() == Stream(3).int63()  # the client's own stream is not touched


def test_a_rate_of_its_own_draws_from_the_clients_stream():
    gap, plain = paced_gaps(OwnRate(1e-3), Stream(9)), gap_law(ArrivalSpec(process="poisson"), 1e-3)
    first, second = Stream(3), Stream(3)
    assert [gap(first) for _ in range(9)] == [plain(second) for _ in range(9)]

import numpy as np
import pytest

from surrogate.data import Data
from surrogate.predictor import Surrogate
from surrogate.scores import (
    MET,
    NO_SIGNAL,
    NOT_MET,
    Score,
    coverages,
    evaluate,
    p_value,
    p_value_finite,
    r_squared,
    reliability,
    verdict,
)


def score(r2: float, ceiling: float, output: str = "a") -> Score:
    return Score(output, "1", 1.0, 1.0, 0.1, r2, ceiling, np.nan, np.nan, 0.1, 100)


def test_r_squared() -> None:
    y = np.array([1.0, 2.0, 3.0])
    assert r_squared(y, y) == 1
    assert r_squared(y, np.full(3, 2.0)) == 0
    assert np.isnan(r_squared(np.ones(3), y))


@pytest.mark.statistical
def test_reliability_is_the_share_of_variance_that_is_not_noise() -> None:
    """4,000 points, signal variance 1, noise variance 16 over 16 seeds: 1 / 2, sd about 0.02."""
    rng = np.random.default_rng(0)
    runs = rng.normal(size=(4000, 1)) + 4 * rng.normal(size=(4000, 16))
    assert abs(reliability(runs) - 0.5) < 0.08
    assert reliability(np.repeat(rng.normal(size=(50, 1)), 4, axis=1)) == pytest.approx(1)


def test_common_effects_of_seeds_do_not_lower_reliability() -> None:
    rng = np.random.default_rng(1)
    runs = rng.normal(size=(100, 1)) + 100 * rng.normal(size=(1, 8))
    assert reliability(runs) == pytest.approx(1)


def test_bars() -> None:
    assert verdict(score(0.979, 1.0, "main"), "main") == NOT_MET
    assert verdict(score(0.979, 1.0), "main") == MET
    assert verdict(score(0.82, 0.9), "main") == MET
    assert verdict(score(0.80, 0.9), "main") == NOT_MET
    assert verdict(score(0.5, -0.2), "main") == NO_SIGNAL
    assert verdict(score(0.5, float("nan")), "main") == NO_SIGNAL


def test_p_values() -> None:
    assert p_value(900, 1000) > 0.9
    assert p_value(870, 1000) < 0.01
    assert p_value_finite(870, 1000, 100) > 0.1  # a small calibration set explains it
    assert p_value_finite(700, 1000, 1000) < 1e-6


def test_made_surrogate_is_good_and_covers(surrogate: Surrogate, data: Data) -> None:
    scores = {one.output: one for one in evaluate(surrogate, data)}
    assert set(scores) == {"latency_ms", "share"}
    assert scores["latency_ms"].r2 > 0.75 and scores["latency_ms"].reliability > 0.99
    for _, _, covered, num_points in coverages(surrogate, data):
        assert p_value_finite(covered, num_points, len(data.calibration.inputs)) > 1e-4

import numpy as np
import pytest

from surrogate.fitting.conformal import factors, scores


def test_intervals_are_those_of_crepes() -> None:
    from crepes import ConformalRegressor

    rng = np.random.default_rng(0)
    residuals, sigmas = rng.normal(size=(200, 3)), rng.uniform(0.5, 2, (200, 3))
    reach = factors(scores(residuals, sigmas), 0.9)
    for place in range(3):
        theirs = ConformalRegressor().fit(residuals[:, place], sigmas=sigmas[:, place])
        interval = theirs.predict_int(np.zeros(1), sigmas=np.ones(1), confidence=0.9)
        np.testing.assert_allclose(interval, [[-reach[place], reach[place]]])


@pytest.mark.statistical
def test_new_points_are_covered() -> None:
    """2,000 calibration and 20,000 new points, 4 sd of both together: one false alarm in 10,000."""
    rng = np.random.default_rng(1)
    sigmas = rng.uniform(0.5, 2, (22_000, 1))
    residuals = rng.standard_t(4, (22_000, 1)) * sigmas
    reach = factors(scores(residuals[:2000], sigmas[:2000]), 0.9)[0]
    share = (np.abs(residuals[2000:]) <= reach * sigmas[2000:]).mean()
    assert abs(share - 0.9) < 4 * np.sqrt(0.09 / 2000 + 0.09 / 20_000)


def test_too_few_calibration_points_give_endless_intervals() -> None:
    assert factors(scores(np.ones((5, 1)), np.ones((5, 1))), 0.9).tolist() == [np.inf]

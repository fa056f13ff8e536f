from __future__ import annotations

import numpy as np
import pytest

from surrogate.columns import (
    BEST,
    BRANCH,
    ELSEWHERE,
    REGIONS,
    Domain,
    InputColumn,
    calibrated_as,
    factors,
    factors_by_region,
    regions_of,
    scores,
)
from tests.surrogate.made_data import COLUMNS

TWO = (
    InputColumn("load", "real", 0.0, 2.0),
    InputColumn("chunk", "integer", 0, 9, unlimited_at=0.0),
)


def test_regions_follow_from_the_limit_and_the_main_output() -> None:
    inputs = np.array([[0.0, 0.0], *([x, 5.0] for x in range(8))])
    mean = np.column_stack([np.zeros(9), [0.0, *range(8)]])
    found = regions_of(TWO, 1, inputs, mean)
    assert found.threshold == 1.75  # of the points whose limit is on
    names = np.array(REGIONS)[found.of(inputs, mean)]
    assert names.tolist() == [BRANCH, BEST, BEST, *[ELSEWHERE] * 6]  # load 0 is no branch


def test_a_region_with_few_points_is_calibrated_with_what_is_elsewhere() -> None:
    assert calibrated_as(np.repeat([0, 1, 2], [90, 50, 49])).tolist() == [0, 1, 0]
    assert calibrated_as(np.zeros(20, int)).tolist() == [0, 0, 0]


def test_each_region_has_its_own_reach() -> None:
    rng = np.random.default_rng(0)
    region = np.repeat([0, 1, 2], [200, 100, 10])
    sizes = np.array([1.0, 5.0, 50.0])[region, None]
    found = scores(rng.normal(size=(310, 2)) * sizes, np.ones((310, 2)))
    reach = factors_by_region(found, region, 0.9)
    np.testing.assert_array_equal(reach[1], factors(found[:, 200:300], 0.9))
    np.testing.assert_array_equal(reach[0], reach[2])
    assert (reach[1] > 2 * reach[0]).all()


DOMAIN = Domain(COLUMNS, 0.2)


def check(point: list[float], disagreement: float = 0.1, failed: float = 0.0) -> tuple[bool, str]:
    inside, reasons = DOMAIN.check(
        np.array([point]), np.full((1, 2), disagreement), np.array([failed])
    )
    return bool(inside[0]), str(reasons[0])


def test_a_point_within_the_data_is_trusted() -> None:
    assert check([1.0, 0.0, 1.0]) == (True, "")
    assert check([2.0, 100.0, 0.0]) == (True, "")


def test_reasons_are_given_in_words() -> None:
    assert check([3.0, 5.0, 0.0]) == (False, "load 3 is above the data, which end at 2")
    assert check([1.0, -1.0, 0.0])[1] == "chunk -1 is below the data, which end at 0"
    assert check([1.0, 5.0, 0.5])[1] == "order is between two categories"
    assert check([float("nan"), 5.0, 0.0])[1] == "load is not a number"
    assert "disagree 2.0 times" in check([1.0, 5.0, 0.0], disagreement=0.4)[1]
    assert "about 30 % of the runs" in check([1.0, 5.0, 0.0], failed=0.3)[1]


def test_every_reason_is_named() -> None:
    assert check([3.0, 200.0, 0.0])[1].count(";") == 1


# Coverage of split conformal intervals


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

import numpy as np

from surrogate.columns import InputColumn
from surrogate.fitting.conformal import factors, factors_by_region, scores
from surrogate.regions import BEST, BRANCH, ELSEWHERE, REGIONS, calibrated_as, regions_of

COLUMNS = (
    InputColumn("load", "real", 0.0, 2.0),
    InputColumn("chunk", "integer", 0, 9, unlimited_at=0.0),
)


def test_regions_follow_from_the_limit_and_the_main_output() -> None:
    inputs = np.array([[0.0, 0.0], *([x, 5.0] for x in range(8))])
    mean = np.column_stack([np.zeros(9), [0.0, *range(8)]])
    found = regions_of(COLUMNS, 1, inputs, mean)
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

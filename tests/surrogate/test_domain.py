import numpy as np

from surrogate.domain import Domain
from tests.surrogate.made_data import COLUMNS

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

"""Headroom in the budget of a class."""

import pytest

from blis_jax.policies.scorers.slo_headroom import slo_headroom
from tests.policies.made import asked, decision

pytestmark = pytest.mark.usefixtures("in_64_bits")
BUDGETS = {0: 200_000.0, 1: 50_000.0, 2: 200_000.0, 3: 500_000.0, 4: 5_000_000.0}


@pytest.mark.parametrize("slo_class", BUDGETS)
def test_the_score_is_what_is_left_of_the_budget(slo_class: int):
    own, ahead = 6910.42 + 17.67 * 64, 6910.42 + 17.67 * 256
    expected = [1.0 - (load * ahead + own) / BUDGETS[slo_class] for load in (0, 2)]
    found = decision(slo_headroom, asked([0, 2, 1000], slo_class))
    assert found.tolist() == [*expected, 0.0]


def test_background_has_no_budget():
    assert decision(slo_headroom, asked([0, 10_000], 5)).tolist() == [1.0, 1.0]

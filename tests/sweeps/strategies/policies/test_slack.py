"""Least slack first: deadlines, ages and prompts by hand."""

import numpy as np
import pytest

from sweeps.strategies.policies.deadlines import slo_slack
from tests.sweeps.strategies.policies.made import asked, queue

pytestmark = pytest.mark.usefixtures("in_64_bits")
DEADLINES = {
    "deadline_critical_us": 50_000,
    "deadline_standard_us": 200_000,
    "deadline_sheddable_us": 900_000,
}


def test_slack_is_what_is_left_once_the_prompt_is_computed() -> None:
    """By class: critical, standard, none, sheddable, background; ms."""
    context = queue([1, 2, 0, 3, 5], [10_000] * 5, [1000, 1000, 500, 1000, 1000])
    priority = asked(slo_slack, context, token_us=20.0, **DEADLINES)
    np.testing.assert_allclose(-priority, [20.0, 170.0, 180.0, 870.0, 870.0], rtol=1e-15)


def test_without_a_cost_of_prompts_it_is_earliest_deadline_first() -> None:
    context = queue([1, 2, 3], [0, 160_000, 870_000], [4000, 10, 10])
    priority = asked(slo_slack, context, token_us=0.0, **DEADLINES)
    assert np.argsort(-priority).tolist() == [2, 1, 0]  # due in 30, 40 and 50 ms


def test_late_requests_count_by_their_weight() -> None:
    context = queue([1, 1, 1], [150_000, 90_000, 10_000], [1, 1, 1])
    numbers = DEADLINES | {"token_us": 0.0}
    np.testing.assert_allclose(asked(slo_slack, context, **numbers), [100.0, 40.0, -40.0])
    half = asked(slo_slack, context, late_weight=0.5, **numbers)
    np.testing.assert_allclose(half, [50.0, 20.0, -40.0])
    assert asked(slo_slack, context, late_weight=0.0, **numbers).tolist() == [0.0, 0.0, -40.0]

"""Effects, interactions and Shapley values of made-up games whose answers are known."""

from __future__ import annotations

import math
from itertools import permutations

import numpy as np
import pytest

from blis_jax.errors import ConfigError
from sweeps.compare.ablation.effects import (
    Values,
    alone,
    joint,
    joint_anywhere,
    left_out,
    log_ratio,
    main_effect,
    masks_of,
    shapley,
)


def game(count: int, num_seeds: int = 3) -> Values:
    rng = np.random.default_rng(count)
    return Values(count, num_seeds, {mask: rng.normal(size=num_seeds) for mask in range(2**count)})


def added(*effects: float) -> Values:
    """Effects that add up, on one seed."""
    count = len(effects)
    by_mask = {
        mask: np.array([100 + sum(e for place, e in enumerate(effects) if mask >> place & 1)])
        for mask in range(2**count)
    }
    return Values(count, 1, by_mask)


def test_designs() -> None:
    assert masks_of("single", 3) == (0, 1, 2, 3, 4, 5, 6, 7)
    assert masks_of("single", 4) == (0, 1, 2, 4, 7, 8, 11, 13, 14, 15)
    assert len(masks_of("pairs", 5)) == 1 + 5 + 10 + 5 + 1
    assert masks_of("full", 6) == tuple(range(64))
    with pytest.raises(ConfigError, match="128 combinations"):
        masks_of("full", 7)
    assert masks_of("single", 1) == (0, 1)


def test_effects_that_add_up_are_found_by_every_way_of_counting() -> None:
    values = added(-30.0, 5.0, 0.0)
    for place, effect in enumerate((-30.0, 5.0, 0.0)):
        for before, after in (alone(values, place), left_out(values, place)):
            assert after - before == pytest.approx([effect])
        assert main_effect(values, place) == pytest.approx([effect])
        assert shapley(values, place) == pytest.approx([effect])
    promised, given = joint(values, 0, 1)
    assert promised == pytest.approx(given)


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_shapley_values_are_the_average_over_orders_and_add_up(count: int) -> None:
    values = game(count)
    found = [shapley(values, place) for place in range(count)]
    assert np.sum(found, axis=0) == pytest.approx(values[2**count - 1] - values[0])
    orders = list(permutations(range(count)))
    for place in range(count):
        gains = []
        for order in orders:
            before = sum(1 << other for other in order[: order.index(place)])
            gains.append(values[before | 1 << place] - values[before])
        assert found[place] == pytest.approx(np.mean(gains, axis=0))


def test_two_components_as_in_the_record() -> None:
    cells = {0: 268.8, 1: 134.4, 2: 252.6, 3: 90.0}
    values = Values(2, 1, {mask: np.array([cell]) for mask, cell in cells.items()})
    promised, given = joint(values, 0, 1)
    assert given - promised == pytest.approx([-28.2])
    assert joint_anywhere(values, 0, 1) == (promised, given)
    ratio = math.exp(log_ratio(*(values[mask] for mask in range(4))))
    assert ratio == pytest.approx((90.0 / 268.8) / (134.4 / 268.8 * 252.6 / 268.8))
    assert main_effect(values, 0) == pytest.approx([(134.4 - 268.8 + 90.0 - 252.6) / 2])


def test_an_interaction_that_a_third_component_undoes() -> None:
    values = added(1.0, 2.0, 4.0)
    values.by_mask[3][0] += 10
    promised, given = joint(values, 0, 1)
    assert given - promised == pytest.approx([10])
    promised, given = joint_anywhere(values, 0, 1)
    assert given - promised == pytest.approx([5])


def test_missing_and_failed_combinations_leave_gaps() -> None:
    values = game(3)
    cut = Values(3, 3, {mask: cell.copy() for mask, cell in values.by_mask.items() if mask != 6})
    cut.by_mask[1][2] = np.nan
    assert np.isnan(cut[6]).all()
    assert np.isfinite(alone(cut, 0)[1]).tolist() == [True, True, False]
    assert np.isnan(left_out(cut, 0)[0]).all()
    assert np.isnan(shapley(cut, 0)).all()

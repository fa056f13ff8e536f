"""Two gates in one: each alone, and what the forecast counts of those that the other has shed."""

from typing import Any

import jax
import numpy as np
import pytest

from sweeps.strategies.policies.forecasts import forecast_gated, forecast_regime_gated
from sweeps.strategies.policies.regimes import regime_gated
from tests.policies.contexts import decided
from tests.sweeps.strategies.policies.test_forecasts import NUMBERS as FORECAST
from tests.sweeps.strategies.policies.test_forecasts import SHEDDABLE, at

REGIME = {"load_threshold": 10.0, "standard_factor": 2.0, "stay": 0.5}
NEVER = {"sheddable_limit": 1e9, "standard_limit": 1e9}


@pytest.fixture(autouse=True)
def with_x64():
    with jax.enable_x64(True):
        yield


def course(policy: Any, **numbers: float) -> tuple[list[bool], Any]:
    """Whether requests are let in as load and free blocks change, and the last state."""
    state, found = None, []
    for waiting, free in (
        (2, 1000),
        (12, 1000),
        (6, 1000),
        (5, 1000),
        (4, 10),
        (4, 1000),
        (12, 10),
    ):
        is_in, state = decided(policy, at(free, SHEDDABLE, waiting=waiting), state, **numbers)
        found.append(bool(is_in))
    return found, state


def test_where_one_gate_is_always_open_it_is_the_other() -> None:
    by_load, _ = course(regime_gated, **REGIME)
    assert by_load == [True, False, False, True, True, True, False]
    assert course(forecast_regime_gated, **(FORECAST | NEVER), **REGIME)[0] == by_load
    by_memory, counted = course(forecast_gated, **FORECAST)
    assert by_memory == [True, True, True, True, False, True, False]
    mine, state = course(forecast_regime_gated, **FORECAST, **(REGIME | {"load_threshold": 1e9}))
    assert mine == by_memory
    np.testing.assert_array_equal(state.forecast.admitted, counted.admitted)


def test_a_request_passes_both_and_only_such_are_counted() -> None:
    mine, state = course(forecast_regime_gated, **FORECAST, **REGIME)
    assert mine == [True, False, False, True, False, True, False]
    assert float(state.forecast.admitted.sum()) == sum(mine)

"""Two gates in one: forecast memory, and the load's regime.

`forecast-gated` and `regime-gated` are admission policies both, so a cluster can have one of them. Here a request has
to pass either. With limits that nothing reaches, one of the gates is always open.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from blis_jax.core.types import pytree
from blis_jax.lazy import jax, jnp
from blis_jax.policies.admission.forecast import (
    ForecastGatedParams,
    ForecastState,
    forecast_gated,
    heard,
    nothing_yet,
)
from blis_jax.policies.contract import Completion, GatewayContext, admission_policy
from blis_jax.policies.regimes import RegimeGatedParams, ShedState, nothing_shed, regime_gated

if TYPE_CHECKING:
    from jaxtyping import Array, Bool


@pytree
class ForecastRegimeParams(RegimeGatedParams, ForecastGatedParams):
    """The numbers of both gates."""


@pytree
class ForecastRegimeState:
    """What both gates remember."""

    forecast: ForecastState
    regime: ShedState


def both_open(params: ForecastRegimeParams, shape: object) -> ForecastRegimeState:
    """Nothing let in yet, and nothing shed."""
    return ForecastRegimeState(nothing_yet(params, shape), nothing_shed(params, shape))


def both_heard(
    params: ForecastRegimeParams, state: ForecastRegimeState, news: Completion
) -> ForecastRegimeState:
    """The forecast learns of a completion."""
    return ForecastRegimeState(heard(params, state.forecast, news), state.regime)


@admission_policy(
    ForecastRegimeParams, both_open, both_heard, reads_route=True, reads_prefix_index=True
)
def forecast_regime_gated(
    params: ForecastRegimeParams, state: ForecastRegimeState, context: GatewayContext
) -> tuple[Bool[Array, ""], ForecastRegimeState]:
    """Shed what forecast-gated or regime-gated sheds; the forecast counts only what both let in."""
    passes, regime = regime_gated.decide(params, state.regime, context)
    has_room, counted = forecast_gated.decide(params, state.forecast, context)
    forecast = jax.tree.map(lambda new, old: jnp.where(passes, new, old), counted, state.forecast)
    return passes & has_room, ForecastRegimeState(forecast, regime)

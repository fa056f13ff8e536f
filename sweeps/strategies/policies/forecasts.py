"""Gates on forecast memory: what the requests of an instance will come to hold, against its free KV blocks.

`kv_gated` looks at the blocks that are free now, so it acts once memory is nearly gone: a request that has just been
let in holds no block yet, and a running one still grows by its output.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from blis_jax.core.exact import exact_product, exact_quotient
from blis_jax.core.pytrees import pytree
from blis_jax.core.types import CRITICAL, SLO_CLASSES
from blis_jax.lazy import jax, jnp, lax
from blis_jax.policies.classes import is_sheddable
from blis_jax.policies.contexts import Completion, GatewayContext
from blis_jax.policies.contract import admission_policy
from blis_jax.policies.numbers import number
from sweeps.strategies.policies.regimes import (
    RegimeGatedParams,
    ShedState,
    nothing_shed,
    regime_gated,
)

if TYPE_CHECKING:
    from jaxtyping import Array, Bool, Float


@pytree
class ForecastGatedParams:
    """The forecast growth of memory ÷ free blocks above which classes are shed, and the outputs expected at first."""

    sheddable_limit: Float[Array, ""] = number(
        1.0, "", "expected growth ÷ free blocks above which sheddable, batch and background are shed",
        low=0, search=(0.05, 20), prior="log-uniform",
    )  # fmt: skip
    standard_limit: Float[Array, ""] = number(
        2.0, "", "expected growth ÷ free blocks above which standard is shed",
        low=0, search=(0.05, 20), prior="log-uniform",
    )  # fmt: skip
    ahead: Float[Array, ""] = number(
        0.5,
        "",
        "share of its expected output that a running request still has ahead",
        low=0,
        high=1,
    )
    first_tokens: Float[Array, ""] = number(
        128.0, "tokens", "output expected of a class none of which has completed",
        low=0, search=(16, 1024), prior="log-uniform",
    )  # fmt: skip
    first_weight: Float[Array, ""] = number(
        20.0, "requests", "completions that this expectation counts as",
        low=0, excludes_low=True, search=(1, 200), prior="log-uniform",
    )  # fmt: skip


@pytree
class ForecastState:
    """The numbers of requests that the gateway has let in, and of those that have completed, `[slo_class]`."""

    admitted: Float[Array, "slo_class"]
    blocks: Float[Array, "slo_class"]  # prompt blocks of these that were not expected to be cached
    completed: Float[Array, "slo_class"]
    tokens: Float[Array, "slo_class"]  # output tokens of the completed ones


def nothing_yet(params: Any, shape: Any) -> ForecastState:
    """Return the state in which nothing has been let in and nothing has completed."""
    zero = jnp.zeros((len(SLO_CLASSES),), jnp.float64)
    return ForecastState(zero, zero, zero, zero)


def _added(values: Any, slo_class: Any, amount: Any) -> Any:
    is_it = lax.iota(jnp.int32, len(SLO_CLASSES)) == slo_class
    return values + jnp.where(is_it, amount, 0.0)


def heard(params: Any, state: ForecastState, news: Completion) -> ForecastState:
    """Learn from a completion how many output tokens requests of its class have."""
    slo_class = news.request.slo_class
    made = news.num_output_tokens.astype(jnp.float64)
    return ForecastState(
        state.admitted,
        state.blocks,
        _added(state.completed, slo_class, 1.0),
        _added(state.tokens, slo_class, made),
    )


def _mean(values: Any, count: Any) -> Any:
    """Return the sum of the values ÷ the sum of the counts, 0 where the counts are 0."""
    total = jnp.zeros((), jnp.float64)
    number = jnp.zeros((), jnp.float64)
    for place in range(len(SLO_CLASSES)):
        total, number = total + values[place], number + count[place]
    return jnp.where(number > 0, exact_quotient(total, jnp.where(number > 0, number, 1.0)), 0.0)


@admission_policy(ForecastGatedParams, nothing_yet, heard)
def forecast_gated(
    params: ForecastGatedParams, state: ForecastState, context: GatewayContext
) -> tuple[Bool[Array, ""], ForecastState]:
    """Shed by class where the requests of the router's instance are expected to grow beyond its free KV blocks."""
    seen, there, slo_class = context.snapshots, context.picked, context.request.slo_class
    size = context.block_size.astype(jnp.float64)
    promised = exact_product(params.first_weight, params.first_tokens)
    tokens = exact_quotient(state.tokens + promised, state.completed + params.first_weight)
    output = exact_quotient(tokens, size)  # expected blocks of an output, by class
    new_blocks = (context.num_prompt_blocks - seen.prefix_match_blocks[there] + 1).astype(
        jnp.float64
    )
    present = state.admitted - state.completed
    mean_output = _mean(exact_product(present, output), present)
    mean_prompt = _mean(state.blocks, state.admitted)
    running = seen.batch_size[there].astype(jnp.float64)
    waiting = (seen.queue_depth[there] + seen.num_pending[there]).astype(jnp.float64)
    growth = exact_product(running, exact_product(params.ahead, mean_output))
    growth = growth + exact_product(waiting, mean_prompt + mean_output)
    growth = growth + new_blocks + output[slo_class]
    limit = jnp.where(is_sheddable(slo_class), params.sheddable_limit, params.standard_limit)
    has_room = growth <= exact_product(limit, seen.free_kv_blocks[there])
    is_admitted = (slo_class == CRITICAL) | has_room
    return is_admitted, ForecastState(
        _added(state.admitted, slo_class, jnp.where(is_admitted, 1.0, 0.0)),
        _added(state.blocks, slo_class, jnp.where(is_admitted, new_blocks, 0.0)),
        state.completed,
        state.tokens,
    )


@pytree
class ForecastRegimeParams(RegimeGatedParams, ForecastGatedParams):
    """The numbers of both gates."""


@pytree
class ForecastRegimeState:
    """The states of both gates."""

    forecast: ForecastState
    regime: ShedState


def both_open(params: ForecastRegimeParams, shape: object) -> ForecastRegimeState:
    """Return the state in which nothing has been let in yet, and nothing shed."""
    return ForecastRegimeState(nothing_yet(params, shape), nothing_shed(params, shape))


def both_heard(
    params: ForecastRegimeParams, state: ForecastRegimeState, news: Completion
) -> ForecastRegimeState:
    """Let the forecast learn of a completion; the regime stays."""
    return ForecastRegimeState(heard(params, state.forecast, news), state.regime)


@admission_policy(ForecastRegimeParams, both_open, both_heard)
def forecast_regime_gated(
    params: ForecastRegimeParams, state: ForecastRegimeState, context: GatewayContext
) -> tuple[Bool[Array, ""], ForecastRegimeState]:
    """Shed what forecast-gated or regime-gated sheds; the forecast counts only what both let in."""
    passes, regime = regime_gated.decide(params, state.regime, context)
    has_room, counted = forecast_gated.decide(params, state.forecast, context)
    forecast = jax.tree.map(lambda new, old: jnp.where(passes, new, old), counted, state.forecast)
    return passes & has_room, ForecastRegimeState(forecast, regime)

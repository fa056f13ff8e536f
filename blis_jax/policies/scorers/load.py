"""Scores by load. Names and formulas: BLIS `sim/routing_scorers.go`, after llm-d's scorers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from blis_jax.core.exact import exact_product, exact_quotient
from blis_jax.core.types import CRITICAL, LAST, Snapshots, pytree
from blis_jax.lazy import jax, jnp
from blis_jax.policies.classes import is_sheddable
from blis_jax.policies.contract import GatewayContext, NoParams, NoState, scorer
from blis_jax.policies.numbers import number

if TYPE_CHECKING:
    from jaxtyping import Array, Float

Scores = tuple["jax.Array", Any]


def depth_scores(snapshots: Snapshots) -> jax.Array:
    """Effective load scaled between the least and most loaded instance, least best; 1 if all are equal."""
    load = snapshots.effective_load
    least = jnp.min(jnp.where(snapshots.is_active, load, LAST))
    most = jnp.max(jnp.where(snapshots.is_active, load, 0))
    spread = jnp.maximum(most - least, 1).astype(jnp.float64)
    scaled = exact_quotient((most - load).astype(jnp.float64), spread)
    return jnp.where(most == least, jnp.float64(1.0), scaled)


@scorer()
def queue_depth(params: NoParams, state: NoState, context: GatewayContext) -> Scores:
    """Effective load scaled between the least and most loaded instance; 1 if all are equal."""
    del params
    return depth_scores(context.snapshots), state


@scorer()
def load_balance(params: NoParams, state: NoState, context: GatewayContext) -> Scores:
    """1 / (1 + effective load)."""
    del params
    load = context.snapshots.effective_load.astype(jnp.float64)
    return exact_quotient(jnp.ones_like(load), jnp.float64(1.0) + load), state


@pytree
class SloPriorityParams:
    """How strongly a class prefers unloaded instances."""

    bias_critical: Float[Array, ""] = number(
        0.9, "", "weight of load for critical requests",
        low=0, high=1, setting="slo_scorer_bias_critical",
    )  # fmt: skip
    bias_sheddable: Float[Array, ""] = number(
        0.2, "", "weight of load for sheddable, batch and background requests",
        low=0, high=1, setting="slo_scorer_bias_sheddable",
    )  # fmt: skip


@scorer(SloPriorityParams)
def slo_priority(params: SloPriorityParams, state: NoState, context: GatewayContext) -> Scores:
    """The queue-depth score blended with a neutral 0.5 by class."""
    slo_class = context.request.slo_class
    bias = jnp.where(
        slo_class == CRITICAL,
        params.bias_critical,
        jnp.where(is_sheddable(slo_class), params.bias_sheddable, jnp.float64(0.5)),
    )
    neutral = exact_product(jnp.float64(1.0) - bias, jnp.float64(0.5))
    return exact_product(bias, depth_scores(context.snapshots)) + neutral, state

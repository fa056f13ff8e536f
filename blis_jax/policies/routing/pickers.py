"""Pickers: which instance the router takes when every one has a score.

Names and meaning follow llm-d's pickers (`max-score`, `random` among the best, `weighted-random`).
"""

from __future__ import annotations

from typing import Any

from blis_jax.core.types import LAST
from blis_jax.lazy import jax, jnp, lax
from blis_jax.policies.contract import NoParams, NoState, PickerContext, picker

Choice = tuple["jax.Array", Any]


def first_where(mask: jax.Array) -> jax.Array:
    """Index of the first true entry of `mask[n]`, or a large number."""
    index = lax.iota(jnp.int32, mask.shape[0])
    return jnp.min(jnp.where(mask, index, LAST))


def first_best_of(scores: jax.Array, is_eligible: jax.Array) -> jax.Array:
    """Index of the first eligible instance with the highest score."""
    among = jnp.where(is_eligible, scores, -jnp.inf)
    return first_where(among == jnp.max(among))


def _best(context: PickerContext) -> jax.Array:
    scores = jnp.where(context.is_eligible, context.scores, -jnp.inf)
    return scores == jnp.max(scores)


@picker()
def first_best(params: NoParams, state: NoState, context: PickerContext) -> Choice:
    """The first instance with the highest score, as BLIS does."""
    del params
    return first_best_of(context.scores, context.is_eligible), state


@picker(is_random=True)
def random_best(params: NoParams, state: NoState, context: PickerContext) -> Choice:
    """One of the instances with the highest score, each as likely."""
    del params
    draw = jax.random.uniform(context.key, context.scores.shape, jnp.float64)
    draw = jnp.where(_best(context), draw, -1.0)
    return first_where(draw == jnp.max(draw)), state


@picker(is_random=True)
def weighted_random(params: NoParams, state: NoState, context: PickerContext) -> Choice:
    """An instance with a probability in proportion to its score; any eligible one if all scores are 0."""
    del params
    scores = jnp.where(context.is_eligible, context.scores, 0.0)
    weights = jnp.where(jnp.max(scores) > 0, scores, context.is_eligible.astype(jnp.float64))
    upto = jnp.cumsum(weights)
    draw = jax.random.uniform(context.key, (), jnp.float64) * upto[-1]
    is_it = (upto > draw) & (weights > 0)
    last = scores.shape[0] - 1 - first_where(weights[::-1] > 0)  # rounding may pass the sum
    return jnp.minimum(first_where(is_it), last), state

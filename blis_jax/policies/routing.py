"""Routing policies: choose the instance for an admitted request.

Each has the signature `(params, state, view, snapshots, scores, infinity) -> (instance, state)`; `scores` is the
weighted sum of the mechanism's scorers, or zeros. Ties go to the lowest index. Source: BLIS `sim/routing.go`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax import lax

from blis_jax.exact import exact_product, exact_quotient
from blis_jax.policies.admission import NoParams, NoState
from blis_jax.types import LAST, NO_INSTANCE, PolicyParams, RoutedView, ScorerFn, Snapshots, pytree

if TYPE_CHECKING:
    from jaxtyping import Array, Float, Int

Choice = tuple[jax.Array, Any]


def first_where(mask: jax.Array) -> jax.Array:
    """Index of the first true entry of `mask[n]`, or a large number."""
    index = lax.iota(jnp.int32, mask.shape[0])
    return jnp.min(jnp.where(mask, index, LAST))


def shares_of(weights: Float[Array, "scorer"]) -> Float[Array, "scorer"]:
    """Each weight's share of their sum, added in order as the reference does."""
    total = jnp.zeros((), jnp.float64)
    for index in range(weights.shape[0]):
        total = total + weights[index]
    return exact_quotient(weights, total)


def combined_scores(
    scorers: tuple[ScorerFn, ...],
    params: PolicyParams,
    view: RoutedView,
    snapshots: Snapshots,
    infinity: Any,
    shares: Any = None,
) -> Float[Array, "instance"]:
    """Weighted sum of clamped scores, added in the scorers' order as the reference does.

    `shares` are those of the weights, if they are known already.
    """
    if scorers and shares is None:
        shares = shares_of(params.scorer_weights)
    total = jnp.zeros(snapshots.effective_load.shape, jnp.float64)
    for index, scorer in enumerate(scorers):
        score = jnp.clip(scorer(params.scorers[index], view, snapshots, infinity), 0.0, 1.0)
        total = total + exact_product(score, shares[index], infinity)
    return total


def weighted(
    params: NoParams,
    state: NoState,
    view: RoutedView,
    snapshots: Snapshots,
    scores: Float[Array, "instance"],
    infinity: Any,
) -> Choice:
    """The first instance with the highest score."""
    del params, view, infinity
    scores = jnp.where(snapshots.is_active, scores, -jnp.inf)
    return first_where(scores == jnp.max(scores)), state


def least_loaded(
    params: NoParams, state: Any, view: Any, snapshots: Snapshots, scores: Any, infinity: Any
) -> Choice:
    """The first instance with the smallest effective load."""
    del params, view, scores, infinity
    load = jnp.where(snapshots.is_active, snapshots.effective_load, LAST)
    return first_where(load == jnp.min(load)), state


def always_busiest(
    params: NoParams, state: Any, view: Any, snapshots: Snapshots, scores: Any, infinity: Any
) -> Choice:
    """The first instance with the largest effective load: a deliberately bad policy."""
    del params, view, scores, infinity
    load = jnp.where(snapshots.is_active, snapshots.effective_load, -1)
    return first_where(load == jnp.max(load)), state


@pytree
class CounterState:
    """Requests routed so far."""

    count: Int[Array, ""]


def zero_counter(params: Any, shape: Any) -> CounterState:
    """Nothing routed yet."""
    del params, shape
    return CounterState(jnp.zeros((), jnp.int32))


def round_robin(
    params: NoParams,
    state: CounterState,
    view: Any,
    snapshots: Snapshots,
    scores: Any,
    infinity: Any,
) -> Choice:
    """Instances in turn."""
    del params, view, scores, infinity
    size = jnp.sum(snapshots.is_active, dtype=jnp.int32)
    return lax.rem(state.count, size), CounterState(state.count + 1)


@pytree
class PromptMapState:
    """Instance that first got a prompt key, `NO_INSTANCE` if none."""

    instance: Int[Array, "key"]


def empty_prompt_map(params: Any, shape: Any) -> PromptMapState:
    """No prompt seen yet."""
    del params
    return PromptMapState(jnp.full((shape.num_keys,), NO_INSTANCE, jnp.int32))


def prefix_affinity_policy(
    params: NoParams,
    state: PromptMapState,
    view: RoutedView,
    snapshots: Snapshots,
    scores: Any,
    infinity: Any,
) -> Choice:
    """The instance that first got a prompt with the same last full block, else the least loaded."""
    known = state.instance[view.prompt_key]
    fallback, _ = least_loaded(params, NoState(), view, snapshots, scores, infinity)
    chosen = jnp.where(known == NO_INSTANCE, fallback, known)
    return chosen, PromptMapState(
        lax.dynamic_update_slice(state.instance, chosen[None], (view.prompt_key,))
    )

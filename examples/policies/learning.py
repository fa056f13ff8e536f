"""Policies from outside the package: each is one function, and what it remembers and learns is in plain sight.

    blis-jax run --model meta-llama/llama-3.1-8b-instruct --num-instances 4 --workload chatbot \
        --routing-policy examples/policies/learning.py:fastest
"""

from typing import Any

import jax
import jax.numpy as jnp

from blis_jax.policies import (
    Completion,
    GatewayContext,
    NoParams,
    PickerContext,
    number,
    picker,
    pytree,
    routing_policy,
    scorer,
)


@pytree
class LearningParams:
    """How fast the estimate follows."""

    gain: Any = number(0.2, "", "share of a new observation in the estimate", low=0, high=1)


@pytree
class Estimate:
    """Time per output token of each instance as observed, µs."""

    per_token_us: Any  # float64[instance]


def no_estimate(params: LearningParams, shape: Any) -> Estimate:
    """Nothing is known yet."""
    return Estimate(jnp.zeros(shape.num_instances, jnp.float64))


def learn(params: LearningParams, state: Estimate, news: Completion) -> Estimate:
    """Move the instance's estimate towards what the completed request took."""
    took = news.e2e_us / jnp.maximum(news.num_output_tokens, 1)
    old = state.per_token_us[news.instance]
    new = jnp.where(old == 0, took, old + params.gain * (took - old))
    return Estimate(state.per_token_us.at[news.instance].set(new))


@routing_policy(LearningParams, no_estimate, observe=learn)
def fastest(params: LearningParams, state: Estimate, context: GatewayContext) -> Any:
    """The instance with the least load times observed time per token; an unknown one counts as fast."""
    seen = context.snapshots
    load = (seen.effective_load + 1).astype(jnp.float64)
    cost = jnp.where(seen.is_active, load * jnp.maximum(state.per_token_us, 1.0), jnp.inf)
    return jnp.argmin(cost), state


@pytree
class Turns:
    """Which instance was scored last."""

    count: Any


def no_turns(params: NoParams, shape: Any) -> Turns:
    """Nobody's turn yet."""
    return Turns(jnp.int32(0))


@scorer(start=no_turns)
def taking_turns(params: NoParams, state: Turns, context: GatewayContext) -> Any:
    """1 for the instance whose turn it is, else 0: round-robin as a scorer with memory."""
    size = jnp.sum(context.snapshots.is_active, dtype=jnp.int32)
    place = jnp.arange(context.snapshots.is_active.shape[0], dtype=jnp.int32)
    scores = jnp.where(place == state.count % size, 1.0, 0.0)
    return scores, Turns(state.count + 1)


@picker(is_random=True)
def one_of_two_best(params: NoParams, state: Any, context: PickerContext) -> Any:
    """One of the two instances with the highest scores, each as likely."""
    scores = jnp.where(context.is_eligible, context.scores, -jnp.inf)
    best = jnp.argsort(-scores)[:2]
    second = jnp.where(jnp.isfinite(scores[best[1]]), best[1], best[0])
    return jnp.where(jax.random.bernoulli(context.key), best[0], second), state

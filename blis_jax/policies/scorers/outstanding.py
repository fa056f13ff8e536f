"""Scores by what the instances have still to compute: by deadline, and by class.

Ours; BLIS's scorers see the number of requests alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from blis_jax.core.exact import exact_product, exact_quotient
from blis_jax.core.types import CRITICAL, pytree
from blis_jax.lazy import jax, jnp, lax
from blis_jax.policies.classes import is_sheddable
from blis_jax.policies.contract import GatewayContext, NoState, scorer
from blis_jax.policies.numbers import number
from blis_jax.policies.queue_order.priority import Deadlines, deadline_of

if TYPE_CHECKING:
    from jaxtyping import Array, Bool, Float, Int

Scores = tuple["jax.Array", Any]


def tokens_of(
    context: GatewayContext, counts: Bool[Array, "instance slot"]
) -> Float[Array, "instance"]:
    """Prompt tokens to compute of the outstanding requests that count, without what was expected to be cached."""
    seen = context.outstanding
    tokens = jnp.maximum(seen.input_len - seen.expected_blocks * context.block_size, 1)
    total = jnp.sum(jnp.where(seen.is_there & counts, tokens, 0), axis=1, dtype=jnp.int32)
    return total.astype(jnp.float64)


def own_tokens(context: GatewayContext) -> Float[Array, "instance"]:
    """Tokens of the request's own prompt that each instance has to compute."""
    cached = context.snapshots.prefix_match_blocks * context.block_size
    return jnp.maximum(context.request.input_len - cached, 1).astype(jnp.float64)


@pytree
class DeadlineWaitParams(Deadlines):
    """Deadlines, what a token costs, and what requests count that are due later."""

    token_us: Float[Array, ""] = number(
        24.0,
        "µs/token",
        "time that a prompt token takes",
        low=0,
        search=(1, 100),
        prior="log-uniform",
    )
    later_share: Float[Array, ""] = number(
        0.0, "", "what a prompt token of a request counts that is due later", low=0, high=1
    )


@scorer(DeadlineWaitParams, reads_outstanding=True, reads_prefix_index=True)
def deadline_wait(params: DeadlineWaitParams, state: NoState, context: GatewayContext) -> Scores:
    """Deadline ÷ (deadline + time for the prompts there that are due before the request, and for its own)."""
    seen, request = context.outstanding, context.request
    deadline = deadline_of(params, request.slo_class)
    later_by = (seen.arrival_us - request.arrival_us).astype(jnp.float64)
    is_before = later_by + deadline_of(params, seen.slo_class) <= deadline
    tokens = tokens_of(context, is_before) + own_tokens(context)
    tokens = tokens + exact_product(params.later_share, tokens_of(context, ~is_before))
    wait = exact_product(params.token_us, tokens)
    limit = jnp.broadcast_to(jnp.maximum(deadline, jnp.float64(1.0)), wait.shape)
    return exact_quotient(limit, limit + wait), state


def tier_of(slo_class: Int[Array, "..."]) -> jax.Array:
    """0 for critical, 1 for standard and unclassed, 2 for sheddable, batch and background."""
    rest = jnp.where(is_sheddable(slo_class), jnp.int32(2), jnp.int32(1))
    return jnp.where(slo_class == CRITICAL, jnp.int32(0), rest)


def tokens_ahead(
    context: GatewayContext, lower_share: Float[Array, ""]
) -> Float[Array, "instance"]:
    """Prompt tokens there of classes at least as urgent as the request's, and a share of those of the others."""
    is_ahead = tier_of(context.outstanding.slo_class) <= tier_of(context.request.slo_class)
    lower = exact_product(lower_share, tokens_of(context, ~is_ahead))
    return tokens_of(context, is_ahead) + lower


@pytree
class BacklogParams:
    """How much less urgent requests count, and how much of a detour the instance is to make good."""

    lower_share: Float[Array, ""] = number(
        0.2, "", "what a prompt token of a less urgent class counts", low=0, high=1
    )
    detour_share: Float[Array, ""] = number(
        1.0, "", "share of a detour's time that is handed over as a lead", low=0, search=(0, 4)
    )
    token_us: Float[Array, ""] = number(
        24.0,
        "µs/token",
        "time that a prompt token takes",
        low=0,
        search=(1, 100),
        prior="log-uniform",
    )


def lead_of_detour(
    params: BacklogParams, context: GatewayContext, instance: Int[Array, ""]
) -> Float[Array, ""]:
    """µs that the prompts ahead take there beyond those ahead on the active instance with the fewest."""
    ahead = tokens_ahead(context, jnp.float64(0.0))
    least = jnp.min(jnp.where(context.snapshots.is_active, ahead, jnp.inf))
    is_there = lax.iota(jnp.int32, ahead.shape[0]) == instance
    beyond = jnp.sum(jnp.where(is_there, ahead, 0.0)) - least
    return exact_product(params.detour_share, exact_product(params.token_us, beyond))


@scorer(BacklogParams, reads_outstanding=True, reads_prefix_index=True, hands=lead_of_detour)
def class_backlog(params: BacklogParams, state: NoState, context: GatewayContext) -> Scores:
    """Backlog in prompt tokens of classes as urgent, the own prompt included, scaled; 1 if all are equal."""
    tokens = tokens_ahead(context, params.lower_share) + own_tokens(context)
    is_active = context.snapshots.is_active
    least = jnp.min(jnp.where(is_active, tokens, jnp.inf))
    most = jnp.max(jnp.where(is_active, tokens, 0.0))
    spread = jnp.where(most > least, most - least, 1.0)
    scaled = jnp.clip(exact_quotient(most - tokens, spread), 0.0, 1.0)
    return jnp.where(most > least, scaled, jnp.float64(1.0)), state

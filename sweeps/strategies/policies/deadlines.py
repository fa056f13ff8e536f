"""Deadlines by class, in the queue and in routing: urgency near one, least slack, and the prompts due before."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from blis_jax.core.exact import exact_product, exact_quotient
from blis_jax.core.pytrees import pytree
from blis_jax.lazy import jax, jnp
from blis_jax.policies.classes import by_tier
from blis_jax.policies.contexts import GatewayContext, QueueContext
from blis_jax.policies.contract import NoState, priority_policy, scorer
from blis_jax.policies.numbers import number
from blis_jax.policies.queue_order import Bases, age_us

if TYPE_CHECKING:
    from jaxtyping import Array, Bool, Float


@pytree
class Deadlines:
    """Ages by which requests want their first token."""

    deadline_critical_us: Float[Array, ""] = number(
        100_000, "µs", "age by which a critical request wants its first token",
        low=0, is_whole=True, search=(20_000, 500_000), prior="log-uniform",
    )  # fmt: skip
    deadline_standard_us: Float[Array, ""] = number(
        250_000, "µs", "age by which a standard request wants its first token",
        low=0, is_whole=True, search=(50_000, 1_000_000), prior="log-uniform",
    )  # fmt: skip
    deadline_sheddable_us: Float[Array, ""] = number(
        1_000_000, "µs", "age by which a sheddable request wants its first token",
        low=0, is_whole=True, search=(200_000, 4_000_000), prior="log-uniform",
    )  # fmt: skip


def deadline_of(params: Deadlines, slo_class: jax.Array) -> jax.Array:
    """Return the deadline of each class's requests, µs after their arrival."""
    return by_tier(
        slo_class,
        params.deadline_critical_us,
        params.deadline_standard_us,
        params.deadline_sheddable_us,
    )


@pytree
class DeadlineParams(Deadlines, Bases):
    """Numbers of the deadline urgency."""

    least_left_us: Float[Array, ""] = number(
        10_000, "µs", "time left to the deadline from which urgency grows no more",
        low=0, excludes_low=True, is_whole=True,
    )  # fmt: skip


@priority_policy(DeadlineParams)
def slo_deadline(
    params: DeadlineParams, state: NoState, context: QueueContext
) -> tuple[jax.Array, Any]:
    """Multiply the base score of the class by how near its deadline is: hyperbolic, and bounded by the base."""
    slo_class = context.request.slo_class
    base = by_tier(slo_class, params.base_critical, params.base_standard, params.base_sheddable)
    deadline = deadline_of(params, slo_class)
    least = jnp.maximum(params.least_left_us, jnp.float64(1.0))
    left = jnp.maximum(deadline - age_us(context), least)
    return base * exact_quotient(jnp.broadcast_to(least, left.shape), left), state


PER_US = 1e-3  # a priority of 1 is a millisecond of slack


@pytree
class SlackParams(Deadlines):
    """Deadlines, what a prompt costs, and what lateness counts."""

    token_us: Float[Array, ""] = number(
        24.0, "µs/token", "time that a prompt token takes", low=0, search=(0, 100)
    )
    late_weight: Float[Array, ""] = number(
        1.0, "", "what a µs past the last moment to start counts, against a µs before it",
        low=0, search=(0, 2),
    )  # fmt: skip


@priority_policy(SlackParams)
def slo_slack(params: SlackParams, state: NoState, context: QueueContext) -> tuple[jax.Array, Any]:
    """Rank by least slack: deadline of the class − age − time for the prompt; with `late_weight` 0 all
    late are alike.
    """
    request = context.request
    service_us = exact_product(params.token_us, request.input_len.astype(jnp.float64))
    slack = deadline_of(params, request.slo_class) - age_us(context) - service_us
    slack = jnp.where(slack < 0, exact_product(params.late_weight, slack), slack)
    return -exact_product(jnp.float64(PER_US), slack), state


def tokens_of(
    context: GatewayContext, counts: Bool[Array, "instance slot"]
) -> Float[Array, "instance"]:
    """Count the prompt tokens still to compute for the outstanding requests marked in `counts`, without tokens expected
    to be cached."""
    seen = context.outstanding
    tokens = jnp.maximum(seen.input_len - seen.expected_blocks * context.block_size, 1)
    total = jnp.sum(jnp.where(seen.is_there & counts, tokens, 0), axis=1, dtype=jnp.int32)
    return total.astype(jnp.float64)


def own_tokens(context: GatewayContext) -> Float[Array, "instance"]:
    """Count the prompt tokens that each instance would have to compute for the request."""
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


@scorer(DeadlineWaitParams)
def deadline_wait(
    params: DeadlineWaitParams, state: NoState, context: GatewayContext
) -> tuple[jax.Array, Any]:
    """Score deadline ÷ (deadline + wait): the time for the request's own prompt and for those there
    that are due before it.
    """
    seen, request = context.outstanding, context.request
    deadline = deadline_of(params, request.slo_class)
    later_by = (seen.arrival_us - request.arrival_us).astype(jnp.float64)
    is_before = later_by + deadline_of(params, seen.slo_class) <= deadline
    tokens = tokens_of(context, is_before) + own_tokens(context)
    tokens = tokens + exact_product(params.later_share, tokens_of(context, ~is_before))
    wait = exact_product(params.token_us, tokens)
    limit = jnp.broadcast_to(jnp.maximum(deadline, jnp.float64(1.0)), wait.shape)
    return exact_quotient(limit, limit + wait), state

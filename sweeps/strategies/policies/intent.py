"""What the router means, told to the queue: detours made good, hits that it expected, tiers that close in calm."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from blis_jax.core.exact import exact_product
from blis_jax.core.pytrees import pytree
from blis_jax.core.types import CRITICAL
from blis_jax.lazy import jax, jnp, lax
from blis_jax.policies.classes import is_sheddable
from blis_jax.policies.contexts import GatewayContext, QueueContext
from blis_jax.policies.contract import NoState, priority_policy, scorer
from blis_jax.policies.numbers import number
from blis_jax.policies.queue_order import TieredParams, slo_tiered
from blis_jax.policies.scorers import scaled_load
from sweeps.strategies.policies.deadlines import SlackParams, own_tokens, slo_slack, tokens_of
from sweeps.strategies.policies.regimes import kept, stay_number

if TYPE_CHECKING:
    from jaxtyping import Array, Bool, Float, Int


def tier_of(slo_class: Int[Array, "..."]) -> jax.Array:
    """Return 0 for critical, 1 for standard and unclassed, 2 for sheddable, batch and background."""
    rest = jnp.where(is_sheddable(slo_class), jnp.int32(2), jnp.int32(1))
    return jnp.where(slo_class == CRITICAL, jnp.int32(0), rest)


def tokens_ahead(
    context: GatewayContext, lower_share: Float[Array, ""]
) -> Float[Array, "instance"]:
    """Count prompt tokens on each instance of classes at least as urgent as the request's, plus a share of the
    others'."""
    is_ahead = tier_of(context.outstanding.slo_class) <= tier_of(context.request.slo_class)
    lower = exact_product(lower_share, tokens_of(context, ~is_ahead))
    return tokens_of(context, is_ahead) + lower


@pytree
class BacklogParams:
    """The weight of less urgent requests, and of the detour that the instance is to make good."""

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
    """Return the µs by which the prompts ahead there take longer than on the active instance with the fewest ahead."""
    ahead = tokens_ahead(context, jnp.float64(0.0))
    least = jnp.min(jnp.where(context.snapshots.is_active, ahead, jnp.inf))
    is_there = lax.iota(jnp.int32, ahead.shape[0]) == instance
    beyond = jnp.sum(jnp.where(is_there, ahead, 0.0)) - least
    return exact_product(params.detour_share, exact_product(params.token_us, beyond))


@scorer(BacklogParams, hands=lead_of_detour)
def class_backlog(
    params: BacklogParams, state: NoState, context: GatewayContext
) -> tuple[jax.Array, Any]:
    """Score by the backlog in prompt tokens of classes as urgent, the own prompt included, scaled; 1
    if all are equal.
    """
    tokens = tokens_ahead(context, params.lower_share) + own_tokens(context)
    return scaled_load(tokens, context.snapshots), state


@pytree
class IntentParams(TieredParams):
    """Numbers of the tiers, and what the router's expectation is worth."""

    expected_block: Float[Array, ""] = number(
        0.001, "priority/block", "priority that a block is worth which the router expected to be cached",
        low=0, search=(0.0001, 1), prior="log-uniform",
    )  # fmt: skip


@priority_policy(IntentParams)
def intent_tiered(
    params: IntentParams, state: NoState, context: QueueContext
) -> tuple[jax.Array, Any]:
    """Rank as slo-tiered, with requests older by the µs that the router handed over; expected hits add to it."""
    tiered, _ = slo_tiered.decide(params, state, context)
    lead = exact_product(params.age_weight, context.handed)
    blocks = context.num_expected_blocks.astype(jnp.float64)
    return tiered + lead + exact_product(params.expected_block, blocks), state


@pytree
class IntentSlackParams(SlackParams, IntentParams):
    """Numbers of both, what slack is worth, and the regime in which tiers are open."""

    slack_share: Float[Array, ""] = number(
        0.0,
        "priority/ms",
        "priority that a millisecond of slack takes away",
        low=0,
        search=(0, 0.1),
    )
    busy_depth: Float[Array, ""] = number(
        0.0, "requests", "requests waiting on an instance above which its tiers are open",
        low=0, search=(0, 30),
    )  # fmt: skip
    stay: Float[Array, ""] = stay_number()
    calm_share: Float[Array, ""] = number(
        1.0, "", "share of the distance between the tiers that is left while the queue is calm",
        low=0, high=1,
    )  # fmt: skip


@pytree
class QueueRegime:
    """The regime of an instance's queue: busy, with open tiers, or calm."""

    is_busy: Bool[Array, ""]


def calm_queue(params: IntentSlackParams, shape: object) -> QueueRegime:
    """Return the state in which nobody waits."""
    return QueueRegime(jnp.zeros((), bool))


@priority_policy(IntentSlackParams, calm_queue)
def intent_slack(
    params: IntentSlackParams, state: QueueRegime, context: QueueContext
) -> tuple[jax.Array, QueueRegime]:
    """Rank as intent-tiered less a share of the slack of slo-slack; tiers close while few wait, with hysteresis."""
    depth = context.queue_depth.astype(jnp.float64)
    is_busy = kept(state.is_busy, depth, params.busy_depth, params.stay)
    low = params.base_sheddable

    def base(of_class: Float[Array, ""]) -> Float[Array, ""]:
        closed = low + exact_product(params.calm_share, of_class - low)
        return jnp.where(is_busy, of_class, closed)

    tiers = dataclasses.replace(
        params, base_critical=base(params.base_critical), base_standard=base(params.base_standard)
    )
    urgency, _ = intent_tiered.decide(tiers, NoState(), context)
    pressing, _ = slo_slack.decide(params, NoState(), context)
    return urgency + exact_product(params.slack_share, pressing), QueueRegime(is_busy)

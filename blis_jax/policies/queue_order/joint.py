"""Tiers, intent and slack in one order, with tiers that close while the queue is calm.

`intent-tiered` and `slo-slack` are priorities both, so a cluster can have one of them. This one adds them.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from blis_jax.core.exact import exact_product
from blis_jax.core.types import pytree
from blis_jax.lazy import jax, jnp
from blis_jax.policies.contract import NoState, QueueContext, priority_policy
from blis_jax.policies.numbers import number
from blis_jax.policies.queue_order.intent import IntentParams, intent_tiered
from blis_jax.policies.queue_order.slack import SlackParams, slo_slack
from blis_jax.policies.regimes import kept, stay_number

if TYPE_CHECKING:
    from jaxtyping import Array, Bool, Float


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
    """Whether the instance's tiers are open."""

    is_busy: Bool[Array, ""]


def calm_queue(params: IntentSlackParams, shape: object) -> QueueRegime:
    """Nobody waits."""
    del params, shape
    return QueueRegime(jnp.zeros((), bool))


@priority_policy(IntentSlackParams, calm_queue, reads_handed=True)
def intent_slack(
    params: IntentSlackParams, state: QueueRegime, context: QueueContext
) -> tuple[jax.Array, QueueRegime]:
    """As intent-tiered less a share of the slack of slo-slack; tiers close while few wait, with hysteresis."""
    depth = context.queue_depth.astype(jnp.float64)
    is_busy = kept(state.is_busy, depth, params.busy_depth, params.stay)
    low = params.base_sheddable

    def base(of_class: Float[Array, ""]) -> Float[Array, ""]:
        closed = low + exact_product(params.calm_share, of_class - low)
        return jnp.where(is_busy, of_class, closed)

    tiers = dataclasses.replace(
        params,
        base_critical=base(params.base_critical),
        base_standard=base(params.base_standard),
    )
    urgency, _ = intent_tiered.decide(tiers, NoState(), context)
    pressing, _ = slo_slack.decide(params, NoState(), context)
    return urgency + exact_product(params.slack_share, pressing), QueueRegime(is_busy)

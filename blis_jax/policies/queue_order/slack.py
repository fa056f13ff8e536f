"""Least slack first: the time that is left to the deadline once the prompt itself is computed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from blis_jax.core.exact import exact_product
from blis_jax.core.types import pytree
from blis_jax.lazy import jax, jnp
from blis_jax.policies.contract import NoState, QueueContext, priority_policy
from blis_jax.policies.numbers import number
from blis_jax.policies.queue_order.priority import Deadlines, deadline_of

if TYPE_CHECKING:
    from jaxtyping import Array, Float

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
    """Least slack first: deadline of the class − age − time for the prompt; with `late_weight` 0 all late are alike."""
    request = context.request
    age = (context.now_us - request.arrival_us).astype(jnp.float64)
    own = exact_product(params.token_us, request.input_len.astype(jnp.float64))
    slack = deadline_of(params, request.slo_class) - age - own
    slack = jnp.where(slack < 0, exact_product(params.late_weight, slack), slack)
    return -exact_product(jnp.float64(PER_US), slack), state

"""Scores of BLIS's revision of August 2026 by queue, batch and requests in flight. Source: `sim/routing_scorers.go`.

Queues and batches are as old as the snapshot. Requests in flight are those that the router has sent and that have
not left; in a snapshot of August's revision `num_pending` is their number.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from blis_jax.core.exact import exact_product, exact_quotient
from blis_jax.core.types import LAST, Snapshots
from blis_jax.lazy import jax, jnp
from blis_jax.policies.contract import GatewayContext, NoParams, NoState, scorer

if TYPE_CHECKING:
    from jaxtyping import Array, Int

Scores = tuple["jax.Array", Any]
LONGEST_QUEUE = 128  # BLIS: queueThresholdDefault


def scaled_down(count: Int[Array, "instance"], seen: Snapshots) -> jax.Array:
    """Counts scaled between the least and the most of the active instances, least best; 1 if all are equal."""
    least = jnp.min(jnp.where(seen.is_active, count, LAST))
    most = jnp.max(jnp.where(seen.is_active, count, 0))
    spread = jnp.maximum(most - least, 1).astype(jnp.float64)
    scaled = exact_quotient((most - count).astype(jnp.float64), spread)
    return jnp.where(most == least, jnp.float64(1.0), scaled)


@scorer()
def waiting_requests(params: NoParams, state: NoState, context: GatewayContext) -> Scores:
    """Length of the wait queue, scaled; August's `queue-depth`."""
    del params
    return scaled_down(context.snapshots.queue_depth, context.snapshots), state


@scorer()
def running_requests(params: NoParams, state: NoState, context: GatewayContext) -> Scores:
    """Size of the running batch, scaled."""
    del params
    return scaled_down(context.snapshots.batch_size, context.snapshots), state


@scorer()
def vllm_dp(params: NoParams, state: NoState, context: GatewayContext) -> Scores:
    """Four times the wait queue plus the batch, scaled: what vLLM's data-parallel load balancer compares."""
    del params
    seen = context.snapshots
    return scaled_down(4 * seen.queue_depth + seen.batch_size, seen), state


@scorer()
def active_requests(params: NoParams, state: NoState, context: GatewayContext) -> Scores:
    """1 - requests in flight ÷ the most that an instance has."""
    del params
    seen, flying = context.snapshots, context.snapshots.num_pending
    most = jnp.max(jnp.where(seen.is_active, flying, 0))
    share = exact_quotient(
        (most - flying).astype(jnp.float64), jnp.maximum(most, 1).astype(jnp.float64)
    )
    return jnp.where(flying == 0, jnp.float64(1.0), share), state


@scorer()
def load_aware(params: NoParams, state: NoState, context: GatewayContext) -> Scores:
    """0.5 without a wait queue, falling to 0 at 128 waiting requests."""
    del params
    queue = jnp.minimum(context.snapshots.queue_depth, LONGEST_QUEUE).astype(jnp.float64)
    share = exact_quotient(queue, jnp.full_like(queue, float(LONGEST_QUEUE)))
    falling = exact_product(jnp.float64(0.5), jnp.float64(1.0) - share)
    return jnp.where(queue == 0, jnp.float64(0.5), falling), state

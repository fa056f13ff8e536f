"""The routers of the example and of the hand-over, each a few lines, by the rules that were published with them.

Beside all of them stand the scorers prefix-affinity and load-balance; `scores` is their weighted sum.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from blis_jax.core.exact import exact_product, exact_quotient
from blis_jax.core.types import BACKGROUND, CRITICAL, LAST, SHEDDABLE
from blis_jax.policies.contexts import GatewayContext
from blis_jax.policies.contract import NoParams, NoState, routing_policy
from blis_jax.policies.routing.pickers import (
    Choice,
    DrawState,
    first_best_of,
    first_where,
    none_used,
    one_of,
)


def _by_load(load: jax.Array) -> jax.Array:
    return exact_quotient(jnp.float64(1.0), 1.0 + load.astype(jnp.float64))


def _mixed(context: GatewayContext) -> jax.Array:
    """Return 15 % of the weighted sum and 85 % of what the load says."""
    by_load = _by_load(context.snapshots.effective_load)
    return exact_product(0.15, context.scores) + exact_product(0.85, by_load)


def _lowered(scores: jax.Array, factor: float, where: jax.Array) -> jax.Array:
    return jnp.where(where, exact_product(scores, factor), scores)


def _best(context: GatewayContext, scores: jax.Array) -> jax.Array:
    return first_best_of(scores, context.snapshots.is_active)


@routing_policy()
def sabotaged(params: NoParams, state: NoState, context: GatewayContext) -> Choice:
    """Choose the first instance, always."""
    return first_where(context.snapshots.is_active), state


# --- the oracles of the example's sets ------------------------------------------------------------


@routing_policy()
def oracle_b(params: NoParams, state: NoState, context: GatewayContext) -> Choice:
    """Mix for every request; urgent ones avoid queues."""
    is_urgent = context.request.slo_class == CRITICAL
    deep = context.snapshots.queue_depth > 5
    return _best(context, _lowered(_mixed(context), 0.7, is_urgent & deep)), state


@routing_policy()
def oracle_c(params: NoParams, state: NoState, context: GatewayContext) -> Choice:
    """Mix for short prompts, less where much load is for long ones; urgent ones avoid queues."""
    seen, request = context.snapshots, context.request
    long = _lowered(context.scores, 0.7, seen.effective_load > 15)
    scores = jnp.where(request.input_len > 1000, long, _mixed(context))
    is_urgent = request.slo_class == CRITICAL
    return _best(context, _lowered(scores, 0.7, is_urgent & (seen.queue_depth > 5))), state


@routing_policy()
def oracle_d(params: NoParams, state: NoState, context: GatewayContext) -> Choice:
    """Choose by class, session and length, in this order."""
    seen, request, scores = context.snapshots, context.request, context.scores
    load, slo_class = seen.effective_load, request.slo_class
    is_critical = slo_class == CRITICAL
    mixed = _mixed(context)
    shed = _lowered(scores, 0.4, load > 8)
    session = jnp.where(load > 20, exact_product(scores, 0.5), _lowered(scores, 0.8, load > 10))
    urgent = _lowered(mixed, 0.6, is_critical & (seen.queue_depth > 5))
    short = jnp.where(is_critical | (slo_class == BACKGROUND), urgent, scores)
    by_length = jnp.where(request.input_len >= 600, mixed, short)
    in_session = context.has_session & (request.input_len > 800)
    rest = jnp.where(in_session, session, by_length)
    return _best(context, jnp.where(slo_class == SHEDDABLE, shed, rest)), state


# --- the winner that was handed over, and what it was compared with -------------------------------


def _tied(scores: jax.Array, context: GatewayContext, state: DrawState) -> Choice:
    among = jnp.where(context.snapshots.is_active, scores, -jnp.inf)
    return one_of(among == jnp.max(among), context.draws, state)


@routing_policy(start=none_used, is_random=True)
def winner(params: NoParams, state: DrawState, context: GatewayContext) -> Choice:
    """Weigh affinity less, the more requests in flight the instance with the best prefix has than the least."""
    seen = context.snapshots
    in_flight = seen.num_pending
    prefix, load = (jnp.clip(scorer_score, 0.0, 1.0) for scorer_score in context.scorer_scores)
    affinity, balance = context.scorer_shares[0], context.scorer_shares[1]
    warmest = first_best_of(context.scorer_scores[0], seen.is_active)
    least = jnp.min(jnp.where(seen.is_active, in_flight, LAST))
    behind = (in_flight[warmest] - least).astype(jnp.float64)
    is_behind = (context.scorer_scores[0][warmest] > 0.1) & (behind > 0)
    decay = exact_quotient(jnp.float64(1.0), 1.0 + exact_product(0.6, behind))
    less = exact_product(affinity, decay)
    affinity, balance = (
        jnp.where(is_behind, new, old) for new, old in ((less, affinity), (1.0 - less, balance))
    )
    scores = exact_product(prefix, affinity) + exact_product(load, balance)
    kv = seen.kv_utilization
    penalty = exact_quotient(exact_product(0.5, kv - 0.9), jnp.float64(0.1))
    scores = jnp.where(kv > 0.9, scores - penalty, scores)
    scores = scores + exact_quotient(jnp.float64(0.01), 1.0 + in_flight.astype(jnp.float64))
    return _tied(scores, context, state)


@routing_policy()
def lor(params: NoParams, state: NoState, context: GatewayContext) -> Choice:
    """Choose the first instance with the fewest requests outstanding."""
    seen = context.snapshots
    outstanding = jnp.where(seen.is_active, seen.num_pending, LAST)
    return first_where(outstanding == jnp.min(outstanding)), state


@routing_policy()
def llq(params: NoParams, state: NoState, context: GatewayContext) -> Choice:
    """Choose the first instance with the shortest queue, as old as the snapshot."""
    seen = context.snapshots
    depth = jnp.where(seen.is_active, seen.queue_depth, LAST)
    return first_where(depth == jnp.min(depth)), state


@routing_policy()
def glia(params: NoParams, state: NoState, context: GatewayContext) -> Choice:
    """Choose by KV blocks in use with the request's own, of instances that keep 3 % free; load decides little."""
    seen, used = context.snapshots, context.snapshots.kv_utilization
    blocks = exact_product(context.request.input_len.astype(jnp.float64), 1.0 + 0.6) + 16.0 - 1.0
    blocks = exact_quotient(blocks, jnp.float64(16.0))
    free = seen.free_kv_blocks
    total: Any = jnp.where(
        used <= 0.001,
        free,
        jnp.where(used < 0.999, exact_quotient(free, 1.0 - used), exact_product(free, 1000.0)),
    )
    total = jnp.maximum(total, 1.0)
    projected = (total - free) + blocks
    load = exact_product(0.001, seen.effective_load.astype(jnp.float64))
    share = exact_quotient(projected, total)
    fits = total - projected >= exact_product(total, 0.03)
    return _best(context, jnp.where(fits, -share - load, (-10.0 - share) - load)), state

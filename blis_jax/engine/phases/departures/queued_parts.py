"""Split requests that have waited in the gateway's queue: in which order they come, and what counts of them meanwhile.

A request waits there once, whole. Its parts are routed in the order of dispatch, and a tick of the queue comes behind
the transfers that end in its microsecond. Source: BLIS as of August 2026, `sim/cluster/cluster.go` and `pd_events.go`.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp

from blis_jax.core.types import LAST
from blis_jax.engine.calendar import Kind
from blis_jax.engine.context import Context
from blis_jax.engine.gateway.gateway_queue import GatewayQueue
from blis_jax.engine.state import State
from blis_jax.engine.tables.joined import lane_of
from blis_jax.engine.tables.journeys import Journey, Movement, Reservation

if TYPE_CHECKING:
    from jaxtyping import Array, Bool, Int


def _movement(state: State) -> Movement:
    assert state.movement is not None  # there is one where requests are split
    return state.movement


def _is_split(movement: Movement) -> Bool[Array, "request"]:
    return movement.reserved[:, Reservation.columns.TARGET] >= 0


def with_tick(state: State, now: jax.Array, kind: jax.Array) -> State:
    """The state with the time of a tick that is due now, where somebody asks for it."""
    queue = state.queue
    if queue is None or queue.ticked is None:
        return state
    ticked = jnp.where(kind == Kind.TICK, now, queue.ticked)
    return dataclasses.replace(state, queue=dataclasses.replace(queue, ticked=ticked))


def next_part(
    queue: GatewayQueue,
    is_due: Bool[Array, "request"],
    has_kv: Bool[Array, "request"],
    text: Int[Array, "request"],
) -> jax.Array:
    """Of the requests that are due, the one dispatched first that waits for its second routing.

    If none does, the one whose transfer begins: that with the least id as a text.
    """
    waits = jnp.append(is_due & ~has_kv, jnp.array(False))[queue.order]
    second = queue.order[jnp.argmax(waits)]
    begins = jnp.argmin(jnp.where(is_due & has_kv, text, jnp.int32(LAST))).astype(jnp.int32)
    return jnp.where(jnp.any(waits), second, begins)


def rank_behind_queue(ctx: Context, state: State) -> jax.Array:
    """The rank of the next request to be placed among those that enter an instance's queue in one microsecond.

    It counts the routings so far, first and second ones; ranks of transfers are below all of these.
    """
    movement = _movement(state)
    due = movement.journey_time[:, Journey.time_columns.DUE]
    has_kv = movement.journey[:, Journey.columns.COMPUTED] > 0
    is_split = _is_split(movement)[:-1]
    waits = is_split & (due < ctx.never)[:-1] & ~has_kv[:-1]
    placed = jnp.sum(is_split & ~waits, dtype=jnp.int32)
    return jnp.int32(ctx.shape.num_requests) + lane_of(ctx, state).next_route + placed


def is_whole(state: State) -> Bool[Array, "request"]:
    """Requests that are not split: BLIS keeps no others in mind for an eviction."""
    return ~_is_split(_movement(state))


def is_between(ctx: Context, movement: Movement, now: jax.Array) -> Bool[Array, "request"]:
    """Split requests whose prompt is computed and whose transfer has not ended before now, or never will."""
    ends = movement.reserved_time[:, 0]
    is_coming = (ends >= now) & (ends < ctx.never)
    return is_coming | (movement.reserved[:, Reservation.columns.IS_DROPPED] == 1)

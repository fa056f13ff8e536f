"""Requests that instances give up for a more urgent one in the gateway's queue: who it is, and when it goes."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
from jax import lax

from blis_jax.core.columns import as_int
from blis_jax.core.types import LAST
from blis_jax.engine.phases.departures.giving_up import by_standing, give_up, standing
from blis_jax.tables.context import Context
from blis_jax.tables.gateways import (
    Dispatches,
    GatewayQueue,
    Place,
    QueueParams,
    QueueVictims,
    QueueWrite,
)
from blis_jax.tables.joined import places_of
from blis_jax.tables.journeys import Exits
from blis_jax.tables.state import Dyn, Slot, State
from blis_jax.tables.writes import Writes

if TYPE_CHECKING:
    from jaxtyping import Array, Int


def victim_of(
    ctx: Context, state: State, now: jax.Array, band: Int[Array, "request"], gateway: jax.Array
) -> jax.Array:
    """Return the least urgent sheddable request at the instances, of several the one dispatched last;
    the spare if none.

    Those dispatched in one microsecond come by their number; in BLIS, as its heap has them. Only the gateway's own are
    looked at.
    """
    if by_standing(ctx):
        return _standing_victim(ctx, state, now, gateway)
    queue, exits, spare = state[GatewayQueue], state[Exits], jnp.int32(ctx.shape.num_requests)
    is_there = (state[Dispatches].place == Place.DISPATCHED) & (places_of(state) >= 0) & (band < 0)
    is_over = (state.past.rows[:, Dyn.FINISH_RECORD] > 0) | (
        state.past.rows[:, Dyn.NUM_SCHEDULED] < 0
    )
    is_there = ctx.gateways.of_own(is_there & ~is_over & (exits.step_index == 0), gateway)
    is_there = ctx.pools.may_be_evicted(state, is_there)
    least = jnp.min(jnp.where(is_there, band, jnp.int32(LAST)))
    is_least = is_there & (band == least)
    number = lax.iota(jnp.int32, is_there.shape[0])
    latest = jnp.max(jnp.where(is_least[queue.order], number, -1))
    return jnp.where(latest < 0, spare, queue.order[latest])


def _standing_victim(ctx: Context, state: State, now: jax.Array, gateway: jax.Array) -> jax.Array:
    """The victim where requests move: only those that stand somewhere now are looked at, by their slots."""
    place, rows = state[Dispatches].place, ctx.shape.num_instances
    spare = jnp.int32(ctx.shape.num_requests)
    params: QueueParams = ctx.params.cluster.queue
    is_there = standing(ctx, state, now)
    band = params.priority[state.slot.numbers[Slot.SLO_CLASS, :rows]]
    request = jnp.where(is_there, state.slot.numbers[Slot.REQUEST, :rows], spare)
    is_there = is_there & (band < 0) & (place[request] == Place.DISPATCHED)
    is_there = ctx.gateways.of_own(is_there, gateway, request)
    least = jnp.min(jnp.where(is_there, band, jnp.int32(LAST)))
    rank = state.slot.numbers[Slot.QUEUE_RANK, :rows]  # its number in order of dispatch
    latest = jnp.max(jnp.where(is_there & (band == least), rank, -1))
    return jnp.where(latest < 0, spare, state[GatewayQueue].order[latest])


def with_victim(victims: QueueVictims, victim: jax.Array, now: jax.Array) -> QueueVictims:
    """Add a request to those that are to be given up at the end of this microsecond; the spare one changes nothing."""
    spare = jnp.int32(victims.order.shape[0] - 1)
    at = jnp.where(victim < spare, victims.num_chosen, spare)
    return QueueVictims(
        order=lax.dynamic_update_slice(victims.order, victim[None], (at,)),
        num_chosen=victims.num_chosen + as_int(victim < spare),
        num_gone=victims.num_gone,
        due=jnp.where(victim < spare, now, victims.due),
    )


def evict(ctx: Context, state: State, now: jax.Array) -> Writes:
    """Let an instance give up the next request that was chosen; a request on its way to the queue stays."""
    victims = state[QueueVictims]
    request = victims.order[victims.num_gone]
    is_kept = not ctx.mechanism.rules.has_order  # BLIS forgets a batch whose last member it evicts
    writes, is_there = give_up(ctx, state, request, now, keeps_batch=is_kept)
    left = victims.num_gone + 1
    spare = jnp.int32(ctx.shape.num_requests)
    change = dataclasses.replace(
        writes[QueueWrite],
        request=jnp.stack([jnp.where(is_there, request, spare), spare, spare]),
        place=jnp.full((3,), Place.EVICTED, jnp.int32),
    )
    due = jnp.where(left < victims.num_chosen, victims.due, ctx.never)
    return writes.having(change, dataclasses.replace(victims, num_gone=left, due=due))

"""The gateway's decisions, as the few table rows that they change."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp

from blis_jax.core.columns import Row, Whole, apart, put
from blis_jax.core.pytrees import HasParts, Parts, pytree
from blis_jax.core.types import UNROUTED
from blis_jax.engine.phases.snapshot import may_be_unrouted
from blis_jax.engine.writing import no_changes, no_writes
from blis_jax.policies.contexts import GatewayContext
from blis_jax.policies.contract import PolicyStates
from blis_jax.tables.context import Context
from blis_jax.tables.gateways import BeforePools, QueueVictims, QueueWrite
from blis_jax.tables.joined import INSTANCE_OF, lane_of
from blis_jax.tables.journeys import Journeys, Reservations
from blis_jax.tables.router import LateWrite, RouterWrite, View
from blis_jax.tables.state import Instance, Lane, Past, Resident, State
from blis_jax.tables.writes import OF_MOVES, FirstRouting, HandedOver, Writes


class Destination(Row):
    """The request of a decision, and the instance and slot that it goes to; spare indices if there is no decision."""

    turned_away: Whole  # request
    routed: Whole  # request
    instance: Whole
    slot: Whole


@pytree
class Decisions(HasParts):
    """The gateway's decisions as the rows to write; indices are spare ones if nothing is written."""

    lane: Lane
    stale: View
    gateway: PolicyStates[object]
    where: Destination
    slot: Resident
    inst: Instance
    own: Parts  # what changes in sub-trees of the state


class Routed(NamedTuple):
    """A request, the instance that its router has chosen, the time, and the context that the router read."""

    request: jax.Array
    instance: jax.Array
    now: jax.Array
    context: GatewayContext


_DECIDED = RouterWrite, LateWrite, QueueWrite, QueueVictims, BeforePools, HandedOver
"""What a decision of the gateway may change in sub-trees; and where KV is reserved, what is written of moves."""


def no_decisions(ctx: Context, state: State) -> Decisions:
    """Return decisions in which no request is admitted or routed."""
    spare, rows = ctx.shape.num_requests, ctx.shape.num_instances
    num_times = len(Instance.time_columns) + ctx.shape.num_chains - 1
    moves = OF_MOVES if Reservations in state else ()
    return Decisions(
        lane=lane_of(ctx, state),
        stale=state.stale,
        gateway=state.gateway,
        where=Destination(ctx.vector(jnp.array([spare, spare, rows, 0], jnp.int32))),
        slot=Resident.filled(ctx.clock),
        inst=Instance(
            jnp.zeros((len(Instance.columns),), jnp.int32),
            jnp.full((num_times,), ctx.never, ctx.clock),
        ),
        own=no_changes(ctx, state).only(*_DECIDED, *moves),
    )


def decided(ctx: Context, state: State, done: Decisions) -> Writes:
    """Return the writes of a scan step in which the gateway has decided."""
    routed, instance = done.where.routed, done.where.instance
    nothing, joins = no_writes(ctx, state, instance), state.past.is_joined
    routed_to = _routed_to(ctx, instance)
    changes = nothing.own.having(*done.own)
    if FirstRouting in changes:
        changes = changes.having(FirstRouting(done.lane.last_event))
    past = ctx.past(state, routed) if Journeys in state else nothing.slot.past
    memory = nothing.slot.memory
    if joins:
        memory = ctx.memory.preempted.arrives(ctx, state, routed, memory)
    return dataclasses.replace(
        nothing,
        lane=done.lane,
        stale=done.stale,
        gateway=done.gateway,
        own=changes,
        turned_away=done.where.turned_away,
        routed=routed,
        routed_to=routed_to,
        instance=instance,
        inst=done.inst,
        slot=dataclasses.replace(
            nothing.slot,
            request=routed if joins else nothing.slot.request,
            past=_past_of_routed(past, done, routed_to) if joins else nothing.slot.past,
            memory=memory,
            instance=instance,
            slot=done.where.slot,
            row=done.slot,
        ),
    )


def _routed_to(ctx: Context, instance: jax.Array) -> jax.Array:
    """Return the place to note for a request that has been decided on: its instance, or `UNROUTED`."""
    if not may_be_unrouted(ctx):
        return instance
    return jnp.where(instance < ctx.shape.num_instances, instance, jnp.int32(UNROUTED))


def _past_of_routed(past: Past, done: Decisions, routed_to: jax.Array) -> Past:
    """Return the row of a request after its routing, with its instance and its expected blocks."""
    beside = {INSTANCE_OF: routed_to, INSTANCE_OF + 1: done.slot.expected_blocks}
    return Past(put(apart(past.numbers), beside))

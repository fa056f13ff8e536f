"""What the gateway has decided, as few rows to write."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from blis_jax.core.rows import Row, Whole
from blis_jax.core.types import pytree
from blis_jax.engine.context import Context
from blis_jax.engine.gateway.gateway_queue import QueueWrite, unchanged
from blis_jax.engine.phases.router_view.asked import nothing_handed
from blis_jax.engine.phases.router_view.late_news import LateWrite
from blis_jax.engine.phases.router_view.router_index import RouterWrite, no_touch
from blis_jax.engine.state import Instance, Lane, Resident, State
from blis_jax.engine.tables.joined import lane_of
from blis_jax.engine.tables.writes import MovementWrite, no_movement


class Destination(Row):
    """Whom a decision is about, and where the request goes; spare places where there is none."""

    turned_away: Whole  # request
    routed: Whole  # request
    instance: Whole
    slot: Whole


@pytree
class Decisions:
    """What the gateway did, as few rows to write; spare indices where nothing is written."""

    lane: Lane
    stale: Any
    gateway: Any  # states of the gateway's policies
    where: Destination
    slot: Resident
    inst: Instance
    router: RouterWrite | LateWrite | None
    split: MovementWrite | None = None  # of a request whose prompt is computed elsewhere
    queue: QueueWrite | None = None
    handed: Any = None  # float64 that the instance gets with the request; see `Policy.hands`


def no_decisions(ctx: Context, state: State) -> Decisions:
    """Nothing admitted, nothing routed."""
    spare, rows = ctx.shape.num_requests, ctx.shape.num_instances
    num_times = len(Instance.time_columns) + ctx.shape.num_chains - 1
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
        router=no_touch(ctx, state),
        split=no_movement(ctx, state.movement) if ctx.mechanism.reserves_decode else None,
        queue=unchanged(state.queue),
        handed=nothing_handed(ctx),
    )

"""Tenants over their share of the cluster: their sheddable requests are turned away, whatever the admission policy."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from blis_jax.engine.context import Context
from blis_jax.engine.gateway.gateway_queue import Place
from blis_jax.engine.phases.departures.queued_parts import is_between
from blis_jax.engine.state import Dyn, Req, State
from blis_jax.engine.tables.joined import places_of


def is_over_budget(ctx: Context, state: State, request: jax.Array, now: jax.Array) -> jax.Array:
    """Whether the request's class is sheddable and its tenant has more requests at the instances than its share.

    A request counts from its routing until it completes, is dropped or gives up; one that is split does not count
    between the end of its prompt and the end of its transfer.
    """
    budgets = ctx.params.cluster.budgets
    given = ctx.request(request)
    is_there = (places_of(state) >= 0) & (state.dyn[:, Dyn.FINISH_RECORD] == 0)
    is_there = is_there & (state.dyn[:, Dyn.NUM_SCHEDULED] >= 0)
    if state.exits is not None:
        is_there = is_there & (state.exits.step_index == 0)
    if state.queue is not None:
        is_there = is_there & (state.queue.place != Place.EVICTED)
    if ctx.mechanism.reserves_decode:
        assert state.movement is not None
        is_there = is_there & ~is_between(ctx, state.movement, now)
    is_mine = ctx.requests.table[:, Req.TENANT] == given.tenant
    count = jnp.sum((is_there & is_mine)[:-1], dtype=jnp.int32).astype(jnp.float64)
    last = jnp.int32(budgets.limit.shape[0] - 1)
    limit = budgets.limit[jnp.minimum(given.tenant, last)]
    is_sheddable = budgets.priority[given.slo_class] < 0
    over: jax.Array = is_sheddable & (given.tenant <= last) & (count > limit)
    return over

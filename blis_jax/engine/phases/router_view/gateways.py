"""Several gateways before one cluster: each knows what it has done itself, and of the others what instances show.

Requests are dealt to the gateways in turn, by their number. A gateway has states of its policies of its own and its
own prefix index (unless the KV caches feed one for all), and counts only its own requests on the way to an instance.
Looks at the instances are common to all. Where requests wait at the gateway, each has a queue of its own. With one
gateway nothing of this is in the compiled program.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax import lax

from blis_jax.core.types import REJECTED
from blis_jax.engine.context import Context
from blis_jax.engine.gateway.gateway_queue import OWN, GatewayQueue, QueueWrite
from blis_jax.engine.state import Slot, State
from blis_jax.engine.tables.joined import lane_of, place_of, queued_times

if TYPE_CHECKING:
    from jaxtyping import Array, Bool, Int

States = tuple[Any, ...]


def gateway_of(ctx: Context, request: jax.Array) -> jax.Array:
    """The gateway that a request comes to."""
    return lax.rem(request, jnp.int32(ctx.mechanism.num_gateways))


def on_each(mechanism: Any, place: int, start: Any) -> Any:
    """The first state of a gateway's policy; of one that decides about requests there is one for each gateway."""
    count = mechanism.num_gateways
    if count == 1 or place in mechanism.common_places:
        return start
    return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (count, *jnp.shape(leaf))), start)


def own_states(ctx: Context, states: States, request: jax.Array) -> States:
    """The states as the request's gateway has them."""
    if ctx.mechanism.num_gateways == 1:
        return states
    at, common = gateway_of(ctx, request), ctx.mechanism.common_places

    def own(leaf: jax.Array) -> jax.Array:
        return lax.dynamic_index_in_dim(leaf, at, keepdims=False)

    return tuple(
        state if place in common else jax.tree.map(own, state) for place, state in enumerate(states)
    )


def with_own(ctx: Context, states: States, own: States, request: jax.Array) -> States:
    """All gateways' states, once the request's gateway has these."""
    if ctx.mechanism.num_gateways == 1:
        return own
    at, common = gateway_of(ctx, request), ctx.mechanism.common_places

    def put(leaf: jax.Array, new: jax.Array) -> jax.Array:
        return lax.dynamic_update_index_in_dim(leaf, new, at, 0)

    return tuple(
        new if place in common else jax.tree.map(put, state, new)
        for place, (state, new) in enumerate(zip(states, own, strict=True))
    )


def own_queue(ctx: Context, queue: GatewayQueue, gateway: jax.Array) -> GatewayQueue:
    """The queue as one gateway has it, in the form of a single gateway's."""
    if ctx.mechanism.num_gateways == 1:
        return queue

    def own(name: str) -> Any:
        return lax.dynamic_index_in_dim(getattr(queue, name), gateway, keepdims=False)

    return dataclasses.replace(queue, **{name: own(name) for name in OWN})


def with_own_queue(
    ctx: Context, queue: GatewayQueue, own: QueueWrite, gateway: jax.Array
) -> QueueWrite:
    """What changes in all queues, given what changes in one gateway's."""
    if ctx.mechanism.num_gateways == 1:
        return own

    def put(name: str) -> Any:
        new = getattr(own, name)
        return lax.dynamic_update_index_in_dim(getattr(queue, name), new, gateway, 0)

    return dataclasses.replace(own, **{name: put(name) for name in OWN})


def of_own(
    ctx: Context,
    mask: Bool[Array, "*at"],
    gateway: jax.Array,
    request: Int[Array, "*at"] | None = None,
) -> Bool[Array, "*at"]:
    """The mask without requests of other gateways; if `request` is not given, its entries are all requests."""
    if ctx.mechanism.num_gateways == 1:
        return mask
    if request is None:
        request = lax.iota(jnp.int32, mask.shape[0])
    return mask & (gateway_of(ctx, request) == gateway)


def own_pending(
    ctx: Context, state: State, now: jax.Array, request: jax.Array
) -> Int[Array, "instance"]:
    """Requests that the request's gateway has sent to every instance and that are not queued there yet."""
    rows = ctx.shape.num_instances
    times, sent = queued_times(state, rows), state.slot[Slot.REQUEST, :rows]
    is_mine = gateway_of(ctx, sent) == gateway_of(ctx, request)
    return jnp.sum((times >= now) & (times < ctx.never) & is_mine, axis=1, dtype=jnp.int32)


def own_rejections(
    ctx: Context, state: State, num_rejected: jax.Array, request: jax.Array
) -> Int[Array, ""]:
    """Requests that the request's gateway has turned away; `num_rejected` counts all, the latest one included."""
    every = lax.iota(jnp.int32, ctx.shape.num_requests)
    mine, lane = gateway_of(ctx, request), lane_of(ctx, state)
    is_mine = (place_of(state, every) == REJECTED) & (gateway_of(ctx, every) == mine)
    is_latest = gateway_of(ctx, lane.next_admit) == mine
    latest = jnp.where(is_latest, num_rejected - lane.num_rejected, 0)
    return jnp.sum(is_mine, dtype=jnp.int32) + latest


def index_column(ctx: Context, request: jax.Array, instance: jax.Array) -> jax.Array:
    """Where the index of the request's gateway keeps an instance."""
    if ctx.mechanism.num_indices == 1:
        return instance
    return gateway_of(ctx, request) * jnp.int32(ctx.shape.num_instances) + instance


def own_columns(ctx: Context, table: jax.Array, request: jax.Array) -> jax.Array:
    """What the index of the request's gateway holds, `[..., instance]`."""
    if ctx.mechanism.num_indices == 1:
        return table
    rows = ctx.shape.num_instances
    first = gateway_of(ctx, request) * jnp.int32(rows)
    return lax.dynamic_slice_in_dim(table, first, rows, axis=table.ndim - 1)

"""What the index that the caches feed forgets where requests move: cold instances, and strangers' private blocks.

An instance that loses its cache leaves the index at once, with all that it has told and nobody has heard. A request
that comes back to an instance finds none of its own blocks there; the cache tells of that as of a removal.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
from jax import lax

from blis_jax.core.block_counts import full_blocks
from blis_jax.engine.context import Context
from blis_jax.engine.phases.router_view.late_news import NewsKind, told, with_news
from blis_jax.engine.phases.router_view.router_index import own_blocks_there, own_row
from blis_jax.engine.state import nodes_of
from blis_jax.engine.tables.router import LateNews, RouterIndex

if TYPE_CHECKING:
    from jaxtyping import Array, Bool


def cleared(ctx: Context, router: RouterIndex, is_it: Bool[Array, "instance"]) -> RouterIndex:
    """The index in which these instances hold nothing."""
    columns = jnp.tile(is_it, ctx.mechanism.num_indices)
    own, late = router.own, router.late
    if own is not None:
        by_instance = own.reshape(-1, ctx.shape.num_instances)
        own = jnp.where(is_it[None, :], 0, by_instance).reshape(-1)
    if late is not None:
        late = dataclasses.replace(late, void=jnp.where(is_it, late.num_told, late.void))
    return dataclasses.replace(
        router,
        touched=jnp.where(columns[None, :], 0, router.touched),
        num_blocks=jnp.where(columns, 0, router.num_blocks),
        own=own,
        late=late,
    )


def is_void(late: LateNews, number: jax.Array, instance: jax.Array) -> jax.Array:
    """Whether a message was told before its instance lost its cache."""
    return jnp.array(False) if late.void is None else number < late.void[instance]


def forget(
    ctx: Context,
    router: RouterIndex,
    request: jax.Array,
    instance: jax.Array,
    is_on: Bool[Array, ""],
    now: jax.Array,
) -> RouterIndex:
    """The index once it is told, if `is_on`, that a request has no block of its own on the instance any more."""
    if router.own is None:
        return router
    if router.late is None:
        return without_own(ctx, router, request, instance, is_on)
    kind = jnp.int32(NewsKind.FORGETTING)
    message = told(router.late, now, instance, request, kind, is_on=is_on)
    return dataclasses.replace(router, late=with_news(router.late, message))


def without_own(
    ctx: Context,
    router: RouterIndex,
    request: jax.Array,
    instance: jax.Array,
    is_on: Bool[Array, ""],
) -> RouterIndex:
    """The index, nothing of which is beyond its capacity, without private blocks of the request there if `is_on`."""
    nodes, rows = nodes_of(ctx.requests, request), ctx.shape.num_instances
    num_blocks = full_blocks(ctx.request(request).input_len, ctx.shape.block_size)
    count = own_blocks_there(ctx, router, request, nodes, num_blocks, instance)
    is_it = (lax.iota(jnp.int32, rows) == instance) & is_on
    spare = jnp.int32(ctx.shape.num_requests)
    at = own_row(ctx, jnp.where(is_on, request, spare), jnp.where(is_on, instance, 0))
    return dataclasses.replace(
        router,
        num_blocks=router.num_blocks - jnp.where(is_it, count, 0),
        own=lax.dynamic_update_slice(router.own, jnp.zeros((1,), jnp.int32), (at,)),
    )
